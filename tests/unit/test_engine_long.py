"""Long times and stuck peers: no deadline in the past, no growth, the engine alive, and ready again in the end."""

from __future__ import annotations

import random
from dataclasses import replace
from ipaddress import IPv4Address
from itertools import pairwise

import pytest

from aifabric_ctrl.compile import hosts_in
from aifabric_ctrl.model import frames
from aifabric_ctrl.model.backoff import backoff_s
from aifabric_ctrl.model.effects import CloseSession, SavePorts
from aifabric_ctrl.model.events import (
    FrameIn,
    ObjectRefused,
    PortChanged,
    Remembered,
    SwitchConnected,
    SwitchGone,
    TablesRead,
    Tick,
)
from aifabric_ctrl.model.fabric import LinkState, Port, PortRole
from aifabric_ctrl.model.ids import PortRef
from aifabric_ctrl.model.rules import Flow
from aifabric_ctrl.sim.memnet import MemNet
from aifabric_ctrl.sim.topology import OVS_FEATURES, FakeHost, Topology, leaf_spine, link, make_port
from aifabric_ctrl.verify.packet import arp_request
from tests.unit.engine_lab import (
    LEAF1,
    LEAF2,
    LEAF3,
    SPINE1,
    SPINE2,
    UPLINK1,
    all_tables,
    engine,
    fabric,
    kinds,
    sent,
    wanted_and_there_agree,
)

HOUR_S = 3_600.0
RARE = {"probe_interval_s": 600.0, "host_age_s": 3_600.0}  # hours of virtual time without a million probes


def test_pauses_grow_to_their_bound_and_no_number_of_tries_overflows() -> None:
    assert [backoff_s(1.0, n, 30.0) for n in (-1, 0, 1, 4, 5, 5_000)] == [1.0, 1.0, 2.0, 16.0, 30.0, 30.0]


def test_a_host_that_pings_a_dead_address_for_half_a_day_harms_nothing() -> None:
    net = fabric(**RARE)
    host = net.hosts["h1"]
    for _ in range(1_300):
        net.from_host("h1", host.udp(0x0A000909, 1, 2))
        net.advance(33.0)
    net.settle()
    assert net.ping_all() == []


def test_a_refused_object_that_is_no_longer_wanted_is_forgotten() -> None:
    net = fabric()
    flow = next(f for f in net.tables(LEAF1).flows.values() if f.table == 20 and f.match.get("ipv4_dst"))
    stray = Flow(20, 999, flow.match, goto=30, cookie=flow.cookie)
    session = net.channels[LEAF1].session or 0
    for item in (stray, flow):
        net.channels[LEAF1].send_up(ObjectRefused(net.now, session, 1, item, "FLOW_MOD_FAILED/TABLE_FULL"))
    for _ in range(20):
        net.advance(5.0)
        due = net.engine.next_deadline()
        assert due is None or due > net.now - 0.01
    net.port_down(LEAF1, UPLINK1)
    net.advance(1.0)
    net.port_up(LEAF1, UPLINK1)
    net.advance(70.0)
    net.settle()


@pytest.mark.parametrize("seed", range(5))
def test_after_any_events_and_some_hours_no_deadline_is_past_and_it_is_ready(seed: int) -> None:
    rng = random.Random(seed)
    net = fabric(seed=seed, **RARE)
    for _ in range(80):
        dpid = rng.choice(list(net.switches))
        session = net.channels[dpid].session
        what = rng.random()
        if session is not None and what < 0.3:
            item = rng.choice(list(net.tables(dpid).flows.values()))
            net.channels[dpid].send_up(ObjectRefused(net.now, session, rng.randrange(1, 50), item, "BAD_MATCH/BAD_FIELD"))
        elif what < 0.5:
            net.disconnect(dpid)
            net.connect(dpid)
        else:
            port = rng.choice(list(net.switches[dpid].ports))
            (net.port_down if rng.random() < 0.5 else net.port_up)(dpid, port)
        net.advance(rng.random() * 2.0)
    for dpid in net.switches:
        for port in net.switches[dpid].ports:
            net.port_up(dpid, port)
    for _ in range(12):
        net.advance(HOUR_S / 4)
        due = net.engine.next_deadline()
        assert due is None or due > net.now - 0.01
    net.settle()
    assert net.ping_all(2.0) == []


