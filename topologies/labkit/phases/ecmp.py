"""Rows about equal-cost paths in a healthy fabric: what the select groups hold, and which header fields choose the uplink."""

import re
import time
from collections import Counter
from collections.abc import Callable

from labkit import ovs
from labkit.errors import PhaseError
from labkit.phases.spread import tcp_flows
from labkit.report import Row
from labkit.session import Lab
from labkit.traffic import Endpoint, Flow, FlowSet

TCP_FLOWS, OTHER_FLOWS, FRAMES_EACH = 256, 64, 3
RATE = 3000
OFF_SHARE = 0.3
SOURCE_PORT, DESTINATION_PORT = 30000, 5000

# What is varied while all else stays. Kept: TCP ports choose, and what has none (or equal ones) stays on one path, in order.
VARIED: dict[str, Callable[[Endpoint, Endpoint, int], Flow]] = {
    "TCP source port": lambda a, b, n: Flow(a, b, "tcp", SOURCE_PORT + n, DESTINATION_PORT),
    "TCP destination port": lambda a, b, n: Flow(a, b, "tcp", SOURCE_PORT, DESTINATION_PORT + n),
    "UDP source port": lambda a, b, n: Flow(a, b, "udp", SOURCE_PORT + n, DESTINATION_PORT),
    "nothing (one TCP five-tuple)": lambda a, b, _: Flow(a, b, "tcp", SOURCE_PORT, DESTINATION_PORT),
    "ICMP identifier": lambda a, b, n: Flow(a, b, "icmp", SOURCE_PORT + n),
}
CHOOSES, STAYS = ("TCP source port", "TCP destination port"), ("nothing (one TCP five-tuple)", "ICMP identifier")


def spread(lab: Lab) -> list[Row]:
    """No uplink idle, none with everything: groups as dumped, 256 TCP flows, then one header field at a time."""
    lab.settle()
    uplinks = [uplink.leaf_end for uplink in lab.fabric.uplinks(1)]
    selects = select_groups(ovs.groups("l1"))
    numbers = [int(name.rsplit("-eth", 1)[1]) for name in uplinks]
    sound = bool(selects) and all(_sound(buckets, numbers) for buckets in selects)
    source, destination = lab.fabric.host(1), lab.fabric.host(lab.fabric.shape.leaves)
    flows = tcp_flows(lab, TCP_FLOWS)
    kinds = ["TCP"] * TCP_FLOWS
    for kind, make in VARIED.items():
        flows += [make(source, destination, n) for n in range(OTHER_FLOWS)]
        kinds += [kind] * OTHER_FLOWS
    lab.traffic.start([FlowSet(RATE, flows, FRAMES_EACH * len(flows))], sniff=uplinks)
    time.sleep(FRAMES_EACH * len(flows) / RATE + 0.3)
    result = lab.traffic.stop()
    seen = result.uplinks_of("start")
    if len(seen) < len(flows):
        raise PhaseError(f"{len(seen)} of {len(flows)} flows were seen on the uplinks")
    restless = sum(len(on) > 1 for on in seen.values())
    counts = Counter(uplink for flow, on in seen.items() if kinds[flow] == "TCP" for uplink in on)
    loads = {uplink: counts[uplink] for uplink in uplinks}
    share = TCP_FLOWS / len(uplinks)
    off = max(abs(load / share - 1) for load in loads.values())
    paths = {kind: len(set().union(*(on for flow, on in seen.items() if kinds[flow] == kind))) for kind in VARIED}
    chosen = all(paths[kind] == len(uplinks) for kind in CHOOSES) and all(paths[kind] == 1 for kind in STAYS)
    details = {
        "select_groups": [[{"weight": weight, "port": port} for weight, port in buckets] for buckets in selects],
        "sound": sound,
        "tcp_flows": loads,
        "off_share": off,
        "restless": restless,
        "paths_by_field": paths,
    }
    return [
        Row(
            "ecmp",
            f"{TCP_FLOWS} TCP flows over {len(uplinks)} uplinks; then one header field varies, all else equal",
            f"each uplink within {OFF_SHARE:.0%} of its share; TCP ports choose the path, ICMP between one pair takes one",
            f"{'/'.join(map(str, loads.values()))} flows; paths: {', '.join(f'{kind} {n}' for kind, n in paths.items())}",
            sound and off <= OFF_SHARE and chosen and restless == 0,
            result.sent,
            result.lost,
            details=details,
        )
    ]


def select_groups(dumped: list[str]) -> list[list[tuple[int, int]]]:
    """For each select group its buckets: (weight, the port that the bucket's chain tries first; -1 when it names none).

    The dump leaves a weight of 1 out, and prints one of 0.
    """
    first = {}
    for line in dumped:
        if "type=select" not in line and (found := re.search(r"group_id=(\d+).*?output:(\d+)", line)):
            first[int(found[1])] = int(found[2])
    selects = []
    for line in dumped:
        if "type=select" in line:
            buckets = []
            for bucket in line.split("bucket=")[1:]:
                weight, chain = re.search(r"weight:(\d+)", bucket), re.search(r"group:(\d+)", bucket.split("actions=")[-1])
                buckets.append((int(weight[1]) if weight else 1, first.get(int(chain[1]), -1) if chain else -1))
            selects.append(buckets)
    return selects


def _sound(buckets: list[tuple[int, int]], ports: list[int]) -> bool:
    """Every live uplink is the first choice of equally many buckets, and each bucket has a weight."""
    counts = Counter(port for _weight, port in buckets)
    return set(counts) == set(ports) and len(set(counts.values())) == 1 and all(weight >= 1 for weight, _port in buckets)
