"""Fabrics to compile: builders shared by the compiler's tests, with a test of the builder itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from ipaddress import IPv4Address

from aifabric_ctrl.model.fabric import Fabric, Features, Host, Link, LinkState, Port, PortRole, Reach, Role, Switch
from aifabric_ctrl.model.ids import Dpid, PortRef
from aifabric_ctrl.verify.executor import Packet, udp4
from aifabric_ctrl.verify.walk import Probe

OVS = Features(max_meters=1 << 18, nicira=True, bundles=True)
HARDWARE = Features(max_meters=512)
GATEWAY_MAC = 0x02FA00000001
UPLINK = 100  # a leaf's first uplink port


def leaf_dpid(leaf: int) -> Dpid:
    return 0x10 + leaf


def spine_dpid(spine: int) -> Dpid:
    return 0x1000 + spine


def host_ip(leaf: int, host: int) -> IPv4Address:
    return IPv4Address(f"10.0.{leaf}.{host}")


def host_mac(leaf: int, host: int) -> int:
    return 0x020000000000 | leaf << 8 | host


def cabling(leaves: int, spines: int, parallel: int = 1) -> tuple[Link, ...]:
    """Leaf port UPLINK + n for spine n // parallel; spine port: one block of ``parallel`` for each leaf."""
    return tuple(
        Link(
            PortRef(leaf_dpid(leaf), UPLINK + (spine - 1) * parallel + cable),
            PortRef(spine_dpid(spine), 1 + (leaf - 1) * parallel + cable),
        )
        for leaf in range(1, leaves + 1)
        for spine in range(1, spines + 1)
        for cable in range(parallel)
    )


def switches_of(links: Iterable[Link], edge: dict[Dpid, Sequence[int]], features: Features = OVS) -> dict[Dpid, Switch]:
    """Switches with a fabric port for each cable end and the given edge ports; all connected and programmed."""
    ports: dict[Dpid, dict[int, Port]] = {dpid: {} for dpid in edge}
    for link in links:
        for end in (link.a, link.b):
            ports.setdefault(end.dpid, {})[end.port] = Port(end.port, role=PortRole.FABRIC)
    for dpid, numbers in edge.items():
        ports[dpid].update({n: Port(n, role=PortRole.EDGE) for n in numbers})
    return {
        d: Switch(d, f"s{d:x}", connected=True, programmed=True, ports=p, features=features) for d, p in sorted(ports.items())
    }


def leaf_spine(leaves: int = 2, spines: int = 2, hosts: int = 1, parallel: int = 1, features: Features = OVS) -> Fabric:
    """Host h of leaf l at its port h, with ``host_ip(l, h)``."""
    links = cabling(leaves, spines, parallel)
    edge = {leaf_dpid(leaf): range(1, hosts + 1) for leaf in range(1, leaves + 1)}
    found = [
        Host(host_ip(leaf, n), host_mac(leaf, n), PortRef(leaf_dpid(leaf), n))
        for leaf in range(1, leaves + 1)
        for n in range(1, hosts + 1)
    ]
    return Fabric(switches_of(links, edge, features), links, {h.ip: h for h in found})


def with_links(fabric: Fabric, state: LinkState, *changed: Link) -> Fabric:
    ends = {(link.a, link.b) for link in changed}
    links = tuple(replace(k, state=state) if (k.a, k.b) in ends else k for k in fabric.links)
    return replace(fabric, links=links)


def with_reach(fabric: Fabric, ip: IPv4Address, reach: Reach) -> Fabric:
    return replace(fabric, hosts={**fabric.hosts, ip: replace(fabric.hosts[ip], reach=reach)})


def packet_between(source: Host, target: Host, ttl: int = 64, udp_src: int = 0xC123, udp_dst: int = 5001) -> Packet:
    return udp4(source.mac, GATEWAY_MAC, int(source.ip), int(target.ip), udp_src, udp_dst, ttl=ttl)


def all_pairs(fabric: Fabric, udp_dst: int = 5001) -> list[Probe]:
    hosts = list(fabric.hosts.values())
    return [Probe(a.at, packet_between(a, b, udp_dst=udp_dst), b.at) for a in hosts for b in hosts if a != b]


def test_builder_makes_a_leaf_spine() -> None:
    fabric = leaf_spine(3, 2, hosts=2, parallel=2)
    assert len(fabric.links) == 12
    assert [fabric.roles[d] for d in fabric.switches] == [Role.LEAF] * 3 + [Role.SPINE] * 2
    assert len({end for link in fabric.links for end in (link.a, link.b)}) == 24
