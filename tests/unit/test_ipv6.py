"""IPv6: neighbour discovery in and beside the data plane, learning, routes, the same laws as IPv4's."""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network, ip_address

import pytest

from aifabric_ctrl.engine.engine import Engine
from aifabric_ctrl.model import nd
from aifabric_ctrl.model.ids import PortRef
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.sim.frame import frame_of, packet_of
from aifabric_ctrl.sim.memnet import MemNet
from aifabric_ctrl.sim.topology import PLAIN_FEATURES, FakeHost, Topology, ip6_of, leaf_spine
from aifabric_ctrl.verify.packet import icmp6_echo, neighbour_solicit, udp6
from tests.unit.engine_lab import fabric

GATEWAY = Intent().gateway_mac
GATEWAY_LL = int(nd.link_local(GATEWAY))


def mac_of(net: MemNet, name: str) -> int:
    return net.hosts[name].host.mac


def heard(net: MemNet, name: str, wait_s: float = 0.2) -> list[nd.NdFrame]:
    """Neighbour discovery that a host gets within some time."""
    found: list[nd.NdFrame] = []
    receive = net.hosts[name].receive

    def listen(packet):  # type: ignore[no-untyped-def]
        if packet.get("ip_proto") == 58 and packet.get("icmpv6_type") in nd.KINDS:
            body = frame_of(packet)
            dst, src = (IPv6Address(packet[n]) for n in ("ipv6_dst", "ipv6_src"))
            found.append(nd.parse(packet["eth_dst"], packet["eth_src"], src, dst, packet["nw_ttl"], body[54:], None))
        return receive(packet)

    net.hosts[name].receive = listen  # type: ignore[method-assign]
    net.advance(wait_s)
    net.hosts[name].receive = receive  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("features", [None, PLAIN_FEATURES], ids=["ovs", "plain"])
def test_every_pair_pings_over_ipv6_and_nobody_is_flooded(features: object) -> None:
    net = fabric(leaf_spine(3, 2, **({"features": features} if features else {})))
    assert net.ping_all(version=6) == []
    assert not any(host.foreign for host in net.hosts.values())
    assert net.violations() == []
    learned = {ip for ip in net.engine.view().fabric.hosts if ip.version == 6}
    assert learned == {ip_address(h.host.ip6) for h in net.hosts.values()}


def test_known_hosts_resolve_each_other_with_the_controller_dead() -> None:
    net = fabric(leaf_spine(2, 2))
    assert net.ping_all(version=6) == []
    net.stop_engine()
    for host in net.hosts.values():
        host.neighbours.clear()
    assert net.ping_all(version=6) == []


def test_an_answer_names_the_gateway_and_carries_its_mac() -> None:
    net = fabric(leaf_spine(2, 1))
    assert net.ping("h1", "h3", version=6)
    net.stop_engine()
    net.from_host("h1", [neighbour_solicit(mac_of(net, "h1"), ip6_of(0x0A000101), ip6_of(0x0A000201))])
    (answer,) = heard(net, "h1")
    assert (answer.kind, answer.link_mac, answer.src, int(answer.target)) == (nd.ADVERT, GATEWAY, GATEWAY, ip6_of(0x0A000201))


def test_the_gateway_s_link_local_address_is_resolved_also_from_a_link_local_source() -> None:
    net = fabric(leaf_spine(2, 1))
    assert net.ping("h1", "h3", version=6)
    net.stop_engine()
    source = int(nd.link_local(mac_of(net, "h1")))
    net.from_host("h1", [neighbour_solicit(mac_of(net, "h1"), source, GATEWAY_LL)])
    assert [a.link_mac for a in heard(net, "h1")] == [GATEWAY]


def test_a_probe_for_duplicates_is_never_answered_by_switches_nor_learned() -> None:
    net = fabric(leaf_spine(2, 1))
    assert net.ping_all(version=6) == []
    free = ip6_of(0x0A0000FA)
    for stop in (False, True):
        if stop:
            net.stop_engine()
        net.from_host("h1", [neighbour_solicit(mac_of(net, "h1"), 0, free)])
        assert heard(net, "h1") == []
    net.from_host("h1", [neighbour_solicit(mac_of(net, "h1"), 0, ip6_of(0x0A000201))])
    assert heard(net, "h1") == []  # with the controller dead nobody defends; what matters: no switch answers


def test_the_owner_s_address_is_defended_and_its_own_probe_is_not_answered() -> None:
    net = fabric(leaf_spine(2, 1))
    assert net.ping_all(version=6) == []
    hosts = dict(net.engine.view().fabric.hosts)
    net.from_host("h1", [neighbour_solicit(mac_of(net, "h1"), 0, ip6_of(0x0A000201))])
    (defence,) = heard(net, "h1")
    assert (defence.kind, defence.link_mac, defence.dst_ip) == (nd.ADVERT, mac_of(net, "h3"), nd.ALL_NODES)
    net.from_host("h3", [neighbour_solicit(mac_of(net, "h3"), 0, ip6_of(0x0A000201))])
    assert heard(net, "h3") == []
    assert dict(net.engine.view().fabric.hosts) == hosts


def test_a_spoofed_source_does_not_leave_its_port() -> None:
    net = fabric(leaf_spine(2, 1))
    assert net.ping_all(version=6) == []
    spoofed = udp6(mac_of(net, "h1"), GATEWAY, ip6_of(0x0A000102), ip6_of(0x0A000201), 1, 2)
    assert net.send("h1", spoofed) == []
    own = udp6(mac_of(net, "h1"), GATEWAY, ip6_of(0x0A000101), ip6_of(0x0A000201), 1, 2)
    assert [name for name, _ in net.send("h1", own)] == ["h3"]


