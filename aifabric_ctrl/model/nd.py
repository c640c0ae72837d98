"""IPv6 neighbour and router discovery: built and parsed.

Source: RFC 4861 (messages in 4, what to check in 6.1 and 7.1), RFC 4443 (checksum).  Parsing raises only ``WireError``.
Options beyond the link-layer addresses are not read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network

from aifabric_ctrl.model.errors import WireError
from aifabric_ctrl.model.fields import ETH_IP6, IPPROTO_ICMP6

ROUTER_SOLICIT, ROUTER_ADVERT, SOLICIT, ADVERT, REDIRECT = 133, 134, 135, 136, 137
KINDS = frozenset({ROUTER_SOLICIT, ROUTER_ADVERT, SOLICIT, ADVERT, REDIRECT})
HOP_LIMIT = 255  # a packet that was routed cannot have it, so nobody from elsewhere can speak neighbour discovery

ALL_NODES = IPv6Address("ff02::1")
ALL_NODES_MAC = 0x333300000001
UNSPECIFIED = IPv6Address(0)
_SOLICITED_NODE = int(IPv6Address("ff02::1:ff00:0"))

_SOURCE_LINK, _TARGET_LINK, _PREFIX = 1, 2, 3
FLAG_ROUTER, FLAG_SOLICITED, FLAG_OVERRIDE = 1 << 31, 1 << 30, 1 << 29
_LENGTHS = {ROUTER_SOLICIT: 8, ROUTER_ADVERT: 16, SOLICIT: 24, ADVERT: 24, REDIRECT: 40}  # without options


@dataclass(frozen=True, slots=True)
class NdFrame:
    """One neighbour-discovery message.

    ``target`` is ``::`` in router messages; ``link_mac`` the MAC in its source (or, in an advertisement, target)
    link-layer option, None without one.
    """

    dst: int
    src: int
    kind: int
    src_ip: IPv6Address
    dst_ip: IPv6Address
    target: IPv6Address
    link_mac: int | None
    vlan: int | None = None


def link_local(mac: int) -> IPv6Address:
    """The link-local address of a MAC address (RFC 4291, appendix A: modified EUI-64)."""
    upper, lower = mac >> 24 ^ 1 << 17, mac & 0xFFFFFF
    return IPv6Address(0xFE80 << 112 | upper << 40 | 0xFFFE << 24 | lower)


def solicited_node(address: IPv6Address) -> IPv6Address:
    """The multicast group that an owner of ``address`` listens to (RFC 4291, 2.7.1)."""
    return IPv6Address(_SOLICITED_NODE | int(address) & 0xFFFFFF)


def multicast_mac(group: IPv6Address) -> int:
    """RFC 2464, 7."""
    return 0x3333 << 32 | int(group) & 0xFFFFFFFF


def checksum(src: IPv6Address, dst: IPv6Address, body: bytes) -> int:
    """ICMPv6's checksum over the pseudo header (RFC 8200, 8.1); 0 for a body that carries the right one."""
    data = src.packed + dst.packed + struct.pack("!II", len(body), IPPROTO_ICMP6) + body
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


# -- building ------------------------------------------------------------------------------------------------------------


def solicit(src_mac: int, src_ip: IPv6Address, target: IPv6Address, dst_mac: int | None = None) -> bytes:
    """Who has ``target``?  To its group, or with ``dst_mac`` to that machine alone (neighbour unreachability detection).

    From ``::`` it is a probe for duplicates, which carries no link-layer option.
    """
    group = solicited_node(target)
    dst_ip, to = (group, multicast_mac(group)) if dst_mac is None else (target, dst_mac)
    option = _link_option(_SOURCE_LINK, src_mac) if src_ip != UNSPECIFIED else b""
    return _frame(to, src_mac, src_ip, dst_ip, struct.pack("!BBHI", SOLICIT, 0, 0, 0) + target.packed + option)


def advert(
    src_mac: int,
    target: IPv6Address,
    link_mac: int,
    dst_mac: int,
    dst_ip: IPv6Address,
    flags: int,
    src_ip: IPv6Address | None = None,
) -> bytes:
    """``target`` is at ``link_mac``; ``flags`` of FLAG_*."""
    body = struct.pack("!BBHI", ADVERT, 0, 0, flags) + target.packed + _link_option(_TARGET_LINK, link_mac)
    return _frame(dst_mac, src_mac, src_ip or target, dst_ip, body)


