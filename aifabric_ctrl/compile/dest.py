"""Tables CLASS, DEST and POLICY: what a packet from a host is, where it may go, and whether these two may talk."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address

from aifabric_ctrl.compile import meters
from aifabric_ctrl.compile.base import TO_CONTROLLER
from aifabric_ctrl.compile.family import Family, cover, scopes
from aifabric_ctrl.compile.section import Section
from aifabric_ctrl.compile.tables import (
    CLASS,
    CLASS_BACKGROUND,
    DEST,
    DEST_TENANT,
    POLICY,
    ROUTE,
    SOURCE_TENANT,
    TENANT_DEFAULT,
    TRAFFIC_CLASS,
    Priority,
    by_length,
)
from aifabric_ctrl.model.fields import IPPROTO_ICMP, IPPROTO_ICMP6
from aifabric_ctrl.model.ids import PORT_IN_PORT
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.model.rules import Action, Match, Move, Output, SetField, Why

ICMP_ECHO_REQUEST, ICMP_ECHO_REPLY = 8, 0
ICMP6_ECHO_REQUEST, ICMP6_ECHO_REPLY = 128, 129
PING_TTL = 64


def class_section(edge: bool) -> Section:
    """Packets from other switches were classed and judged at their own leaf; those from hosts are judged here."""
    section = Section()
    section.add(
        CLASS,
        Priority.CLASS_FABRIC,
        Match.of(metadata=SOURCE_TENANT.of(0)),
        Why("class/fabric", "packets from other switches were judged at their source leaf"),
        goto=ROUTE,
    )
    if edge:
        section.add(
            CLASS,
            Priority.CLASS_HOST,
            Match(),
            Why("class/background", "there is one traffic class, background, until a policy says otherwise"),
            metadata=TRAFFIC_CLASS.of(CLASS_BACKGROUND),
            goto=DEST,
        )
    return section


def policy_section() -> Section:
    """One tenant, which may talk to itself."""
    section = Section()
    source, source_mask = SOURCE_TENANT.of(TENANT_DEFAULT)
    destination, destination_mask = DEST_TENANT.of(TENANT_DEFAULT)
    section.add(
        POLICY,
        Priority.POLICY_PAIR,
        Match.of(metadata=(source | destination, source_mask | destination_mask)),
        Why(f"policy/{TENANT_DEFAULT}/{TENANT_DEFAULT}", f"tenant {TENANT_DEFAULT} may talk to itself"),
        goto=ROUTE,
    )
    return section


def _ping_answer(family: Family, gateway_mac: int) -> tuple[Action, ...]:
    if family.version == 6:
        # 128 bits are kept in four registers while source and destination change places.
        kept = [(f"reg{n}", 32 * n) for n in range(4)]
        return (
            Move("eth_src", "eth_dst", 48),
            SetField("eth_src", gateway_mac),
            *(Move("ipv6_src", register, 32, src_offset=at) for register, at in kept),
            Move("ipv6_dst", "ipv6_src", 128),
            *(Move(register, "ipv6_dst", 32, dst_offset=at) for register, at in kept),
            SetField("icmpv6_type", ICMP6_ECHO_REPLY),
            SetField("nw_ttl", PING_TTL),
            Output(PORT_IN_PORT),
        )
    return (
        Move("eth_src", "eth_dst", 48),
        SetField("eth_src", gateway_mac),
        Move("ipv4_src", "reg0", 32),
        Move("ipv4_dst", "ipv4_src", 32),
        Move("reg0", "ipv4_dst", 32),
        SetField("icmpv4_type", ICMP_ECHO_REPLY),
        SetField("nw_ttl", PING_TTL),
        Output(PORT_IN_PORT),
    )


def _gateway(
    section: Section, family: Family, address: IPv4Address | IPv6Address, nicira: bool, meter: int | None, mac: int
) -> None:
    to_gateway: dict[str, int | tuple[int, int]] = {"eth_type": family.eth_type, family.destination: int(address)}
    four: dict[str, int] = {"ip_proto": IPPROTO_ICMP, "icmpv4_type": ICMP_ECHO_REQUEST, "icmpv4_code": 0}
    six: dict[str, int] = {"ip_proto": IPPROTO_ICMP6, "icmpv6_type": ICMP6_ECHO_REQUEST, "icmpv6_code": 0}
    section.add(
        DEST,
        Priority.DEST_PING,
        Match.of(**to_gateway, **(four if family.version == 4 else six)),
        Why(f"gateway/{address}/ping", f"{address} is the fabric's own address and answers ping"),
        meter=None if nicira else meter,
        actions=_ping_answer(family, mac) if nicira else TO_CONTROLLER,
    )
    section.add(
        DEST,
        Priority.DEST_GATEWAY,
        Match.of(**to_gateway),
        Why(f"gateway/{address}/other", f"{address} is the fabric's own address and speaks nothing but ping"),
    )


def dest_section(
    family: Family, reachable: Sequence[tuple[int, tuple[int, ...]]], meter: int | None, nicira: bool, intent: Intent
) -> Section:
    """Destinations of the whole fabric.  ``reachable`` is (tenant, addresses) in ascending order."""
    section = Section()
    if meter is not None:
        section.meters[meter] = meters.unknown_destination_meter(intent)
    for address in intent.gateways:
        if address.version == family.version:
            _gateway(section, family, address, nicira, meter, intent.gateway_mac)
    for network in family.never:
        section.add(
            DEST,
            Priority.DEST_NEVER,
            Match.of(eth_type=family.eth_type, **family.matching(family.destination, network)),
            Why(f"destination/never/{network}", f"{network} is never routed"),
        )
    for tenant, addresses in reachable:
        for network in cover(family, addresses):
            section.add(
                DEST,
                Priority.DEST_HOST,
                Match.of(eth_type=family.eth_type, **family.matching(family.destination, network)),
                Why(f"tenant/{tenant}/destination", f"every address in {network} is a known host of tenant {tenant}"),
                metadata=DEST_TENANT.of(tenant),
                goto=POLICY,
            )
    for prefix in scopes(family, intent.prefixes):
        section.add(
            DEST,
            by_length(Priority.DEST_BY_LENGTH, prefix.prefixlen),
            Match.of(eth_type=family.eth_type, **family.matching(family.destination, prefix)),
            Why("destination/unknown", "nobody has this address yet: the controller probes for it and holds the packet"),
            meter=meter,
            actions=TO_CONTROLLER,
        )
    return section