def test_link_local_packets_are_not_routed_and_raise_no_alarm() -> None:
    net = fabric(leaf_spine(2, 1))
    assert net.ping_all(version=6) == []
    lines = len(net.journal)
    here, there = (int(nd.link_local(mac_of(net, n))) for n in ("h1", "h3"))
    assert net.send("h1", icmp6_echo(mac_of(net, "h1"), GATEWAY, here, there)) == []
    assert net.send("h1", udp6(mac_of(net, "h1"), 0x3333000000FB, here, 0xFF02 << 112 | 0xFB, 5353, 5353)) == []
    assert len(net.journal) == lines


def test_router_solicitations_are_answered_at_their_port_only_and_not_too_often() -> None:
    net = MemNet(leaf_spine(2, 1), Engine(Intent(prefixes=(IPv6Network("fd00::/64"),)), b"e" * 32))
    net.connect_all()
    net.settle()
    source = nd.link_local(mac_of(net, "h1"))
    net.from_host("h1", [packet_of(nd.router_solicit(mac_of(net, "h1"), source))] * 5)
    sent = net.engine.view().counters.get("router_advertisements_sent", 0)
    net.advance(0.2)
    assert net.engine.view().counters["router_advertisements_sent"] == sent + 1
    (mine,) = [p for name, p in net.deliveries if p.get("icmpv6_type") == nd.ROUTER_ADVERT]
    assert [name for name, p in net.deliveries if p.get("icmpv6_type") == nd.ROUTER_ADVERT] == ["h1"]
    assert IPv6Network("fd00::/64").network_address.packed in mine.payload and mine["ipv6_src"] == GATEWAY_LL


def test_a_rogue_router_reaches_nobody_and_is_an_alarm() -> None:
    net = fabric(leaf_spine(2, 1))
    assert net.ping_all(version=6) == []
    before = len(net.deliveries)
    net.from_host("h1", [packet_of(nd.router_advert(mac_of(net, "h1"), 1800, []))])
    net.advance(0.2)
    assert net.deliveries[before:] == []
    alarms = [j for _, j in net.journal if j.kind == "rogue_router"]
    assert len(alarms) == 1 and alarms[0].severity == "alarm" and "l1:1" in alarms[0].text


def test_a_silent_host_is_found_and_the_first_packet_arrives() -> None:
    net = fabric(leaf_spine(3, 2))
    assert net.ping("h1", "h5", version=6)  # h5 never spoke


def test_a_host_that_moves_is_followed() -> None:
    topology = leaf_spine(3, 2, spare_ports=1)
    net = fabric(topology)
    assert net.ping_all(version=6) == []
    to = PortRef(sorted(topology.switches)[1], 3)
    net.move_host("h1", to)
    net.from_host("h1", [neighbour_solicit(mac_of(net, "h1"), ip6_of(0x0A000101), GATEWAY_LL)])
    net.advance(1.0)
    assert net.engine.view().fabric.hosts[IPv6Address(ip6_of(0x0A000101))].at == to
    assert net.ping("h6", "h1", version=6)


def test_a_gateway_address_answers_ping_with_the_controller_dead() -> None:
    net = MemNet(leaf_spine(2, 1), Engine(Intent(gateways=(IPv6Address("fd00::fe"),)), b"e" * 32))
    net.connect_all()
    net.settle()
    assert net.ping("h1", "h3", version=6)
    net.stop_engine()
    net.from_host("h1", net.hosts["h1"].ping6(int(IPv6Address("fd00::fe")), 77))
    net.advance(0.2)
    assert net.hosts["h1"].answered(int(IPv6Address("fd00::fe")), 77)


def test_further_addresses_of_a_machine_are_learned_without_a_warning() -> None:
    topology = leaf_spine(2, 1)
    first = topology.hosts[0]
    second = FakeHost("temp", first.mac, 0x0A0001F0, first.at, ip6=ip6_of(0x0A0001F0))
    hosts = (*topology.hosts, second)
    net = fabric(Topology(topology.switches, topology.links, hosts, topology.names, topology.features), learn=False)
    assert net.ping("h1", "h3", version=6)
    assert net.ping("temp", "h3", version=6)
    assert not [j for _, j in net.journal if j.kind == "source_guard"]


def test_two_machines_with_one_address_are_an_alarm() -> None:
    net = fabric(leaf_spine(2, 1))
    assert net.ping_all(version=6) == []
    net.from_host("h1", [neighbour_solicit(mac_of(net, "h1"), ip6_of(0x0A000201), GATEWAY_LL)])
    net.advance(1.5)
    assert [j.kind for _, j in net.journal if j.severity == "alarm"] == ["duplicate_address"]
    assert net.engine.view().fabric.hosts[IPv6Address(ip6_of(0x0A000201))].mac == mac_of(net, "h3")


def test_frames_are_read_as_they_are_built() -> None:
    target = IPv6Address("fd00::7")
    asked = nd.parse(
        1, 2, IPv6Address("fd00::1"), nd.solicited_node(target), 255, nd.solicit(2, IPv6Address("fd00::1"), target)[54:], None
    )
    assert (asked.kind, asked.target, asked.link_mac) == (nd.SOLICIT, target, 2)
    assert packet_of(frame_of(packet_of(nd.solicit(2, target, target)))) == packet_of(nd.solicit(2, target, target))
    assert nd.link_local(0x02FA00000001) == IPv6Address("fe80::fa:ff:fe00:1")
