"""Table PORT: a host port carries only its hosts' addresses, hosts get their ARP answers here, the rest is noticed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aifabric_ctrl.compile import meters, neighbour
from aifabric_ctrl.compile.base import TO_CONTROLLER
from aifabric_ctrl.compile.family import Family, Network, scopes
from aifabric_ctrl.compile.section import Section
from aifabric_ctrl.compile.snapshot import HostFact
from aifabric_ctrl.compile.tables import CLASS, PORT, SOURCE_TENANT, Priority
from aifabric_ctrl.model.fields import ETH_ARP, ETH_LLDP
from aifabric_ctrl.model.ids import PORT_IN_PORT, PortNo
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.model.rules import Action, Match, Move, Output, SetField, Why

ARP_REQUEST, ARP_REPLY = 1, 2
UNTAGGED = 0  # OFPVID_NONE: without it a match on eth_type also takes tagged frames, whose tag nobody would check


def fabric_section(family: Family, ports: Sequence[PortNo]) -> Section:
    """Packets from other switches.  Whether a link works does not matter here, so that a failure changes nothing."""
    section = Section()
    for port in ports:
        section.add(
            PORT,
            Priority.PORT_KNOWN,
            Match.of(in_port=port, eth_type=family.eth_type),
            Why(f"port/{port}/fabric/{family.name}", f"port {port} leads to another switch, which has judged its packets"),
            goto=CLASS,
        )
    return section


def lldp_section(port: PortNo, meter: int | None) -> Section:
    """An edge port may turn out to lead to a switch, but what it sends must not use up the meter of known cables."""
    section = Section()
    section.add(
        PORT,
        Priority.PORT_LLDP_HOST,
        Match.of(in_port=port, eth_type=ETH_LLDP),
        Why(
            f"lldp/port/{port}",
            f"port {port} is an edge port: LLDP from there has that port's meter and leaves discovery's alone",
        ),
        meter=meter,
        actions=TO_CONTROLLER,
    )
    return section


def edge_section(
    family: Family, port: PortNo, hosts: Sequence[HostFact], meter: int | None, nicira: bool, intent: Intent
) -> Section:
    """One host port: its known hosts, and for everybody else the way to be noticed."""
    section = Section()
    if meter is not None:
        section.meters[meter] = meters.unknown_host_meter(meter, intent)
    for host in hosts:
        _host(section, family, host, meter, nicira, intent)
    if family.version == 6:
        neighbour.add_port(section, port, hosts, meter, nicira, answered(family, intent), intent.gateway_mac)
    asks = (("arp", ETH_ARP),) if family.version == 4 else ()
    for kind, eth_type in (*asks, (family.name, family.eth_type)):
        section.add(
            PORT,
            Priority.PORT_UNKNOWN,
            Match.of(in_port=port, eth_type=eth_type),
            Why(
                f"port/{port}/unknown/{kind}", f"new hosts and spoofed sources on port {port} are told to the controller, metered"
            ),
            meter=meter,
            actions=TO_CONTROLLER,
        )
    return section


def _arp_answer(gateway_mac: int) -> tuple[Action, ...]:
    """Turn a request into the gateway's answer, as register moves (DESIGN 3; shown in the data-plane proof)."""
    return (
        Move("eth_src", "eth_dst", 48),
        SetField("eth_src", gateway_mac),
        SetField("arp_op", ARP_REPLY),
        Move("arp_sha", "arp_tha", 48),
        Move("arp_spa", "reg0", 32),
        Move("arp_tpa", "arp_spa", 32),
        Move("reg0", "arp_tpa", 32),
        SetField("arp_sha", gateway_mac),
        Output(PORT_IN_PORT),
    )


def answered(family: Family, intent: Intent) -> tuple[Network, ...]:
    """Targets whose ARP requests are answered: the fabric's prefixes and gateways outside them."""
    inside = scopes(family, intent.prefixes)
    lone = [family.lone(g) for g in intent.gateways if g.version == family.version and not any(g in n for n in inside)]
    return (*inside, *dict.fromkeys(lone))


def _host(section: Section, family: Family, host: HostFact, meter: int | None, nicira: bool, intent: Intent) -> None:
    """One known address at its port: source guard, and ARP when the switch can answer it."""
    text = family.text(host.ip)
    section.add(
        PORT,
        Priority.PORT_KNOWN,
        Match.of(
            **{
                "in_port": host.port,
                "vlan_vid": UNTAGGED,
                "eth_type": family.eth_type,
                "eth_src": host.mac,
                family.source: host.ip,
            }
        ),
        Why(
            f"host/{text}/source",
            f"{text} lives on port {host.port}: only its own MAC and address may send, as tenant {host.tenant}",
        ),
        metadata=SOURCE_TENANT.of(host.tenant),
        goto=CLASS,
    )
    if not nicira or family.version != 4:
        return
    request: dict[str, int | tuple[int, int]] = {
        "in_port": host.port,
        "vlan_vid": UNTAGGED,
        "eth_type": ETH_ARP,
        "arp_op": ARP_REQUEST,
        "eth_src": host.mac,
        "arp_sha": host.mac,
        "arp_spa": host.ip,
    }
    section.add(
        PORT,
        Priority.PORT_ANNOUNCE,
        Match.of(**request, arp_tpa=host.ip),
        Why(f"host/{text}/announce", f"{text} announces or checks its own address: only the controller may judge that"),
        meter=meter,
        actions=TO_CONTROLLER,
    )
    for network in answered(family, intent):
        section.add(
            PORT,
            Priority.PORT_KNOWN,
            Match.of(**request, **family.matching("arp_tpa", network)),
            Why(f"host/{text}/arp", f"ARP requests of {text} are answered here with the gateway's MAC; nothing is flooded"),
            actions=_arp_answer(intent.gateway_mac),
        )


def never_section(family: Family) -> Section:
    """ARP and neighbour solicitations for addresses no host can have stay unanswered."""
    section = Section()
    if family.version == 6:
        neighbour.add_never(section, family)
        return section
    for network in family.never:
        section.add(
            PORT,
            Priority.PORT_NEVER,
            Match.of(eth_type=ETH_ARP, arp_op=ARP_REQUEST, **family.matching("arp_tpa", network)),
            Why(f"arp/never/{network}", f"{network} is never a host of the fabric, so ARP for it is not answered"),
        )
    return section


def by_port(hosts: Sequence[HostFact]) -> Mapping[PortNo, list[HostFact]]:
    found: dict[PortNo, list[HostFact]] = {}
    for host in hosts:
        found.setdefault(host.port, []).append(host)
    return found
