"""The strict tables refuse what a switch refuses, by the same names, and change nothing then."""

from __future__ import annotations

import random

import pytest

from aifabric_ctrl.model.effects import Change
from aifabric_ctrl.model.ids import GROUP_ANY, PORT_ANY, PORT_CONTROLLER, PORT_FLOOD, PORT_IN_PORT, PORT_NORMAL
from aifabric_ctrl.model.rules import (
    ALL,
    FAST_FAILOVER,
    INDIRECT,
    SELECT,
    Action,
    Bucket,
    Flow,
    Group,
    Match,
    MatchField,
    Meter,
    Move,
    Output,
    SetField,
    ToGroup,
)
from aifabric_ctrl.sim.tables import Limits, SwitchTables


def switch(**limits: int) -> SwitchTables:
    return SwitchTables({1, 2, 3}, Limits(**limits))  # type: ignore[arg-type]


def put(item: Flow | Group | Meter, exists: bool = False) -> Change:
    return Change("put", item, exists)


def delete(item: Flow | Group | Meter) -> Change:
    return Change("delete", item)


def flow(*actions: Action, match: Match | None = None, table: int = 0, **rest: object) -> Flow:
    return Flow(table, 10, match or Match.of(), actions=actions, **rest)  # type: ignore[arg-type]


def group(group_id: int, *buckets: Bucket, kind: str = SELECT) -> Group:
    return Group(group_id, kind, buckets)


def out(port: int, weight: int = 1, watch_port: int = PORT_ANY, watch_group: int = GROUP_ANY) -> Bucket:
    return Bucket((Output(port),), weight, watch_port, watch_group)


IP, UDP, ARP = Match.of(eth_type=0x800), Match.of(eth_type=0x800, ip_proto=17), Match.of(eth_type=0x806)
SOLICIT = Match.of(eth_type=0x86DD, ip_proto=58, icmpv6_type=135)

REFUSED_FLOWS = {
    "unknown group": (flow(ToGroup(9)), "BAD_ACTION/BAD_OUT_GROUP"),
    "unknown port": (flow(Output(77)), "BAD_ACTION/BAD_OUT_PORT"),
    "port 0": (flow(Output(0)), "BAD_ACTION/BAD_OUT_PORT"),
    "flood": (flow(Output(PORT_FLOOD)), "BAD_ACTION/BAD_OUT_PORT"),
    "normal": (flow(Output(PORT_NORMAL)), "BAD_ACTION/BAD_OUT_PORT"),
    "unknown meter": (flow(Output(1), meter=5), "METER_MOD_FAILED/INVALID_METER"),
    "goto itself": (flow(goto=0), "BAD_INSTRUCTION/BAD_TABLE_ID"),
    "goto backwards": (flow(table=20, goto=10), "BAD_INSTRUCTION/BAD_TABLE_ID"),
    "goto beyond the last": (flow(goto=254), "BAD_INSTRUCTION/BAD_TABLE_ID"),
    "table beyond the last": (flow(Output(1), table=254), "FLOW_MOD_FAILED/BAD_TABLE_ID"),
    "set without prerequisite": (flow(SetField("udp_dst", 1), match=IP), "BAD_ACTION/MATCH_INCONSISTENT"),
    "move without prerequisite": (flow(Move("arp_spa", "reg0", 32), match=IP), "BAD_ACTION/MATCH_INCONSISTENT"),
    "nd_tll in one table": (
        flow(SetField("icmpv6_type", 136), SetField("nd_tll", 1), match=SOLICIT),
        "BAD_ACTION/MATCH_INCONSISTENT",
    ),
    "value too wide": (flow(SetField("ip_dscp", 64), match=IP), "BAD_ACTION/BAD_SET_ARGUMENT"),
    "unknown field": (flow(SetField("colour", 1)), "BAD_ACTION/BAD_SET_TYPE"),
    "match without prerequisite": (flow(match=Match((MatchField("ipv4_dst", 1, None),))), "BAD_MATCH/BAD_PREREQ"),
    "host bits": (flow(match=Match((MatchField("eth_dst", 3, 2),))), "BAD_MATCH/BAD_WILDCARDS"),
    "mask where none is allowed": (flow(match=Match((MatchField("in_port", 0, 2),))), "BAD_MATCH/BAD_MASK"),
}


@pytest.mark.parametrize("name", REFUSED_FLOWS)
def test_flows_refused(name: str) -> None:
    bad, error = REFUSED_FLOWS[name]
    tables = switch()
    assert tables.apply(put(bad)) == error
    assert not tables.flows


