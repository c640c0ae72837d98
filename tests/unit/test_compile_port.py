"""Tables PORT, CLASS, DEST and POLICY, judged by running packets through one leaf's compiled tables."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest

from aifabric_ctrl.compile import base_tables, compile_fabric
from aifabric_ctrl.compile.tables import CLASS_BACKGROUND, DEST, DEST_TENANT, PORT, SOURCE_TENANT, TRAFFIC_CLASS, Priority
from aifabric_ctrl.model.fabric import Fabric, Host, Link, LinkState, Port, PortRole, Reach
from aifabric_ctrl.model.fields import ETH_LLDP
from aifabric_ctrl.model.ids import PORT_LOCAL, PortRef
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.model.rules import Flow, Match, Meter, Tables
from aifabric_ctrl.verify.executor import Outcome, Packet, arp_reply, arp_request, icmp4_echo, run, udp4
from tests.unit.test_compile_support import (
    GATEWAY_MAC,
    HARDWARE,
    UPLINK,
    host_ip,
    host_mac,
    leaf_dpid,
    leaf_spine,
    packet_between,
    spine_dpid,
    with_links,
    with_reach,
)

LEAF = leaf_dpid(1)
MAC, IP = host_mac(1, 1), int(host_ip(1, 1))
FAR = int(host_ip(2, 1))
STRANGER = int(IPv4Address("10.0.77.7"))


def one(tables: Tables, packet: Packet, port: int) -> Outcome:
    """What the switch does when all ports are live; hash choices are irrelevant here, the first will do."""
    return run(tables, packet, port, lambda _: True)[0]


def leaf(fabric: Fabric | None = None, intent: Intent | None = None) -> Tables:
    return compile_fabric(fabric or leaf_spine(2, 2, hosts=2), intent or Intent()).tables[LEAF]


def edge_port(fabric: Fabric, number: int, role: PortRole) -> Fabric:
    """The fabric with one more port at the first leaf."""
    switch = fabric.switches[LEAF]
    changed = replace(switch, ports={**switch.ports, number: Port(number, role=role)})
    return replace(fabric, switches={**fabric.switches, LEAF: changed})


def meter_of(tables: Tables, flow: Flow) -> Meter:
    assert flow.meter is not None
    return tables.meters[flow.meter]


def unknown_host_meter(tables: Tables, port: int) -> int | None:
    return next(f for f in tables.flows.values() if f.table == PORT and f.match == Match.of(in_port=port, eth_type=0x0806)).meter


def test_known_host_goes_on_with_its_tenant_and_class() -> None:
    out = one(leaf(), packet_between(*hosts_between()), 1)
    written = [step.flow.metadata for step in out.trace if step.flow and step.flow.metadata]
    assert written[:3] == [SOURCE_TENANT.of(1), TRAFFIC_CLASS.of(CLASS_BACKGROUND), DEST_TENANT.of(1)]
    assert [step.table for step in out.trace] == [0, 10, 20, 30, 40, 50]
    assert out.outputs[0].packet["nw_ttl"] == 63


def hosts_between() -> tuple[Host, Host]:
    fabric = leaf_spine(2, 2)
    return fabric.hosts[host_ip(1, 1)], fabric.hosts[host_ip(2, 1)]


@pytest.mark.parametrize(
    ("mac", "ip", "port"),
    [(MAC, STRANGER, 1), (0x020000009999, IP, 1), (MAC, IP, 2)],
    ids=["wrong address", "wrong mac", "wrong port"],
)
def test_spoofed_source_goes_nowhere_but_to_the_controller_on_its_own_meter(mac: int, ip: int, port: int) -> None:
    tables = leaf()
    out = one(tables, udp4(mac, GATEWAY_MAC, ip, FAR, 1000, 2000), port)
    assert not out.outputs and out.to_controller
    assert out.meters == (unknown_host_meter(tables, port),)


def test_local_host_is_reached_without_a_spine() -> None:
    out = one(leaf(), udp4(MAC, GATEWAY_MAC, IP, int(host_ip(1, 2)), 1, 2), 1)
    (sent,) = out.outputs
    assert (sent.port, sent.packet["eth_src"], sent.packet["eth_dst"], sent.packet["nw_ttl"]) == (
        2,
        GATEWAY_MAC,
        host_mac(1, 2),
        63,
    )


@pytest.mark.parametrize("target", [FAR, STRANGER, int(IPv4Address("10.0.0.254"))])
def test_arp_is_answered_with_the_gateway_for_any_unicast_target(target: int) -> None:
    out = one(leaf(), arp_request(MAC, IP, target), 1)
    (sent,) = out.outputs
    answer = sent.packet
    assert sent.port == 1 and not out.to_controller
    assert (answer["arp_op"], answer["arp_sha"], answer["arp_spa"]) == (2, GATEWAY_MAC, target)
    assert (answer["arp_tha"], answer["arp_tpa"], answer["eth_dst"], answer["eth_src"]) == (MAC, IP, MAC, GATEWAY_MAC)


@pytest.mark.parametrize(("sender", "target"), [(0, FAR), (0, IP), (IP, IP)], ids=["probe", "probe for its own", "announcement"])
def test_probe_and_announcement_are_left_to_the_controller(sender: int, target: int) -> None:
    tables = leaf()
    out = one(tables, arp_request(MAC, sender, target), 1)
    assert not out.outputs and out.to_controller and out.meters == (unknown_host_meter(tables, 1),)


@pytest.mark.parametrize("target", ["169.254.1.1", "127.0.0.1", "224.0.0.5", "255.255.255.255", "0.0.0.0"])
def test_arp_for_what_no_host_can_be_is_dropped(target: str) -> None:
    out = one(leaf(), arp_request(MAC, IP, int(IPv4Address(target))), 1)
    assert not out.outputs and not out.to_controller


def test_prefixes_bound_what_is_answered() -> None:
    intent = Intent(prefixes=(IPv4Network("10.0.0.0/16"), IPv4Network("10.0.1.0/24")), gateways=(IPv4Address("192.0.2.1"),))
    tables = leaf(intent=intent)
    assert one(tables, arp_request(MAC, IP, FAR), 1).outputs
    assert one(tables, arp_request(MAC, IP, int(IPv4Address("192.0.2.1"))), 1).outputs
    outside = one(tables, arp_request(MAC, IP, int(IPv4Address("10.9.0.1"))), 1)
    assert not outside.outputs and outside.to_controller
    assert not one(tables, udp4(MAC, GATEWAY_MAC, IP, int(IPv4Address("10.9.0.1")), 1, 2), 1).to_controller


def test_arp_reply_of_a_known_host_reaches_the_controller() -> None:
    out = one(leaf(), arp_reply(MAC, IP, GATEWAY_MAC, FAR), 1)
    assert out.to_controller and not out.outputs


def test_without_register_moves_arp_goes_to_the_controller() -> None:
    tables = leaf(leaf_spine(2, 2, hosts=2, features=HARDWARE))
    out = one(tables, arp_request(MAC, IP, FAR), 1)
    assert out.to_controller and not out.outputs
    assert not tables.meters and all(f.meter is None for f in tables.flows.values())


def lldp(source: int = 0x020000000001) -> Packet:
    return Packet({"eth_src": source, "eth_dst": 0x0180C200000E, "eth_type": ETH_LLDP})


def test_lldp_from_a_host_port_does_not_eat_the_discovery_meter() -> None:
    tables = leaf(edge_port(leaf_spine(2, 2, hosts=2), 9, PortRole.UNKNOWN))
    discovery = one(tables, lldp(), UPLINK).meters
    assert one(tables, lldp(), 9).meters == discovery and one(tables, lldp(), 9).to_controller
    assert one(tables, lldp(), 1).meters == (unknown_host_meter(tables, 1),)
    assert one(tables, lldp(), 1).to_controller


def test_lldp_on_an_edge_port_leaves_the_meter_of_known_cables_alone() -> None:
    fabric = leaf_spine(2, 2)
    doubtful = replace(fabric.hosts[host_ip(1, 1)], verified=False)
    tables = leaf(replace(fabric, hosts={**fabric.hosts, doubtful.ip: doubtful}))
    assert one(tables, lldp(), 1).to_controller
    assert one(tables, lldp(), 1).meters != one(tables, lldp(), UPLINK).meters


@pytest.mark.parametrize("role", [PortRole.UNKNOWN, PortRole.RESERVED])
def test_port_without_a_role_may_do_nothing(role: PortRole) -> None:
    tables = leaf(edge_port(leaf_spine(2, 2), 9, role))
    for packet in (arp_request(MAC, IP, FAR), udp4(MAC, GATEWAY_MAC, IP, FAR, 1, 2), arp_request(MAC, 0, IP)):
        out = one(tables, packet, 9)
        assert not out.outputs and not out.to_controller


def test_reserved_port_numbers_are_never_edge_ports() -> None:
    tables = leaf(edge_port(leaf_spine(2, 2), PORT_LOCAL, PortRole.EDGE))
    assert not one(tables, arp_request(MAC, IP, FAR), PORT_LOCAL).to_controller


def test_other_ethertypes_and_fabric_arp_are_dropped() -> None:
    tables = leaf()
    other = Packet({"eth_src": MAC, "eth_dst": 0x333300000001, "eth_type": 0x8847})
    for packet, port in ((other, 1), (arp_request(MAC, IP, FAR), UPLINK)):
        out = one(tables, packet, port)
        assert not out.outputs and not out.to_controller


def test_fabric_port_rules_do_not_depend_on_the_link() -> None:
    fabric = leaf_spine(2, 2)
    link = fabric.links[0]
    for state in (LinkState.DOWN, LinkState.HELD, LinkState.ONE_WAY):
        before = [f for f in leaf(fabric).flows.values() if f.table == PORT]
        assert [f for f in leaf(with_links(fabric, state, link)).flows.values() if f.table == PORT] == before


def test_quarantined_link_makes_no_fabric_port() -> None:
    fabric = leaf_spine(2, 2)
    odd = edge_port(fabric, 9, PortRole.UNKNOWN)
    cable = Link(PortRef(LEAF, 9), PortRef(spine_dpid(1), 99), LinkState.QUARANTINED)
    tables = leaf(replace(odd, links=(*odd.links, cable)))
    assert not one(tables, udp4(MAC, GATEWAY_MAC, FAR, IP, 1, 2), 9).outputs


def test_silent_destination_is_told_to_the_controller_whole() -> None:
    tables = leaf()
    out = one(tables, udp4(MAC, GATEWAY_MAC, IP, STRANGER, 1, 2), 1)
    assert out.to_controller and not out.outputs and out.controller[0].table == DEST
    flow = out.trace[-1].flow
    assert flow is not None and meter_of(tables, flow).rate == Intent().unknown_destination_pps


@pytest.mark.parametrize("target", ["224.0.0.1", "240.0.0.1", "255.255.255.255", "127.0.0.1", "169.254.3.3", "0.0.0.1"])
def test_never_routed_destinations_are_dropped(target: str) -> None:
    out = one(leaf(), udp4(MAC, 0xFFFFFFFFFFFF, IP, int(IPv4Address(target)), 1, 2), 1)
    assert not out.outputs and not out.to_controller


def test_gateway_answers_ping_and_nothing_else() -> None:
    gateway = IPv4Address("10.0.0.254")
    tables = leaf(intent=Intent(gateways=(gateway,)))
    (sent,) = one(tables, icmp4_echo(MAC, GATEWAY_MAC, IP, int(gateway), ttl=3), 1).outputs
    answer = sent.packet
    assert sent.port == 1 and (answer["icmpv4_type"], answer["nw_ttl"]) == (0, 64)
    assert (answer["ipv4_src"], answer["ipv4_dst"], answer["eth_src"], answer["eth_dst"]) == (int(gateway), IP, GATEWAY_MAC, MAC)
    other = one(tables, udp4(MAC, GATEWAY_MAC, IP, int(gateway), 1, 2), 1)
    assert not other.outputs and not other.to_controller


def test_gateway_ping_without_register_moves_is_the_controllers() -> None:
    gateway = IPv4Address("10.0.0.254")
    tables = leaf(leaf_spine(2, 2, features=HARDWARE), Intent(gateways=(gateway,)))
    assert one(tables, icmp4_echo(MAC, GATEWAY_MAC, IP, int(gateway)), 1).to_controller


def test_destinations_are_aggregated_exactly() -> None:
    tables = leaf(leaf_spine(2, 2, hosts=7))
    found = (f for f in tables.flows.values() if f.table == DEST and f.priority == Priority.DEST_HOST)
    networks = sorted(str(f.match).split("ipv4_dst=")[1] for f in found)
    # 1, 2-3, 4-7 at either leaf, and nothing that would hold 0 or 8
    expected = [f"10.0.{n}.{tail}" for n in (1, 2) for tail in ("1", "2/255.255.255.254", "4/255.255.255.252")]
    assert networks == sorted(expected)


@pytest.mark.parametrize(
    ("reach", "routed_at_home", "let_in"),
    [(Reach.LOCAL, True, False), (Reach.ROUTED, True, False), (Reach.TOMBSTONE, False, False)],
)
def test_reach_rises_one_step_at_a_time(reach: Reach, routed_at_home: bool, let_in: bool) -> None:
    fabric = with_reach(leaf_spine(2, 2), host_ip(1, 1), reach)
    home = one(leaf(fabric), udp4(MAC, GATEWAY_MAC, FAR, IP, 1, 2), UPLINK)
    assert bool(home.outputs) == routed_at_home
    far = compile_fabric(fabric, Intent()).tables[leaf_dpid(2)]
    out = one(far, packet_between(fabric.hosts[host_ip(2, 1)], fabric.hosts[host_ip(1, 1)]), 1)
    assert bool(out.outputs) == let_in
    assert out.to_controller == (not let_in)


def test_base_is_part_of_every_switch_and_knows_nothing_of_the_fabric() -> None:
    fabric = leaf_spine(2, 2)
    desired = compile_fabric(fabric, Intent())
    for dpid, switch in fabric.switches.items():
        base = base_tables(switch, Intent())
        full = desired.tables[dpid]
        assert base.flows.items() <= full.flows.items() and base.meters.items() <= full.meters.items()
        assert base == base_tables(replace(switch, ports={}), Intent())
        assert len(base.flows) == 8 and not base.groups


def test_two_hosts_behind_one_port_reach_each_other() -> None:
    fabric = leaf_spine(2, 2, hosts=1)
    second = Host(host_ip(1, 2), host_mac(1, 2), PortRef(LEAF, 1))
    tables = leaf(replace(fabric, hosts={**fabric.hosts, second.ip: second}))
    (sent,) = one(tables, udp4(MAC, GATEWAY_MAC, IP, int(second.ip), 1, 2), 1).outputs
    assert (sent.port, sent.packet["eth_dst"]) == (1, second.mac)
    assert one(tables, udp4(GATEWAY_MAC, 0, FAR, int(second.ip), 1, 2), UPLINK).outputs[0].packet["eth_dst"] == second.mac


def test_meters_bound_everything_a_host_can_send_to_the_controller() -> None:
    tables, intent = leaf(), Intent()
    rates = {tables.meters[f.meter].rate for f in tables.flows.values() if f.meter is not None}
    assert rates == {intent.lldp_pps, intent.unknown_host_pps, intent.unknown_destination_pps, intent.repair_pps}
    assert all(m.burst >= 16 for m in tables.meters.values())
    assert {m.burst for m in tables.meters.values() if m.rate == intent.unknown_host_pps} == {50}
