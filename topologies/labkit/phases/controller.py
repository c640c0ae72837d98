"""Rows about the controller's and the switch daemon's own death, and how fast the controller repairs."""

import time
from typing import Any

from labkit import failures, ovs
from labkit.errors import PhaseError
from labkit.phases.failover import Outcome, break_under_traffic, loss_row, rotation
from labkit.report import Row, median, percentile
from labkit.session import PING_BOUND_S, READY_BOUND_S, Lab
from labkit.traffic import Flow, FlowSet

RATE = 1000
DEAD_S = 2.0
RECONNECT_TARGET_S = 5.0
REPAIR_TARGET_MS = 50.0
WANTED_SAMPLES = 5


def kill_and_restart(lab: Lab) -> list[Row]:
    lab.settle()
    first, last = lab.fabric.host(1), lab.fabric.host(lab.fabric.shape.leaves)
    before = {bridge: ovs.without_counters(bridge) for bridge in lab.fabric.bridges}
    lab.traffic.start([FlowSet(RATE, [Flow(first, last)]), FlowSet(RATE, [Flow(last, first)])])
    time.sleep(0.5)
    killed_at = time.monotonic()
    lab.controller.kill()
    time.sleep(DEAD_S)
    lab.controller.start()
    ready_s = lab.controller.wait_ready(len(lab.fabric.bridges), READY_BOUND_S)
    time.sleep(2.0)
    result = lab.traffic.stop()
    counters = lab.controller.get("counters")
    sent = {name: counters.get(name) for name in ("flow_mods_sent", "group_mods_sent", "meter_mods_sent")}
    witness = _touched(lab, before, killed_at)
    messages = sum(value or 0 for value in sent.values())
    gap = max(flow.longest_gap_ms() for flow in result.flows)
    measured = f"{result.lost} lost; {messages} messages; ready after {ready_s:.1f} s" + (f"; {witness[0]}" if witness else "")
    details = {"counters": sent, "touched": witness, "ready_s": ready_s, "lost": result.lost, "messages": messages}
    passed = result.lost == 0 and messages == 0 and None not in sent.values() and not witness
    return [
        Row(
            "controller_kill",
            "kill -9 of the controller, restart, traffic running",
            "0 lost, 0 flow and group messages",
            measured,
            passed,
            result.sent,
            result.lost,
            gap,
            details,
        )
    ]


def _touched(lab: Lab, before: dict[str, list[str]], killed_at: float) -> list[str]:
    """By the switches' own word, what was installed or changed since the kill: a second witness beside the counters."""
    found = []
    for bridge in lab.fabric.bridges:
        if ovs.without_counters(bridge) != before[bridge]:
            found.append(f"rules of {bridge} differ")
        flow_ages, group_ages = ovs.rule_ages_s(bridge)
        age = time.monotonic() - killed_at
        young = sum(value < age - 0.5 for value in flow_ages + group_ages)
        if young:
            found.append(f"{young} objects of {bridge} are younger than the kill")
    return found


def dead_then_uplink_down(lab: Lab) -> list[Row]:
    lab.settle()
    count, outcomes = max(1, lab.options.trials // 3), list[Outcome]()
    lab.controller.kill()
    try:
        for number, link in enumerate(rotation(lab, count), 1):
            lab.settle_without_controller()
            pair = break_under_traffic(lab, link, failures.LEAF_END_DOWN, list(lab.crossing(link)))
            lab.say(f"controller dead {number}/{count}: {link.leaf_end} lost {pair[0].lost} up, {pair[1].lost} down")
            outcomes += pair
    finally:
        lab.controller.start()
    lab.settle()
    return [loss_row("controller_dead", f"controller dead, then an uplink fails, {count} trials", outcomes)]


def vswitchd_restart(lab: Lab) -> list[Row]:
    """Every bridge of the daemon loses its tables, so this row is not run beside somebody else's bridges."""
    foreign = [name for name, owner in ovs.listed_bridges().items() if not owner]
    if foreign:
        raise PhaseError(f"other bridges use this Open vSwitch ({', '.join(foreign)}): its daemon is not killed")
    lab.settle()
    lab.daemon.kill()
    time.sleep(1.0)
    lab.daemon.start()
    lab.traffic.begin_ping(lab.fabric.hosts, PING_BOUND_S)
    connected_at = lab.fabric.wait_connected(PING_BOUND_S)
    ping = lab.traffic.end_ping(PING_BOUND_S + 5)
    if ping["missing"]:
        raise PhaseError(f"{len(ping['missing'])} of {ping['pairs']} pairs never answered again within {PING_BOUND_S} s")
    seconds = max(0.0, ping["last_at"] - connected_at)
    lab.settle()
    return [
        Row(
            "vswitchd",
            "vswitchd killed and restarted: reconnected -> all pairs ping",
            f"<= {RECONNECT_TARGET_S:g} s",
            f"{seconds:.2f} s",
            seconds <= RECONNECT_TARGET_S,
            ping["requests"],
            details={"seconds": seconds},
        )
    ]


def convergence(lab: Lab) -> list[Row]:
    """The controller's own samples of the failures so far; makes a few itself when there are too few."""
    samples = _repairs(lab)
    for link in rotation(lab, WANTED_SAMPLES if len(samples) < WANTED_SAMPLES else 0):
        lab.settle()
        failures.LEAF_END_DOWN.break_link(link)
        time.sleep(0.7)
        failures.LEAF_END_DOWN.heal(link)
    samples = _repairs(lab)
    if not samples:
        raise PhaseError("the controller reports no repair after a port went down (/api/v1/convergence)")
    durations = [float(sample["duration_ms"]) for sample in samples]
    planned = [float(sample.get("planned_ms", 0)) for sample in samples]
    middle, p99 = median(durations), percentile(durations, 0.99)
    measured = (
        f"median {middle:.1f} ms, p99 {p99:.1f} ms of {len(samples)} (handed to the switches: median {median(planned):.1f} ms)"
    )
    details = {"samples_ms": durations, "planned_ms": planned, "median_ms": middle, "p99_ms": p99}
    return [
        Row(
            "convergence",
            "port-down event -> last barrier of the repair",
            f"<= {REPAIR_TARGET_MS:g} ms",
            measured,
            p99 <= REPAIR_TARGET_MS,
            details=details,
        )
    ]


def _repairs(lab: Lab) -> list[dict[str, Any]]:
    """Samples of links that went down; not those of the start, when BFD takes every link down once while it comes up."""
    settled_at = lab.started[lab.fabric.shape].settled_at
    samples = lab.controller.get("convergence").get("samples", [])
    return [sample for sample in samples if "down" in str(sample.get("cause", "")) and sample["at_s"] > settled_at]
