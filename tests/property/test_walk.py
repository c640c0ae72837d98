"""The walker on hand-made leaf-spine rules: it must find what is delivered, every hole, every bounce and every loop."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aifabric_ctrl.model.errors import ContractError
from aifabric_ctrl.model.fabric import Link
from aifabric_ctrl.model.ids import PORT_IN_PORT, PortRef
from aifabric_ctrl.model.rules import (
    ALL,
    FAST_FAILOVER,
    INDIRECT,
    SELECT,
    Bucket,
    DecTtl,
    Flow,
    Group,
    Match,
    Output,
    Tables,
    ToGroup,
    flow_table,
)
from aifabric_ctrl.verify.executor import Packet, udp4
from aifabric_ctrl.verify.walk import Probe, Walker, check_pair, delivers_everywhere, failures, live_without, walk

HOST = 1  # every leaf's host port


def leaf_dpid(leaf: int) -> int:
    return 0x10 + leaf


def spine_dpid(spine: int) -> int:
    return 0x20 + spine


def uplink(spine: int) -> int:
    return 10 + spine


def address(leaf: int) -> int:
    return 0x0A000001 | leaf << 8


def cables(leaves: int, spines: int) -> list[Link]:
    return [
        Link(PortRef(leaf_dpid(n), uplink(s)), PortRef(spine_dpid(s), n))
        for n in range(1, leaves + 1)
        for s in range(1, spines + 1)
    ]


def leaf_tables(leaf: int, spines: int, repair_steps: int) -> Tables:
    ups = [uplink(s) for s in range(1, spines + 1)]
    groups = [Group(1, SELECT, tuple(Bucket((Output(p),), 1, p) for p in ups))]
    flows = [
        Flow(0, 100, Match.of(eth_type=0x800, ipv4_dst=address(leaf)), actions=(DecTtl(), Output(HOST))),
        Flow(0, 10, Match.of(eth_type=0x800), actions=(DecTtl(), ToGroup(1))),
    ]
    for place, port in enumerate(ups):
        others = ups[place + 1 :] + ups[:place]
        groups.append(Group(20 + port, FAST_FAILOVER, tuple(Bucket((Output(p),), 0, p) for p in others)))
        steps = (DecTtl(),) * repair_steps
        flows.append(Flow(0, 50, Match.of(in_port=port, eth_type=0x800), actions=(*steps, ToGroup(20 + port))))
    return Tables(flow_table(flows), {g.group_id: g for g in groups})


def spine_tables(leaves: int) -> Tables:
    groups = [Group(99, INDIRECT, (Bucket((Output(PORT_IN_PORT),)),))]
    flows = []
    for leaf in range(1, leaves + 1):
        groups.append(Group(leaf, FAST_FAILOVER, (Bucket((Output(leaf),), 0, leaf), Bucket((ToGroup(99),), 0, watch_group=99))))
        flows.append(Flow(0, 10, Match.of(eth_type=0x800, ipv4_dst=address(leaf)), actions=(DecTtl(), ToGroup(leaf))))
    return Tables(flow_table(flows), {g.group_id: g for g in groups})


def fabric(leaves: int, spines: int, repair_steps: int = 20) -> dict[int, Tables]:
    tables = {leaf_dpid(n): leaf_tables(n, spines, repair_steps) for n in range(1, leaves + 1)}
    return tables | {spine_dpid(s): spine_tables(leaves) for s in range(1, spines + 1)}


def probe(a: int, b: int, ttl: int = 64) -> Probe:
    return Probe(PortRef(leaf_dpid(a), HOST), udp4(1, 2, address(a), address(b), 5, 6, ttl), PortRef(leaf_dpid(b), HOST))


def all_pairs(leaves: int) -> list[Probe]:
    return [probe(a, b) for a in range(1, leaves + 1) for b in range(1, leaves + 1) if a != b]


def test_every_spine_is_a_journey() -> None:
    journeys = walk(fabric(3, 4), cables(3, 4), *probe(1, 3)[:2], live_without())
    assert sorted(j.hops[0].out_port for j in journeys) == [11, 12, 13, 14]
    for journey in journeys:
        assert [h.dpid for h in journey.hops] == [leaf_dpid(1), journey.hops[0].out_port + 0x16, leaf_dpid(3)]
        assert [(d.at, d.packet["nw_ttl"]) for d in journey.delivered] == [(PortRef(leaf_dpid(3), HOST), 61)]
        assert journey.sends == 1 and not journey.lost
        assert [v.dpid for v in journey.visits] == [h.dpid for h in journey.hops]


def test_local_traffic_stays_local() -> None:
    (journey,) = walk(fabric(2, 2), cables(2, 2), *probe(1, 2)._replace(start=PortRef(leaf_dpid(2), 2))[:2], live_without())
    assert [h.dpid for h in journey.hops] == [leaf_dpid(2)]


def test_a_remote_failure_is_repaired_by_bouncing() -> None:
    links = cables(3, 2)
    dead = next(x for x in links if x.a == PortRef(leaf_dpid(3), uplink(1)))
    walker = Walker(fabric(3, 2), links, live_without(dead_links=[dead]))
    verdict = check_pair(walker, *probe(1, 3))
    assert verdict.delivered
    bounced = max(walker.walk(*probe(1, 3)[:2]), key=lambda j: len(j.hops))
    assert [h.dpid for h in bounced.hops] == [0x11, 0x21, 0x11, 0x22, 0x13]
    assert bounced.hops[1].in_port == bounced.hops[1].out_port == 1


def test_a_dead_leaf_is_bounded_by_the_repair_steps() -> None:
    links = cables(3, 2)
    live = live_without(dead_links=[x for x in links if x.a.dpid == leaf_dpid(3)])
    bounded = check_pair(Walker(fabric(3, 2, 20), links, live), *probe(1, 3))
    assert not bounded.delivered and bounded.worst_sends <= 4
    assert bounded.example.lost[0].text == "table 0: TTL ran out" and not bounded.example.lost[0].hole
    assert check_pair(Walker(fabric(3, 2, 1), links, live), *probe(1, 3)).worst_sends > 10


def test_a_hole_is_a_rule_that_sends_into_a_dead_link() -> None:
    tables = fabric(2, 2)
    flows = [f for f in tables[spine_dpid(1)].flows.values() if "10.0.2.1" not in str(f.match)]
    careless = Flow(0, 10, Match.of(eth_type=0x800, ipv4_dst=address(2)), actions=(DecTtl(), Output(2)))
    tables[spine_dpid(1)] = Tables(flow_table([*flows, careless]), tables[spine_dpid(1)].groups)
    links = cables(2, 2)
    dead = next(x for x in links if x.a == PortRef(leaf_dpid(2), uplink(1)))
    walker = Walker(tables, links, live_without(dead_links=[dead]))
    ((bad, verdict),) = failures(walker, all_pairs(2))
    assert bad == probe(1, 2)
    (loss,) = verdict.example.lost
    assert loss.hole and loss.at == PortRef(spine_dpid(1), 2)
    assert "sent into a dead link" in str(verdict.example)


def test_a_silent_cut_loses_while_ports_stay_live() -> None:
    links = cables(2, 2)
    cut = PortRef(leaf_dpid(1), uplink(1))
    walker = Walker(fabric(2, 2), links, live_without(), carries=lambda p: p != cut)
    assert [bad for bad, _ in failures(walker, all_pairs(2))] == [probe(1, 2)]


def test_one_end_down_is_a_dead_link_for_both() -> None:
    links = cables(2, 2)
    spine_end = PortRef(spine_dpid(1), 1)
    verdict = check_pair(Walker(fabric(2, 2), links, live_without(dead=[spine_end])), *probe(1, 2))
    assert not verdict.delivered and verdict.example.lost[0].hole


def test_copies_and_wrong_ports_are_no_delivery() -> None:
    flood = Tables(
        flow_table([Flow(0, 1, Match.of(), actions=(ToGroup(1),))]),
        {1: Group(1, ALL, (Bucket((Output(2),)), Bucket((Output(3),))))},
    )
    walker = Walker({1: flood}, [], live_without())
    packet = udp4(1, 2, 3, 4, 5, 6)
    (journey,) = walker.walk(PortRef(1, 1), packet)
    assert [d.at.port for d in journey.delivered] == [2, 3]
    assert not check_pair(walker, PortRef(1, 1), packet, PortRef(1, 2)).delivered
    assert not delivers_everywhere(walker, [Probe(PortRef(1, 2), packet, PortRef(1, 2))])


def test_a_loop_without_ttl_is_found() -> None:
    forward = {n: Tables(flow_table([Flow(0, 1, Match.of(), actions=(Output(PORT_IN_PORT),))])) for n in (1, 2)}
    with pytest.raises(ContractError, match="for ever"):
        walk(forward, [Link(PortRef(1, 1), PortRef(2, 1))], PortRef(1, 1), udp4(1, 2, 3, 4, 5, 6), live_without())


def test_a_switch_without_tables_loses() -> None:
    tables = fabric(2, 1)
    del tables[spine_dpid(1)]
    verdict = check_pair(Walker(tables, cables(2, 1), live_without()), *probe(1, 2))
    assert not verdict.delivered and verdict.example.lost[0].text == "switch has no tables"


@settings(max_examples=25, deadline=None)
@given(data=st.data(), leaves=st.integers(2, 4), spines=st.integers(2, 4))
def test_hand_made_rules_survive_what_they_should(data: st.DataObject, leaves: int, spines: int) -> None:
    """One dead link never stops a pair; under any two a packet crosses a port at most four times, and no hole is hit."""
    links = cables(leaves, spines)
    dead = data.draw(st.lists(st.sampled_from(links), max_size=2, unique=True))
    walker = Walker(fabric(leaves, spines), links, live_without(dead_links=dead))
    for pair in all_pairs(leaves):
        verdict = check_pair(walker, *pair)
        assert verdict.worst_sends <= 4
        if len(dead) < 2:
            assert verdict.delivered, verdict.example
        for journey in walker.walk(pair.start, pair.packet):
            assert not any(x.hole for x in journey.lost)


def test_packet_is_what_memory_is_keyed_by() -> None:
    assert len({Packet(dict(probe(1, 2).packet)), probe(1, 2).packet, probe(1, 3).packet}) == 2