def test_a_switch_that_acknowledges_nothing_delays_no_other_and_is_closed() -> None:
    topology = leaf_spine(3, 2, 2)
    net = MemNet(topology, engine())
    net.connect_all()
    net.settle()
    stuck = net.channels[LEAF3]
    closed: list[object] = []
    stuck.send_down = closed.append  # type: ignore[method-assign]
    net.advance(1.0)
    assert net.ping("h1", "h3", 6.5)
    net.advance(6.0)
    assert net.ping("h2", "h4", 1.0), "the stuck plans were waited for once already"
    net.advance(70.0)
    assert any(isinstance(effect, CloseSession) for effect in closed)
    assert "switch_stuck" in kinds(net)


def test_losing_the_store_costs_nothing_while_the_switches_remember() -> None:
    net = fabric()
    before = all_tables(net)
    assert len(hosts_in(before[LEAF1].flows.values())) == 2
    net.restart_engine(engine(), Remembered(net.now), spread_s=4.0)
    for _ in range(30):
        net.advance(0.5)
        assert net.ping_all(0.2) == []
    net.settle()
    assert all_tables(net) == before
    assert sent(net) == {}
    assert len(net.engine.view().fabric.hosts) == 6


def spine_that_comes_late(hosts_known: bool) -> MemNet:
    full = leaf_spine(3, 3, 2)
    net = MemNet(full, engine())
    for dpid in net.switches:
        if dpid != 0x23:
            net.connect(dpid)
    net.advance(3.0)
    if hosts_known:
        net.ping_all(2.0)
    for leaf in (LEAF1, LEAF2, LEAF3):
        net.disconnect(leaf)
    net.connect(0x23)
    net.advance(3.0)  # alone: all its ports look like edge ports
    for leaf in (LEAF1, LEAF2, LEAF3):
        net.connect(leaf)
    net.advance(15.0)
    return net


@pytest.mark.parametrize("hosts_known", [True, False])
def test_a_new_spine_that_came_while_its_leaves_were_away_is_used(hosts_known: bool) -> None:
    net = spine_that_comes_late(hosts_known)
    net.ping_all(2.0)
    net.settle()
    assert [x.state for x in net.engine.view().fabric.links] == [LinkState.UP] * 9
    assert net.ping_all() == []


def test_a_cable_between_two_spines_or_two_leaves_is_quarantined() -> None:
    base = leaf_spine(3, 2, 2)
    for a, b in ((SPINE1, SPINE2), (LEAF1, LEAF2)):
        extra = link(PortRef(a, 77), PortRef(b, 77))
        ports = {d: (*p, make_port(d, 77)) if d in (a, b) else p for d, p in base.switches.items()}
        topology = Topology(ports, (*base.links, extra), base.hosts, base.names, base.features)
        net = MemNet(topology, engine())
        net.silence(extra)
        net.connect_all()
        net.settle()
        net.ping_all(2.0)
        net.unsilence(extra)
        net.advance(20.0)
        states = {(x.a, x.b): x.state for x in net.engine.view().fabric.links}
        assert states[(extra.a, extra.b)] is LinkState.QUARANTINED
        assert "link_quarantined" in kinds(net)
        assert any("repair/" in w.owner for w in net.engine.view().desired.tables[LEAF1].why.values())
        assert net.ping_all() == []


def test_strangers_and_endless_ports_leave_nothing_behind() -> None:
    core = engine()
    core.step(Tick(1.0))
    for n in range(500):
        ports = tuple(make_port(0x9000 + n, p) for p in range(1, 4))
        core.step(SwitchConnected(2.0 + n, n + 1, 0x9000 + n, "127.0.0.1:1", ports, OVS_FEATURES))
        core.step(SwitchGone(2.5 + n, n + 1, "gone"))
    core.flush(600.0)
    assert len(core.view().fabric.switches) == 0
    core.step(SwitchConnected(700.0, 9_999, 0x77, "127.0.0.1:1", (make_port(0x77, 1),), OVS_FEATURES))
    for n in range(5_000):
        core.step(PortChanged(701.0, 9_999, "add", Port(n + 1, f"p{n}")))
    saved = [e for e in core.flush(701.5) if isinstance(e, SavePorts)]
    assert len(saved) <= 1
    assert len(core.view().fabric.switches[0x77].ports) == 2048
    assert core.view().counters["ports_ignored"] == 5_000 - 2_048


def test_no_hold_down_is_skipped_where_bfd_was_never_asked_to_begin() -> None:
    net = fabric(bfd=False)
    cable = net.topology.links[0]
    net.silence(cable, "ab")
    net.advance(5.0)
    net.unsilence(cable, "ab")
    net.advance(1.6)
    states = {(x.a, x.b): x.state for x in net.engine.view().fabric.links}
    assert states[(cable.a, cable.b)] is LinkState.HELD or "link_held" in kinds(net)


