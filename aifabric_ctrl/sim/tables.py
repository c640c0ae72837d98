"""The tables of one strict fake switch: what a change does to them, what is refused and under which error name.

Pure.  Errors are those of OpenFlow 1.3.5 (section 7.4.4) as Open vSwitch 3.1 gives them; where OVS lets something
pass that a hardware switch may refuse (a port it does not have, a weight in a fast-failover group), this refuses.
What a switch carries out although it can only be a mistake is kept in ``violations``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from aifabric_ctrl.model import ids
from aifabric_ctrl.model.effects import Change
from aifabric_ctrl.model.errors import ContractError
from aifabric_ctrl.model.fields import FIELDS
from aifabric_ctrl.model.ids import PortNo
from aifabric_ctrl.model.rules import (
    ALL,
    FAST_FAILOVER,
    INDIRECT,
    SELECT,
    Action,
    Bucket,
    Flow,
    FlowKey,
    Group,
    Match,
    Meter,
    Move,
    Output,
    SetField,
    Tables,
    ToGroup,
)

Refused = tuple[Change, str]  # the change and the error, "TYPE/CODE"

_SENDABLE_RESERVED = frozenset({ids.PORT_IN_PORT, ids.PORT_CONTROLLER, ids.PORT_LOCAL})


class Refusal(Exception):
    """Inside this module: the switch answers with this error."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error = error


@dataclass(frozen=True, slots=True)
class Limits:
    """What the switch has room for."""

    tables: int = 254
    flows: int = 1_000_000
    groups: int = 0xFFFFFF00
    meters: int = 1 << 18
    strict_ports: bool = True  # output to a port it does not have is refused (OVS itself lets it pass)


