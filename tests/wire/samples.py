"""Flows, groups and meters that between them use every field, action and instruction the model has."""

from __future__ import annotations

from aifabric_ctrl.model.fields import FIELDS
from aifabric_ctrl.model.ids import PORT_CONTROLLER, PORT_IN_PORT, PORT_LOCAL
from aifabric_ctrl.model.rules import (
    Action,
    Bucket,
    DecTtl,
    Flow,
    Group,
    Match,
    Meter,
    Move,
    Output,
    PopVlan,
    PushVlan,
    SetField,
    SetQueue,
    ToGroup,
)

COOKIE = 0xA1FA_0010_0000_0001
IP = {"eth_type": 0x0800}
IP6 = {"eth_type": 0x86DD}
ARP = {"eth_type": 0x0806}
TCP = {**IP, "ip_proto": 6}
UDP = {**IP, "ip_proto": 17}
ICMP6 = {**IP6, "ip_proto": 58}
NS = {**ICMP6, "icmpv6_type": 135}
NA = {**ICMP6, "icmpv6_type": 136}
V6 = 0xFD00_0000_0000_0000_0000_0000_0000_0001
MASK_64 = ((1 << 64) - 1) << 64

MATCHES: tuple[Match, ...] = (
    Match.of(),
    Match.of(in_port=3),
    Match.of(metadata=(0x0001_0000_0002_0003, 0xFFFF_0000_FFFF_FFFF)),
    Match.of(metadata=0xFFFFFFFFFFFFFFFF),
    Match.of(reg0=5, reg1=(0x10, 0xF0), reg2=0xFFFFFFFF, reg3=(0, 1)),
    Match.of(eth_dst=0x0123456789AB, eth_src=(0x020000000000, 0xFF0000000000)),
    Match.of(vlan_vid=0x1005, **IP),
    Match.of(vlan_vid=(0x1000, 0x1000)),
    Match.of(vlan_vid=0),
    Match.of(in_port=1, eth_src=0x020000000001, ipv4_src=0x0A000001, **IP),
    Match.of(ip_dscp=26, nw_ttl=1, **IP),
    Match.of(nw_frag=3, **IP),
    Match.of(nw_frag=1, **IP),
    Match.of(nw_frag=0, **IP6),
    Match.of(nw_frag=(1, 1), **IP),
    Match.of(nw_frag=(0, 2), **UDP),
    Match.of(ipv4_dst=(0x0A000000, 0xFF000000), ipv4_src=(0x0A000100, 0xFFFFFF00), **IP),
    Match.of(ipv6_src=V6, ipv6_dst=(V6 & MASK_64, MASK_64), **IP6),
    Match.of(tcp_src=80, tcp_dst=(0x8000, 0x8000), **TCP),
    Match.of(tcp_flags=0x012, **TCP),
    Match.of(tcp_flags=(0x002, 0x012), eth_type=0x86DD, ip_proto=6),
    Match.of(udp_src=(3, 7), udp_dst=4791, **UDP),
    Match.of(udp_src=(3, 3), udp_dst=4791, eth_type=0x86DD, ip_proto=17),
    Match.of(icmpv4_type=8, icmpv4_code=0, ip_proto=1, **IP),
    Match.of(icmpv6_type=128, icmpv6_code=0, **ICMP6),
    Match.of(nd_target=V6, nd_sll=0x020000000001, **NS),
    Match.of(nd_target=(V6 & MASK_64, MASK_64), nd_tll=(0x020000000000, 0xFF0000000000), **NA),
    Match.of(nd_reserved=0x60000000, nd_options_type=1, **NS),
    Match.of(arp_op=1, arp_spa=0x0A000001, arp_tpa=(0x0A000000, 0xFF000000), **ARP),
    Match.of(arp_sha=0x020000000001, arp_tha=(0, 0xFFFFFFFF0000), **ARP),
)


def flow(match: Match, *actions: Action, priority: int = 100, cookie: int = COOKIE, **rest: object) -> Flow:
    return Flow(1, priority, match, actions=actions, cookie=cookie, **rest)  # type: ignore[arg-type]


def sets(prerequisites: dict[str, int], **values: int) -> Flow:
    return flow(Match.of(**prerequisites), *(SetField(name, value) for name, value in values.items()), priority=len(values))


SETS: tuple[Flow, ...] = (
    sets({}, eth_dst=0x020000000002, eth_src=0x020000000001, metadata=7, reg0=1, reg1=2, reg2=3, reg3=4),
    sets({"vlan_vid": 0x1001}, vlan_vid=0x1005),
    sets(IP, ip_dscp=48, nw_ttl=64, ipv4_src=0x0A000001, ipv4_dst=0x0A000002),
    sets(IP6, ipv6_src=V6, ipv6_dst=V6 + 1, ip_dscp=26, nw_ttl=1),
    sets(TCP, tcp_src=1, tcp_dst=2),
    sets(UDP, udp_src=1, udp_dst=4791),
    sets({**IP, "ip_proto": 1}, icmpv4_type=0, icmpv4_code=0),
    sets(NS, nd_target=V6, nd_sll=1, nd_reserved=0xE0000000, nd_options_type=2, icmpv6_type=136),
    sets(NA, nd_tll=2),
    sets(ARP, arp_op=2, arp_spa=1, arp_tpa=2, arp_sha=3, arp_tha=4),
)

