"""Identifiers and their one text form.

A datapath id is an integer of 64 bits inside and 16 lower-case hex digits everywhere a person or a file sees it, so
that YAML's and JSON's number rules can never change one.  Port numbers are OpenFlow 1.3's 32-bit numbers.
"""

from __future__ import annotations

from typing import NamedTuple

from aifabric_ctrl.model.errors import InvalidValue

Dpid = int
PortNo = int

# OpenFlow 1.3.5, 7.2.1: numbers above MAX are reserved and are never a link or a host.
PORT_MAX = 0xFFFFFF00
PORT_IN_PORT = 0xFFFFFFF8
PORT_TABLE = 0xFFFFFFF9
PORT_NORMAL = 0xFFFFFFFA
PORT_FLOOD = 0xFFFFFFFB
PORT_ALL = 0xFFFFFFFC
PORT_CONTROLLER = 0xFFFFFFFD
PORT_LOCAL = 0xFFFFFFFE
PORT_ANY = 0xFFFFFFFF
GROUP_MAX = 0xFFFFFF00
GROUP_ANY = 0xFFFFFFFF

MAC_BITS = 48


class PortRef(NamedTuple):
    """One port of one switch; sorts by (dpid, port)."""

    dpid: Dpid
    port: PortNo

    def __str__(self) -> str:
        return f"{dpid_text(self.dpid)}:{self.port}"


def dpid_text(dpid: Dpid) -> str:
    """The only text form of a datapath id: 16 lower-case hex digits."""
    return f"{dpid:016x}"


def parse_dpid(text: str) -> Dpid:
    """Read 16 hex digits (colons allowed between bytes) or ``0x`` hex.

    Raises:
        InvalidValue: for anything else; a bare decimal is refused because it cannot be told from hex.
    """
    digits = text.strip().lower().replace(":", "")
    if digits.startswith("0x"):
        digits = digits[2:].rjust(16, "0")
    if len(digits) != 16 or any(c not in "0123456789abcdef" for c in digits):
        raise InvalidValue(f"datapath id {text!r} is not 16 hex digits", "write it as in 'ovs-vsctl get Bridge NAME datapath_id'")
    return int(digits, 16)


def is_physical(port: PortNo) -> bool:
    """True for a number that may carry a cable: 1 .. 0xffffff00 (0 is not a port, the rest are reserved)."""
    return 0 < port <= PORT_MAX


def mac_text(mac: int) -> str:
    """``0x0200000000ff`` -> ``02:00:00:00:00:ff``."""
    raw = f"{mac:012x}"
    return ":".join(raw[i : i + 2] for i in range(0, 12, 2))


def parse_mac(text: str) -> int:
    """Read ``aa:bb:cc:dd:ee:ff`` (or with dashes) into an integer.

    Raises:
        InvalidValue: when it is not six pairs of hex digits.
    """
    pairs = text.strip().lower().replace("-", ":").split(":")
    if len(pairs) != 6 or any(len(p) != 2 or any(c not in "0123456789abcdef" for c in p) for p in pairs):
        raise InvalidValue(f"MAC address {text!r} is not six pairs of hex digits", "write it like 02:00:00:00:00:01")
    return int("".join(pairs), 16)


def is_host_mac(mac: int) -> bool:
    """A source address a host may have: unicast and not all zero."""
    return mac != 0 and not (mac >> 40) & 1