ACCEPTED_FLOWS = [
    flow(Output(1), Output(PORT_CONTROLLER), Output(PORT_IN_PORT)),
    flow(SetField("udp_dst", 1), SetField("ip_dscp", 63), match=UDP),
    flow(Move("arp_spa", "reg0", 32), match=ARP),
    flow(SetField("reg0", 1), SetField("metadata", 1), goto=253),
    flow(SetField("nd_options_type", 2), SetField("nd_reserved", 1), SetField("icmpv6_type", 136), match=SOLICIT),
]


@pytest.mark.parametrize("good", ACCEPTED_FLOWS, ids=str)
def test_flows_taken(good: Flow) -> None:
    tables = switch()
    assert tables.apply(put(good)) is None
    assert tables.flows == {good.key: good} and not tables.violations


def test_a_lax_switch_takes_unknown_ports() -> None:
    lax = SwitchTables({1}, Limits(strict_ports=False))
    assert lax.apply(put(flow(Output(77)))) is None


REFUSED_GROUPS = {
    "ff without watch": (group(1, out(1, 0), kind=FAST_FAILOVER), "INVALID_GROUP"),
    "ff watching port 0": (group(1, out(1, 0, watch_port=0), kind=FAST_FAILOVER), "BAD_WATCH"),
    "ff watching a port it has not": (group(1, out(1, 0, watch_port=9), kind=FAST_FAILOVER), "BAD_WATCH"),
    "select watching a port it has not": (group(1, out(1, 1, watch_port=9)), "BAD_WATCH"),
    "watching an unknown group": (group(1, out(1, 1, watch_group=7)), "BAD_WATCH"),
    "ff with weight": (group(1, out(1, 1, watch_port=1), kind=FAST_FAILOVER), "INVALID_GROUP"),
    "select without weight": (group(1, out(1, 0)), "INVALID_GROUP"),
    "indirect with two buckets": (group(1, out(1, 0), out(2, 0), kind=INDIRECT), "INVALID_GROUP"),
    "reserved id": (group(0xFFFFFF01, out(1)), "INVALID_GROUP"),
    "unknown type": (group(1, out(1), kind="some"), "BAD_TYPE"),
    "itself": (group(1, Bucket((ToGroup(1),), 1)), "LOOP"),
    "watching itself": (group(1, out(1, 1, watch_group=1)), "LOOP"),
}


@pytest.mark.parametrize("name", REFUSED_GROUPS)
def test_groups_refused(name: str) -> None:
    bad, code = REFUSED_GROUPS[name]
    tables = switch()
    assert tables.apply(put(bad)) == f"GROUP_MOD_FAILED/{code}"
    assert not tables.groups


def test_bucket_actions_are_checked() -> None:
    assert switch().apply(put(group(1, Bucket((ToGroup(9),), 1)))) == "BAD_ACTION/BAD_OUT_GROUP"
    assert switch().apply(put(group(1, out(9)))) == "BAD_ACTION/BAD_OUT_PORT"


def test_group_add_and_modify_are_not_the_same() -> None:
    tables = switch()
    assert tables.apply(put(group(1, out(1)), exists=True)) == "GROUP_MOD_FAILED/UNKNOWN_GROUP"
    assert tables.apply(put(group(1, out(1)))) is None
    assert tables.apply(put(group(1, out(2)))) == "GROUP_MOD_FAILED/GROUP_EXISTS"
    assert tables.apply(put(group(1, out(2)), exists=True)) is None
    assert tables.groups[1] == group(1, out(2))


def test_a_longer_loop_is_refused() -> None:
    tables = switch()
    chain = [group(1, out(1)), group(2, Bucket((ToGroup(1),), 1)), group(3, Bucket((ToGroup(2),), 1))]
    assert tables.apply_all(map(put, chain)) == []
    assert tables.apply(put(group(1, Bucket((ToGroup(3),), 1)), exists=True)) == "GROUP_MOD_FAILED/LOOP"
    assert tables.groups[1] == chain[0]


def test_limits() -> None:
    tables = switch(flows=1, groups=1, meters=0)
    assert tables.apply(put(flow(Output(1)))) is None
    assert tables.apply(put(flow(Output(2)))) is None, "replacing needs no room"
    assert tables.apply(put(flow(Output(1), match=IP))) == "FLOW_MOD_FAILED/TABLE_FULL"
    assert tables.apply(put(flow(Output(1), table=1))) is None, "each table has its own room"
    assert tables.apply(put(group(1, out(1)))) is None
    assert tables.apply(put(group(2, out(1)))) == "GROUP_MOD_FAILED/OUT_OF_GROUPS"
    assert tables.apply(put(Meter(1, 10, 1))) == "METER_MOD_FAILED/OUT_OF_METERS"


