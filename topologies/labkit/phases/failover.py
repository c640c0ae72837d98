"""Rows about links and leaves that fail under traffic, with the controller alive."""

import time
from dataclasses import dataclass

from labkit import failures
from labkit.fabric import Link
from labkit.report import Row, median
from labkit.session import Lab
from labkit.traffic import Flow, FlowResult, FlowSet

RATE = 1000
WARM_UP_S = 0.5
BROKEN_S = 1.5
BEFORE_S = 0.1  # a command takes a moment, and a packet sent before it may still be on its way
FAILURE_WINDOW_S = 1.0  # losses later than this after the failure are not its own any more
UPLINK_MEDIAN, UPLINK_MOST = 30, 60
SPINE_LINK_GAP_MS, SILENT_GAP_MS = 60, 120
DEAD_LEAF_SENDS = 4
DEAD_LEAF_S = 4.0
STEADY_FLOWS = 64


@dataclass
class Outcome:
    """One direction of one trial."""

    sent: int
    lost: int
    gap_ms: float
    lost_elsewhere: int  # before the failure or later than its window
    stall_ms: float

    @classmethod
    def of(cls, flow: FlowResult, failed_at: float) -> "Outcome":
        start, end = failed_at - BEFORE_S, failed_at + FAILURE_WINDOW_S
        lost = flow.lost_between(start, end)
        return cls(flow.sent, lost, flow.longest_gap_ms(start, end), len(flow.lost_at) - lost, flow.longest_stall_ms(start, end))


def break_under_traffic(lab: Lab, link: Link, failure: failures.Failure, flows: list[Flow]) -> list[Outcome]:
    """Each flow at 1,000 packets/s; the link is broken and mended, traffic ends before the mending."""
    lab.traffic.start([FlowSet(RATE, [flow]) for flow in flows])
    time.sleep(WARM_UP_S)
    failed_at = time.time()
    failure.break_link(link)
    try:
        time.sleep(BROKEN_S)
        result = lab.traffic.stop()
    finally:
        failure.heal(link)
    return [Outcome.of(flow, failed_at) for flow in result.flows]


