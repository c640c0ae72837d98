"""IPv6 neighbour discovery at edge ports, in tables PORT and NEIGHBOUR: the counterpart of ARP's rules in ``port``.

Open vSwitch refuses ``nd_tll`` in a rule that matches a solicitation, so an answer takes two tables: PORT turns the
solicitation into an advertisement, NEIGHBOUR, which matches that, fills in the target's MAC (measured, OVS 3.1).  OVS
keeps the ICMPv6 checksum right.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv6Address

from aifabric_ctrl.compile.base import TO_CONTROLLER
from aifabric_ctrl.compile.family import Family, Network
from aifabric_ctrl.compile.section import Section
from aifabric_ctrl.compile.snapshot import HostFact
from aifabric_ctrl.compile.tables import NEIGHBOUR, PORT, Priority
from aifabric_ctrl.model.fields import ETH_IP6, IPPROTO_ICMP6
from aifabric_ctrl.model.ids import PORT_IN_PORT, PortNo, mac_text
from aifabric_ctrl.model.nd import (
    ADVERT,
    FLAG_OVERRIDE,
    FLAG_ROUTER,
    FLAG_SOLICITED,
    ROUTER_ADVERT,
    ROUTER_SOLICIT,
    SOLICIT,
    link_local,
)
from aifabric_ctrl.model.rules import Action, Match, Move, Output, SetField, Why

TARGET_LINK_LAYER = 2  # option type, RFC 4861, 4.6.1
LINK_LOCAL = (0xFE80 << 112, 0x3FF << 118)
UNTAGGED = 0

_ND: dict[str, int | tuple[int, int]] = {"eth_type": ETH_IP6, "ip_proto": IPPROTO_ICMP6}


def _advertise(gateway_mac: int) -> tuple[Action, ...]:
    """First half: everything but the target's MAC, whose field OVS lets nobody write yet."""
    return (
        Move("eth_src", "eth_dst", 48),
        SetField("eth_src", gateway_mac),
        Move("ipv6_src", "ipv6_dst", 128),
        Move("nd_target", "ipv6_src", 128),
        SetField("nd_reserved", FLAG_ROUTER | FLAG_SOLICITED | FLAG_OVERRIDE),
        SetField("nd_options_type", TARGET_LINK_LAYER),
        SetField("icmpv6_type", ADVERT),
    )


def add_port(
    section: Section,
    port: PortNo,
    hosts: Sequence[HostFact],
    meter: int | None,
    nicira: bool,
    targets: Sequence[Network],
    gateway_mac: int,
) -> None:
    """One edge port: its hosts' solicitations are answered here, all other neighbour discovery is the controller's.

    A duplicate-address probe comes from ``::`` and is never a known host's, so it matches no answer (RFC 4862, 5.4).
    """
    for kind, name in ((ROUTER_SOLICIT, "router solicitations"), (ROUTER_ADVERT, "router advertisements")):
        _to_controller(section, port, kind, name, meter)
    _to_controller(section, port, SOLICIT, "neighbour solicitations of others, and probes for duplicates,", meter)
    _to_controller(section, port, ADVERT, "neighbour advertisements", meter)
    section.add(
        PORT,
        Priority.PORT_GATEWAY_UNKNOWN,
        Match.of(in_port=port, icmpv6_type=SOLICIT, nd_target=int(link_local(gateway_mac)), **_ND),
        Why(f"port/{port}/nd/gateway", f"a new host on port {port} asks for the gateway: the controller answers, metered"),
        meter=meter,
        actions=TO_CONTROLLER,
    )
    if not nicira:
        return
    for host in hosts:
        text = str(IPv6Address(host.ip))
        _answers(section, port, host.mac, host.ip, f"host/{text}", f"solicitations of {text}", targets, gateway_mac)
    for mac in dict.fromkeys(h.mac for h in hosts):
        what = f"solicitations from link-local addresses of {mac_text(mac)}"
        _answers(section, port, mac, LINK_LOCAL, f"port/{port}/mac/{mac_text(mac)}", what, targets, gateway_mac)


def _to_controller(section: Section, port: PortNo, kind: int, name: str, meter: int | None) -> None:
    section.add(
        PORT,
        Priority.PORT_NEIGHBOUR,
        Match.of(in_port=port, icmpv6_type=kind, **_ND),
        Why(f"port/{port}/nd/{kind}", f"{name} on port {port} are for the controller to judge, metered"),
        meter=meter,
        actions=TO_CONTROLLER,
    )


def _answers(
    section: Section,
    port: PortNo,
    mac: int,
    source: int | tuple[int, int],
    owner: str,
    what: str,
    targets: Sequence[Network],
    gateway_mac: int,
) -> None:
    asks: dict[str, int | tuple[int, int]] = {
        **_ND,
        "in_port": port,
        "vlan_vid": UNTAGGED,
        "eth_src": mac,
        "ipv6_src": source,
        "icmpv6_type": SOLICIT,
        "nd_sll": mac,
    }
    section.add(
        PORT,
        Priority.PORT_SOLICIT_GATEWAY,
        Match.of(nd_target=int(link_local(gateway_mac)), **asks),
        Why(f"{owner}/nd/gateway", f"{what} for the gateway itself are answered here"),
        actions=_advertise(gateway_mac),
        goto=NEIGHBOUR,
    )
    for network in targets:
        section.add(
            PORT,
            Priority.PORT_SOLICIT,
            Match.of(**asks, **_target(network)),
            Why(f"{owner}/nd", f"{what} are answered here with the gateway's MAC; nothing is flooded"),
            actions=_advertise(gateway_mac),
            goto=NEIGHBOUR,
        )


def _target(network: Network) -> dict[str, int | tuple[int, int]]:
    if network.prefixlen == 0:
        return {}
    base = int(network.network_address)
    return {"nd_target": base if network.prefixlen == 128 else (base, int(network.netmask))}


def add_never(section: Section, family: Family) -> None:
    """Nobody is told who has an address that no host of the fabric can have."""
    for network in family.never:
        section.add(
            PORT,
            Priority.PORT_NEVER,
            Match.of(icmpv6_type=SOLICIT, **_ND, **_target(network)),
            Why(f"nd/never/{network}", f"{network} is never a host of the fabric, so solicitations for it are not answered"),
        )


def answer_section(gateway_mac: int) -> Section:
    """Second half of every answer."""
    section = Section()
    section.add(
        NEIGHBOUR,
        Priority.NEIGHBOUR_ANSWER,
        Match.of(icmpv6_type=ADVERT, **_ND),
        Why("nd/answer", "completes the answer to a neighbour solicitation and sends it back"),
        actions=(SetField("nd_tll", gateway_mac), Output(PORT_IN_PORT)),
    )
    return section
