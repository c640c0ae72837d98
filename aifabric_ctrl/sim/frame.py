"""Ethernet bytes to and from the packets of ``verify``: what a fake switch or host needs, nothing for production.

IPv6 without extension headers; of neighbour discovery the first option.
ARP, LLDP and unknown frames survive reading and writing unchanged; IPv4 identification, TCP sequence numbers and VLAN
priority do not.
"""

from __future__ import annotations

import struct

from aifabric_ctrl.model.errors import WireError
from aifabric_ctrl.model.fields import ETH_ARP, ETH_IP, ETH_IP6, ETH_VLAN, IPPROTO_ICMP, IPPROTO_ICMP6, IPPROTO_TCP, IPPROTO_UDP
from aifabric_ctrl.model.nd import ADVERT, SOLICIT
from aifabric_ctrl.verify.executor import VLAN_PRESENT
from aifabric_ctrl.verify.packet import FRAG_FIRST, FRAG_LATER, Packet

_ARP = struct.Struct("!HHBBH6s4s6s4s")
_IP4 = struct.Struct("!BBHHHBBHII")


def _mac(raw: bytes) -> int:
    return int.from_bytes(raw, "big")


def packet_of(frame: bytes) -> Packet:
    """Read a frame; what is above the known headers becomes the payload.

    Raises:
        WireError: shorter than the headers it announces.
    """
    if len(frame) < 14:
        raise WireError(f"frame of {len(frame)} bytes")
    fields = {"eth_dst": _mac(frame[:6]), "eth_src": _mac(frame[6:12])}
    kind, rest = int.from_bytes(frame[12:14], "big"), frame[14:]
    if kind == ETH_VLAN and len(rest) >= 4:
        fields["vlan_vid"] = int.from_bytes(rest[:2], "big") & 0x0FFF | VLAN_PRESENT
        kind, rest = int.from_bytes(rest[2:4], "big"), rest[4:]
    fields["eth_type"] = kind
    try:
        if kind == ETH_ARP:
            _, _, _, _, op, sha, spa, tha, tpa = _ARP.unpack_from(rest)
            fields |= {"arp_op": op, "arp_sha": _mac(sha), "arp_spa": _mac(spa), "arp_tha": _mac(tha), "arp_tpa": _mac(tpa)}
            rest = rest[_ARP.size :]
        elif kind == ETH_IP:
            more, rest = _read_ip4(rest)
            fields |= more
        elif kind == ETH_IP6:
            more, rest = _read_ip6(rest)
            fields |= more
    except struct.error as error:
        raise WireError(f"frame cut short: {error}") from error
    return Packet(fields, rest)


def _read_ip4(data: bytes) -> tuple[dict[str, int], bytes]:
    version, tos, length, _, frag, ttl, proto, _, src, dst = _IP4.unpack_from(data)
    header = (version & 0xF) * 4
    if version >> 4 != 4 or header < 20 or length < header or length > len(data):
        raise WireError("not an IPv4 header")
    later, more = frag & 0x1FFF, frag & 0x2000
    fields = {
        "ip_dscp": tos >> 2,
        "nw_ttl": ttl,
        "nw_frag": FRAG_LATER if later else FRAG_FIRST if more else 0,
        "ip_proto": proto,
        "ipv4_src": src,
        "ipv4_dst": dst,
    }
    rest = data[header:length]
    if later:
        zero = {IPPROTO_UDP: ("udp_src", "udp_dst"), IPPROTO_TCP: ("tcp_src", "tcp_dst", "tcp_flags")}.get(proto, ())
        return fields | dict.fromkeys(zero, 0), rest
    more_fields, rest = _read_l4(proto, rest)
    return fields | more_fields, rest


def _read_l4(proto: int, rest: bytes) -> tuple[dict[str, int], bytes]:
    if proto == IPPROTO_UDP:
        sport, dport, _, _ = struct.unpack_from("!HHHH", rest)
        return {"udp_src": sport, "udp_dst": dport}, rest[8:]
    if proto == IPPROTO_TCP:
        sport, dport, _, _, flags = struct.unpack_from("!HHIIH", rest)
        return {"tcp_src": sport, "tcp_dst": dport, "tcp_flags": flags & 0x0FFF}, rest[20:]
    if proto == IPPROTO_ICMP:
        kind, code = struct.unpack_from("!BB", rest)
        return {"icmpv4_type": kind, "icmpv4_code": code}, rest[4:]
    return {}, rest


def _read_ip6(data: bytes) -> tuple[dict[str, int], bytes]:
    first, length, proto, hops = struct.unpack_from("!IHBB", data)
    if first >> 28 != 6 or 40 + length > len(data):
        raise WireError("not an IPv6 header")
    fields = {
        "ip_dscp": first >> 22 & 0x3F,
        "nw_ttl": hops,
        "nw_frag": 0,
        "ip_proto": proto,
        "ipv6_src": int.from_bytes(data[8:24], "big"),
        "ipv6_dst": int.from_bytes(data[24:40], "big"),
    }
    rest = data[40 : 40 + length]
    if proto != IPPROTO_ICMP6:
        more, rest = _read_l4(proto, rest)
        return fields | more, rest
    kind, code, _, reserved = struct.unpack_from("!BBHI", rest)
    fields |= {"icmpv6_type": kind, "icmpv6_code": code}
    if kind not in (SOLICIT, ADVERT):
        return fields, rest[4:]
    fields |= {"nd_reserved": reserved, "nd_target": int.from_bytes(rest[8:24], "big")}
    option = rest[24:]
    if len(option) >= 8 and option[1] == 1 and option[0] == {SOLICIT: 1, ADVERT: 2}[kind]:
        fields |= {"nd_options_type": option[0], "nd_sll" if kind == SOLICIT else "nd_tll": _mac(option[2:8])}
        option = option[8:]
    return fields, option