def test_an_address_is_not_taken_while_its_owners_leaf_is_away() -> None:
    net = fabric()
    owner, thief = net.topology.host("h1"), net.topology.host("h3")
    net.disconnect(LEAF1)
    net.hosts["h3"].host = replace(thief, ip=owner.ip)  # answers for it too
    for _ in range(20):
        net.from_host("h3", [arp_request(thief.mac, owner.ip, owner.ip)])
        net.advance(0.2)
    assert net.engine.view().fabric.hosts[IPv4Address(owner.ip)].at == owner.at
    net.connect(LEAF1)
    for _ in range(5):
        net.from_host("h3", [arp_request(thief.mac, owner.ip, owner.ip)])
        net.advance(0.2)
    assert net.engine.view().fabric.hosts[IPv4Address(owner.ip)].at == owner.at
    assert "host_moved" not in kinds(net) and "duplicate_address" in kinds(net)


def test_a_spine_with_a_new_datapath_id_behind_the_same_cables_takes_over() -> None:
    net = fabric()
    old = net.switches[SPINE1]
    net.disconnect(SPINE1)
    net.advance(0.5)
    core = net.engine
    new = 0x2222
    session = 90_001
    core.step(SwitchConnected(net.now, session, new, "127.0.0.1:9", tuple(old.ports.values()), OVS_FEATURES, "s1new"))
    core.step(TablesRead(net.now, session, (), (), ()))
    core.flush(net.now)
    discovery = core._discovery
    for number in old.ports:
        leaf = PortRef(LEAF1 + number - 1, UPLINK1)
        for sender, receiver in ((PortRef(new, number), leaf), (leaf, PortRef(new, number))):
            token = discovery._token(sender)
            data = frames.lldp(sender.dpid, sender.port, 0x020000000001, 120, token)
            owner = session if receiver.dpid == new else net.channels[receiver.dpid].session or 0
            core.step(FrameIn(net.now, owner, receiver.port, 0, 1, 0, data))
    core.flush(net.now)
    states = {(x.a, x.b): x.state for x in core.view().fabric.links}
    assert SPINE1 not in core.view().fabric.switches
    links = [key for key in states if new in (key[0].dpid, key[1].dpid)]
    assert len(links) == 3 and all(states[key] is LinkState.UP for key in links)
    assert not [key for key in states if SPINE1 in (key[0].dpid, key[1].dpid)]


def test_a_port_of_a_switch_that_is_gone_for_good_can_serve_a_host() -> None:
    net = fabric(leaf_spine(2, 3, 1))
    net.kill_switch(0x23)
    net.advance(2.0)
    core = net.engine
    session = net.channels[LEAF1].session or 0
    up = replace(net.switches[LEAF1].ports[103], link_down=False, live=True)
    core.step(PortChanged(net.now, session, "modify", up))
    net.advance(30.0)
    assert net.engine.view().fabric.switches[LEAF1].ports[103].role is PortRole.EDGE


def test_lldp_loss_alone_cuts_off_nobody_while_bfd_is_up() -> None:
    net = fabric()
    receive = net.engine._discovery.received
    net.engine._discovery.received = lambda at, frame: None if at.dpid == LEAF1 else receive(at, frame)  # type: ignore[method-assign]
    net.advance(15.0)
    assert net.ping_all() == []
    assert "lldp_lost" in kinds(net)


def test_two_hosts_that_relay_lldp_at_first_start_are_found_out() -> None:
    base = leaf_spine(3, 2, 2, spare_ports=1)
    tunnel = link(PortRef(LEAF1, 3), PortRef(LEAF3, 3))
    net = MemNet(Topology(base.switches, (*base.links, tunnel), base.hosts, base.names, base.features), engine())
    net.connect_all()
    net.advance(1.0)
    net.ping_all(2.0)
    net.advance(5.0)
    states = {(x.a, x.b): x.state for x in net.engine.view().fabric.links}
    assert states[(tunnel.a, tunnel.b)] is LinkState.QUARANTINED
    assert net.ping_all() == []
    net.silence(tunnel)
    net.advance(40.0)
    assert (tunnel.a, tunnel.b) not in {(x.a, x.b) for x in net.engine.view().fabric.links}
    assert net.engine.view().fabric.switches[LEAF1].ports[3].role is PortRole.EDGE


def test_tables_changed_behind_our_back_are_put_right() -> None:
    net = fabric()
    before = all_tables(net)
    net.switches[LEAF1].tables.clear()
    net.advance(70.0)
    net.settle()
    assert all_tables(net) == before
    assert "tables_differ" in kinds(net)
    assert net.ping_all() == []


