"""Table ROUTE and the next hops behind it: defaults, exceptions, tombstones, bounces, meshes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from aifabric_ctrl.compile import compile_fabric, verify_contract
from aifabric_ctrl.compile.paths import Cable, Paths
from aifabric_ctrl.compile.route import bounce_order
from aifabric_ctrl.compile.tables import ROUTE, SPREAD, Priority
from aifabric_ctrl.model.fabric import Fabric, Host, Link, LinkState
from aifabric_ctrl.model.ids import PORT_IN_PORT, PortRef
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.model.rules import DecTtl, Flow, Output, Tables
from aifabric_ctrl.verify.executor import run, udp4
from aifabric_ctrl.verify.walk import Walker, failures, live_without
from tests.unit.test_compile_support import (
    GATEWAY_MAC,
    UPLINK,
    all_pairs,
    host_ip,
    host_mac,
    leaf_dpid,
    leaf_spine,
    packet_between,
    spine_dpid,
    switches_of,
    with_links,
)

LEAF = leaf_dpid(1)


def compiled(fabric: Fabric) -> dict[int, Tables]:
    tables = dict(compile_fabric(fabric, Intent()).tables)
    for one in tables.values():
        verify_contract(one)
    return tables


def routes(tables: Tables) -> list[Flow]:
    return [
        f
        for f in tables.flows.values()
        if f.table == ROUTE
        and Priority.ROUTE_BY_LENGTH <= f.priority <= Priority.ROUTE_EXCEPTION
        and f.match.exact("eth_type") == 0x0800
    ]


def ports_used(tables: Tables, target: int, port: int = 1) -> set[int]:
    packet = udp4(host_mac(1, 1), GATEWAY_MAC, int(host_ip(1, 1)), target, 1000, 2000)
    return {sent.port for out in run(tables, packet, port, lambda _: True) for sent in out.outputs}


def link(fabric: Fabric, leaf: int, spine: int) -> Link:
    return next(k for k in fabric.links if k.a.dpid == leaf_dpid(leaf) and k.b.dpid == spine_dpid(spine))


@pytest.mark.parametrize("leaves", [2, 3, 8, 16])
def test_routes_of_a_healthy_leaf_do_not_grow_with_the_fabric(leaves: int) -> None:
    tables = compiled(leaf_spine(leaves, 2, hosts=2))[LEAF]
    assert len(routes(tables)) == 1


def test_remote_failure_makes_one_exception_for_that_leaf() -> None:
    fabric = leaf_spine(4, 2)
    broken = compiled(with_links(fabric, LinkState.DOWN, link(fabric, 3, 2)))
    found = routes(broken[LEAF])
    assert [f.priority for f in found] == [Priority.ROUTE_BY_LENGTH, Priority.ROUTE_EXCEPTION]
    assert ports_used(broken[LEAF], int(host_ip(3, 1))) == {UPLINK}
    assert ports_used(broken[LEAF], int(host_ip(2, 1))) == {UPLINK, UPLINK + 1}


def test_own_failure_turns_the_default() -> None:
    fabric = leaf_spine(4, 2)
    tables = compiled(with_links(fabric, LinkState.DOWN, link(fabric, 1, 1)))[LEAF]
    assert len(routes(tables)) == 1
    assert ports_used(tables, int(host_ip(2, 1))) == {UPLINK + 1}


def test_unreachable_leaf_is_dropped_at_the_source() -> None:
    fabric = leaf_spine(3, 2)
    dead = [link(fabric, 3, s) for s in (1, 2)]
    tables = compiled(with_links(fabric, LinkState.DOWN, *dead))[LEAF]
    assert ports_used(tables, int(host_ip(3, 1))) == set()
    assert ports_used(tables, int(host_ip(2, 1))) == {UPLINK, UPLINK + 1}


def test_leaf_without_uplinks_drops_remote_and_keeps_local() -> None:
    fabric = leaf_spine(2, 2, hosts=2)
    dead = [link(fabric, 1, s) for s in (1, 2)]
    tables = compiled(with_links(fabric, LinkState.DOWN, *dead))[LEAF]
    assert ports_used(tables, int(host_ip(2, 1))) == set()
    assert ports_used(tables, int(host_ip(1, 2))) == {2}


def test_unsettled_link_serves_its_own_ends_only() -> None:
    fabric = leaf_spine(3, 2)
    fresh = link(fabric, 3, 2)
    links = tuple(replace(k, settled=False) if k == fresh else k for k in fabric.links)
    tables = compiled(replace(fabric, links=links))
    assert ports_used(tables[LEAF], int(host_ip(3, 1))) == {UPLINK}
    assert fresh.b.port in ports_used(tables[spine_dpid(2)], int(host_ip(3, 1)), port=1)
    back = udp4(host_mac(3, 1), GATEWAY_MAC, int(host_ip(3, 1)), int(host_ip(1, 1)), 1, 2)
    assert {s.port for o in run(tables[leaf_dpid(3)], back, 1, lambda _: True) for s in o.outputs} == {UPLINK, UPLINK + 1}


def test_no_transit_through_a_switch_that_is_not_programmed() -> None:
    fabric = leaf_spine(2, 2)
    switches = {**fabric.switches, spine_dpid(1): replace(fabric.switches[spine_dpid(1)], programmed=False)}
    tables = compiled(replace(fabric, switches=switches))[LEAF]
    assert ports_used(tables, int(host_ip(2, 1))) == {UPLINK + 1}
    bounced = udp4(GATEWAY_MAC, 0, int(host_ip(2, 1)), int(host_ip(2, 2)), 1, 2)
    assert not any(o.outputs for o in run(tables, bounced, UPLINK + 1, lambda _: True))


def test_disconnected_but_programmed_spine_still_carries() -> None:
    fabric = leaf_spine(2, 2)
    switches = {**fabric.switches, spine_dpid(1): replace(fabric.switches[spine_dpid(1)], connected=False)}
    assert ports_used(compiled(replace(fabric, switches=switches))[LEAF], int(host_ip(2, 1))) == {UPLINK, UPLINK + 1}


def test_host_that_left_is_dropped_before_it_bounces() -> None:
    fabric = leaf_spine(2, 2)
    gone = host_ip(1, 9)
    tables = compiled(replace(fabric, tombstones=frozenset({(LEAF, gone)})))[LEAF]
    stray = udp4(GATEWAY_MAC, 0, int(host_ip(2, 1)), int(gone), 1, 2)
    (out,) = run(tables, stray, UPLINK, lambda _: True)
    assert not out.outputs
    assert [s.flow.priority for s in out.trace if s.flow and s.table == ROUTE] == [Priority.ROUTE_TOMBSTONE]
    without = compiled(fabric)[LEAF]
    assert run(without, stray, UPLINK, lambda _: True)[0].outputs, "without the tombstone it bounces"


def test_moved_host_is_reached_from_its_old_leaf() -> None:
    fabric = leaf_spine(2, 2, hosts=2)
    moved = replace(fabric.hosts[host_ip(1, 2)], at=PortRef(leaf_dpid(2), 2))
    fabric = replace(fabric, hosts={**fabric.hosts, moved.ip: moved}, tombstones=frozenset({(LEAF, moved.ip)}))
    tables = compiled(fabric)
    assert ports_used(tables[LEAF], int(moved.ip)) == {UPLINK, UPLINK + 1}
    assert not failures(Walker(tables, fabric.links, live_without()), all_pairs(fabric))


def test_host_on_a_port_that_is_no_edge_port_is_treated_as_gone() -> None:
    fabric = leaf_spine(2, 2)
    lost = Host(host_ip(1, 9), host_mac(1, 9), PortRef(LEAF, 99))
    tables = compiled(replace(fabric, hosts={**fabric.hosts, lost.ip: lost}))
    (out,) = run(tables[LEAF], udp4(GATEWAY_MAC, 0, 1, int(lost.ip), 1, 2), UPLINK, lambda _: True)
    assert not out.outputs
    assert not any(str(lost.ip) in str(f.match) for f in routes(tables[spine_dpid(1)]))


def test_bounced_packet_spends_its_ttl_and_takes_the_next_uplink() -> None:
    tables = compiled(leaf_spine(2, 3))[LEAF]
    stray = udp4(GATEWAY_MAC, 0, int(host_ip(2, 1)), int(host_ip(2, 2)), 1, 2, ttl=64)
    for i in range(3):
        (out,) = run(tables, stray, UPLINK + i, lambda _: True)
        (sent,) = out.outputs
        assert (sent.port, sent.packet["nw_ttl"]) == (UPLINK + (i + 1) % 3, 44)
        assert len(out.meters) == 1
    (out,) = run(tables, stray, UPLINK, lambda p: p != UPLINK + 1)
    assert out.outputs[0].port == UPLINK + 2
    assert not run(tables, stray, UPLINK, lambda p: p == UPLINK)[0].outputs


def test_bounce_rule_stays_when_its_own_link_is_down_or_held() -> None:
    fabric = leaf_spine(2, 3)
    for state in (LinkState.DOWN, LinkState.HELD):
        tables = compiled(with_links(fabric, state, link(fabric, 1, 1)))[LEAF]
        stray = udp4(GATEWAY_MAC, 0, int(host_ip(2, 1)), int(host_ip(2, 2)), 1, 2)
        assert [run(tables, stray, UPLINK + i, lambda _: True)[0].outputs[0].port - UPLINK for i in range(3)] == [1, 2, 1]


def test_bounce_order_visits_every_spine_once_and_never_the_one_it_came_from() -> None:
    cables = [
        Cable(1, 10, True, True),
        Cable(2, 10, True, True),
        Cable(3, 11, True, True),
        Cable(4, 11, True, True),
        Cable(5, 12, True, True),
    ]
    every = {1, 2, 3, 4, 5}
    assert bounce_order(cables, 1, every) == (3, 4, 5)
    assert bounce_order(cables, 2, every) == (4, 3, 5)
    assert bounce_order(cables, 4, every) == (5, 2, 1)
    assert bounce_order(cables, 5, every - {1}) == (2, 3, 4)
    assert bounce_order(cables, 77, every) == (1, 2, 3, 4, 5)
    hop = {c.port: c.far for c in cables}
    for c in cables:  # following first choices goes round all spines
        way, at = [c.far], c.port
        while hop[at := bounce_order(cables, at, every)[0]] != way[0]:
            way.append(hop[at])
        assert sorted(way) == [10, 11, 12]


def test_spine_sends_back_what_it_cannot_deliver() -> None:
    fabric = leaf_spine(2, 2)
    broken = with_links(fabric, LinkState.DOWN, link(fabric, 2, 1))
    spine = compiled(broken)[spine_dpid(1)]
    packet = packet_between(fabric.hosts[host_ip(1, 1)], fabric.hosts[host_ip(2, 1)])
    (out,) = run(spine, packet, 1, lambda _: True)
    assert [s.port for s in out.outputs] == [1]
    healthy = compiled(fabric)[spine_dpid(1)]
    (out,) = run(healthy, packet, 1, lambda p: p != 2)
    assert [s.port for s in out.outputs] == [1]
    assert not run(spine, udp4(1, 2, 3, int(host_ip(9, 9)), 1, 2), 1, lambda _: True)[0].outputs


def test_new_leaf_without_hosts_does_not_end_the_repair() -> None:
    fabric = leaf_spine(3, 2)
    empty = leaf_dpid(3)
    switches = {
        **fabric.switches,
        empty: replace(fabric.switches[empty], ports={n: p for n, p in fabric.switches[empty].ports.items() if n >= UPLINK}),
    }
    hosts = {ip: h for ip, h in fabric.hosts.items() if h.at.dpid != empty}
    tables = compiled(replace(fabric, switches=switches, hosts=hosts))
    assert any(f.priority == Priority.ROUTE_BOUNCE for f in tables[LEAF].flows.values())
    assert any(f.priority == Priority.ROUTE_BOUNCE for f in tables[empty].flows.values())


def ring(size: int) -> Fabric:
    """Every switch has one host at port 1 and its neighbours at ports 11 (next) and 12 (previous)."""
    dpids = [leaf_dpid(n) for n in range(1, size + 1)]
    links = tuple(Link(*sorted((PortRef(a, 11), PortRef(b, 12)))) for a, b in pairwise([*dpids, dpids[0]]))
    hosts = [Host(host_ip(n, 1), host_mac(n, 1), PortRef(leaf_dpid(n), 1)) for n in range(1, size + 1)]
    return Fabric(switches_of(links, {d: [1] for d in dpids}), links, {h.ip: h for h in hosts})


@pytest.mark.parametrize("size", [3, 4, 5])
def test_ring_works_without_bounces_and_without_loops(size: int) -> None:
    fabric = ring(size)
    for broken in (fabric, *(with_links(fabric, LinkState.DOWN, k) for k in fabric.links)):
        tables = compiled(broken)
        alive = [k for k in broken.links if k.state is LinkState.UP]
        dead = [k for k in broken.links if k.state is not LinkState.UP]
        assert not failures(Walker(tables, alive, live_without(dead_links=dead)), all_pairs(fabric), max_sends=1)
        for one in tables.values():
            assert not any(f.priority == Priority.ROUTE_BOUNCE for f in one.flows.values() if f.table == ROUTE)
            assert not any(Output(PORT_IN_PORT) in b.actions for g in one.groups.values() for b in g.buckets)


def test_mesh_does_not_route_what_nobody_has() -> None:
    tables = compiled(ring(4))[LEAF]
    assert not run(tables, udp4(1, 2, 3, int(host_ip(9, 9)), 1, 2), 11, lambda _: True)[0].outputs


def test_paths_own_links_may_be_unsettled_and_never_lead_back() -> None:
    cables = {
        1: (Cable(1, 2, True, False), Cable(2, 3, True, True)),
        2: (Cable(1, 1, True, False), Cable(2, 4, True, True)),
        3: (Cable(1, 1, True, True), Cable(2, 4, True, True)),
        4: (Cable(1, 2, True, True), Cable(2, 3, True, True)),
    }
    paths = Paths(cables, lambda _: True)
    assert paths.next_hops(1, 4) == (1, 2)
    assert paths.next_hops(3, 2) == (2,)
    assert paths.next_hops(2, 1) == (1,)
    assert Paths(cables, lambda d: d != 3).next_hops(1, 4) == (1,)
    assert Paths({1: (), 2: ()}, lambda _: True).next_hops(1, 2) == ()


def test_ttl_steps_follow_the_setting() -> None:
    tables = compile_fabric(leaf_spine(2, 2), Intent(repair_ttl_steps=7)).tables[LEAF]
    bounce = [f for f in tables.flows.values() if f.priority == Priority.ROUTE_BOUNCE and f.table == ROUTE]
    assert [sum(isinstance(a, DecTtl) for a in f.actions) for f in bounce] == [7, 7] * 2
    assert all(f.goto is None for f in bounce) and SPREAD in {f.table for f in tables.flows.values()}
