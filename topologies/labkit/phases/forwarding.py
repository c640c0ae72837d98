"""Rows about a fabric where nothing fails: how soon it forwards, what hosts hear, how many routes it needs."""

import time

from labkit.errors import PhaseError
from labkit.report import Row
from labkit.session import Lab
from labkit.traffic import Flow, FlowSet

BASELINE_S = 6
START_TARGET_S = 5.0


def start(lab: Lab) -> list[Row]:
    seen = lab.started[lab.fabric.shape]
    details = {"seconds": seen.seconds, "requests": seen.ping["requests"], "unasked_during_start": seen.unasked}
    return [
        Row(
            "start",
            "start: last switch connected -> every pair pings",
            f"<= {START_TARGET_S:g} s",
            f"{seen.seconds:.2f} s, {seen.ping['answered']} pairs",
            seen.seconds <= START_TARGET_S,
            seen.ping["requests"],
            details=details,
        )
    ]


def quiet(lab: Lab) -> list[Row]:
    """All hosts forget their neighbours, ask again and ping all pairs, while every host listens for what is not its own."""
    hosts, net = lab.fabric.hosts, lab.fabric.net
    if net is None:
        raise PhaseError("no fabric is up")
    lab.traffic.start([], sniff_hosts=hosts)
    for host in net.hosts:
        host.cmd("ip neigh flush all")  # by the host's own shell: mnexec cannot enter a host from inside a chroot
    ping = lab.traffic.ping_all(hosts, 20)
    time.sleep(1)
    result = lab.traffic.stop()
    kinds = result.unasked.get("start", {})
    started = lab.started[lab.fabric.shape]
    copies, early = (sum(count for kind, count in heard.items() if kind != "lldp") for heard in (kinds, started.unasked))
    measured = f"{copies} copies at {len(hosts)} hosts" + (f" {dict(kinds)}" if kinds else "")
    measured += f"; while starting, probes for silent hosts included: {early}"
    details = {
        "copies": copies,
        "kinds": kinds,
        "samples": result.samples,
        "missing": ping["missing"],
        "during_start": started.unasked,
        "samples_of_start": started.samples,
    }
    return [
        Row(
            "quiet",
            "broadcast/ARP copies seen by a host that was not asked (all neighbours asked again)",
            "0",
            measured,
            copies == 0 and not ping["missing"],
            ping["requests"],
            len(ping["missing"]),
            details=details,
        )
    ]


def baseline(lab: Lab) -> list[Row]:
    """What this machine itself adds to gaps: the same probes, nothing broken."""
    first, last = lab.fabric.host(1), lab.fabric.host(lab.fabric.shape.leaves)
    result = lab.traffic.run([FlowSet(1000, [Flow(first, last)]), FlowSet(1000, [Flow(last, first)])], BASELINE_S)
    gap = max(flow.longest_gap_ms() for flow in result.flows)
    stall = max(flow.longest_stall_ms() for flow in result.flows)
    measured = f"gap {gap:.0f} ms, the sender itself late by {stall:.0f} ms"
    details = {"gap_ms": gap, "stall_ms": stall}
    return [
        Row(
            "baseline",
            "baseline: nothing fails, 2 x 1,000 packets/s",
            "(this machine's noise)",
            measured,
            None,
            result.sent,
            result.lost,
            gap,
            details,
        )
    ]


def route_entries(lab: Lab) -> list[Row]:
    """Compares with the fabric that has half as many leaves."""
    big = lab.fabric.shape
    small = next((shape for shape in lab.started if shape.spines == big.spines and shape.leaves * 2 == big.leaves), None)
    if small is None:
        raise PhaseError("needs the small fabric first: add `start` to --only")
    few, many = (sorted(set(lab.started[shape].route_entries.values())) for shape in (small, big))
    measured = f"{few} with {small.leaves} leaves, {many} with {big.leaves}"
    return [
        Row(
            "route_entries",
            "a leaf's ROUTE entries for other leaves, healthy fabric",
            "constant",
            measured,
            few == many and len(few) == 1,
            details={"small": few, "big": many},
        )
    ]