def test_a_refused_overwrite_leaves_what_was_there_believed() -> None:
    net = fabric()
    leaf = net.switches[LEAF1]
    spread = {k: f for k, f in leaf.tables.flows.items() if k.table == 40}
    leaf.tables.limits = replace(leaf.tables.limits, flows=0)
    net.port_down(LEAF1, UPLINK1)
    net.advance(0.5)
    believed = net.engine._switches.by_dpid[LEAF1].believed
    assert believed is not None
    there = {k: f for k, f in leaf.tables.flows.items() if k.table == 40}
    assert {k: f for k, f in believed.flows.items() if k.table == 40} == there
    assert spread
    leaf.tables.limits = replace(leaf.tables.limits, flows=100_000)
    net.port_up(LEAF1, UPLINK1)
    net.advance(70.0)
    net.settle()
    assert wanted_and_there_agree(net)


def test_a_failure_of_what_is_wanted_otherwise_now_is_forgotten() -> None:
    net = fabric()
    leaf = net.switches[LEAF1]
    leaf.tables.limits = replace(leaf.tables.limits, flows=0)
    net.port_down(LEAF1, UPLINK1)
    net.advance(0.3)
    net.port_up(LEAF1, UPLINK1)
    leaf.tables.limits = replace(leaf.tables.limits, flows=100_000)
    for _ in range(10):
        net.advance(1.0)
        due = net.engine.next_deadline()
        assert due is None or due > net.now - 0.01
    net.advance(70.0)
    net.settle()


def test_our_own_probe_coming_back_by_another_port_proves_nothing() -> None:
    net = fabric()
    owner = net.topology.host("h5")
    gateway = net.engine.view().intent.gateway_mac
    before = net.engine.view().counters.get("arp_answered", 0)
    session = net.channels[LEAF1].session or 0
    probe = frames.arp_request(gateway, IPv4Address(0), IPv4Address(owner.ip))
    net.channels[LEAF1].send_up(FrameIn(net.now, session, 1, 0, 1, 0, probe))
    net.advance(0.5)
    assert net.engine.view().counters.get("arp_answered", 0) == before
    assert net.engine.view().counters["arp_own_echo"] == 1


def chain(length: int, hosts_at: tuple[int, ...]) -> Topology:
    """A row of switches; hosts on some of them."""
    dpids = [0x51 + n for n in range(length)]
    ports = {d: tuple(make_port(d, n) for n in (1, 11, 12)) for d in dpids}
    links = tuple(link(PortRef(a, 12), PortRef(b, 11)) for a, b in pairwise(dpids))
    hosts = tuple(FakeHost(f"h{n}", 0x020A00000001 + n, 0x0A000101 + n, PortRef(dpids[n], 1)) for n in hosts_at)
    return Topology(ports, links, hosts, {}, dict.fromkeys(dpids, OVS_FEATURES))


@pytest.mark.parametrize("length", [3, 4, 5, 6])
def test_a_row_of_switches_with_hosts_at_its_ends_forwards(length: int) -> None:
    net = MemNet(chain(length, (0, length - 1)), engine())
    net.connect_all()
    net.settle()
    net.ping_all(3.0)
    net.settle()
    assert [x.state for x in net.engine.view().fabric.links] == [LinkState.UP] * (length - 1)
    assert net.ping_all() == []


def test_the_same_switches_cabled_otherwise_while_they_were_away() -> None:
    first = leaf_spine(2, 2, 2)
    net = fabric(first)
    for dpid in list(net.switches):
        net.disconnect(dpid)
    net.advance(1.0)
    l1, s1 = net.switches[LEAF1], net.switches[SPINE1]
    swapped = link(PortRef(LEAF1, 1), PortRef(SPINE1, 2))  # a host port leads to a spine now
    core = net.engine
    for n, switch in ((91_001, l1), (91_002, s1)):
        core.step(SwitchConnected(net.now, n, switch.dpid, "127.0.0.1:9", tuple(switch.ports.values()), OVS_FEATURES))
        core.step(TablesRead(net.now, n, (), (), ()))
    for sender, receiver in (swapped.ends, swapped.ends[::-1]):
        data = frames.lldp(sender.dpid, sender.port, 0x020000000001, 120, core._discovery._token(sender))
        session = 91_001 if receiver.dpid == LEAF1 else 91_002
        core.step(FrameIn(net.now, session, receiver.port, 0, 1, 0, data))
    core.flush(net.now)
    assert "lldp_on_host_port" not in [e.kind for e in core.view().journal]
    assert core.view().fabric.switches[LEAF1].ports[1].role is PortRole.FABRIC