def rotation(lab: Lab, trials: int) -> list[Link]:
    """Links in turn, never two of one leaf or spine after each other where it can be avoided: no link flaps more than it must."""
    shape = lab.fabric.shape
    return [lab.fabric.link(k % shape.leaves + 1, (k // shape.leaves + k) % shape.spines + 1) for k in range(trials)]


def trials(lab: Lab, name: str, count: int, failure: failures.Failure) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for number, link in enumerate(rotation(lab, count), 1):
        lab.settle()
        pair = break_under_traffic(lab, link, failure, list(lab.crossing(link)))
        lab.say(f"{name} {number}/{count}: {link.leaf_end} lost {pair[0].lost} up, {pair[1].lost} down")
        outcomes += pair
    return outcomes


def loss_row(phase: str, title: str, outcomes: list[Outcome]) -> Row:
    lost = [outcome.lost for outcome in outcomes]
    elsewhere = sum(outcome.lost_elsewhere for outcome in outcomes)
    passed = median(lost) <= UPLINK_MEDIAN and max(lost) <= UPLINK_MOST and elsewhere == 0
    measured = f"median {median(lost):g}, most {max(lost)}" + (f", {elsewhere} lost later" if elsewhere else "")
    details = {
        "outcomes": [vars(outcome) for outcome in outcomes],
        "median": median(lost),
        "most": max(lost),
        "elsewhere": elsewhere,
    }
    return Row(
        phase,
        title,
        f"median <= {UPLINK_MEDIAN}, none above {UPLINK_MOST}",
        measured,
        passed,
        sum(o.sent for o in outcomes),
        sum(lost) + elsewhere,
        max(o.gap_ms for o in outcomes),
        details,
    )


def uplink_down(lab: Lab) -> list[Row]:
    count = lab.options.trials
    outcomes = trials(lab, "uplink down", count, failures.LEAF_END_DOWN)
    return [loss_row("uplink_down", f"a leaf's uplink set down, both directions, {count} trials", outcomes)]


def spine_link_down(lab: Lab) -> list[Row]:
    """Towards the leaf behind the failed link: the gap of one fast flow, and 64 slow ones none of which may stay cut off."""
    count, gaps, steady, sent, lost = max(1, lab.options.trials // 5), [], 0, 0, 0
    for link in rotation(lab, count):
        lab.settle()
        _up, down = lab.crossing(link)
        many = [Flow(down.source, down.destination, "tcp", 20000 + i, 9000 + i) for i in range(STEADY_FLOWS)]
        lab.traffic.start([FlowSet(RATE, [down]), FlowSet(STEADY_FLOWS * 16, many)])
        time.sleep(WARM_UP_S)
        failed_at = time.time()
        failures.SPINE_END_DOWN.break_link(link)
        try:
            time.sleep(FAILURE_WINDOW_S + BROKEN_S)
            result = lab.traffic.stop()
        finally:
            failures.SPINE_END_DOWN.heal(link)
        fast = Outcome.of(result.flows[0], failed_at)
        gaps.append(fast.gap_ms)
        steady += sum(Outcome.of(flow, failed_at).lost_elsewhere > 0 for flow in result.flows[1:])
        sent, lost = sent + result.sent, lost + result.lost
        lab.say(f"spine link down: {link.spine_end} gap {fast.gap_ms:.0f} ms, lost {fast.lost}")
    measured = f"gaps {', '.join(f'{gap:.0f}' for gap in gaps)} ms; {steady} flows with steady loss"
    return [
        Row(
            "spine_link_down",
            "a spine's link to the destination leaf set down",
            f"<= {SPINE_LINK_GAP_MS} ms gap, 0 of {STEADY_FLOWS} flows with steady loss",
            measured,
            max(gaps) <= SPINE_LINK_GAP_MS and steady == 0,
            sent,
            lost,
            max(gaps),
            {"gaps_ms": gaps, "steady": steady},
        )
    ]


def silent(lab: Lab) -> list[Row]:
    """Both ends of a link drop every frame they send. Up: the leaf of the sender must notice; down: a spine must."""
    count = max(1, lab.options.trials // 5)
    outcomes = trials(lab, "silent cut", count, failures.SILENT_CUT)
    rows = []
    for title, ours in (("local (the sender's leaf)", outcomes[0::2]), ("remote (a spine)", outcomes[1::2])):
        gaps = [outcome.gap_ms for outcome in ours]
        elsewhere = sum(outcome.lost_elsewhere for outcome in ours)
        measured = f"gaps {', '.join(f'{gap:.0f}' for gap in gaps)} ms" + (f", {elsewhere} lost later" if elsewhere else "")
        rows.append(
            Row(
                "silent",
                f"silent failure, {title}",
                f"<= {SILENT_GAP_MS} ms",
                measured,
                max(gaps) <= SILENT_GAP_MS and elsewhere == 0,
                sum(o.sent for o in ours),
                sum(o.lost for o in ours) + elsewhere,
                max(gaps),
                {"outcomes": [vars(outcome) for outcome in ours]},
            )
        )
    return rows


def restore(lab: Lab) -> list[Row]:
    """Traffic runs on through the controller's repair and the link's return; the failure's own gap is not counted here."""
    sent = lost = 0
    details = []
    for link in rotation(lab, max(1, lab.options.trials // 5)):
        lab.settle()
        flows = list(lab.crossing(link))
        lab.traffic.start([FlowSet(RATE, [flow]) for flow in flows])
        time.sleep(WARM_UP_S)
        failed_at = time.time()
        failures.LEAF_END_DOWN.break_link(link)
        try:
            time.sleep(BROKEN_S)
        finally:
            healed_at = time.time()
            failures.LEAF_END_DOWN.heal(link)
        took_s = lab.settle()
        time.sleep(1.0)
        result = lab.traffic.stop()
        late = [_outside(flow, failed_at, healed_at) for flow in result.flows]
        sent, lost = sent + result.sent, lost + sum(map(len, late))
        details.append({"link": link.leaf_end, "return_s": took_s, "lost_s_after_return": late})
        when = f", {late} s after the link was set up" if any(late) else ""
        lab.say(f"restore: {link.leaf_end} in use again after {took_s:.1f} s, lost {[len(times) for times in late]}{when}")
    return [
        Row(
            "restore",
            "repair and restore: controller re-optimises, link comes back",
            "0 lost",
            f"{lost} lost",
            lost == 0,
            sent,
            lost,
            details={"trials": details},
        )
    ]


def _outside(flow: FlowResult, failed_at: float, healed_at: float) -> list[float]:
    """When the packets were sent that were lost outside the failure's own window, in seconds after the healing."""
    start, end = failed_at - BEFORE_S, failed_at + FAILURE_WINDOW_S
    return [round(at - healed_at, 3) for at in flow.lost_at if not start <= at < end]


def leaf_dies(lab: Lab) -> list[Row]:
    """All links of the last leaf go down under traffic to it; the others talk on. Once more with the controller held still."""
    worst, lost_others, sent, text = 0.0, 0, 0, []
    for held in (False, True):
        lab.settle()
        if held:
            lab.controller.signal(failures.STOP)
        try:
            ratio, lost, count = _dead_leaf(lab)
        finally:
            lab.controller.signal(failures.CONTINUE)
        worst, lost_others, sent = max(worst, ratio), lost_others + lost, sent + count
        text.append(f"{ratio:.2f} {'without' if held else 'with'} the controller")
        lab.say(f"leaf dies: {text[-1]}, {lost} lost between others")
    measured = f"{', '.join(text)}; {lost_others} lost"
    return [
        Row(
            "leaf_dies",
            "a leaf dies (all its links) under 1,000 packets/s to it",
            f"<= {DEAD_LEAF_SENDS} sends a packet on any uplink, 0 lost between others",
            measured,
            worst <= DEAD_LEAF_SENDS and lost_others == 0,
            sent,
            lost_others,
            details={"worst": worst, "lost_others": lost_others},
        )
    ]


def _dead_leaf(lab: Lab) -> tuple[float, int, int]:
    """(most frames of the doomed flow on one link, both directions, per packet sent; packets lost between others; sent)."""
    fabric, dead = lab.fabric, lab.fabric.shape.leaves
    others = [Flow(fabric.host(a), fabric.host(b)) for a in range(1, dead) for b in range(1, dead) if a != b]
    ends = [end for link in fabric.links for end in (link.leaf_end, link.spine_end)]
    lab.traffic.start([FlowSet(RATE, [Flow(fabric.host(1), fabric.host(dead))]), FlowSet(100 * len(others), others)], sniff=ends)
    time.sleep(WARM_UP_S)
    before = lab.traffic.mark("dead")
    try:
        for link in fabric.uplinks(dead):
            failures.LEAF_END_DOWN.break_link(link)
        time.sleep(DEAD_LEAF_S)
        after = lab.traffic.mark("end")
        result = lab.traffic.stop()
    finally:
        for link in fabric.uplinks(dead):
            failures.LEAF_END_DOWN.heal(link)
    frames: dict[Link, int] = {}
    for interface, direction, flow, count in result.seen.get("dead", []):
        if direction == "out" and flow == 0:
            link = fabric.link_of(interface)
            frames[link] = frames.get(link, 0) + count
    doomed = max(1, after.sent[0] - before.sent[0])
    return max(frames.values(), default=0) / doomed, sum(len(flow.lost_at) for flow in result.flows[1:]), result.sent
