"""The fabric as the sections need it: plain tuples per switch, without anything that changes while the rules do not.

(A host's ``seen_s`` changes with every packet; it must not make the compiler think something changed.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from aifabric_ctrl.compile.family import FAMILIES, Family
from aifabric_ctrl.compile.paths import Cable, Paths
from aifabric_ctrl.model.fabric import Fabric, LinkState, PortRole, Reach, Role
from aifabric_ctrl.model.ids import Dpid, PortNo, is_physical
from aifabric_ctrl.model.intent import Intent


class HostFact(NamedTuple):
    """What the rules need of one address."""

    ip: int
    mac: int
    port: PortNo
    reach: int
    tenant: int
    verified: bool


@dataclass(frozen=True, slots=True)
class SwitchFacts:
    """One switch.

    Attributes:
        leafward: under repair, whether it stands on the leaves' side of the two tiers.
        edge_ports: ports that may carry hosts, ascending; ``fabric_ports``: ports that may carry links.
        cables: known links by port, ascending.
        hosts: by family, addresses of hosts that live here on an edge port (reach LOCAL or more), ascending.
        gone: by family, addresses that must be dropped here because their host has left, ascending.
    """

    dpid: Dpid
    name: str
    leafward: bool
    edge_ports: tuple[PortNo, ...]
    fabric_ports: tuple[PortNo, ...]
    cables: tuple[Cable, ...]
    hosts: Mapping[str, tuple[HostFact, ...]]
    gone: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All switches, ascending by dpid.

    Attributes:
        repair: the fabric is a two-tier leaf-spine, in which bounced packets find their way (DESIGN 3).
        transit: switches that paths may lead through.
        leaves: switches that can be destinations.
        routed: by family and switch, addresses every other switch routes to it, ascending.
        reachable: by family, (tenant, addresses) that source leaves let traffic to, ascending.
    """

    switches: Mapping[Dpid, SwitchFacts]
    repair: bool
    transit: frozenset[Dpid]
    paths: Paths
    leaves: tuple[Dpid, ...]
    routed: Mapping[str, Mapping[Dpid, tuple[int, ...]]]
    reachable: Mapping[str, tuple[tuple[int, tuple[int, ...]], ...]]


def _cables(fabric: Fabric) -> dict[Dpid, tuple[Cable, ...]]:
    ends: dict[Dpid, list[Cable]] = {dpid: [] for dpid in fabric.switches}
    for link in fabric.links:
        if link.state is LinkState.QUARANTINED or link.a.dpid not in ends or link.b.dpid not in ends:
            continue
        up, drained = link.state is LinkState.UP, link.state is LinkState.DRAINED
        ends[link.a.dpid].append(Cable(link.a.port, link.b.dpid, up, link.settled, drained))
        ends[link.b.dpid].append(Cable(link.b.port, link.a.dpid, up, link.settled, drained))
    return {dpid: tuple(sorted(found)) for dpid, found in ends.items()}


def _sides(fabric: Fabric, cables: Mapping[Dpid, tuple[Cable, ...]]) -> dict[Dpid, Role] | None:
    """LEAF or SPINE for every switch of a two-tier fabric, or None when some link joins a tier to itself.

    A switch without a role whose neighbours are all spines is a leaf that has no hosts yet: cabling a new leaf must
    not change the rules of the others.  Where two leaves have no spine in common there is a third tier, or a mesh.
    """
    roles = fabric.roles
    sides = dict(roles)
    silent = {d for d, r in roles.items() if r is Role.UNKNOWN and all(roles[c.far] is Role.SPINE for c in cables[d])}
    for dpid in silent:
        sides[dpid] = Role.LEAF
    if not _share_spines([{c.far for c in cables[d]} - silent for d, r in roles.items() if r is Role.LEAF and cables[d]]):
        return None
    for dpid, ends in cables.items():
        for cable in ends:
            if {sides[dpid], sides[cable.far]} != {Role.LEAF, Role.SPINE}:
                return None
    return sides


def _share_spines(uplinks: list[set[Dpid]]) -> bool:
    """Every two leaves are cabled to a spine in common; else paths lead through a leaf, and nothing may bounce there."""
    if not uplinks or set.intersection(*uplinks):
        return True
    different = {frozenset(far) for far in uplinks}
    return all(a & b for a in different for b in different)


