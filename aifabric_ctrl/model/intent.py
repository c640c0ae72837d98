"""What the operator wants, as the core reads it: the settings that shape rules and timing, already validated.

Every number has its unit in its name and its reason beside it.  ``aifabric settings`` lists the same table.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Network = IPv4Network | IPv6Network


@dataclass(frozen=True)
class Intent:
    """Inputs of the compiler and the engine that do not come from the network."""

    gateway_mac: int = 0x02FA00000001  # locally administered; one for the whole fabric, so hosts never re-ARP
    gateways: tuple[IPv4Address | IPv6Address, ...] = ()  # addresses the fabric itself answers ping on
    prefixes: tuple[Network, ...] = ()  # empty: any unicast but link-local

    # Bounds on what hosts can make the controller do (DESIGN invariant 8).
    unknown_host_pps: int = 100  # per host port: a new host needs 3-4 packets, a rack that boots together has a port each
    unknown_destination_pps: int = 500  # per leaf: packets to addresses nobody has claimed yet
    lldp_pps: int = 1000  # per switch: 64 ports probed once a second, with room for a burst at start
    repair_pps: int = 20_000  # per uplink: bounced packets, for senders whose TTL does not bound them (DESIGN 3)
    repair_ttl_steps: int = 20  # dec_ttl per bounce: TTL 64 dies after 3 bounces, i.e. 4 transmissions (DESIGN 3, measured)

    # Discovery and failure.
    probe_interval_s: float = 1.0  # per link direction
    probes_lost: int = 3  # unanswered probes before a direction counts as gone
    settle_probes: int = 3  # unanswered probes before a port counts as an edge port
    settle_interval_s: float = 0.3  # between those
    hold_down_s: float = 1.0  # a link that comes back waits this long; doubles per flap
    hold_down_max_s: float = 30.0
    flap_memory_s: float = 60.0  # flaps older than this are forgotten

    drain_floor_percent: int = 50  # a drain that leaves a leaf less of its uplink capacity is refused: one of two spines may go

    # Others may write to a switch as well.
    reread_s: float = 30.0  # quiet switches are read back again this often; 0: only when they connect

    audit_repair: bool = True  # what such a look finds changed is put right

    # Hosts.
    host_age_s: float = 300.0  # silence before probing; Linux itself forgets neighbours in 60 s
    host_probe_s: float = 0.3  # per probe; three unanswered ones age a host out
    move_probe_s: float = 0.3  # the old port's time to answer before a move is believed
    hold_packets: int = 16  # first packets kept per address: a host that starts talks to several others at once
    hold_total: int = 1024  # and in all
    hold_s: float = 3.0

    # Silent failures.
    bfd: bool = True
    bfd_interval_ms: int = 30  # x3; 10 ms flaps on small machines (measured)
