"""Field cases about links and hosts: TOPO-01, 02, 04, 06, 07, 10, 15, FF-05, L2-01."""

from __future__ import annotations

import random
from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from aifabric_ctrl.model import frames
from aifabric_ctrl.model.events import FrameIn, PortChanged
from aifabric_ctrl.model.fabric import LinkState, PortRole
from aifabric_ctrl.model.ids import PortRef
from aifabric_ctrl.sim.memnet import MemNet
from aifabric_ctrl.sim.topology import leaf_spine
from aifabric_ctrl.verify.packet import arp_request
from tests.unit.engine_lab import LEAF1, LEAF2, LEAF3, SPINE1, UPLINK1, all_tables, fabric, kinds, sent, wanted_and_there_agree


def state_of(net: MemNet, ref: PortRef) -> LinkState:
    return next(link.state for link in net.engine.view().fabric.links if ref in (link.a, link.b))


def frame_in(net: MemNet, at: PortRef, data: bytes) -> None:
    session = net.channels[at.dpid].session
    if session is None:
        raise RuntimeError("the switch is away")
    net.channels[at.dpid].send_up(FrameIn(net.now, session, at.port, 0, 1, 0, data))


def test_topo_01_a_silent_link_is_withdrawn_within_three_probe_periods() -> None:
    net = fabric(bfd=False)
    link = net.topology.links[0]
    net.silence(link)
    net.advance(4.5)
    assert state_of(net, link.a) is LinkState.DOWN
    net.silence(link, "both")
    assert net.ping_all() == []
    net.unsilence(link)
    net.advance(5.0)
    net.settle()
    assert state_of(net, link.a) is LinkState.UP


@pytest.mark.parametrize("direction", ["ab", "ba"])
def test_topo_02_a_link_heard_one_way_is_not_used(direction: str) -> None:
    net = fabric(bfd=False)
    link = net.topology.links[0]
    net.silence(link, direction)
    net.advance(4.5)
    assert state_of(net, link.a) is LinkState.ONE_WAY
    assert "link_one_way" in kinds(net)
    assert net.ping_all() == []
    net.unsilence(link, direction)
    net.advance(5.0)
    assert state_of(net, link.a) is LinkState.UP


def test_topo_04_forged_lldp_makes_no_link_and_does_not_hurt_the_port() -> None:
    net = fabric()
    before = sent(net)
    links = net.engine.view().fabric.links
    at = PortRef(LEAF1, 1)
    for n in range(400):
        frame_in(net, at, frames.lldp(SPINE1, 1, 0x020000000001, 120, bytes([n % 256]) * 24))
        frame_in(net, at, frames.lldp(0xDEAD, 1, 0x020000000001, 120, bytes(24)))
        frame_in(net, at, frames.lldp(LEAF1, 1, 0x020000000001, 120, bytes(24)))
    net.advance(2.0)
    assert net.engine.view().fabric.links == links
    assert sent(net) == before
    assert net.ping_all() == []
    counters = net.engine.view().counters
    assert counters["lldp_forged"] == 1200
    assert kinds(net).count("lldp_forged") == 1