@dataclass
class SwitchTables:
    """Flows, groups and meters of one switch, changed only by :meth:`apply` and its kin."""

    ports: set[PortNo] = field(default_factory=set)
    limits: Limits = Limits()
    flows: dict[FlowKey, Flow] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    meters: dict[int, Meter] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    inject: Callable[[Change], str | None] | None = None  # a test's own refusals: the error, or None to go on
    changes: int = 0
    _snapshot: Tables | None = None

    def snapshot(self) -> Tables:
        """The tables as they are now, as a value that later changes leave alone."""
        if self._snapshot is None:
            self._snapshot = Tables(dict(self.flows), dict(self.groups), dict(self.meters))
        return self._snapshot

    def clear(self) -> None:
        """Lose everything, as a switch that restarts does."""
        self.flows.clear()
        self.groups.clear()
        self.meters.clear()
        self._snapshot = None

    def apply(self, change: Change) -> str | None:
        """Carry out one change; the error text when it is refused (then nothing has changed)."""
        self._snapshot = None
        self.changes += 1
        error = self.inject(change) if self.inject is not None else None
        if error is not None:
            return error
        put = change.op == "put"
        try:
            match change.object:
                case Flow() as flow:
                    self._put_flow(flow) if put else self._delete_flow(flow)
                case Group() as group:
                    self._put_group(group, change.exists) if put else self._delete_group(group)
                case Meter() as meter:
                    self._put_meter(meter, change.exists) if put else self._delete_meter(meter)
        except Refusal as refusal:
            return refusal.error
        return None

    def apply_all(self, changes: Iterable[Change], rng: random.Random | None = None) -> list[Refused]:
        """Carry out what lies between two barriers: in order, or in any order (``rng``), as OpenFlow allows a switch."""
        todo = list(changes)
        if rng is not None:
            rng.shuffle(todo)
        refused = [(change, self.apply(change)) for change in todo]
        return [(change, error) for change, error in refused if error is not None]

    def apply_bundle(self, changes: Sequence[Change]) -> list[Refused]:
        """Commit changes in order, all or none; the first one refused, or nothing.

        A meter in a bundle is refused when it is added to it, as OVS does.
        """
        for change in changes:
            if isinstance(change.object, Meter):
                return [(change, "BUNDLE/MSG_UNSUP")]
        undo = self.checkpoint()
        for change in changes:
            error = self.apply(change)
            if error is not None:
                undo()
                return [(change, error)]
        return []

    def checkpoint(self) -> Callable[[], None]:
        """Remember the tables as they are; call the result to have them back."""
        flows, groups, meters, said = dict(self.flows), dict(self.groups), dict(self.meters), len(self.violations)

        def undo() -> None:
            self.flows, self.groups, self.meters = flows, groups, meters
            del self.violations[said:]
            self._snapshot = None

        return undo

    # Flows

    def _put_flow(self, flow: Flow) -> None:
        if not 0 <= flow.table < self.limits.tables:
            raise Refusal("FLOW_MOD_FAILED/BAD_TABLE_ID")
        check_match(flow.match)
        if flow.goto is not None and not flow.table < flow.goto < self.limits.tables:
            raise Refusal("BAD_INSTRUCTION/BAD_TABLE_ID")
        if flow.meter is not None and flow.meter not in self.meters:
            raise Refusal("METER_MOD_FAILED/INVALID_METER")
        self._check_actions(flow.actions, flow.match)
        old = self.flows.get(flow.key)
        if old is None and self._table_full(flow.table):
            raise Refusal("FLOW_MOD_FAILED/TABLE_FULL")
        if old == flow:
            self.violations.append(f"duplicate add of a flow: {_flow_text(flow)}")
        self.flows[flow.key] = flow

    def _table_full(self, table: int) -> bool:
        limit = self.limits.flows
        return len(self.flows) >= limit and sum(1 for k in self.flows if k.table == table) >= limit

    def _delete_flow(self, flow: Flow) -> None:
        if self.flows.pop(flow.key, None) is None:
            self.violations.append(f"delete that matches no flow: {_flow_text(flow)}")

    def _check_actions(self, actions: Iterable[Action], match: Match | None) -> None:
        """``match`` is None in a bucket, whose packets are not known and whose fields OVS does not check."""
        for action in actions:
            match action:
                case Output(port=port):
                    self._check_port(port)
                case ToGroup(group_id=group_id):
                    if group_id not in self.groups:
                        raise Refusal("BAD_ACTION/BAD_OUT_GROUP")
                case SetField(field=name, value=value):
                    _check_target(name, match)
                    if not 0 <= value < 1 << FIELDS[name].bits:
                        raise Refusal("BAD_ACTION/BAD_SET_ARGUMENT")
                case Move(src=src, dst=dst):
                    _check_target(src, match)
                    _check_target(dst, match)
                case _:
                    pass

    def _check_port(self, port: PortNo) -> None:
        if port in _SENDABLE_RESERVED:
            return
        if not ids.is_physical(port) or (self.limits.strict_ports and port not in self.ports):
            raise Refusal("BAD_ACTION/BAD_OUT_PORT")

    # Groups

    def _put_group(self, group: Group, modify: bool) -> None:
        old = self.groups.get(group.group_id)
        if not 0 <= group.group_id <= ids.GROUP_MAX:
            raise Refusal("GROUP_MOD_FAILED/INVALID_GROUP")
        if modify and old is None:
            raise Refusal("GROUP_MOD_FAILED/UNKNOWN_GROUP")
        if not modify and old is not None:
            raise Refusal("GROUP_MOD_FAILED/GROUP_EXISTS")
        if not modify and len(self.groups) >= self.limits.groups:
            raise Refusal("GROUP_MOD_FAILED/OUT_OF_GROUPS")
        check_group_shape(group)
        for bucket in group.buckets:
            self._check_bucket(group, bucket)
        self._check_loop(group)
        if old == group:
            self.violations.append(f"duplicate modify of group {group.group_id:#x}")
        self.groups[group.group_id] = group

    def _check_bucket(self, group: Group, bucket: Bucket) -> None:
        if bucket.watch_port != ids.PORT_ANY and (not ids.is_physical(bucket.watch_port) or bucket.watch_port not in self.ports):
            raise Refusal("GROUP_MOD_FAILED/BAD_WATCH")
        watched = bucket.watch_group
        if watched != ids.GROUP_ANY and watched != group.group_id and watched not in self.groups:
            raise Refusal("GROUP_MOD_FAILED/BAD_WATCH")
        if any(isinstance(a, ToGroup) and a.group_id == group.group_id for a in bucket.actions):
            raise Refusal("GROUP_MOD_FAILED/LOOP")
        self._check_actions(bucket.actions, None)

    def _check_loop(self, group: Group) -> None:
        seen: set[int] = set()
        waiting = list(group.references())
        while waiting:
            below = waiting.pop()
            if below == group.group_id:
                raise Refusal("GROUP_MOD_FAILED/LOOP")
            if below not in seen:
                seen.add(below)
                waiting.extend(self.groups[below].references() if below in self.groups else ())

    def _delete_group(self, group: Group) -> None:
        if self.groups.pop(group.group_id, None) is None:
            self.violations.append(f"delete of unknown group {group.group_id:#x}")
            return
        users = [f for f in self.flows.values() if ToGroup(group.group_id) in f.actions]
        for flow in users:  # OpenFlow 1.3.5, 6.5: they go with it
            del self.flows[flow.key]
            self.violations.append(f"dangling: group {group.group_id:#x} deleted under {_flow_text(flow)}")
        for other in self.groups.values():
            if group.group_id in other.references():
                self.violations.append(f"dangling: group {group.group_id:#x} deleted under group {other.group_id:#x}")

    # Meters

    def _put_meter(self, meter: Meter, modify: bool) -> None:
        old = self.meters.get(meter.meter_id)
        if modify and old is None:
            raise Refusal("METER_MOD_FAILED/UNKNOWN_METER")
        if not modify and old is not None:
            raise Refusal("METER_MOD_FAILED/METER_EXISTS")
        if not modify and len(self.meters) >= self.limits.meters:
            raise Refusal("METER_MOD_FAILED/OUT_OF_METERS")
        if not 0 < meter.meter_id <= 0xFFFF0000:
            raise Refusal("METER_MOD_FAILED/INVALID_METER")
        if meter.rate < 1:
            raise Refusal("METER_MOD_FAILED/BAD_RATE")
        if old == meter:
            self.violations.append(f"duplicate modify of meter {meter.meter_id}")
        self.meters[meter.meter_id] = meter

    def _delete_meter(self, meter: Meter) -> None:
        if self.meters.pop(meter.meter_id, None) is None:
            self.violations.append(f"delete of unknown meter {meter.meter_id}")
            return
        for flow in [f for f in self.flows.values() if f.meter == meter.meter_id]:
            del self.flows[flow.key]
            self.violations.append(f"dangling: meter {meter.meter_id} deleted under {_flow_text(flow)}")


