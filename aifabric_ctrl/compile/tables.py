"""The pipeline in one place: table numbers, metadata bits, priorities, and each table's contract.

Every other module takes its numbers from here, ``docs/pipeline.md`` is checked against it, and ``contract.py`` holds
compiled rules to it.  No rule is made here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

# Tens leave room for decapsulation, pinned jobs, mirror.
PORT, NEIGHBOUR, CLASS, DEST, POLICY, ROUTE, SPREAD = 0, 5, 10, 20, 30, 40, 50


class MetaField(NamedTuple):
    """One field of the 64 metadata bits, counted from bit 0."""

    name: str
    shift: int
    bits: int

    @property
    def mask(self) -> int:
        return ((1 << self.bits) - 1) << self.shift

    def of(self, value: int) -> tuple[int, int]:
        """(value, mask), as a match or a write takes it."""
        return value << self.shift & self.mask, self.mask


SOURCE_TENANT = MetaField("source tenant", 0, 16)  # 0: came from a fabric port, its own leaf has judged it
DEST_TENANT = MetaField("destination tenant", 16, 16)
NEXT_HOP_SET = MetaField("next-hop set", 32, 12)  # 0: none
TRAFFIC_CLASS = MetaField("class", 44, 4)
FROM_ABOVE = MetaField("from above", 48, 1)  # came down from the next tier; only where there is one on either side
RESERVED = MetaField("reserved", 49, 15)
METADATA = (SOURCE_TENANT, DEST_TENANT, NEXT_HOP_SET, TRAFFIC_CLASS, FROM_ABOVE, RESERVED)

CLASS_BACKGROUND = 1
TENANT_DEFAULT = 1

ROCE_PORT = 4791  # UDP destination of RoCEv2 (InfiniBand Architecture, Annex A17)
WHOLE_PACKET = 0xFFFF  # OFPCML_NO_BUFFER: a buffered packet would need a second message to be released

LENGTHS = 300  # room for ``by_length``: two priorities for each of 129 prefix lengths


def by_length(base: int, length: int, wins_ties: bool = False) -> int:
    """Longest prefix first, as priorities from ``base``; of two rules for one length the one that ``wins_ties`` comes first."""
    return base + 2 * length + int(wins_ties)


class Priority:
    """Every priority we use, by table.  Gaps leave room; 0 is always the counted drop."""

    DEFAULT = 0
    PORT_UNKNOWN, PORT_ATTACHED, PORT_KNOWN, PORT_NEVER, PORT_ANNOUNCE, PORT_SERVICE = 100, 150, 200, 240, 250, 260
    PORT_NEIGHBOUR, PORT_SOLICIT, PORT_GATEWAY_UNKNOWN, PORT_SOLICIT_GATEWAY = 220, 230, 242, 245
    PORT_LLDP, PORT_LLDP_HOST = 300, 310
    NEIGHBOUR_ANSWER = 100
    CLASS_HOST, CLASS_FABRIC = 100, 200
    DEST_BY_LENGTH = 1000  # the fabric's prefixes (nobody there yet) and attached ones, longest first
    DEST_HOST, DEST_NEVER, DEST_GATEWAY, DEST_PING = 2000, 3000, 4000, 4010
    POLICY_PAIR = 100
    ROUTE_BY_LENGTH = 1000  # the default route of each of the fabric's prefixes and attached prefixes, longest first
    ROUTE_EXCEPTION = 2000
    ROUTE_BOUNCE = 3000  # bounced packets and the attached prefixes that are not bounced, longest first
    ROUTE_DOWN, ROUTE_HOMED = 3500, 3600
    ROUTE_TOMBSTONE, ROUTE_HOST, ROUTE_HAIRPIN = 4000, 5000, 5010
    SPREAD_ANY, SPREAD_ANY_ABOVE, SPREAD_ROCE, SPREAD_ROCE_ABOVE = 100, 150, 200, 250


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of rule in a table: its priority (the lowest, when prefix length decides) and what it matches and does."""

    priority: int
    matches: str
    does: str
    by_length: bool = False

    @property
    def priorities(self) -> range:
        """Every priority such a rule may have."""
        return range(self.priority, self.priority + (LENGTHS if self.by_length else 1))

    @property
    def text(self) -> str:
        return f"{self.priority}+" if self.by_length else str(self.priority)


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table's contract.

    Attributes:
        fields: match fields its rules may use.
        actions: kinds of actions its rules may use (see ``contract.action_kind``).
        writes: metadata fields its rules may write.
        next: tables its rules may go to.
        rows: the kinds of rules it holds; a rule of any other priority is a mistake.
        on: which switches hold rules beyond the default in it.
    """

    number: int
    name: str
    does: str
    fields: frozenset[str]
    actions: frozenset[str]
    writes: tuple[MetaField, ...]
    next: tuple[int, ...]
    rows: tuple[Row, ...]
    on: str


_DROP = Row(Priority.DEFAULT, "anything else", "drop, counted")

TABLES: tuple[TableSpec, ...] = (
    TableSpec(
        PORT,
        "PORT",
        "who may send here: source guard, ARP answers, discovery",
        frozenset(
            {
                *("in_port", "eth_type", "eth_src", "vlan_vid", "ipv4_src", "ipv6_src", "ip_proto"),
                *("arp_op", "arp_sha", "arp_spa", "arp_tpa", "icmpv6_type", "nd_target", "nd_sll"),
            }
        ),
        frozenset(
            {
                *("controller", "in_port", "move", "set:eth_src", "set:arp_op", "set:arp_sha"),
                *("set:icmpv6_type", "set:nd_reserved", "set:nd_options_type"),
            }
        ),
        (SOURCE_TENANT,),
        (NEIGHBOUR, CLASS),
        (
            Row(Priority.PORT_LLDP_HOST, "LLDP on an edge port", "that port's unknown-host meter, controller"),
            Row(Priority.PORT_LLDP, "LLDP anywhere (base rule, on every switch at all times)", "LLDP meter, controller"),
            Row(Priority.PORT_ANNOUNCE, "a known host's ARP request for its own address", "unknown-host meter, controller"),
            Row(
                Priority.PORT_SOLICIT_GATEWAY,
                "a known host's neighbour solicitation for the gateway's link-local address",
                "turn it into the advertisement, go to NEIGHBOUR",
            ),
            Row(
                Priority.PORT_GATEWAY_UNKNOWN,
                "anybody else's solicitation for it on an edge port",
                "unknown-host meter, controller",
            ),
            Row(Priority.PORT_NEVER, "ARP request or neighbour solicitation for an address no host can have", "drop"),
            Row(
                Priority.PORT_SOLICIT,
                "a known host's neighbour solicitation (Nicira moves)",
                "turn it into the advertisement, go to NEIGHBOUR",
            ),
            Row(
                Priority.PORT_NEIGHBOUR,
                "other neighbour discovery on an edge port, router solicitations and advertisements too",
                "unknown-host meter, controller",
            ),
            Row(Priority.PORT_KNOWN, "a known host's ARP request (Nicira moves)", "answer to the in-port with the gateway MAC"),
            Row(Priority.PORT_KNOWN, "a known host's port, MAC and address, untagged", "write source tenant, go to CLASS"),
            Row(Priority.PORT_KNOWN, "IPv4 or IPv6 on a fabric port", "go to CLASS"),
            Row(Priority.PORT_UNKNOWN, "other ARP, IPv4 and IPv6 on an edge port", "unknown-host meter, controller"),
            _DROP,
        ),
        "all",
    ),
    TableSpec(
        NEIGHBOUR,
        "NEIGHBOUR",
        "second half of a neighbour advertisement",
        frozenset({"eth_type", "ip_proto", "icmpv6_type"}),
        frozenset({"in_port", "set:nd_tll"}),
        (),
        (),
        (Row(Priority.NEIGHBOUR_ANSWER, "the advertisement", "the gateway MAC as target, to the in-port"), _DROP),
        "Open vSwitch with edge ports",
    ),
    TableSpec(
        CLASS,
        "CLASS",
        "traffic class",
        frozenset({"metadata"}),
        frozenset(),
        (TRAFFIC_CLASS,),
        (DEST, ROUTE),
        (
            Row(Priority.CLASS_FABRIC, "source tenant 0 (from a fabric port)", "go to ROUTE"),
            Row(Priority.CLASS_HOST, "the rest (from a host)", "write class background, go to DEST"),
            _DROP,
        ),
        "all; the host rule with edge ports only",
    ),
    TableSpec(
        DEST,
        "DEST",
        "destination address to destination tenant",
        frozenset({"eth_type", "ip_proto", "icmpv4_type", "icmpv4_code", "icmpv6_type", "icmpv6_code", "ipv4_dst", "ipv6_dst"}),
        frozenset({"controller", "in_port", "move", "set:eth_src", "set:icmpv4_type", "set:icmpv6_type", "set:nw_ttl"}),
        (DEST_TENANT,),
        (POLICY,),
        (
            Row(
                Priority.DEST_PING,
                "ICMP or ICMPv6 echo request to a gateway address",
                "answer to the in-port (without moves: controller)",
            ),
            Row(Priority.DEST_GATEWAY, "a gateway address", "drop"),
            Row(Priority.DEST_NEVER, "multicast, loopback, link-local, 0/8, 240/4, ::ffff:0:0/96", "drop"),
            Row(Priority.DEST_HOST, "reachable hosts, aggregated exactly", "write destination tenant, go to POLICY"),
            Row(
                Priority.DEST_BY_LENGTH,
                "other addresses in the fabric's prefixes, longest first",
                "unknown-destination meter, controller",
                by_length=True,
            ),
            _DROP,
        ),
        "switches with edge ports",
    ),
    TableSpec(
        POLICY,
        "POLICY",
        "may these two tenants talk",
        frozenset({"metadata"}),
        frozenset(),
        (),
        (ROUTE,),
        (Row(Priority.POLICY_PAIR, "source tenant and destination tenant", "go to ROUTE"), _DROP),
        "switches with edge ports",
    ),
    TableSpec(
        ROUTE,
        "ROUTE",
        "own host, bounce, or next-hop set",
        frozenset({"in_port", "metadata", "eth_type", "ipv4_dst", "ipv6_dst"}),
        frozenset({"output", "in_port", "group", "dec_ttl", "set:eth_src", "set:eth_dst"}),
        (NEXT_HOP_SET,),
        (SPREAD,),
        (
            Row(Priority.ROUTE_HAIRPIN, "own host, from a port it shares with another host", "as below, to the in-port"),
            Row(Priority.ROUTE_HOST, "own host's address", "set both MACs, decrement TTL, output"),
            Row(Priority.ROUTE_TOMBSTONE, "address of a host that left, from a fabric port", "drop"),
            Row(
                Priority.ROUTE_BOUNCE,
                "anything else from an uplink (leaf under repair)",
                "TTL steps, meter, next uplink",
                by_length=True,
            ),
            Row(
                Priority.ROUTE_EXCEPTION,
                "hosts of one leaf, aggregated exactly",
                "decrement TTL, next-hop set, go to SPREAD; or drop",
            ),
            Row(
                Priority.ROUTE_BY_LENGTH,
                "the fabric's prefixes (leaf under repair), longest first",
                "the commonest next-hop set",
                by_length=True,
            ),
            _DROP,
        ),
        "all",
    ),
    TableSpec(
        SPREAD,
        "SPREAD",
        "next-hop set to one of its ports",
        frozenset({"metadata", "eth_type", "ip_proto", "udp_src", "udp_dst"}),
        frozenset({"group"}),
        (),
        (),
        (
            Row(
                Priority.SPREAD_ROCE, "next-hop set, UDP to 4791, low bits of the source port", "that shard's fast-failover chain"
            ),
            Row(Priority.SPREAD_ANY, "next-hop set", "select group over the slots' chains, or the only chain"),
            _DROP,
        ),
        "all",
    ),
)

BY_NUMBER: dict[int, TableSpec] = {spec.number: spec for spec in TABLES}