class _Hosts:
    """Hosts and tombstones sorted to the switches and families they belong to."""

    def __init__(self, fabric: Fabric, intent: Intent, edges: Mapping[Dpid, frozenset[PortNo]]) -> None:
        self.own: dict[str, dict[Dpid, list[HostFact]]] = {f.name: {} for f in FAMILIES}
        self.gone: dict[str, dict[Dpid, set[int]]] = {f.name: {} for f in FAMILIES}
        self.routed: dict[str, dict[Dpid, list[int]]] = {f.name: {} for f in FAMILIES}
        self.reachable: dict[str, dict[int, list[int]]] = {f.name: {} for f in FAMILIES}
        by_version = {f.version: f for f in FAMILIES}
        prefixes = intent.prefixes
        for address, host in fabric.hosts.items():
            family = by_version.get(address.version)
            if family is None or (prefixes and not any(address in n for n in prefixes)):
                continue
            fact = HostFact(int(address), host.mac, host.at.port, int(host.reach), host.tenant, host.verified)
            self._place(family, host.at.dpid, fact, host.at.port in edges.get(host.at.dpid, frozenset()))
        for dpid, address in fabric.tombstones:
            family = by_version.get(address.version)
            if family is not None:
                self.gone[family.name].setdefault(dpid, set()).add(int(address))

    def _place(self, family: Family, dpid: Dpid, fact: HostFact, on_edge: bool) -> None:
        if fact.reach < Reach.LOCAL or not on_edge:
            self.gone[family.name].setdefault(dpid, set()).add(fact.ip)
            return
        self.own[family.name].setdefault(dpid, []).append(fact)
        if fact.reach >= Reach.ROUTED:
            self.routed[family.name].setdefault(dpid, []).append(fact.ip)
        if fact.reach >= Reach.REACHABLE:
            self.reachable[family.name].setdefault(fact.tenant, []).append(fact.ip)

    def gone_at(self, family: Family, dpid: Dpid, repair: bool) -> tuple[int, ...]:
        """Addresses to drop at a switch.  In a mesh a switch may be on the way to where the host moved: no drop then."""
        gone = self.gone[family.name].get(dpid, set()) - {h.ip for h in self.own[family.name].get(dpid, ())}
        if not repair and gone:
            gone = gone - {ip for ips in self.routed[family.name].values() for ip in ips}
        return tuple(sorted(gone))


def take(fabric: Fabric, intent: Intent) -> Snapshot:
    """Sort a fabric into facts.  Ports that are an end of a known link are fabric ports whatever their role says."""
    cables = _cables(fabric)
    sides = _sides(fabric, cables)
    repair = sides is not None
    dpids = sorted(fabric.switches)
    fabric_ports: dict[Dpid, frozenset[PortNo]] = {}
    edges: dict[Dpid, frozenset[PortNo]] = {}
    for dpid in dpids:
        ports = fabric.switches[dpid].ports
        ends = {c.port for c in cables[dpid]}
        fabric_ports[dpid] = frozenset(ends | {n for n, p in ports.items() if p.role is PortRole.FABRIC and is_physical(n)})
        edges[dpid] = frozenset(n for n, p in ports.items() if p.role is PortRole.EDGE and is_physical(n)) - fabric_ports[dpid]
    hosts = _Hosts(fabric, intent, edges)
    switches = {
        dpid: SwitchFacts(
            dpid,
            fabric.switches[dpid].text,
            sides is not None and sides[dpid] is Role.LEAF,
            tuple(sorted(edges[dpid])),
            tuple(sorted(fabric_ports[dpid])),
            cables[dpid],
            {f.name: tuple(sorted(hosts.own[f.name].get(dpid, ()))) for f in FAMILIES},
            {f.name: hosts.gone_at(f, dpid, repair) for f in FAMILIES},
        )
        for dpid in dpids
    }
    transit = frozenset(d for d in dpids if fabric.switches[d].programmed and (sides is None or sides[d] is Role.SPINE))
    return Snapshot(
        switches,
        repair,
        transit,
        Paths(cables, lambda dpid: dpid in transit),
        tuple(d for d in dpids if edges[d]),
        {f.name: {d: tuple(sorted(ips)) for d, ips in sorted(hosts.routed[f.name].items())} for f in FAMILIES},
        {f.name: tuple((t, tuple(sorted(ips))) for t, ips in sorted(hosts.reachable[f.name].items())) for f in FAMILIES},
    )