MOVES: tuple[Flow, ...] = (
    flow(Match.of(**ARP), Move("arp_sha", "arp_tha", 48), Move("arp_spa", "reg0", 32), Move("arp_tpa", "arp_spa", 32)),
    flow(Match.of(**ARP), Move("eth_src", "eth_dst", 48), Move("reg0", "arp_tpa", 32), Output(PORT_IN_PORT), priority=2),
    flow(Match.of(**NS), Move("nd_target", "ipv6_src", 128), Move("nd_sll", "eth_dst", 48), Move("ipv6_src", "ipv6_dst", 128)),
    flow(Match.of(**IP), Move("metadata", "reg0", 16, 16, 0), Move("reg0", "reg1", 8, 0, 24), Move("nw_ttl", "reg2", 8)),
    flow(Match.of(**IP), Move("ip_dscp", "reg0", 6), Move("ipv4_src", "ipv4_dst", 32), Move("in_port", "reg3", 32), priority=2),
    flow(Match.of(**UDP), Move("udp_src", "udp_dst", 16), Move("udp_dst", "reg0", 4, 12, 28)),
    flow(Match.of(**TCP), Move("tcp_flags", "reg0", 12), Move("tcp_src", "tcp_dst", 16)),
    flow(Match.of(**NS), Move("nd_options_type", "reg0", 8), Move("nd_reserved", "reg1", 32), priority=2),
)

GROUPS: tuple[Group, ...] = (
    Group(0x0A000001, "ff", (Bucket((Output(1),), 0, 1), Bucket((Output(2),), 0, 2), Bucket((Output(PORT_IN_PORT),), 0, 3))),
    Group(0x0A000002, "indirect", (Bucket((SetField("eth_dst", 0x020000000009), DecTtl(), Output(2))),)),
    Group(
        0x0A000003,
        "select",
        (
            Bucket((ToGroup(0x0A000001),), 3, watch_group=0x0A000001),
            Bucket((SetQueue(1), Output(2)), 1, watch_port=2),
            Bucket((DecTtl(), DecTtl(), Output(3)), 16, 3),
        ),
    ),
    Group(0x0A000004, "all", (Bucket((Output(1),)), Bucket((PushVlan(), SetField("vlan_vid", 0x1007), Output(2))))),
    Group(0x0A000005, "select", tuple(Bucket((Output(1 + i % 3),), 1, 1 + i % 3) for i in range(16))),
    Group(0x0A000006, "indirect", (Bucket(()),)),
)

METERS: tuple[Meter, ...] = (Meter(0x10001, 100, 20), Meter(0x10002, 5000, 50, pps=False))

ACTIONS: tuple[Flow, ...] = (
    flow(Match.of(in_port=1)),
    flow(Match.of(in_port=2), Output(1), Output(PORT_LOCAL), Output(PORT_IN_PORT), Output(PORT_CONTROLLER, 0xFFFF)),
    flow(Match.of(in_port=3), Output(PORT_CONTROLLER, 128)),
    flow(Match.of(in_port=4), PushVlan(), SetField("vlan_vid", 0x1005), Output(2), PopVlan(), Output(3)),
    flow(Match.of(in_port=4, **IP), *([DecTtl()] * 20), SetQueue(3), ToGroup(0x0A000001)),
    flow(Match.of(in_port=5), Output(1), meter=0x10001, metadata=(0x5, 0xFF), goto=10),
    flow(Match.of(in_port=6), metadata=(0xFFFF_FFFF_FFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF), goto=2),
    flow(Match.of(in_port=7), meter=0x10002),
    flow(Match.of(in_port=8), goto=50, cookie=0),
    flow(Match.of(in_port=9, **IP), SetField("eth_dst", 1), DecTtl(), SetField("eth_src", 2), Output(1), SetField("eth_dst", 3)),
)

MATCH_FLOWS: tuple[Flow, ...] = tuple(flow(match, Output(1), priority=1000 + i) for i, match in enumerate(MATCHES))
FLOWS: tuple[Flow, ...] = (*MATCH_FLOWS, *SETS, *MOVES, *ACTIONS)

USED_FIELDS = {f.name for m in MATCHES for f in m.fields}
if set(FIELDS) - USED_FIELDS:
    raise RuntimeError(f"no sample matches on {sorted(set(FIELDS) - USED_FIELDS)}")