def test_topo_04_a_relayed_fresh_probe_between_two_hosts_raises_an_alarm_only() -> None:
    net = fabric()
    genuine: list[bytes] = []
    receive = net.engine._discovery.received  # the only place a fresh, valid token can be had

    def spy(at: PortRef, frame: frames.LldpFrame) -> None:
        if frame.token is not None and frame.dpid is not None and frame.port is not None:
            genuine.append(frames.lldp(frame.dpid, frame.port, frame.src, 120, frame.token))
        receive(at, frame)

    net.engine._discovery.received = spy  # type: ignore[method-assign]
    net.advance(1.5)
    links = net.engine.view().fabric.links
    frame_in(net, PortRef(LEAF2, 1), genuine[-1])
    net.advance(0.5)
    assert net.engine.view().fabric.links == links
    assert "lldp_on_host_port" in kinds(net)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 10,
        b"\0" * 14,
        b"\x01\x80\xc2\0\0\x0e" + b"\2" * 6 + b"\x88\xcc",
        b"\x01\x80\xc2\0\0\x0e" + b"\2" * 6 + b"\x88\xcc\0\0",
        b"\x01\x80\xc2\0\0\x0e" + b"\2" * 6 + b"\x88\xcc\x02\x09\x07dpid:zz" + b"\0\0",
        b"\x01\x80\xc2\0\0\x0e" + b"\2" * 6 + b"\x88\xcc\x02\x06\x07dpid:\x04\x03\x07ab\0\0",
        b"\xff" * 6 + b"\2" * 6 + b"\x08\x06\0\1",
        b"\xff" * 6 + b"\2" * 6 + b"\x08\x00\x40" + b"\0" * 30,
        b"\xff" * 6 + b"\2" * 6 + b"\x81\x00\0",
    ],
)
def test_topo_06_short_and_odd_frames_are_counted_and_dropped(data: bytes) -> None:
    net = fabric()
    before = all_tables(net)
    for port in (1, UPLINK1, 77, 0, 0xFFFFFFFE):
        frame_in(net, PortRef(LEAF1, port), data)
    net.advance(0.5)
    counters = net.engine.view().counters
    assert counters["frames_from_unknown_ports"] == 3
    assert all_tables(net) == before
    assert net.ping_all() == []


def test_topo_07_no_host_on_a_port_before_its_role_is_known_or_on_a_cable() -> None:
    net = fabric(learn=False)
    uplink = PortRef(LEAF1, UPLINK1)
    frame_in(net, uplink, frames.arp_request(0x020000000099, IPv4Address("10.0.9.9"), IPv4Address("10.0.1.1")))
    net.advance(1.0)
    assert net.engine.view().fabric.hosts == {}


def test_topo_07_lldp_late_on_one_uplink() -> None:
    net = MemNet(
        leaf_spine(3, 2, 2), fabric(learn=False).engine.__class__(fabric(learn=False).engine.view().intent, b"z" * 32), 3
    )
    late = net.topology.links[0]
    net.silence(late)
    net.connect_all()
    net.advance(1.0)
    net.ping_all(3.0)
    net.unsilence(late)
    net.advance(15.0)
    net.settle()
    view = net.engine.view()
    assert len(view.fabric.links) == 6
    assert all(view.fabric.switches[h.at.dpid].ports[h.at.port].role is PortRole.EDGE for h in view.fabric.hosts.values())
    assert len(view.fabric.hosts) == 6
    assert net.ping_all() == []


def test_topo_10_unspecified_sources_are_never_learned_or_answered() -> None:
    net = fabric(learn=False)
    for host, port in ((1, PortRef(LEAF1, 1)), (3, PortRef(LEAF2, 1)), (5, PortRef(LEAF3, 1))):
        mac = 0x020000000000 + host
        frame_in(net, port, frames.arp_request(mac, IPv4Address(0), IPv4Address("10.0.7.7")))
    net.advance(1.0)
    counters = net.engine.view().counters
    assert counters.get("arp_answered", 0) == 0
    assert net.engine.view().fabric.hosts == {}
    assert net.ping_all(3.0) == []


def test_topo_10_a_probe_for_a_live_hosts_address_is_answered_and_two_claims_raise_an_alarm() -> None:
    net = fabric()
    owner = net.topology.host("h3")
    frame_in(net, PortRef(LEAF1, 1), frames.arp_request(net.topology.host("h1").mac, IPv4Address(0), IPv4Address(owner.ip)))
    net.advance(0.5)
    assert net.engine.view().counters["arp_answered"] >= 1
    thief = net.topology.host("h1")
    frame_in(net, PortRef(LEAF1, 1), frames.arp_request(thief.mac, IPv4Address(owner.ip), IPv4Address("10.0.3.1")))
    net.advance(1.0)
    assert net.engine.view().fabric.hosts[IPv4Address(owner.ip)].at == owner.at
    assert net.ping_all() == []


