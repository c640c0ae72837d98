"""The fabric as the compiler, the CLI and the API see it: one immutable snapshot.

``Fabric`` is produced by the engine from what switches, links and hosts did; the compiler and the views read it and never
change it.  ``graph`` is the networkx view of it, which path listings and library users read.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import networkx as nx

from aifabric_ctrl.model.ids import Dpid, PortNo, PortRef, dpid_text, mac_text

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

UNTAGGED = 0  # the VLAN of frames without a tag


class PortRole(enum.Enum):
    """What a port is for.  Nothing is learned or forwarded on UNKNOWN; RESERVED ports are never links or hosts."""

    UNKNOWN = "unknown"
    EDGE = "edge"
    FABRIC = "fabric"
    RESERVED = "reserved"


class Role(enum.Enum):
    """A switch's place: LEAF has edge ports; a SPINE joins leaves; a SUPER_SPINE joins spines."""

    LEAF = "leaf"
    SPINE = "spine"
    SUPER_SPINE = "super-spine"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Port:
    """One port as the switch describes it.

    ``live`` is OFPPS_LIVE; ``ever_live`` says whether the switch was ever seen to set it, because some never do
    (DESIGN invariant 13): a port is usable when LIVE is set (once ever seen set) and LINK_DOWN is clear.
    """

    number: PortNo
    name: str = ""
    mac: int = 0
    admin_down: bool = False
    link_down: bool = False
    live: bool = True
    ever_live: bool = False
    speed_bps: int = 0
    role: PortRole = PortRole.UNKNOWN
    vlans: tuple[int, ...] = (UNTAGGED,)  # tags hosts may use here, ascending; the fabric file says
    drained: bool = False  # an operator keeps hosts' traffic off it

    @property
    def usable(self) -> bool:
        return not self.admin_down and not self.link_down and (self.live or not self.ever_live)


