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
    FlowKey,
    Group,
    Match,
    Move,
    Output,
    SetField,
    Tables,
    ToGroup,
)

_PRIORITIES = {number: frozenset(p for row in spec.rows for p in row.priorities) for number, spec in BY_NUMBER.items()}
_WRITABLE = {number: sum(f.mask for f in spec.writes) for number, spec in BY_NUMBER.items()}
_METADATA_MASKS = tuple(f.mask for f in METADATA)
_ENDS = frozenset({"controller", "in_port", "output", "group"})  # kinds of actions that send the packet away


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


def verify_contract(tables: Tables, verified: Tables | None = None) -> None:
    """Check one switch's tables.

    This is in the failover path: with ``verified``, tables of the same switch that passed before, only what is not the
    same object in them is looked at, and whether what is the same still finds what it refers to.

    Raises:
        ContractError: naming a rule or group that breaks the contract; the same verdict with and without ``verified``.
    """
    if verified is None or bool(verified.meters) != bool(tables.meters):
        verified = Tables()  # whether a packet-in needs a meter depends on there being any
    # Ids stay those of the verified objects while the caller holds them.
    old_flows, old_groups = set(map(id, verified.flows.values())), set(map(id, verified.groups.values()))
    for flow in tables.flows.values():
        if id(flow) not in old_flows and (problem := _flow_problem(flow, tables)):
            raise ContractError(f"{_place(flow)}: {problem}")
    changed = [group for group in tables.groups.values() if id(group) not in old_groups]
    for group in changed:
        if problem := _group_problem(group, tables):
            raise ContractError(f"group {group.group_id:#x}: {problem}")
    for meter in tables.meters:
        if not meter_is_ours(meter):
            raise ContractError(f"meter {meter:#x}: outside our range")
    _explained(tables)
    _drops(tables)
    _still_there(tables, verified)
    _acyclic(tables, changed)


def _place(flow: Flow) -> str:
    spec = BY_NUMBER.get(flow.table)
    return f"rule {flow.match} priority {flow.priority} in table {spec.name if spec else flow.table}"


def _flow_problem(flow: Flow, tables: Tables) -> str:
    """What is wrong with one rule, or nothing."""
    spec = BY_NUMBER.get(flow.table)
    if spec is None:
        return "no such table"
    if flow.priority not in _PRIORITIES[flow.table]:
        return "the table has no rules of that priority"
    if extra := [f.name for f in flow.match.fields if f.name not in spec.fields]:
        return f"matches {', '.join(sorted(extra))}"
    kinds = [action_kind(a) for a in flow.actions]
    if extra := [k for k in kinds if k not in spec.actions]:
        return f"does {', '.join(sorted(extra))}"
    if not flow_is_ours(flow.cookie):
        return f"cookie {flow.cookie:#x} is not ours"
    return _instruction_problem(flow, spec) or _order_problem(flow, kinds) or _reference_problem(flow, kinds, tables)


def _instruction_problem(flow: Flow, spec: TableSpec) -> str:
    if flow.goto is not None and flow.goto not in spec.next:
        return f"goes to table {flow.goto}"
    if flow.metadata is not None:
        value, mask = flow.metadata
        if mask & ~_WRITABLE[flow.table] or value & ~mask or not mask:
            return f"writes metadata {value:#x}/{mask:#x}"
        if flow.goto is None:
            return "writes metadata that nobody reads"
        if flow.goto == SPREAD and not value:
            return "goes to SPREAD without a next-hop set"
    matched = flow.match.get("metadata")
    if matched is not None:
        mask = matched.mask or 0  # the whole of it is never matched: a rule knows one or two fields
        if not mask or any(mask & whole not in (0, whole) for whole in _METADATA_MASKS):
            return "matches a part of a metadata field"
    return ""


def _order_problem(flow: Flow, kinds: list[str]) -> str:
    ends = [k for k in kinds if k in _ENDS]
    if len(ends) > 1 or (ends and (kinds[-1] != ends[0] or flow.goto is not None)):
        return "sends a packet and then does more with it"
    return ""


