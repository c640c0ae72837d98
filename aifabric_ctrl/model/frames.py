"""The few frames we speak: ARP, our LLDP, and the headers of IP; built and parsed, nothing above layer 3 (case FUZZ-03).

Neighbour discovery is in ``nd``.

Sources: RFC 826 and RFC 5227 (ARP), IEEE 802.1AB (LLDP), RFC 791, RFC 8200.  Parsing raises only ``WireError``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from aifabric_ctrl.model import nd
from aifabric_ctrl.model.errors import WireError
from aifabric_ctrl.model.fields import ETH_ARP, ETH_IP, ETH_IP6, ETH_LLDP, ETH_VLAN, IPPROTO_ICMP6
from aifabric_ctrl.model.ids import Dpid, PortNo, dpid_text

BROADCAST = 0xFFFFFFFFFFFF
LLDP_NEAREST_BRIDGE = 0x0180C200000E
ARP_REQUEST, ARP_REPLY = 1, 2
MIN_FRAME = 60  # without FCS; shorter frames are padded by every sender

_ETH = struct.Struct("!6s6sH")
_ARP = struct.Struct("!HHBBH6s4s6s4s")

# Organisationally specific TLV: a locally administered OUI, so that it can be nobody else's.
LLDP_OUI = b"\x02\xfa\xb0"
LLDP_SUBTYPE = 1
_TLV_END, _TLV_CHASSIS, _TLV_PORT, _TLV_TTL, _TLV_ORG = 0, 1, 2, 3, 127
_LOCAL = 7
_CHASSIS_PREFIX = b"dpid:"


@dataclass(frozen=True, slots=True)
class ArpFrame:
    """ARP for Ethernet and IPv4."""

    dst: int
    src: int
    op: int
    sender_mac: int
    sender_ip: IPv4Address
    target_mac: int
    target_ip: IPv4Address


@dataclass(frozen=True, slots=True)
class LldpFrame:
    """An LLDP frame; ``token`` is None unless it carries our TLV, ``dpid`` and ``port`` unless they read as ours."""

    dst: int
    src: int
    dpid: Dpid | None
    port: PortNo | None
    token: bytes | None
    chassis: bytes


@dataclass(frozen=True, slots=True)
class Ip4Frame:
    """An IPv4 header."""

    dst: int
    src: int
    src_ip: IPv4Address
    dst_ip: IPv4Address
    protocol: int
    ttl: int
    vlan: int | None = None


@dataclass(frozen=True, slots=True)
class Ip6Frame:
    """A fixed IPv6 header; extension headers are not followed."""

    dst: int
    src: int
    src_ip: IPv6Address
    dst_ip: IPv6Address
    next_header: int
    hop_limit: int
    vlan: int | None = None


@dataclass(frozen=True, slots=True)
class OtherFrame:
    """Any other ethertype."""

    dst: int
    src: int
    ethertype: int


Frame = ArpFrame | LldpFrame | Ip4Frame | Ip6Frame | nd.NdFrame | OtherFrame


def _mac(value: int) -> bytes:
    return value.to_bytes(6, "big")


def _pad(frame: bytes) -> bytes:
    return frame.ljust(MIN_FRAME, b"\0")


def arp_request(
    src_mac: int, src_ip: IPv4Address, target_ip: IPv4Address, dst_mac: int = BROADCAST, target_mac: int = 0
) -> bytes:
    """A request, or with ``src_ip`` 0.0.0.0 a probe (RFC 5227), unicast when ``dst_mac`` is given."""
    return _arp(ARP_REQUEST, dst_mac, src_mac, src_ip, target_mac, target_ip)


def arp_reply(src_mac: int, src_ip: IPv4Address, dst_mac: int, dst_ip: IPv4Address) -> bytes:
    """``src_ip`` is at ``src_mac``."""
    return _arp(ARP_REPLY, dst_mac, src_mac, src_ip, dst_mac, dst_ip)


def _arp(op: int, dst_mac: int, src_mac: int, src_ip: IPv4Address, target_mac: int, target_ip: IPv4Address) -> bytes:
    body = _ARP.pack(1, ETH_IP, 6, 4, op, _mac(src_mac), src_ip.packed, _mac(target_mac), target_ip.packed)
    return _pad(_ETH.pack(_mac(dst_mac), _mac(src_mac), ETH_ARP) + body)


def lldp(dpid: Dpid, port: PortNo, src_mac: int, ttl_s: int, token: bytes) -> bytes:
    """Our probe: chassis ``dpid:<16 hex>``, port as 4 bytes, and the token in an organisationally specific TLV."""
    tlvs = (
        _tlv(_TLV_CHASSIS, bytes([_LOCAL]) + _CHASSIS_PREFIX + dpid_text(dpid).encode()),
        _tlv(_TLV_PORT, bytes([_LOCAL]) + port.to_bytes(4, "big")),
        _tlv(_TLV_TTL, ttl_s.to_bytes(2, "big")),
        _tlv(_TLV_ORG, LLDP_OUI + bytes([LLDP_SUBTYPE]) + token),
        _tlv(_TLV_END, b""),
    )
    return _pad(_ETH.pack(_mac(LLDP_NEAREST_BRIDGE), _mac(src_mac), ETH_LLDP) + b"".join(tlvs))


def _tlv(kind: int, value: bytes) -> bytes:
    return (kind << 9 | len(value)).to_bytes(2, "big") + value


def parse_frame(data: bytes) -> Frame:
    """Read a frame as far as we need it.

    Raises:
        WireError: cut short, or a header that contradicts itself.
    """
    if len(data) < _ETH.size:
        raise WireError(f"a frame of {len(data)} bytes has no Ethernet header")
    dst_raw, src_raw, ethertype = _ETH.unpack_from(data)
    dst, src, offset, vlan = int.from_bytes(dst_raw, "big"), int.from_bytes(src_raw, "big"), _ETH.size, None
    if ethertype == ETH_VLAN:
        if len(data) < offset + 4:
            raise WireError("a tagged frame is cut short")
        tag, ethertype = struct.unpack_from("!HH", data, offset)
        vlan, offset = tag & 0xFFF, offset + 4
    if ethertype == ETH_ARP:
        return _parse_arp(data, offset, dst, src)
    if ethertype == ETH_LLDP:
        return _parse_lldp(data, offset, dst, src)
    if ethertype == ETH_IP:
        return _parse_ip4(data, offset, dst, src, vlan)
    if ethertype == ETH_IP6:
        return _parse_ip6(data, offset, dst, src, vlan)
    return OtherFrame(dst, src, ethertype)


def _parse_arp(data: bytes, offset: int, dst: int, src: int) -> ArpFrame:
    if len(data) < offset + _ARP.size:
        raise WireError("an ARP frame is cut short")
    hw, proto, hw_len, proto_len, op, sha, spa, tha, tpa = _ARP.unpack_from(data, offset)
    if (hw, proto, hw_len, proto_len) != (1, ETH_IP, 6, 4):
        raise WireError("ARP for something other than Ethernet and IPv4")
    return ArpFrame(dst, src, op, int.from_bytes(sha, "big"), IPv4Address(spa), int.from_bytes(tha, "big"), IPv4Address(tpa))


def _parse_lldp(data: bytes, offset: int, dst: int, src: int) -> LldpFrame:
    chassis, port, token = b"", None, None
    while True:
        if len(data) < offset + 2:
            raise WireError("an LLDP frame has no end")
        head = int.from_bytes(data[offset : offset + 2], "big")
        kind, length = head >> 9, head & 0x1FF
        value = data[offset + 2 : offset + 2 + length]
        offset += 2 + length
        if len(value) != length:
            raise WireError("an LLDP TLV is cut short")
        if kind == _TLV_END:
            break
        if kind == _TLV_CHASSIS:
            chassis = value
        elif kind == _TLV_PORT and len(value) == 5 and value[0] == _LOCAL:
            port = int.from_bytes(value[1:], "big")
        elif kind == _TLV_ORG and value[:4] == LLDP_OUI + bytes([LLDP_SUBTYPE]):
            token = value[4:]
    if not chassis:
        raise WireError("an LLDP frame names no chassis")
    return LldpFrame(dst, src, _chassis_dpid(chassis), port, token, chassis)


def _chassis_dpid(chassis: bytes) -> Dpid | None:
    digits = chassis[1 + len(_CHASSIS_PREFIX) :]
    if not chassis.startswith(bytes([_LOCAL]) + _CHASSIS_PREFIX) or len(digits) != 16:
        return None
    if any(c not in b"0123456789abcdef" for c in digits):
        return None
    return int(digits, 16)


def _parse_ip4(data: bytes, offset: int, dst: int, src: int, vlan: int | None) -> Ip4Frame:
    if len(data) < offset + 20:
        raise WireError("an IPv4 header is cut short")
    first, ttl, protocol = data[offset], data[offset + 8], data[offset + 9]
    header = (first & 0xF) * 4
    if first >> 4 != 4 or header < 20 or len(data) < offset + header:
        raise WireError("an IPv4 header contradicts itself")
    src_ip, dst_ip = IPv4Address(data[offset + 12 : offset + 16]), IPv4Address(data[offset + 16 : offset + 20])
    return Ip4Frame(dst, src, src_ip, dst_ip, protocol, ttl, vlan)


def _parse_ip6(data: bytes, offset: int, dst: int, src: int, vlan: int | None) -> Ip6Frame | nd.NdFrame:
    if len(data) < offset + 40:
        raise WireError("an IPv6 header is cut short")
    if data[offset] >> 4 != 6:
        raise WireError("an IPv6 header contradicts itself")
    src_ip, dst_ip = IPv6Address(data[offset + 8 : offset + 24]), IPv6Address(data[offset + 24 : offset + 40])
    next_header, hop_limit = data[offset + 6], data[offset + 7]
    body = data[offset + 40 : offset + 40 + int.from_bytes(data[offset + 4 : offset + 6], "big")]
    if next_header == IPPROTO_ICMP6 and len(body) > 1 and body[0] in nd.KINDS:
        return nd.parse(dst, src, src_ip, dst_ip, hop_limit, body, vlan)
    return Ip6Frame(dst, src, src_ip, dst_ip, next_header, hop_limit, vlan)
