"""Pictures of fake fabrics: switches, cables, hosts.  Only values; ``memnet`` and ``fakenet`` bring them to life."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aifabric_ctrl.model.fabric import Features, Link, Port
from aifabric_ctrl.model.ids import Dpid, PortNo, PortRef

OVS_FEATURES = Features(max_meters=1 << 18, bundles=True, nicira=True, description="Open vSwitch")
PLAIN_FEATURES = Features(max_groups=1024, max_meters=256, description="plain OpenFlow 1.3")

LEAF_BASE, SPINE_BASE = 0x10, 0x20
UPLINK_BASE = 100  # a leaf's ports: hosts from 1, uplinks from 101


@dataclass(frozen=True, slots=True)
class FakeHost:
    """A host with an IPv4 and, unless ``ip6`` is 0, an IPv6 address.  ``answers`` False: silent even when asked."""

    name: str
    mac: int
    ip: int
    at: PortRef
    answers: bool = True
    ip6: int = 0


def ip6_of(ip: int) -> int:
    """The IPv6 address that goes with a host's IPv4 address: fd00::10.0.1.1."""
    return 0xFD << 120 | ip


@dataclass(frozen=True)
class Topology:
    """What is there, whether or not anything works."""

    switches: Mapping[Dpid, tuple[Port, ...]]
    links: tuple[Link, ...]
    hosts: tuple[FakeHost, ...]
    names: Mapping[Dpid, str] = field(default_factory=dict)
    features: Mapping[Dpid, Features] = field(default_factory=dict)

    def host(self, name: str) -> FakeHost:
        """The host of that name.  Raises KeyError."""
        for host in self.hosts:
            if host.name == name:
                return host
        raise KeyError(name)


def port_mac(dpid: Dpid, port: PortNo) -> int:
    """A locally administered address, different for every port of a fabric."""
    return 0x06 << 40 | (dpid & 0xFFFFFF) << 16 | port & 0xFFFF


def make_port(dpid: Dpid, number: PortNo, name: str = "") -> Port:
    """A port that is up."""
    return Port(number, name or f"p{number}", port_mac(dpid, number), live=True, speed_bps=10_000_000_000)


def link(a: PortRef, b: PortRef) -> Link:
    """A cable, ends in order."""
    return Link(min(a, b), max(a, b))


def leaf_spine(
    leaves: int,
    spines: int,
    hosts_per_leaf: int = 2,
    parallel: int = 1,
    features: Features = OVS_FEATURES,
    leaf_dpids: Sequence[Dpid] | None = None,
    spine_dpids: Sequence[Dpid] | None = None,
    spare_ports: int = 0,
) -> Topology:
    """Every leaf to every spine by ``parallel`` cables; hosts 10.0.<leaf>.<n>; ``spare_ports`` edge ports without a host.

    Leaves are l1.. (dpid 0x11..), spines s1.. (0x21.. or above the leaves), hosts h1.. in order of their leaves.
    """
    base = max(SPINE_BASE, LEAF_BASE + leaves + 1)
    leaf_ids = list(leaf_dpids or (LEAF_BASE + n for n in range(1, leaves + 1)))
    spine_ids = list(spine_dpids or (base + n for n in range(1, spines + 1)))
    ports: dict[Dpid, list[Port]] = {d: [] for d in (*leaf_ids, *spine_ids)}
    names = {d: f"l{n}" for n, d in enumerate(leaf_ids, 1)} | {d: f"s{n}" for n, d in enumerate(spine_ids, 1)}
    hosts: list[FakeHost] = []
    links: list[Link] = []
    for n, leaf in enumerate(leaf_ids, 1):
        for h in range(1, hosts_per_leaf + spare_ports + 1):
            ports[leaf].append(make_port(leaf, h, f"{names[leaf]}-eth{h}"))
            if h <= hosts_per_leaf:
                ip = 10 << 24 | n << 8 | h
                hosts.append(FakeHost(f"h{len(hosts) + 1}", 0x02 << 40 | ip, ip, PortRef(leaf, h), ip6=ip6_of(ip)))
        for s, spine in enumerate(spine_ids):
            for p in range(parallel):
                up = UPLINK_BASE + s * parallel + p + 1
                down = (n - 1) * parallel + p + 1
                ports[leaf].append(make_port(leaf, up, f"{names[leaf]}-eth{up}"))
                ports[spine].append(make_port(spine, down, f"{names[spine]}-eth{down}"))
                links.append(link(PortRef(leaf, up), PortRef(spine, down)))
    return Topology(
        {d: tuple(p) for d, p in ports.items()},
        tuple(links),
        tuple(hosts),
        names,
        dict.fromkeys(ports, features),
    )
