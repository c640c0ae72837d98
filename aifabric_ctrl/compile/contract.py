"""Holds compiled tables to the pipeline's contract (``tables.py``) and to what OpenFlow switches accept.

Run before anything is sent; it must not share code with the sections that make the rules.
"""

from __future__ import annotations

from collections.abc import Iterable

from aifabric_ctrl.compile.tables import BY_NUMBER, METADATA, SPREAD, TableSpec
from aifabric_ctrl.model.errors import ContractError
from aifabric_ctrl.model.ids import GROUP_ANY, PORT_ANY, PORT_CONTROLLER, PORT_IN_PORT, is_physical
from aifabric_ctrl.model.ownership import flow_is_ours, group_is_ours, meter_is_ours
from aifabric_ctrl.model.rules import (
    FAST_FAILOVER,
    INDIRECT,
    SELECT,
    Action,
    DecTtl,
    Flow,
    Group,
    Match,
    Move,
    Output,
    SetField,
    Tables,
    ToGroup,
)


def action_kind(action: Action) -> str:
    """The name a table's contract uses: output, in_port, controller, group, dec_ttl, move, or set:FIELD."""
    if isinstance(action, Output):
        if action.port == PORT_CONTROLLER:
            return "controller"
        if action.port == PORT_IN_PORT:
            return "in_port"
        return "output" if is_physical(action.port) else f"output to reserved port {action.port:#x}"
    if isinstance(action, SetField):
        return f"set:{action.field}"
    kinds: dict[type, str] = {ToGroup: "group", DecTtl: "dec_ttl", Move: "move"}
    return kinds.get(type(action), type(action).__name__)


def verify_contract(tables: Tables) -> None:
    """Check one switch's tables.

    Raises:
        ContractError: naming the first rule or group that breaks the contract.
    """
    numbers = set()
    for flow in tables.flows.values():
        numbers.add(flow.table)
        _flow(flow, tables)
    for spec in BY_NUMBER.values():
        if spec.number in numbers and not any(
            f.table == spec.number and f.priority == 0 and not f.match.fields for f in tables.flows.values()
        ):
            raise ContractError(f"table {spec.name} has no counted drop")
    for group in tables.groups.values():
        _group(group, tables)
    _acyclic(tables)


def _flow(flow: Flow, tables: Tables) -> None:
    spec = BY_NUMBER.get(flow.table)
    where = f"rule {flow.match} priority {flow.priority} in table {spec.name if spec else flow.table}"
    if spec is None:
        raise ContractError(f"{where}: no such table")
    if flow.priority not in {row.priority for row in spec.rows}:
        raise ContractError(f"{where}: the table has no rules of that priority")
    if extra := {f.name for f in flow.match.fields} - spec.fields:
        raise ContractError(f"{where}: matches {', '.join(sorted(extra))}")
    if extra := {action_kind(a) for a in flow.actions} - spec.actions:
        raise ContractError(f"{where}: does {', '.join(sorted(extra))}")
    if not flow_is_ours(flow.cookie):
        raise ContractError(f"{where}: cookie {flow.cookie:#x} is not ours")
    if flow.key not in tables.why:
        raise ContractError(f"{where}: nobody says why it exists")
    _instructions(flow, spec, where)
    _references(flow, tables, where)


def _instructions(flow: Flow, spec: TableSpec, where: str) -> None:
    if flow.goto is not None and flow.goto not in spec.next:
        raise ContractError(f"{where}: goes to table {flow.goto}")
    if flow.metadata is not None:
        value, mask = flow.metadata
        allowed = sum(f.mask for f in spec.writes)
        if mask & ~allowed or value & ~mask or not mask:
            raise ContractError(f"{where}: writes metadata {value:#x}/{mask:#x}")
        if flow.goto is None:
            raise ContractError(f"{where}: writes metadata that nobody reads")
        if flow.goto == SPREAD and not value:
            raise ContractError(f"{where}: goes to SPREAD without a next-hop set")
    matched = flow.match.get("metadata")
    if matched is not None:
        fields = sum(f.mask for f in METADATA if (matched.mask or 0) & f.mask)
        if matched.mask != fields:
            raise ContractError(f"{where}: matches a part of a metadata field")
    kinds = [action_kind(a) for a in flow.actions]
    ends = [k for k in kinds if k in ("controller", "in_port", "output", "group")]
    if len(ends) > 1 or (ends and (kinds[-1] != ends[0] or flow.goto is not None)):
        raise ContractError(f"{where}: sends a packet and then does more with it")