def router_solicit(src_mac: int, src_ip: IPv6Address) -> bytes:
    """Who is a router here?"""
    option = _link_option(_SOURCE_LINK, src_mac) if src_ip != UNSPECIFIED else b""
    group = IPv6Address("ff02::2")
    return _frame(multicast_mac(group), src_mac, src_ip, group, struct.pack("!BBHI", ROUTER_SOLICIT, 0, 0, 0) + option)


def router_advert(
    router_mac: int,
    lifetime_s: int,
    prefixes: Iterable[IPv6Network],
    dst_mac: int = ALL_NODES_MAC,
    dst_ip: IPv6Address = ALL_NODES,
    managed: bool = False,
) -> bytes:
    """We are a router for ``lifetime_s`` (0 .. 9000).

    Each prefix may be used for addresses (A) and is not on-link (L clear): everything goes through the gateway.
    ``managed`` sends hosts to DHCPv6 for addresses and the rest (M and O).
    """
    flags = 0xC0 if managed else 0
    body = struct.pack("!BBHBBHII", ROUTER_ADVERT, 0, 0, 64, flags, lifetime_s, 0, 0) + _link_option(_SOURCE_LINK, router_mac)
    for prefix in prefixes:
        body += struct.pack("!BBBBIII", _PREFIX, 4, prefix.prefixlen, 0x40, 2_592_000, 604_800, 0) + prefix.network_address.packed
    return _frame(dst_mac, router_mac, link_local(router_mac), dst_ip, body)


def _link_option(kind: int, mac: int) -> bytes:
    return bytes([kind, 1]) + mac.to_bytes(6, "big")


def _frame(dst_mac: int, src_mac: int, src_ip: IPv6Address, dst_ip: IPv6Address, body: bytes) -> bytes:
    body = body[:2] + checksum(src_ip, dst_ip, body).to_bytes(2, "big") + body[4:]
    head = struct.pack("!IHBB", 6 << 28, len(body), IPPROTO_ICMP6, HOP_LIMIT)
    ethernet = dst_mac.to_bytes(6, "big") + src_mac.to_bytes(6, "big") + ETH_IP6.to_bytes(2, "big")
    return ethernet + head + src_ip.packed + dst_ip.packed + body


# -- parsing -------------------------------------------------------------------------------------------------------------


def parse(dst: int, src: int, src_ip: IPv6Address, dst_ip: IPv6Address, hop_limit: int, body: bytes, vlan: int | None) -> NdFrame:
    """The ICMPv6 message of a packet whose type is one of ``KINDS``; what RFC 4861 tells a receiver to discard is refused."""
    kind = body[0]
    need = _LENGTHS[kind]
    if len(body) < need:
        raise WireError("a neighbour-discovery message is cut short")
    if hop_limit != HOP_LIMIT:
        raise WireError(f"neighbour discovery with hop limit {hop_limit}: it has been routed")
    if body[1] != 0 or checksum(src_ip, dst_ip, body):
        raise WireError("a neighbour-discovery message with a wrong code or checksum")
    target = IPv6Address(body[8:24]) if kind in (SOLICIT, ADVERT, REDIRECT) else UNSPECIFIED
    if kind in (SOLICIT, ADVERT) and target.is_multicast:
        raise WireError("neighbour discovery for a multicast address")
    wanted = _TARGET_LINK if kind in (ADVERT, REDIRECT) else _SOURCE_LINK
    return NdFrame(dst, src, kind, src_ip, dst_ip, target, _link_mac(body[need:], wanted), vlan)


def _link_mac(options: bytes, wanted: int) -> int | None:
    found = None
    while options:
        length = options[1] * 8 if len(options) > 1 else 0
        if length == 0 or length > len(options):
            raise WireError("a neighbour-discovery option without a length")
        if options[0] == wanted and length == 8:
            found = int.from_bytes(options[2:8], "big")
        options = options[length:]
    return found