def frame_of(packet: Packet) -> bytes:
    """Write a packet as bytes, with lengths and checksums."""
    head = packet["eth_dst"].to_bytes(6, "big") + packet["eth_src"].to_bytes(6, "big")
    if packet["vlan_vid"] & VLAN_PRESENT:
        head += struct.pack("!HH", ETH_VLAN, packet["vlan_vid"] & 0x0FFF)
    kind = packet["eth_type"]
    head += kind.to_bytes(2, "big")
    if kind == ETH_ARP and "arp_op" in packet:
        sha, tha = packet["arp_sha"].to_bytes(6, "big"), packet["arp_tha"].to_bytes(6, "big")
        spa, tpa = packet["arp_spa"].to_bytes(4, "big"), packet["arp_tpa"].to_bytes(4, "big")
        return head + _ARP.pack(1, ETH_IP, 6, 4, packet["arp_op"], sha, spa, tha, tpa) + packet.payload
    if kind == ETH_IP and "ipv4_src" in packet:
        return head + _write_ip4(packet)
    if kind == ETH_IP6 and "ipv6_src" in packet:
        return head + _write_ip6(packet)
    return head + packet.payload


def _write_ip4(packet: Packet) -> bytes:
    body = _write_l4(packet) + packet.payload
    frag = {FRAG_FIRST: 0x2000, FRAG_LATER: 1}.get(packet["nw_frag"], 0)
    tos, proto = packet["ip_dscp"] << 2, packet["ip_proto"]
    src, dst = packet["ipv4_src"], packet["ipv4_dst"]

    def header(checksum: int) -> bytes:
        return _IP4.pack(0x45, tos, 20 + len(body), 0, frag, packet["nw_ttl"], proto, checksum, src, dst)

    return header(checksum16(header(0))) + body


def _write_ip6(packet: Packet) -> bytes:
    src, dst, proto = packet["ipv6_src"].to_bytes(16, "big"), packet["ipv6_dst"].to_bytes(16, "big"), packet["ip_proto"]
    if proto == IPPROTO_ICMP6:
        body = _write_icmp6(packet)
        pseudo = src + dst + struct.pack("!II", len(body), proto)
        body = body[:2] + checksum16(pseudo + body).to_bytes(2, "big") + body[4:]
    else:
        body = _write_l4(packet) + packet.payload
    return struct.pack("!IHBB", 6 << 28 | packet["ip_dscp"] << 22, len(body), proto, packet["nw_ttl"]) + src + dst + body


def _write_icmp6(packet: Packet) -> bytes:
    head = struct.pack("!BBH", packet["icmpv6_type"], packet["icmpv6_code"], 0)
    if "nd_target" not in packet:
        return head + packet.payload
    head += packet["nd_reserved"].to_bytes(4, "big") + packet["nd_target"].to_bytes(16, "big")
    link = packet.get("nd_tll", packet.get("nd_sll"))
    if "nd_options_type" in packet and link is not None:
        head += bytes([packet["nd_options_type"], 1]) + link.to_bytes(6, "big")
    return head + packet.payload


def _pseudo(packet: Packet, length: int) -> bytes:
    if packet["eth_type"] == ETH_IP6:
        src, dst = packet["ipv6_src"].to_bytes(16, "big"), packet["ipv6_dst"].to_bytes(16, "big")
        return src + dst + struct.pack("!II", length, packet["ip_proto"])
    return struct.pack("!IIBBH", packet["ipv4_src"], packet["ipv4_dst"], 0, packet["ip_proto"], length)


def _write_l4(packet: Packet) -> bytes:
    proto, body = packet["ip_proto"], packet.payload
    if packet["nw_frag"] == FRAG_LATER:
        return b""
    pseudo = _pseudo(packet, len(body) + (8 if proto == IPPROTO_UDP else 20))
    if proto == IPPROTO_UDP:
        head = struct.pack("!HHHH", packet["udp_src"], packet["udp_dst"], 8 + len(body), 0)
        return head[:6] + (checksum16(pseudo + head + body) or 0xFFFF).to_bytes(2, "big")
    if proto == IPPROTO_TCP:
        head = struct.pack("!HHIIHHHH", packet["tcp_src"], packet["tcp_dst"], 0, 0, 5 << 12 | packet["tcp_flags"], 0xFFFF, 0, 0)
        return head[:16] + checksum16(pseudo + head + body).to_bytes(2, "big") + head[18:]
    if proto == IPPROTO_ICMP:
        head = struct.pack("!BBH", packet["icmpv4_type"], packet["icmpv4_code"], 0)
        return head[:2] + checksum16(head + body).to_bytes(2, "big")
    return b""


def checksum16(data: bytes) -> int:
    """The internet checksum (RFC 1071)."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
