"""Table ROUTE: own hosts, hosts that left, bounced packets, and which next-hop set everything else takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address

from aifabric_ctrl.compile import meters
from aifabric_ctrl.compile.family import Family, Network, cover
from aifabric_ctrl.compile.groups import Chain
from aifabric_ctrl.compile.paths import Cable
from aifabric_ctrl.compile.section import Section
from aifabric_ctrl.compile.snapshot import HostFact
from aifabric_ctrl.compile.spread import HopSet, add_groups
from aifabric_ctrl.compile.tables import NEXT_HOP_SET, ROUTE, SOURCE_TENANT, SPREAD, Priority, by_length
from aifabric_ctrl.model.ids import PORT_IN_PORT, Dpid, PortNo, dpid_text
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.model.rules import DecTtl, Flow, Match, Output, SetField, ToGroup, Why


def own_section(family: Family, hosts: Sequence[HostFact], gateway_mac: int) -> Section:
    """The last hop to the hosts of one port.

    Hosts behind one port (virtual machines on a bridge) get the gateway's MAC for each other too, and ``output`` to the
    in-port is dropped by switches, so between those the packet goes back by IN_PORT.
    """
    section = Section()
    shared = len({h.mac for h in hosts}) > 1
    for host in hosts:
        text = family.text(host.ip)
        to_host: dict[str, int | tuple[int, int]] = {"eth_type": family.eth_type, family.destination: host.ip}
        last_hop = (SetField("eth_src", gateway_mac), SetField("eth_dst", host.mac), DecTtl())
        section.add(
            ROUTE,
            Priority.ROUTE_HOST,
            Match.of(**to_host),
            Why(f"host/{text}/route", f"{text} lives here on port {host.port}"),
            actions=(*last_hop, Output(host.port)),
        )
        if shared:
            section.add(
                ROUTE,
                Priority.ROUTE_HAIRPIN,
                Match.of(in_port=host.port, **to_host),
                Why(
                    f"host/{text}/hairpin", f"{text} shares port {host.port} with other hosts, which reach it through the gateway"
                ),
                actions=(*last_hop, Output(PORT_IN_PORT)),
            )
    return section


def hosts_in(flows: Iterable[Flow]) -> list[tuple[IPv4Address | IPv6Address, int, PortNo]]:
    """The inverse of :func:`own_section`: (address, MAC, port) of the hosts that a switch's own rules deliver to."""
    found: list[tuple[IPv4Address | IPv6Address, int, PortNo]] = []
    for flow in flows:
        if flow.table != ROUTE or flow.priority != Priority.ROUTE_HOST:
            continue
        macs = [a.value for a in flow.actions if isinstance(a, SetField) and a.field == "eth_dst"]
        ports = [a.port for a in flow.actions if isinstance(a, Output)]
        four, six = flow.match.exact("ipv4_dst"), flow.match.exact("ipv6_dst")
        if len(macs) == 1 and len(ports) == 1 and (four is not None or six is not None):
            address = IPv4Address(four) if four is not None else IPv6Address(six or 0)
            found.append((address, macs[0], ports[0]))
    return found


def gone_section(family: Family, addresses: Sequence[int]) -> Section:
    """Addresses whose hosts have left: without a drop, switches that still route them here would bounce every packet.

    Only packets from other switches are dropped: a host here may already be told where the address has gone.
    """
    section = Section()
    for address in addresses:
        text = family.text(address)
        arriving: dict[str, int | tuple[int, int]] = {
            "metadata": SOURCE_TENANT.of(0),
            "eth_type": family.eth_type,
            family.destination: address,
        }
        section.add(
            ROUTE,
            Priority.ROUTE_TOMBSTONE,
            Match.of(**arriving),
            Why(f"host/{text}/gone", f"{text} lived here and has left; switches that do not know yet must not make it bounce"),
        )
    return section