def test_meters() -> None:
    tables = switch()
    assert tables.apply(put(Meter(1, 10, 1), exists=True)) == "METER_MOD_FAILED/UNKNOWN_METER"
    assert tables.apply(put(Meter(1, 10, 1))) is None
    assert tables.apply(put(Meter(1, 20, 1))) == "METER_MOD_FAILED/METER_EXISTS"
    assert tables.apply(put(Meter(1, 20, 1), exists=True)) is None
    assert tables.meters == {1: Meter(1, 20, 1)}


def test_deleting_what_is_in_use_dangles() -> None:
    tables = switch()
    user = flow(ToGroup(1), meter=1)
    assert tables.apply_all([put(Meter(1, 10, 1)), put(group(1, out(1))), put(user), delete(group(1, out(1)))]) == []
    assert not tables.flows and len(tables.violations) == 1 and tables.violations[0].startswith("dangling: group 0x1")
    tables = switch()
    tables.apply_all([put(Meter(1, 10, 1)), put(flow(Output(1), meter=1)), delete(Meter(1, 10, 1))])
    assert not tables.flows and tables.violations[0].startswith("dangling: meter 1")
    tables = switch()
    tables.apply_all([put(group(1, out(1))), put(group(2, Bucket((ToGroup(1),), 1))), delete(group(1, out(1)))])
    assert tables.violations == ["dangling: group 0x1 deleted under group 0x2"]


def test_needless_messages_are_violations() -> None:
    tables = switch()
    tables.apply_all([delete(flow()), delete(group(1)), delete(Meter(1, 1, 1))])
    assert [v.split(":")[0] for v in tables.violations] == [
        "delete that matches no flow",
        "delete of unknown group 0x1",
        "delete of unknown meter 1",
    ]
    tables = switch()
    tables.apply_all([put(flow(Output(1))), put(flow(Output(1))), put(group(1, out(1))), put(group(1, out(1)), True)])
    assert [v.split(" of")[0] for v in tables.violations] == ["duplicate add", "duplicate modify"]
    tables = switch()
    tables.apply_all([put(flow(Output(1))), put(flow(Output(2))), put(flow(Output(2), cookie=9))])
    assert tables.violations == [], "a changed action or cookie is no duplicate"


def test_bundle_is_all_or_nothing() -> None:
    tables = switch()
    tables.apply(put(group(1, out(1))))
    before = (dict(tables.flows), dict(tables.groups))
    bad = put(flow(ToGroup(9)))
    refused = tables.apply_bundle([put(group(2, out(2))), put(flow(ToGroup(2), match=IP)), delete(group(7)), bad])
    assert refused == [(bad, "BAD_ACTION/BAD_OUT_GROUP")]
    assert (tables.flows, tables.groups, tables.violations) == (*before, [])
    assert tables.apply_bundle([put(group(2, out(2))), put(flow(ToGroup(2), match=IP))]) == []
    assert set(tables.groups) == {1, 2} and len(tables.flows) == 1


def test_meters_do_not_go_into_bundles() -> None:
    tables = switch()
    meter = put(Meter(1, 1, 1))
    assert tables.apply_bundle([put(group(1, out(1))), meter]) == [(meter, "BUNDLE/MSG_UNSUP")]
    assert not tables.groups


def test_without_barriers_order_is_not_kept() -> None:
    """A flow and its group between two barriers: some seed must apply the flow first."""
    changes = [put(group(1, out(1))), put(flow(ToGroup(1)))]
    errors = {e for seed in range(20) for _, e in switch().apply_all(changes, random.Random(seed))}
    assert errors == {"BAD_ACTION/BAD_OUT_GROUP"}
    assert switch().apply_all(changes) == []
    assert any(not switch().apply_all(changes, random.Random(seed)) for seed in range(20))


def test_injected_refusals() -> None:
    tables = switch()
    tables.inject = lambda c: "FLOW_MOD_FAILED/EPERM" if isinstance(c.object, Flow) else None
    assert tables.apply(put(flow(Output(1)))) == "FLOW_MOD_FAILED/EPERM"
    assert tables.apply(put(group(1, out(1), kind=SELECT))) is None


def test_snapshots_are_values() -> None:
    tables = switch()
    tables.apply(put(flow(Output(1))))
    before = tables.snapshot()
    assert tables.snapshot() is before
    tables.apply(put(group(1, out(1, 0), kind=ALL)))
    assert not before.groups and set(tables.snapshot().groups) == {1}
    tables.clear()
    assert not tables.snapshot().flows
