"""The match fields we use: width, maskability and prerequisites.

Source: OpenFlow 1.3.5, table 13; Nicira registers, ``nw_ttl`` and ``nw_frag`` from OVS's ``ovs-fields(7)``.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aifabric_ctrl.model.errors import ContractError

if TYPE_CHECKING:
    from aifabric_ctrl.model.rules import Match

ETH_IP, ETH_ARP, ETH_IP6, ETH_LLDP, ETH_VLAN = 0x0800, 0x0806, 0x86DD, 0x88CC, 0x8100
IPPROTO_ICMP, IPPROTO_TCP, IPPROTO_UDP, IPPROTO_ICMP6 = 1, 6, 17, 58


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One match field.

    ``needs`` is a tuple of alternatives; each alternative is (field name, exact values allowed).  All alternatives of
    one field name count as "or"; different names as "and".
    """

    name: str
    bits: int
    maskable: bool
    needs: tuple[tuple[str, tuple[int, ...]], ...]
    order: int
    kind: str = "dec"

    def check_prerequisites(self, match: Match) -> None:
        """Raises ContractError naming the field that must be matched first."""
        for name, allowed in self.needs:
            if match.exact(name) not in allowed:
                raise ContractError(f"match on {self.name} needs {name} in {[hex(v) for v in allowed]}")

    def text(self, value: int, mask: int | None) -> str:
        """As ``ovs-ofctl`` would print it, near enough for a person."""
        return f"{self.name}={self._one(value)}" + ("" if mask is None else f"/{self._one(mask)}")

    def _one(self, value: int) -> str:
        if self.kind == "mac":
            raw = f"{value:012x}"
            return ":".join(raw[i : i + 2] for i in range(0, 12, 2))
        if self.kind == "ip4":
            return str(ipaddress.IPv4Address(value))
        if self.kind == "ip6":
            return str(ipaddress.IPv6Address(value))
        return hex(value) if self.kind == "hex" else str(value)


_IP = (("eth_type", (ETH_IP, ETH_IP6)),)
_IP4 = (("eth_type", (ETH_IP,)),)
_IP6 = (("eth_type", (ETH_IP6,)),)
_ARP = (("eth_type", (ETH_ARP,)),)


def _l4(protocol: int, base: tuple[tuple[str, tuple[int, ...]], ...] = _IP) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return (*base, ("ip_proto", (protocol,)))


_ND_SOLICIT = (*_l4(IPPROTO_ICMP6, _IP6), ("icmpv6_type", (135,)))
_ND_ADVERT = (*_l4(IPPROTO_ICMP6, _IP6), ("icmpv6_type", (136,)))
_ND = (*_l4(IPPROTO_ICMP6, _IP6), ("icmpv6_type", (135, 136)))

_SPECS: tuple[tuple[str, int, bool, tuple[tuple[str, tuple[int, ...]], ...], str], ...] = (
    ("in_port", 32, False, (), "dec"),
    ("metadata", 64, True, (), "hex"),
    ("reg0", 32, True, (), "hex"),
    ("reg1", 32, True, (), "hex"),
    ("reg2", 32, True, (), "hex"),
    ("reg3", 32, True, (), "hex"),
    ("eth_dst", 48, True, (), "mac"),
    ("eth_src", 48, True, (), "mac"),
    ("vlan_vid", 13, True, (), "hex"),
    ("eth_type", 16, False, (), "hex"),
    ("ip_dscp", 6, False, _IP, "dec"),
    ("nw_ttl", 8, False, _IP, "dec"),
    ("nw_frag", 2, True, _IP, "dec"),
    ("ip_proto", 8, False, _IP, "dec"),
    ("ipv4_src", 32, True, _IP4, "ip4"),
    ("ipv4_dst", 32, True, _IP4, "ip4"),
    ("ipv6_src", 128, True, _IP6, "ip6"),
    ("ipv6_dst", 128, True, _IP6, "ip6"),
    ("tcp_src", 16, True, _l4(IPPROTO_TCP), "dec"),
    ("tcp_dst", 16, True, _l4(IPPROTO_TCP), "dec"),
    ("tcp_flags", 12, True, _l4(IPPROTO_TCP), "hex"),
    ("udp_src", 16, True, _l4(IPPROTO_UDP), "dec"),
    ("udp_dst", 16, True, _l4(IPPROTO_UDP), "dec"),
    ("icmpv4_type", 8, False, _l4(IPPROTO_ICMP, _IP4), "dec"),
    ("icmpv4_code", 8, False, _l4(IPPROTO_ICMP, _IP4), "dec"),
    ("icmpv6_type", 8, False, _l4(IPPROTO_ICMP6, _IP6), "dec"),
    ("icmpv6_code", 8, False, _l4(IPPROTO_ICMP6, _IP6), "dec"),
    ("nd_target", 128, True, _ND, "ip6"),
    ("nd_sll", 48, True, _ND_SOLICIT, "mac"),
    ("nd_tll", 48, True, _ND_ADVERT, "mac"),
    ("nd_reserved", 32, False, _ND, "hex"),
    ("nd_options_type", 8, False, _ND, "dec"),
    ("arp_op", 16, False, _ARP, "dec"),
    ("arp_spa", 32, True, _ARP, "ip4"),
    ("arp_tpa", 32, True, _ARP, "ip4"),
    ("arp_sha", 48, True, _ARP, "mac"),
    ("arp_tha", 48, True, _ARP, "mac"),
)

FIELDS: dict[str, FieldSpec] = {
    name: FieldSpec(name, bits, maskable, needs, order, kind) for order, (name, bits, maskable, needs, kind) in enumerate(_SPECS)
}
