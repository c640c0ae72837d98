"""Compiled tables against a slow reference (who is where, what is connected) on random fabrics and random packets."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from aifabric_ctrl.compile import Cache, compile_fabric, verify_contract
from aifabric_ctrl.compile.contract import overlapping
from aifabric_ctrl.model.fabric import Fabric, Host, Link, LinkState, Reach
from aifabric_ctrl.model.ids import Dpid, PortRef
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.model.rules import Tables
from aifabric_ctrl.verify.executor import Packet, udp4
from aifabric_ctrl.verify.walk import Journey, Walker
from tests.unit.test_compile_support import GATEWAY_MAC, leaf_spine, switches_of

states = st.sampled_from([LinkState.UP] * 5 + [LinkState.DOWN, LinkState.HELD, LinkState.ONE_WAY])
reaches = st.sampled_from([Reach.REACHABLE] * 6 + [Reach.ROUTED, Reach.LOCAL, Reach.TOMBSTONE])


@st.composite
def meshes(draw: st.DrawFn) -> Fabric:
    """Any connected-or-not graph of 2-6 switches; every switch has two edge ports."""
    count = draw(st.integers(2, 6))
    dpids = list(range(1, count + 1))
    used = dict.fromkeys(dpids, 10)
    links = []
    for a, b in draw(st.lists(st.tuples(st.sampled_from(dpids), st.sampled_from(dpids)), max_size=9)):
        if a != b:
            used[a] += 1
            used[b] += 1
            links.append(Link(*sorted((PortRef(a, used[a]), PortRef(b, used[b])))))
    hosts = [
        Host(IPv4Address(0x0A000000 | d << 8 | n), 0x020000000000 | d << 8 | n, PortRef(d, n)) for d in dpids for n in (1, 2)
    ]
    return Fabric(switches_of(links, {d: [1, 2] for d in dpids}), tuple(links), {h.ip: h for h in hosts})


@st.composite
def fabrics(draw: st.DrawFn) -> Fabric:
    """A leaf-spine or a mesh, with links, hosts and switches in every state of becoming and going."""
    leaf_spines = st.builds(
        leaf_spine, leaves=st.integers(2, 4), spines=st.integers(1, 3), hosts=st.integers(1, 2), parallel=st.integers(1, 2)
    )
    fabric = draw(st.one_of(leaf_spines, meshes()))
    links = tuple(replace(k, state=draw(states), settled=draw(st.integers(0, 5)) > 0) for k in fabric.links)
    hosts = {ip: replace(h, reach=draw(reaches)) for ip, h in fabric.hosts.items()}
    switches = {d: replace(s, programmed=draw(st.integers(0, 7)) > 0) for d, s in fabric.switches.items()}
    left = draw(
        st.lists(st.tuples(st.sampled_from(sorted(switches)), st.sampled_from([*hosts, IPv4Address("10.9.9.9")])), max_size=2)
    )
    here = {(h.at.dpid, ip) for ip, h in hosts.items()}
    return Fabric(switches, links, hosts, frozenset(t for t in left if t not in here))


def two_tier(fabric: Fabric) -> bool:
    graph = nx.Graph((k.a.dpid, k.b.dpid) for k in fabric.links)
    housed = {h.at.dpid for h in fabric.hosts.values()}
    return all((a in housed) != (b in housed) for a, b in graph.edges)


def reachable_for_sure(fabric: Fabric, source: Dpid, target: Dpid) -> bool:
    """Over links that everybody may count on and switches that are programmed; through spines only if there are tiers."""
    graph = nx.Graph((k.a.dpid, k.b.dpid) for k in fabric.links if k.state is LinkState.UP and k.settled)
    graph.add_nodes_from(fabric.switches)
    housed = {h.at.dpid for h in fabric.hosts.values()}
    tiers = two_tier(fabric)
    middle = [d for d, s in fabric.switches.items() if s.programmed and not (tiers and d in housed)]
    return bool(nx.has_path(graph.subgraph({source, target, *middle}), source, target))


def reachable_at_best(fabric: Fabric, source: Dpid, target: Dpid) -> bool:
    graph = nx.Graph((k.a.dpid, k.b.dpid) for k in fabric.links if k.state is LinkState.UP)
    graph.add_nodes_from(fabric.switches)
    return bool(nx.has_path(graph, source, target))


def held(fabric: Fabric, journeys: list[Journey]) -> bool:
    """Whether something was sent over a link that must not carry anything."""
    idle = {end for k in fabric.links if k.state is not LinkState.UP for end in (k.a, k.b)}
    return any(PortRef(hop.dpid, hop.out_port) in idle for j in journeys for hop in j.hops)


def told_only(journeys: list[Journey]) -> bool:
    return all(j.controller and not j.delivered and not j.hops for j in journeys)


def check(fabric: Fabric, walker: Walker, source: Host, target: IPv4Address) -> None:
    packet = udp4(source.mac, GATEWAY_MAC, int(source.ip), int(target), 0xC001, 4791)
    journeys = walker.walk(source.at, packet)
    assert not held(fabric, journeys)
    assert max(j.sends for j in journeys) <= (4 if two_tier(fabric) else 1), [str(j) for j in journeys]
    host = fabric.hosts.get(target)
    if source.reach < Reach.LOCAL or host is None or host.reach < Reach.REACHABLE:
        assert told_only(journeys)
        return
    for journey in journeys:
        for delivery in journey.delivered:
            assert delivery.at == host.at and delivery.packet["eth_dst"] == host.mac and delivery.packet["eth_src"] == GATEWAY_MAC
    if reachable_for_sure(fabric, source.at.dpid, host.at.dpid):
        assert all(len(j.delivered) == 1 and not j.controller for j in journeys), [str(j) for j in journeys]
    if not reachable_at_best(fabric, source.at.dpid, host.at.dpid):
        assert not any(j.delivered for j in journeys)


def walker_of(fabric: Fabric, tables: dict[Dpid, Tables]) -> Walker:
    """Cables that are not known to be down are live: it is the tables that must leave them alone."""
    dead = {end for k in fabric.links if k.state is LinkState.DOWN for end in (k.a, k.b)}
    return Walker(tables, fabric.links, lambda port: port not in dead)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(fabrics(), st.data())
def test_compiled_tables_agree_with_the_reference(fabric: Fabric, data: st.DataObject) -> None:
    tables = dict(compile_fabric(fabric, Intent()).tables)
    for one in tables.values():
        verify_contract(one)
        assert overlapping(one.flows.values()) is None
    walker = walker_of(fabric, tables)
    hosts = list(fabric.hosts.values())
    targets = [*fabric.hosts, IPv4Address("10.9.9.9")]
    for _ in range(6):
        source = data.draw(st.sampled_from(hosts))
        check(fabric, walker, source, data.draw(st.sampled_from([t for t in targets if t != source.ip])))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(fabrics(), st.data())
def test_nobody_sends_under_another_name(fabric: Fabric, data: st.DataObject) -> None:
    walker = walker_of(fabric, dict(compile_fabric(fabric, Intent()).tables))
    hosts = list(fabric.hosts.values())
    at, mac, ip = (data.draw(st.sampled_from(hosts)) for _ in range(3))
    if (at.at, mac.mac) == (ip.at, ip.mac):
        return
    target = data.draw(st.sampled_from(hosts))
    packet: Packet = udp4(mac.mac, GATEWAY_MAC, int(ip.ip), int(target.ip), 1, 2)
    assert told_only(walker.walk(at.at, packet))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(fabrics(), min_size=2, max_size=5))
def test_a_cache_full_of_other_fabrics_changes_nothing(sequence: list[Fabric]) -> None:
    cache = Cache()
    for fabric in sequence:
        assert repr(compile_fabric(fabric, Intent(), cache)) == repr(compile_fabric(fabric, Intent()))
