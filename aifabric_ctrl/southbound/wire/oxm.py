"""Match fields on the wire: one table, and ``Match`` to and from OXM bytes.

Open vSwitch writes three kinds of header (measured, 3.1): the basic class where OpenFlow 1.3 has the field, Nicira's
NXM for registers, TTL and fragments, and experimenter classes for TCP flags and the neighbour-discovery extras.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from aifabric_ctrl.model.errors import WireError
from aifabric_ctrl.model.fields import FIELDS
from aifabric_ctrl.model.rules import Match, MatchField
from aifabric_ctrl.southbound.wire import constants as ofp


class Unmodelled(WireError):
    """Well-formed, but not something ``model.rules`` can hold; ``error`` is what a strict switch would answer."""

    def __init__(self, what: str, error: tuple[int, int]) -> None:
        super().__init__(what)
        self.error = error


# name -> (class, field number, bytes); OpenFlow 1.3.5 table 12 and OVS's nicira-ext.h and ovs-fields(7)
_WIRE: dict[str, tuple[int, int, int]] = {
    "in_port": (ofp.OXM_BASIC, 0, 4),
    "metadata": (ofp.OXM_BASIC, 2, 8),
    "reg0": (ofp.OXM_NXM_1, 0, 4),
    "reg1": (ofp.OXM_NXM_1, 1, 4),
    "reg2": (ofp.OXM_NXM_1, 2, 4),
    "reg3": (ofp.OXM_NXM_1, 3, 4),
    "eth_dst": (ofp.OXM_BASIC, 3, 6),
    "eth_src": (ofp.OXM_BASIC, 4, 6),
    "vlan_vid": (ofp.OXM_BASIC, 6, 2),
    "eth_type": (ofp.OXM_BASIC, 5, 2),
    "ip_dscp": (ofp.OXM_BASIC, 8, 1),
    "nw_ttl": (ofp.OXM_NXM_1, 29, 1),
    "nw_frag": (ofp.OXM_NXM_1, 26, 1),
    "ip_proto": (ofp.OXM_BASIC, 10, 1),
    "ipv4_src": (ofp.OXM_BASIC, 11, 4),
    "ipv4_dst": (ofp.OXM_BASIC, 12, 4),
    "ipv6_src": (ofp.OXM_BASIC, 26, 16),
    "ipv6_dst": (ofp.OXM_BASIC, 27, 16),
    "tcp_src": (ofp.OXM_BASIC, 13, 2),
    "tcp_dst": (ofp.OXM_BASIC, 14, 2),
    "tcp_flags": (ofp.OXM_EXPERIMENTER, 42, 2),
    "udp_src": (ofp.OXM_BASIC, 15, 2),
    "udp_dst": (ofp.OXM_BASIC, 16, 2),
    "icmpv4_type": (ofp.OXM_BASIC, 19, 1),
    "icmpv4_code": (ofp.OXM_BASIC, 20, 1),
    "icmpv6_type": (ofp.OXM_BASIC, 29, 1),
    "icmpv6_code": (ofp.OXM_BASIC, 30, 1),
    "nd_target": (ofp.OXM_BASIC, 31, 16),
    "nd_sll": (ofp.OXM_BASIC, 32, 6),
    "nd_tll": (ofp.OXM_BASIC, 33, 6),
    "nd_reserved": (ofp.OXM_ERICSSON, 1, 4),
    "nd_options_type": (ofp.OXM_ERICSSON, 2, 1),
    "arp_op": (ofp.OXM_BASIC, 21, 2),
    "arp_spa": (ofp.OXM_BASIC, 22, 4),
    "arp_tpa": (ofp.OXM_BASIC, 23, 4),
    "arp_sha": (ofp.OXM_BASIC, 24, 6),
    "arp_tha": (ofp.OXM_BASIC, 25, 6),
}

# The names OVS prefers inside register moves (measured, 3.1); NXM's in_port has 16 bits and is another field.
_ALIASES: dict[str, tuple[int, int]] = {
    "eth_dst": (ofp.OXM_NXM_0, 1),
    "eth_src": (ofp.OXM_NXM_0, 2),
    "eth_type": (ofp.OXM_NXM_0, 3),
    "ip_proto": (ofp.OXM_NXM_0, 6),
    "ipv4_src": (ofp.OXM_NXM_0, 7),
    "ipv4_dst": (ofp.OXM_NXM_0, 8),
    "tcp_src": (ofp.OXM_NXM_0, 9),
    "tcp_dst": (ofp.OXM_NXM_0, 10),
    "udp_src": (ofp.OXM_NXM_0, 11),
    "udp_dst": (ofp.OXM_NXM_0, 12),
    "icmpv4_type": (ofp.OXM_NXM_0, 13),
    "icmpv4_code": (ofp.OXM_NXM_0, 14),
    "arp_op": (ofp.OXM_NXM_0, 15),
    "arp_spa": (ofp.OXM_NXM_0, 16),
    "arp_tpa": (ofp.OXM_NXM_0, 17),
    "arp_sha": (ofp.OXM_NXM_1, 17),
    "arp_tha": (ofp.OXM_NXM_1, 18),
    "ipv6_src": (ofp.OXM_NXM_1, 19),
    "ipv6_dst": (ofp.OXM_NXM_1, 20),
    "icmpv6_type": (ofp.OXM_NXM_1, 21),
    "icmpv6_code": (ofp.OXM_NXM_1, 22),
    "nd_target": (ofp.OXM_NXM_1, 23),
    "nd_sll": (ofp.OXM_NXM_1, 24),
    "nd_tll": (ofp.OXM_NXM_1, 25),
    "tcp_flags": (ofp.OXM_NXM_1, 34),
}

_EXPERIMENTER_ID = struct.pack("!I", ofp.ONF_EXPERIMENTER)


class WireField(NamedTuple):
    """One field, ready to write: whole headers without and with mask, bytes of the value, widest value."""

    name: str
    exact: bytes
    masked: bytes
    size: int
    full: int
    order: int


def _header(oxm_class: int, number: int, masked: bool, length: int) -> int:
    return oxm_class << 16 | number << 9 | masked << 8 | length


def _wire_field(name: str) -> WireField:
    oxm_class, number, size = _WIRE[name]
    extra = _EXPERIMENTER_ID if oxm_class == ofp.OXM_EXPERIMENTER else b""
    exact = struct.pack("!I", _header(oxm_class, number, False, size + len(extra))) + extra
    masked = struct.pack("!I", _header(oxm_class, number, True, 2 * size + len(extra))) + extra
    spec = FIELDS[name]
    return WireField(name, exact, masked, size, (1 << spec.bits) - 1, spec.order)


WIRE_FIELDS: dict[str, WireField] = {name: _wire_field(name) for name in FIELDS}


class _Reader(NamedTuple):
    """What reading one OXM takes; ``needs`` are the prerequisites, each an exact field and the values it may have."""

    name: str
    size: int
    full: int
    order: int
    maskable: bool
    masked: bool
    needs: tuple[tuple[str, tuple[int, ...]], ...]


def _readers() -> dict[bytes, _Reader]:
    """By whole header, with the experimenter id where there is one."""
    found: dict[bytes, _Reader] = {}
    for field in WIRE_FIELDS.values():
        spec = FIELDS[field.name]
        plain = _Reader(field.name, field.size, field.full, field.order, spec.maskable, False, spec.needs)
        masked = plain._replace(masked=True)
        found[field.exact], found[field.masked] = plain, masked
        if field.name in _ALIASES:
            oxm_class, number = _ALIASES[field.name]
            found[struct.pack("!I", _header(oxm_class, number, False, field.size))] = plain
            found[struct.pack("!I", _header(oxm_class, number, True, 2 * field.size))] = masked
    return found


_BY_HEADER = _readers()

_MOVE_BY_HEADER = {
    int.from_bytes(header, "big"): found.name for header, found in _BY_HEADER.items() if not found.masked and len(header) == 4
}
_MOVE_HEADER = {f.name: int.from_bytes(f.exact, "big") for f in WIRE_FIELDS.values() if len(f.exact) == 4}
# An experimenter header does not fit a move's 32 bits.
_MOVE_HEADER["tcp_flags"] = _header(*_ALIASES["tcp_flags"], False, 2)


def move_header(name: str) -> int:
    """The 32-bit header that names a whole field in NXAST_REG_MOVE."""
    return _MOVE_HEADER[name]


def move_field(header: int) -> str:
    """The field a register move names.

    Raises:
        Unmodelled: a field outside our registry.
    """
    name = _MOVE_BY_HEADER.get(header)
    if name is None:
        raise Unmodelled(f"move of field {header:#010x}", (ofp.ET_BAD_ACTION, ofp.BAC_BAD_SET_TYPE))
    return name


@lru_cache(maxsize=1 << 16)
def encode_match(match: Match) -> bytes:
    """A whole ofp_match, padded to 8 bytes."""
    parts: list[bytes] = []
    for name, value, mask in match.fields:
        field = WIRE_FIELDS[name]
        if mask is None:
            parts += (field.exact, value.to_bytes(field.size, "big"))
        else:
            parts += (field.masked, value.to_bytes(field.size, "big"), mask.to_bytes(field.size, "big"))
    body = b"".join(parts)
    length = 4 + len(body)
    return struct.pack("!HH", ofp.MATCH_OXM, length) + body + bytes(-length % 8)


def encode_set_field(name: str, value: int) -> bytes:
    """One OXM without mask, unpadded."""
    field = WIRE_FIELDS[name]
    return field.exact + value.to_bytes(field.size, "big")


def split_oxm(raw: bytes, position: int, end: int) -> tuple[bytes, int, int]:
    """One OXM: (header with experimenter id, where its payload starts, where the next OXM starts).

    Raises:
        WireError: it does not fit before ``end``, or is empty.
    """
    if end - position < 4:
        raise WireError("OXM header cut short")
    start = position + 4
    after = start + raw[position + 3]
    if after == start or after > end:
        raise WireError(f"OXM length {raw[position + 3]} does not fit")
    if raw[position] == 0xFF and raw[position + 1] == 0xFF:
        start += 4
        if start >= after:
            raise WireError("experimenter OXM without a value")
    return raw[position:start], start, after


def _read(raw: bytes, position: int, end: int) -> tuple[_Reader, int, int | None, int]:
    """One OXM: (what it is, value, mask, where the next starts); raises as :func:`oxm_one`."""
    header, start, after = split_oxm(raw, position, end)
    reader = _BY_HEADER.get(header)
    if reader is None:
        raise Unmodelled(f"field {header.hex()}", (ofp.ET_BAD_MATCH, ofp.BMC_BAD_FIELD))
    name, size, full, _, maskable, masked, _ = reader
    if not masked:
        value = int.from_bytes(raw[start:after], "big")
        if value > full:
            raise Unmodelled(f"{name} value {value:#x} too wide", (ofp.ET_BAD_MATCH, ofp.BMC_BAD_VALUE))
        return reader, value, None, after
    value, mask = int.from_bytes(raw[start : start + size], "big"), int.from_bytes(raw[start + size : after], "big")
    if value > full or mask > full:
        raise Unmodelled(f"{name} value {value:#x} or mask {mask:#x} too wide", (ofp.ET_BAD_MATCH, ofp.BMC_BAD_VALUE))
    if mask == full:
        return reader, value, None, after
    if value & ~mask or not mask or not maskable:
        raise Unmodelled(f"{name}={value:#x}/{mask:#x}", (ofp.ET_BAD_MATCH, ofp.BMC_BAD_MASK))
    return reader, value, mask, after


def oxm_one(raw: bytes, position: int, end: int) -> tuple[MatchField, int]:
    """One OXM as a match field, and where the next starts.

    Raises:
        WireError: malformed.
        Unmodelled: a field or value outside our registry.
    """
    reader, value, mask, after = _read(raw, position, end)
    return MatchField(reader.name, value, mask), after


@lru_cache(maxsize=1 << 15)
def decode_oxms(raw: bytes) -> Match:
    """The OXMs of a match (without its header and padding), in canonical order.

    Raises:
        WireError: malformed.
        Unmodelled: a field twice, outside our registry, or without its prerequisites.
    """
    found: dict[int, MatchField] = {}  # by canonical order
    exact: dict[str, int] = {}
    needs: list[tuple[str, tuple[int, ...]]] = []
    position, end = 0, len(raw)
    while position < end:
        (name, _, _, order, _, _, needed), value, mask, position = _read(raw, position, end)
        if order in found:
            raise Unmodelled(f"{name} twice in one match", (ofp.ET_BAD_MATCH, ofp.BMC_DUP_FIELD))
        found[order] = MatchField(name, value, mask)
        if mask is None:
            exact[name] = value
        needs += needed
    for name, allowed in needs:
        if exact.get(name) not in allowed:
            raise Unmodelled(f"a field needs {name} in {allowed}", (ofp.ET_BAD_MATCH, ofp.BMC_BAD_PREREQ))
    return Match(tuple([found[order] for order in sorted(found)]))


def match_bounds(raw: bytes, position: int, end: int) -> tuple[int, int]:
    """Where a match's OXMs end and where the padded match ends.

    Raises:
        WireError: not an OXM match, or it does not fit before ``end``.
    """
    if end - position < 8:
        raise WireError("match cut short")
    kind, length = struct.unpack_from("!HH", raw, position)
    after = position + (length + 7 & ~7)
    if kind != ofp.MATCH_OXM or length < 4 or after > end:
        raise WireError(f"match type {kind} length {length} does not fit")
    return position + length, after