@dataclass(frozen=True, slots=True)
class Features:
    """What a switch can do; found at the handshake, never assumed from its name."""

    tables: int = 254
    max_groups: int = 0xFFFFFF00
    max_meters: int = 0
    bundles: bool = False
    nicira: bool = False  # register moves and masked udp_src, i.e. Open vSwitch
    description: str = ""


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch.

    Attributes:
        connected: an OpenFlow session is up.  False does not mean dead: it keeps forwarding (fail static).
        programmed: its tables are known to hold what was compiled for it; transit through it is not planned before.
        role: its place as the fabric file declares it; None: to be inferred.
        drained: an operator keeps traffic off it; its links say so one by one, its hosts' other homes are preferred.
    """

    dpid: Dpid
    name: str = ""
    address: str = ""
    connected: bool = False
    programmed: bool = False
    ports: Mapping[PortNo, Port] = field(default_factory=dict)
    features: Features = Features()
    role: Role | None = None
    drained: bool = False

    @property
    def text(self) -> str:
        return self.name or dpid_text(self.dpid)


class LinkState(enum.Enum):
    """A cable between two switches.

    ``UP`` carries traffic; ``HELD`` works again but waits out its hold-down; ``ONE_WAY`` was heard from one end only;
    ``QUARANTINED`` contradicts the roles found so far (DESIGN 3, "What is a link"); ``DRAINED`` works, and an operator
    keeps traffic off it.
    """

    UP = "up"
    DOWN = "down"
    HELD = "held"
    ONE_WAY = "one-way"
    QUARANTINED = "quarantined"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True)
class Link:
    """One cable, ends in order (``a < b``).

    ``settled`` is True once both ends have acknowledged tables that use it; only then may switches elsewhere count on
    it (make before break: downstream before upstream).  ``capacity_bps`` is the slower end's speed or the fabric file's;
    0 when nobody knows, which counts as any other unknown link.
    """

    a: PortRef
    b: PortRef
    state: LinkState = LinkState.UP
    settled: bool = True
    capacity_bps: int = 0

    @property
    def ends(self) -> tuple[PortRef, PortRef]:
        return self.a, self.b

    def other(self, end: PortRef) -> PortRef:
        return self.b if end == self.a else self.a


class Reach(enum.IntEnum):
    """How far a host's address has been spread; one step up or down at a time, each after the barriers of the last.

    TOMBSTONE: only a drop rule at its old leaf.  LOCAL: its own leaf routes to it.  ROUTED: every switch does.
    REACHABLE: source leaves let traffic to it in.
    """

    TOMBSTONE = 0
    LOCAL = 1
    ROUTED = 2
    REACHABLE = 3


@dataclass(frozen=True, slots=True)
class Host:
    """One address at one port.  A machine with several addresses is several of these with one MAC.

    ``also`` are the other ports of a host that the fabric file declares on several leaves (active-active), ascending;
    ``vlan`` is the tag it uses, the same at each of its ports.
    """

    ip: Address
    mac: int
    at: PortRef
    reach: Reach = Reach.REACHABLE
    tenant: int = 1
    verified: bool = True  # answered a probe at its port
    since_s: float = 0.0
    seen_s: float = 0.0
    also: tuple[PortRef, ...] = ()
    vlan: int = UNTAGGED

    @property
    def homes(self) -> tuple[PortRef, ...]:
        """Every port it may be reached at, whatever the state of that port."""
        return (self.at, *self.also)

    def __str__(self) -> str:
        return f"{self.ip} ({mac_text(self.mac)}) at {self.at}"


@dataclass(frozen=True, slots=True)
class NextHop:
    """A router, hypervisor or node behind a host port, found by ARP or ND: where packets for a prefix leave the fabric."""

    ip: Address
    mac: int
    at: PortRef
    vlan: int = UNTAGGED


@dataclass(frozen=True, slots=True)
class Attached:
    """A prefix of the outside world (or of pods) and the next hops to it that answer, in order of preference.

    The first is used while its port works; longer prefixes win over shorter ones, hosts over all of them.
    """

    prefix: Network
    via: tuple[NextHop, ...]
    tenant: int = 1


@dataclass(frozen=True)
class Fabric:
    """A snapshot; equal inputs compile to equal tables."""

    switches: Mapping[Dpid, Switch] = field(default_factory=dict)
    links: tuple[Link, ...] = ()
    hosts: Mapping[Address, Host] = field(default_factory=dict)
    tombstones: frozenset[tuple[Dpid, Address]] = frozenset()  # hosts that left; still dropped at their old leaf
    attached: tuple[Attached, ...] = ()

    @cached_property
    def graph(self) -> nx.MultiGraph:
        """Switches by dpid, one edge a cable keyed by the ``a`` end, with ``state`` and ``ports`` ({dpid: port})."""
        graph = nx.MultiGraph()
        for dpid, switch in self.switches.items():
            graph.add_node(dpid, name=switch.text, role=self.roles[dpid].value)
        for link in self.links:
            graph.add_edge(
                link.a.dpid,
                link.b.dpid,
                key=(link.a, link.b),
                state=link.state.value,
                ports={link.a.dpid: link.a.port, link.b.dpid: link.b.port},
            )
        return graph

    @cached_property
    def roles(self) -> Mapping[Dpid, Role]:
        """Each switch's role from the graph.

        A switch that houses hosts is a LEAF.  One that houses none is a SPINE when it is joined to a LEAF (a stray port
        that is up does not make it one), and otherwise a LEAF when it has an edge port that is up: a rack whose hosts
        have not spoken yet.
        """
        housed = {h.at.dpid for h in self.hosts.values()}
        neighbours: dict[Dpid, set[Dpid]] = {dpid: set() for dpid in self.switches}
        for link in self.links:
            if link.state is not LinkState.QUARANTINED and link.a.dpid in neighbours and link.b.dpid in neighbours:
                neighbours[link.a.dpid].add(link.b.dpid)
                neighbours[link.b.dpid].add(link.a.dpid)
        open_edge = {
            dpid
            for dpid, switch in self.switches.items()
            if any(p.role is PortRole.EDGE and not p.link_down and not p.admin_down for p in switch.ports.values())
        }
        leaves = {d for d in self.switches if d in housed or (d in open_edge and not neighbours[d] & housed)}
        return {
            dpid: Role.LEAF if dpid in leaves else Role.SPINE if neighbours[dpid] & leaves else Role.UNKNOWN
            for dpid in self.switches
        }