def _reference_problem(flow: Flow, kinds: list[str], tables: Tables) -> str:
    for action in flow.actions:
        if isinstance(action, ToGroup) and action.group_id not in tables.groups:
            return f"group {action.group_id:#x} does not exist"
        if isinstance(action, Move) and action.src == action.dst:
            return f"moves {action.src} to itself"
    if flow.meter is not None and flow.meter not in tables.meters:
        return f"meter {flow.meter:#x} does not exist"
    if flow.meter is None and tables.meters and "controller" in kinds:
        return "sends to the controller without a meter"
    return ""


def _group_problem(group: Group, tables: Tables) -> str:
    """What is wrong with one group, or nothing."""
    if not group_is_ours(group.group_id):
        return "outside our range"
    if not group.buckets or (group.type == INDIRECT and len(group.buckets) != 1):
        return f"{len(group.buckets)} buckets"
    for bucket in group.buckets:
        watched = bucket.watch_group
        if watched != GROUP_ANY and watched not in tables.groups:
            return f"refers to group {watched:#x}, which does not exist"
        watches = (bucket.watch_port != PORT_ANY) + (bucket.watch_group != GROUP_ANY)
        if group.type in (SELECT, FAST_FAILOVER) and watches != 1:
            return f"a bucket must watch one thing, not {watches}"
        if (group.type == SELECT) != (bucket.weight > 0):
            return f"weight {bucket.weight} in a group of type {group.type}"
        if not bucket.actions:
            return "an empty bucket drops a share of the traffic"
        for action in bucket.actions:
            if isinstance(action, ToGroup) and action.group_id not in tables.groups:
                return f"refers to group {action.group_id:#x}, which does not exist"
            if isinstance(action, Output) and action.port != PORT_IN_PORT and bucket.watch_port != action.port:
                return f"sends to port {action.port} without watching it"
    return ""


def _explained(tables: Tables) -> None:
    # A rule and its reason are filed under one key object; hashing each match again would cost more than all the rest.
    filed = set(map(id, tables.why))
    for key, flow in tables.flows.items():
        if id(key) not in filed and key not in tables.why:
            raise ContractError(f"{_place(flow)}: nobody says why it exists")
    for group_id in tables.groups.keys() - tables.group_why.keys():
        raise ContractError(f"group {group_id:#x}: nobody says why it exists")


def _drops(tables: Tables) -> None:
    for number, spec in BY_NUMBER.items():
        drop = tables.flows.get(FlowKey(number, 0, Match()))
        if drop is None and any(flow.table == number for flow in tables.flows.values()):
            raise ContractError(f"table {spec.name} has no counted drop")


def _still_there(tables: Tables, verified: Tables) -> None:
    """Groups and meters that went away are named by nobody who stayed."""
    groups, meters = verified.groups.keys() - tables.groups.keys(), verified.meters.keys() - tables.meters.keys()
    if not groups and not meters:
        return
    for flow in tables.flows.values():
        if flow.meter is not None and flow.meter in meters:
            raise ContractError(f"{_place(flow)}: meter {flow.meter:#x} does not exist")
        for action in flow.actions:
            if isinstance(action, ToGroup) and action.group_id in groups:
                raise ContractError(f"{_place(flow)}: group {action.group_id:#x} does not exist")
    for group in tables.groups.values():
        for below in groups.intersection(group.references()):
            raise ContractError(f"group {group.group_id:#x}: refers to group {below:#x}, which does not exist")


def _acyclic(tables: Tables, changed: Iterable[Group]) -> None:
    """A circle that was not there before goes through a group that changed."""
    done: set[int] = set()

    def visit(group_id: int, trail: tuple[int, ...]) -> None:
        if group_id in trail:
            raise ContractError(f"group {group_id:#x} refers to itself")
        if group_id not in done:
            for below in tables.groups[group_id].references():
                visit(below, (*trail, group_id))
            done.add(group_id)

    for group in changed:
        visit(group.group_id, ())


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
