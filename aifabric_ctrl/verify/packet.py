"""A packet as the pipeline sees it: header fields by name.  Knows nothing of bytes (``sim.frame`` does) or of rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aifabric_ctrl.model.errors import ContractError
from aifabric_ctrl.model.fields import (
    ETH_ARP,
    ETH_IP,
    ETH_IP6,
    FIELDS,
    IPPROTO_ICMP,
    IPPROTO_ICMP6,
    IPPROTO_TCP,
    IPPROTO_UDP,
)

# Kept by the switch beside the packet while it is in the pipeline; never on the wire.
PIPELINE_FIELDS = frozenset({"in_port", "metadata", "reg0", "reg1", "reg2", "reg3"})

BROADCAST_MAC = (1 << 48) - 1

# nw_frag as OVS encodes it (ovs-fields(7)): bit 0 "is a fragment", bit 1 "is not the first".
FRAG_FIRST, FRAG_LATER = 1, 3


class Packet(Mapping[str, int]):
    """Header fields by their name in ``model.fields``; immutable and hashable.

    A field that is absent matches nothing.  ``payload`` is carried unread.  ``vlan_vid`` is 0 (untagged) unless given,
    as OpenFlow matches it (OFPVID_NONE).
    """

    __slots__ = ("_fields", "_hash", "payload")

    def __init__(self, fields: Mapping[str, int], payload: bytes = b"") -> None:
        for name, value in fields.items():
            spec = FIELDS.get(name)
            if spec is None or name in PIPELINE_FIELDS:
                raise ContractError(f"{name!r} is not a packet field")
            if not 0 <= value < 1 << spec.bits:
                raise ContractError(f"{name}={value:#x} does not fit {spec.bits} bits")
        self._fields = {"vlan_vid": 0, **fields}
        self._hash = hash((frozenset(self._fields.items()), payload))
        self.payload = payload

    def __getitem__(self, name: str) -> int:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Packet):
            return NotImplemented
        return self._hash == other._hash and self._fields == other._fields and self.payload == other.payload

    def __repr__(self) -> str:
        ordered = sorted(self._fields, key=lambda n: FIELDS[n].order)
        return f"Packet({', '.join(FIELDS[n].text(self._fields[n], None) for n in ordered)})"

    def with_fields(self, **changes: int) -> Packet:
        """The same packet with some fields changed or added."""
        return Packet({**self._fields, **changes}, self.payload)


def _ip4(src_mac: int, dst_mac: int, src_ip: int, dst_ip: int, proto: int, ttl: int, dscp: int, frag: int) -> dict[str, int]:
    return {
        "eth_dst": dst_mac,
        "eth_src": src_mac,
        "eth_type": ETH_IP,
        "ip_dscp": dscp,
        "nw_ttl": ttl,
        "nw_frag": frag,
        "ip_proto": proto,
        "ipv4_src": src_ip,
        "ipv4_dst": dst_ip,
    }


def udp4(
    src_mac: int,
    dst_mac: int,
    src_ip: int,
    dst_ip: int,
    sport: int,
    dport: int,
    ttl: int = 64,
    dscp: int = 0,
    frag: int = 0,
) -> Packet:
    """UDP over IPv4.  A later fragment (``frag=FRAG_LATER``) shows ports 0, as OVS matches it."""
    if frag == FRAG_LATER:
        sport = dport = 0
    head = _ip4(src_mac, dst_mac, src_ip, dst_ip, IPPROTO_UDP, ttl, dscp, frag)
    return Packet({**head, "udp_src": sport, "udp_dst": dport})


def tcp4(
    src_mac: int,
    dst_mac: int,
    src_ip: int,
    dst_ip: int,
    sport: int,
    dport: int,
    ttl: int = 64,
    dscp: int = 0,
    frag: int = 0,
    flags: int = 0x02,
) -> Packet:
    """TCP over IPv4 (a SYN unless ``flags`` says otherwise)."""
    if frag == FRAG_LATER:
        sport = dport = flags = 0
    head = _ip4(src_mac, dst_mac, src_ip, dst_ip, IPPROTO_TCP, ttl, dscp, frag)
    return Packet({**head, "tcp_src": sport, "tcp_dst": dport, "tcp_flags": flags})


def icmp4_echo(src_mac: int, dst_mac: int, src_ip: int, dst_ip: int, ttl: int = 64, dscp: int = 0, reply: bool = False) -> Packet:
    """An ICMP echo request (or reply)."""
    head = _ip4(src_mac, dst_mac, src_ip, dst_ip, IPPROTO_ICMP, ttl, dscp, 0)
    return Packet({**head, "icmpv4_type": 0 if reply else 8, "icmpv4_code": 0})


def _ip6(src_mac: int, dst_mac: int, src_ip: int, dst_ip: int, proto: int, ttl: int, dscp: int) -> dict[str, int]:
    return {
        "eth_dst": dst_mac,
        "eth_src": src_mac,
        "eth_type": ETH_IP6,
        "ip_dscp": dscp,
        "nw_ttl": ttl,
        "nw_frag": 0,
        "ip_proto": proto,
        "ipv6_src": src_ip,
        "ipv6_dst": dst_ip,
    }


def udp6(src_mac: int, dst_mac: int, src_ip: int, dst_ip: int, sport: int, dport: int, ttl: int = 64, dscp: int = 0) -> Packet:
    """UDP over IPv6."""
    return Packet({**_ip6(src_mac, dst_mac, src_ip, dst_ip, IPPROTO_UDP, ttl, dscp), "udp_src": sport, "udp_dst": dport})


def icmp6_echo(src_mac: int, dst_mac: int, src_ip: int, dst_ip: int, ttl: int = 64, reply: bool = False) -> Packet:
    """An ICMPv6 echo request (or reply)."""
    head = _ip6(src_mac, dst_mac, src_ip, dst_ip, IPPROTO_ICMP6, ttl, 0)
    return Packet({**head, "icmpv6_type": 129 if reply else 128, "icmpv6_code": 0})


def neighbour_solicit(mac: int, src_ip: int, target: int, dst_mac: int | None = None) -> Packet:
    """Who has ``target``?  From ``::`` it is a probe for duplicates and has no link-layer option (RFC 4861, 4.3)."""
    group = 0xFF02 << 112 | 0x1FF << 24 | target & 0xFFFFFF
    to = 0x333300000000 | group & 0xFFFFFFFF if dst_mac is None else dst_mac
    head = _ip6(mac, to, src_ip, group if dst_mac is None else target, IPPROTO_ICMP6, 255, 0)
    option = {"nd_options_type": 1, "nd_sll": mac} if src_ip else {}
    return Packet({**head, "icmpv6_type": 135, "icmpv6_code": 0, "nd_reserved": 0, "nd_target": target, **option})


def neighbour_advert(mac: int, target: int, to_mac: int, to_ip: int, flags: int = 0x60000000) -> Packet:
    """``target`` is at ``mac``."""
    head = _ip6(mac, to_mac, target, to_ip, IPPROTO_ICMP6, 255, 0)
    more = {"icmpv6_type": 136, "icmpv6_code": 0, "nd_reserved": flags, "nd_target": target, "nd_options_type": 2, "nd_tll": mac}
    return Packet({**head, **more})


def arp(op: int, eth_src: int, eth_dst: int, sha: int, spa: int, tha: int, tpa: int) -> Packet:
    """Any ARP packet; ``op`` 1 asks, 2 answers."""
    return Packet(
        {
            "eth_dst": eth_dst,
            "eth_src": eth_src,
            "eth_type": ETH_ARP,
            "arp_op": op,
            "arp_sha": sha,
            "arp_spa": spa,
            "arp_tha": tha,
            "arp_tpa": tpa,
        }
    )


def arp_request(mac: int, sender_ip: int, target_ip: int, eth_dst: int = BROADCAST_MAC, target_mac: int = 0) -> Packet:
    """Who has ``target_ip``?  Sender 0 is a probe, sender equal to target an announcement (RFC 5227)."""
    return arp(1, mac, eth_dst, mac, sender_ip, target_mac, target_ip)


def arp_reply(mac: int, sender_ip: int, to_mac: int, to_ip: int) -> Packet:
    """``sender_ip`` is at ``mac``, told to one host."""
    return arp(2, mac, to_mac, mac, sender_ip, to_mac, to_ip)