def bounce_order(cables: Sequence[Cable], port: PortNo, usable: set[PortNo]) -> tuple[PortNo, ...]:
    """Where a packet that came back on ``port`` goes next: the other spines in circular order, every one tried once.

    Static in-port failover for a two-tier fabric (Chiesa et al., "On the Resiliency of Static Forwarding Tables",
    IEEE/ACM ToN 2017).  Parallel links to the spine that sent it back are left out: it would send it back again.
    """
    spines = list(dict.fromkeys(c.far for c in cables))
    links = {spine: [c.port for c in cables if c.far == spine] for spine in spines}
    here = next((c.far for c in cables if c.port == port), None)
    if here is None:
        at, turn, others = 0, 0, spines
    else:
        at = spines.index(here)
        turn = links[here].index(port)
        others = spines[at + 1 :] + spines[:at]
    order: list[PortNo] = []
    for spine in others:
        ports = links[spine]
        start = turn % len(ports)
        order.extend(p for p in ports[start:] + ports[:start] if p in usable)
    return tuple(order)


def bounce_section(
    family: Family, port: PortNo, chain: Chain, group_id: int | None, meter: int | None, intent: Intent
) -> Section:
    """Packets that came up from a leaf's own uplink and are for none of its hosts have bounced off a spine.

    The TTL is spent fast, and the meter bounds senders with a large one: a dead leaf once turned 1,000 packets into
    32,001 transmissions (DESIGN 3).
    """
    section = Section()
    if meter is not None:
        section.meters[meter] = meters.repair_meter(meter, intent)
    if group_id is not None:
        add_groups(section, [chain], {chain.text: group_id})
    section.add(
        ROUTE,
        Priority.ROUTE_BOUNCE,
        Match.of(in_port=port, eth_type=family.eth_type),
        Why(
            f"repair/port/{port}/{family.name}",
            f"sent back by the spine on port {port}; try {chain.describes if chain.ports else 'nothing: drop'}",
        ),
        meter=meter if group_id is not None else None,
        actions=() if group_id is None else (*(DecTtl(),) * intent.repair_ttl_steps, ToGroup(group_id)),
    )
    return section


def commonest(sets: Sequence[HopSet]) -> HopSet | None:
    """The set most destinations share, unreachable ones aside; ties go to the larger, then to the lower ports."""
    counts = Counter(s for s in sets if s.members)
    if not counts:
        return None
    return min(counts, key=lambda s: (-counts[s], -len(s.members), s.members))


def default_section(family: Family, scope: Sequence[Network], hops: HopSet, set_id: int) -> Section:
    """One route for all leaves that are reached alike, however many there are."""
    section = Section()
    for prefix in scope:
        section.add(
            ROUTE,
            by_length(Priority.ROUTE_BY_LENGTH, prefix.prefixlen),
            Match.of(eth_type=family.eth_type, **family.matching(family.destination, prefix)),
            Why(f"route/default/{family.name}", f"most other leaves are reached over ports {hops.text}"),
            actions=(DecTtl(),),
            metadata=NEXT_HOP_SET.of(set_id),
            goto=SPREAD,
        )
    return section


def leaf_section(family: Family, leaf: Dpid, name: str, addresses: tuple[int, ...], hops: HopSet, set_id: int | None) -> Section:
    """Routes to the hosts of one leaf, covering exactly their addresses; a drop when ``set_id`` is None."""
    section = Section()
    for network in cover(family, addresses):
        match = Match.of(eth_type=family.eth_type, **family.matching(family.destination, network))
        owner = f"route/leaf/{dpid_text(leaf)}"
        if set_id is None:
            section.add(
                ROUTE, Priority.ROUTE_EXCEPTION, match, Why(owner, f"{network} is at {name}, which cannot be reached from here")
            )
            continue
        section.add(
            ROUTE,
            Priority.ROUTE_EXCEPTION,
            match,
            Why(owner, f"{network} is at {name}, reached over ports {hops.text}"),
            actions=(DecTtl(),),
            metadata=NEXT_HOP_SET.of(set_id),
            goto=SPREAD,
        )
    return section
