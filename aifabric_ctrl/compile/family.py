"""What differs between address families, so that rules are written once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, collapse_addresses

from aifabric_ctrl.model.fields import ETH_IP, ETH_IP6

Network = IPv4Network | IPv6Network
FieldValue = int | tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)  # one value a family: compared by identity, because it is in every cache key
class Family:
    """One address family: its ethertype, its match fields and the destinations that are never routed."""

    name: str
    version: int
    eth_type: int
    bits: int
    source: str
    destination: str
    never: tuple[Network, ...]

    def matching(self, name: str, network: Network) -> dict[str, FieldValue]:
        """The match ``name`` = that prefix; no field at all when the prefix covers everything."""
        if network.prefixlen == 0:
            return {}
        base = int(network.network_address)
        return {name: base if network.prefixlen == self.bits else (base, int(network.netmask))}

    def lone(self, address: IPv4Address | IPv6Address) -> Network:
        """The prefix that holds this address only."""
        return IPv4Network(int(address)) if isinstance(address, IPv4Address) else IPv6Network(int(address))

    @property
    def everything(self) -> Network:
        return IPv4Network(0).supernet(new_prefix=0) if self.version == 4 else IPv6Network(0).supernet(new_prefix=0)

    def text(self, value: int) -> str:
        return str(IPv4Address(value) if self.version == 4 else IPv6Address(value))


# 224/3 is multicast (224/4), reserved (240/4) and limited broadcast in one entry.  RFC 6890 for the others.
IPV4 = Family(
    "ipv4",
    4,
    ETH_IP,
    32,
    "ipv4_src",
    "ipv4_dst",
    (IPv4Network("0.0.0.0/8"), IPv4Network("127.0.0.0/8"), IPv4Network("169.254.0.0/16"), IPv4Network("224.0.0.0/3")),
)

# RFC 6890 and RFC 4291: unspecified and loopback, IPv4-mapped, link-local, multicast.
IPV6 = Family(
    "ipv6",
    6,
    ETH_IP6,
    128,
    "ipv6_src",
    "ipv6_dst",
    (IPv6Network("::/127"), IPv6Network("::ffff:0:0/96"), IPv6Network("fe80::/10"), IPv6Network("ff00::/8")),
)

FAMILIES: tuple[Family, ...] = (IPV4, IPV6)


@lru_cache(maxsize=4096)
def cover(family: Family, addresses: tuple[int, ...]) -> tuple[Network, ...]:
    """The fewest prefixes that hold exactly these addresses, ascending; never an address that is not among them."""
    kind = IPv4Network if family.version == 4 else IPv6Network
    return tuple(collapse_addresses(kind(a) for a in addresses))  # type: ignore[type-var]


def scopes(family: Family, prefixes: tuple[Network, ...]) -> tuple[Network, ...]:
    """The fabric's prefixes of one family, none inside another; with no prefixes set, one that covers everything."""
    if not prefixes:
        return (family.everything,)
    if family.version == 4:
        return tuple(collapse_addresses(n for n in prefixes if isinstance(n, IPv4Network)))
    return tuple(collapse_addresses(n for n in prefixes if isinstance(n, IPv6Network)))
