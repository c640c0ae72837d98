"""Meters: what bounds the packets hosts can make a switch send to the controller or bounce between switches.

OVS takes a burst of 0 as one second's worth (DESIGN 5), so every burst is explicit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aifabric_ctrl.compile.groups import probe
from aifabric_ctrl.model.fabric import Features
from aifabric_ctrl.model.ids import PortNo
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.model.ownership import METER_BASE, METER_SPAN
from aifabric_ctrl.model.rules import Meter

LLDP = METER_BASE + 1
UNKNOWN_DESTINATION = METER_BASE + 2

_UNKNOWN_HOST_BASE, _REPAIR_BASE, _OVERFLOW_BASE = 0x1000, 0x8000, 0xF000  # offsets within our range
_DIRECT_SPAN = 0x7000
_OVERFLOW_SPAN = METER_SPAN - _OVERFLOW_BASE
_OVERFLOW_BITS = _OVERFLOW_SPAN.bit_length() - 1

UNKNOWN_HOST_BURST = 50  # packets: a new host sends a handful at once, a port with many addresses more
BURST_MIN = 16  # packets: below that a single batch of the datapath is cut


def available(features: Features) -> bool:
    """OVS refuses meter ids above its maximum, so the whole of our range must fit; else rules go without meters."""
    return features.max_meters >= METER_BASE + METER_SPAN - 1


def _burst(rate: int) -> int:
    return max(BURST_MIN, rate // 10)


@dataclass(frozen=True, slots=True)
class MeterPlan:
    """Meter ids of one switch by use; all None and empty when the switch has too few meters."""

    lldp: int | None
    unknown_destination: int | None
    unknown_host: dict[PortNo, int]
    repair: dict[PortNo, int]


def plan(usable: bool, edge_ports: Sequence[PortNo], uplinks: Sequence[PortNo]) -> MeterPlan:
    """Ids for these ports: the port number where it fits, else a hash with probing in a range of its own."""
    if not usable:
        return MeterPlan(None, None, {}, {})
    wide = [f"host {p}" for p in edge_ports if p >= _DIRECT_SPAN] + [f"repair {p}" for p in uplinks if p >= _DIRECT_SPAN]
    overflow = probe(wide, _OVERFLOW_BITS, METER_BASE + _OVERFLOW_BASE, _OVERFLOW_SPAN)

    def number(kind: str, base: int, port: PortNo) -> int:
        return METER_BASE + base + port if port < _DIRECT_SPAN else overflow[f"{kind} {port}"]

    return MeterPlan(
        LLDP,
        UNKNOWN_DESTINATION,
        {p: number("host", _UNKNOWN_HOST_BASE, p) for p in edge_ports},
        {p: number("repair", _REPAIR_BASE, p) for p in uplinks},
    )


def lldp_meter(intent: Intent) -> Meter:
    return Meter(LLDP, intent.lldp_pps, max(1, intent.lldp_pps))


def unknown_destination_meter(intent: Intent) -> Meter:
    return Meter(UNKNOWN_DESTINATION, intent.unknown_destination_pps, _burst(intent.unknown_destination_pps))


def unknown_host_meter(meter_id: int, intent: Intent) -> Meter:
    return Meter(meter_id, intent.unknown_host_pps, UNKNOWN_HOST_BURST)


def repair_meter(meter_id: int, intent: Intent) -> Meter:
    return Meter(meter_id, intent.repair_pps, _burst(intent.repair_pps))