def test_a_host_that_moves_is_believed_once_the_old_port_is_silent() -> None:
    net = fabric(leaf_spine(3, 2, 2, spare_ports=1))
    net.move_host("h1", PortRef(LEAF3, 3))
    net.from_host("h1", [arp_request(net.topology.host("h1").mac, net.topology.host("h1").ip, net.topology.host("h3").ip)])
    net.advance(1.0)
    net.settle()
    assert net.engine.view().fabric.hosts[IPv4Address(net.topology.host("h1").ip)].at == PortRef(LEAF3, 3)
    assert kinds(net).count("host_moved") == 1
    assert net.ping_all() == []


def test_a_silent_host_ages_out_behind_a_tombstone_and_only_then() -> None:
    net = fabric()
    gone = net.topology.host("h5")
    net.move_host("h5", PortRef(0xFFFF, 1))
    net.advance(290.0)
    assert IPv4Address(gone.ip) in net.engine.view().fabric.hosts
    net.advance(20.0)
    view = net.engine.view()
    assert IPv4Address(gone.ip) not in view.fabric.hosts
    assert (gone.at.dpid, IPv4Address(gone.ip)) in view.fabric.tombstones
    net.advance(40.0)
    net.settle()
    assert not net.engine.view().fabric.tombstones
    assert net.violations() == []


def test_topo_15_any_order_of_port_events_gives_the_same_tables() -> None:
    net = fabric()
    quiet = all_tables(net)
    rng = random.Random(7)
    refs = [PortRef(LEAF1, 101), PortRef(SPINE1, 1), PortRef(LEAF2, 102), PortRef(SPINE1, 3)]
    for _ in range(300):
        ref = rng.choice(refs)
        session = net.channels[ref.dpid].session or 0
        port = net.switches[ref.dpid].ports[ref.port]
        reason = rng.choice(["delete", "modify", "add", "modify"])
        event = PortChanged(net.now, session, reason, replace(port, link_down=rng.random() < 0.5))
        net.channels[ref.dpid].send_up(event)
        net.advance(rng.random() * 0.05)
    for ref in refs:
        session = net.channels[ref.dpid].session or 0
        net.channels[ref.dpid].send_up(PortChanged(net.now, session, "add", net.switches[ref.dpid].ports[ref.port]))
    net.advance(60.0)
    net.settle()
    assert all_tables(net) == quiet
    assert net.violations() == []


@pytest.mark.parametrize("ends_up", [True, False])
def test_ff_05_a_flapping_link_ends_as_its_last_event_says_with_bounded_work(ends_up: bool) -> None:
    net = fabric()
    before = sum(sent(net).values())
    for n in range(40):
        (net.port_down if n % 2 == 0 else net.port_up)(LEAF1, UPLINK1)
        net.advance(0.5)
    if not ends_up:
        net.port_down(LEAF1, UPLINK1)
    net.advance(0.5)
    messages = sum(sent(net).values()) - before
    assert messages <= 4 * 80, "hold-down lets a link that flaps at 1 Hz back once or twice in 20 s at most"
    net.advance(60.0)
    net.settle()
    assert state_of(net, PortRef(LEAF1, UPLINK1)) is (LinkState.UP if ends_up else LinkState.DOWN)
    assert wanted_and_there_agree(net)


def test_ff_05_hold_down_survives_a_restart() -> None:
    net = fabric(hold_down_s=20.0)
    net.port_down(LEAF1, UPLINK1)
    net.advance(0.2)
    net.port_up(LEAF1, UPLINK1)
    net.advance(1.0)
    assert state_of(net, PortRef(LEAF1, UPLINK1)) is LinkState.HELD
    net.restart_engine(net.engine.__class__(net.engine.view().intent, b"q" * 32))
    net.advance(5.0)
    assert state_of(net, PortRef(LEAF1, UPLINK1)) is LinkState.HELD
    net.advance(20.0)
    assert state_of(net, PortRef(LEAF1, UPLINK1)) is LinkState.UP


def test_l2_01_broadcasts_are_never_copied() -> None:
    net = fabric()
    for stack in net.hosts.values():
        stack.unasked_arp = 0
    for n in range(1000):
        host = net.topology.host("h1")
        net.from_host("h1", [arp_request(host.mac, host.ip, (10 << 24) + 0x0900 + n)])
        net.advance(0.01)
    assert [s.unasked_arp for s in net.hosts.values()] == [0] * 6