def _references(flow: Flow, tables: Tables, where: str) -> None:
    for action in flow.actions:
        if isinstance(action, ToGroup) and action.group_id not in tables.groups:
            raise ContractError(f"{where}: group {action.group_id:#x} does not exist")
        if isinstance(action, Move) and action.src == action.dst:
            raise ContractError(f"{where}: moves {action.src} to itself")
    if flow.meter is not None and flow.meter not in tables.meters:
        raise ContractError(f"{where}: meter {flow.meter:#x} does not exist")
    if flow.meter is None and tables.meters and any(action_kind(a) == "controller" for a in flow.actions):
        raise ContractError(f"{where}: sends to the controller without a meter")


def _group(group: Group, tables: Tables) -> None:
    where = f"group {group.group_id:#x}"
    if not group_is_ours(group.group_id):
        raise ContractError(f"{where}: outside our range")
    if group.group_id not in tables.group_why:
        raise ContractError(f"{where}: nobody says why it exists")
    if not group.buckets or (group.type == INDIRECT and len(group.buckets) != 1):
        raise ContractError(f"{where}: {len(group.buckets)} buckets")
    for missing in set(group.references()) - set(tables.groups):
        raise ContractError(f"{where}: refers to group {missing:#x}, which does not exist")
    for bucket in group.buckets:
        watches = (bucket.watch_port != PORT_ANY) + (bucket.watch_group != GROUP_ANY)
        if group.type in (SELECT, FAST_FAILOVER) and watches != 1:
            raise ContractError(f"{where}: a bucket must watch one thing, not {watches}")
        if (group.type == SELECT) != (bucket.weight > 0):
            raise ContractError(f"{where}: weight {bucket.weight} in a group of type {group.type}")
        if not bucket.actions:
            raise ContractError(f"{where}: an empty bucket drops a share of the traffic")
        for action in bucket.actions:
            if isinstance(action, Output) and action.port != PORT_IN_PORT and bucket.watch_port != action.port:
                raise ContractError(f"{where}: sends to port {action.port} without watching it")
    for meter in tables.meters:
        if not meter_is_ours(meter):
            raise ContractError(f"meter {meter:#x}: outside our range")


def _acyclic(tables: Tables) -> None:
    done: set[int] = set()

    def visit(group_id: int, trail: tuple[int, ...]) -> None:
        if group_id in trail:
            raise ContractError(f"group {group_id:#x} refers to itself")
        if group_id not in done:
            for below in tables.groups[group_id].references():
                visit(below, (*trail, group_id))
            done.add(group_id)

    for group_id in tables.groups:
        visit(group_id, ())


def overlapping(flows: Iterable[Flow]) -> tuple[Flow, Flow] | None:
    """Two rules of one table and priority that one packet could match; which of them wins is undefined.

    Quadratic: for tests and for checking a policy offline.
    """
    seen: dict[tuple[int, int], list[Flow]] = {}
    for flow in flows:
        rivals = seen.setdefault((flow.table, flow.priority), [])
        for rival in rivals:
            if _both(flow.match, rival.match):
                return rival, flow
        rivals.append(flow)
    return None


def _both(one: Match, other: Match) -> bool:
    for mine in one.fields:
        theirs = other.get(mine.name)
        if theirs is None:
            continue
        common = (-1 if mine.mask is None else mine.mask) & (-1 if theirs.mask is None else theirs.mask)
        if (mine.value ^ theirs.value) & common:
            return False
    return True