def check_match(match: Match) -> None:
    """Raises Refusal for a match a switch would not take (values decoded from bytes are not checked before)."""
    for name, value, mask in match.fields:
        spec = FIELDS.get(name)
        if spec is None:
            raise Refusal("BAD_MATCH/BAD_FIELD")
        if not 0 <= value < 1 << spec.bits:
            raise Refusal("BAD_MATCH/BAD_VALUE")
        if mask is not None and not spec.maskable:
            raise Refusal("BAD_MATCH/BAD_MASK")
        if mask is not None and value & ~mask:
            raise Refusal("BAD_MATCH/BAD_WILDCARDS")  # OVS: a value bit outside the mask
        try:
            spec.check_prerequisites(match)
        except ContractError as error:
            raise Refusal("BAD_MATCH/BAD_PREREQ") from error
    if len({f.name for f in match.fields}) != len(match.fields):
        raise Refusal("BAD_MATCH/DUP_FIELD")


def _check_target(name: str, match: Match | None) -> None:
    spec = FIELDS.get(name)
    if spec is None:
        raise Refusal("BAD_ACTION/BAD_SET_TYPE")
    if match is None:
        return
    try:
        spec.check_prerequisites(match)
    except ContractError as error:
        raise Refusal("BAD_ACTION/MATCH_INCONSISTENT") from error


def check_group_shape(group: Group) -> None:
    """Raises Refusal for weights, watches and numbers of buckets that do not go with the group's type."""
    if group.type not in (SELECT, FAST_FAILOVER, INDIRECT, ALL):
        raise Refusal("GROUP_MOD_FAILED/BAD_TYPE")
    if group.type == INDIRECT and len(group.buckets) != 1:
        raise Refusal("GROUP_MOD_FAILED/INVALID_GROUP")
    for bucket in group.buckets:
        if (bucket.weight < 1) if group.type == SELECT else (bucket.weight != 0):
            raise Refusal("GROUP_MOD_FAILED/INVALID_GROUP")
        if group.type == FAST_FAILOVER and bucket.watch_port == ids.PORT_ANY and bucket.watch_group == ids.GROUP_ANY:
            raise Refusal("GROUP_MOD_FAILED/INVALID_GROUP")


def _flow_text(flow: Flow) -> str:
    return f"table {flow.table} priority {flow.priority} [{flow.match}]"
