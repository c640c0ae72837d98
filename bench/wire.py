"""Encoding and decoding beside os-ken's message objects, in one process and one run.

``python -m bench.wire [--json]``.  Each row is the time per entry (a flow, a group, a port), CPU time, best of
15 rounds.  "first" is with empty caches, as after a start; the other rows repeat values, as most of a read-back does.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from os_ken.ofproto import ofproto_v1_3 as ofproto

from aifabric_ctrl.model.rules import Bucket, DecTtl, Flow, Group, Match, Output, SetField, SetQueue, ToGroup
from aifabric_ctrl.southbound.guard import check
from aifabric_ctrl.southbound.wire import actions, decode, encode, multipart, oxm, switch_side
from aifabric_ctrl.southbound.wire import messages as m
from tests.wire import oracle

ENTRIES = 200
ROUNDS = 15


@dataclass(frozen=True)
class Row:
    """Microseconds per entry, ours and os-ken's."""

    what: str
    ours_us: float
    os_ken_us: float | None

    @property
    def ratio(self) -> float | None:
        return None if self.os_ken_us is None else self.os_ken_us / self.ours_us


def flows(count: int) -> list[Flow]:
    """Host routes, source guards and classes as the compiler makes them; every match differs."""
    made: list[Flow] = []
    for i in range(count):
        ip, mac = 0x0A000000 + i, 0x020000000000 + i
        if i % 3 == 0:
            match = Match.of(eth_type=0x0800, ipv4_dst=ip)
            acts = (SetField("eth_src", 0x02FA00000001), SetField("eth_dst", mac), DecTtl(), Output(i % 48 + 1))
            made.append(Flow(40, 300, match, actions=acts, cookie=0xA1FA << 48 | i))
        elif i % 3 == 1:
            match = Match.of(in_port=i % 48 + 1, eth_type=0x0800, eth_src=mac, ipv4_src=ip)
            made.append(Flow(0, 500, match, metadata=(1, 0xFFFF), goto=10, cookie=0xA1FA << 48 | i))
        else:
            match = Match.of(eth_type=0x0800, ip_proto=17, udp_dst=4791, udp_src=(i, 0xFFFF), metadata=(3, 0xFFF))
            made.append(Flow(50, 200, match, actions=(SetQueue(2), ToGroup(0x0A000000 + i % 64)), cookie=0xA1FA << 48 | i))
    return made


def groups(count: int) -> list[Group]:
    """16-slot select groups."""
    made = []
    for i in range(count):
        buckets = tuple(Bucket((DecTtl(), Output(i * 16 + slot + 1)), 1, i * 16 + slot + 1) for slot in range(16))
        made.append(Group(0x0A000000 + i, "select", buckets))
    return made


def forget() -> None:
    """Empty every cache of the codec."""
    for cached in (
        oxm.encode_match,
        oxm.decode_oxms,
        actions.encode_actions,
        actions.encode_instructions,
        actions.encode_buckets,
        actions.decode_actions,
        actions.decode_instructions,
        actions.decode_buckets,
        multipart._known_flow,
    ):
        cached.cache_clear()


def best(run: Callable[[], object], entries: int, before: Callable[[], object] = lambda: None) -> float:
    """Microseconds per entry, best of the rounds."""
    times = []
    for _ in range(ROUNDS):
        before()
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times) / entries * 1e6


def encoding() -> list[Row]:
    some_flows, some_groups = flows(ENTRIES), groups(ENTRIES // 10)
    add = ofproto.OFPFC_ADD

    def our_flows() -> list[bytes]:
        return [encode.flow_put(i, flow) for i, flow in enumerate(some_flows)]

    def their_flows() -> list[bytes]:
        return [oracle.serialise(oracle.flow_mod(flow, add), i) for i, flow in enumerate(some_flows)]

    def our_groups() -> list[bytes]:
        return [encode.group_put(i, group, False) for i, group in enumerate(some_groups)]

    def their_groups() -> list[bytes]:
        return [oracle.serialise(oracle.group_mod(group, ofproto.OFPGC_ADD), i) for i, group in enumerate(some_groups)]

    if our_flows() != their_flows() or our_groups() != their_groups():
        raise SystemExit("our bytes differ from os-ken's; run the wire tests")
    theirs_flow, theirs_group = best(their_flows, ENTRIES), best(their_groups, len(some_groups))
    return [
        Row("encode flow, first", best(our_flows, ENTRIES, forget), theirs_flow),
        Row("encode flow, again", best(our_flows, ENTRIES), theirs_flow),
        Row("encode group of 16 buckets, first", best(our_groups, len(some_groups), forget), theirs_group),
        Row("encode group of 16 buckets, again", best(our_groups, len(some_groups)), theirs_group),
    ]


def decoding() -> list[Row]:
    entries = [m.FlowStats(flow, 1, 2, 3.0) for flow in flows(ENTRIES)]
    counters = [m.GroupStats(i, 1, 2, 3, 4.0, ((1, 2),) * 16) for i in range(ENTRIES)]
    bulk: dict[str, tuple[list[bytes], int]] = {
        "flow statistics": (switch_side.flow_stats_replies(1, entries), ENTRIES),
        "group descriptions (16 buckets)": (switch_side.group_desc_replies(1, groups(ENTRIES // 10)), ENTRIES // 10),
        "group statistics (16 buckets)": (switch_side.group_stats_replies(1, counters), ENTRIES),
        "port statistics": (switch_side.port_stats_replies(1, [m.PortStats(i, *range(14)) for i in range(ENTRIES)]), ENTRIES),
        "queue statistics": (switch_side.queue_stats_replies(1, [m.QueueStats(i, *range(6)) for i in range(ENTRIES)]), ENTRIES),
        "packet-in": ([switch_side.packet_in(1, 7, bytes(64))] * ENTRIES, ENTRIES),
    }
    rows: list[Row] = []
    for what, (parts, count) in bulk.items():
        theirs = best(lambda parts=parts: [oracle.parse(part) for part in parts], count)  # type: ignore[misc]

        def ours(parts: list[bytes] = parts) -> list[Any]:
            return [decode.decode(part) for part in parts]

        def guarded(parts: list[bytes] = parts) -> None:
            for part in parts:
                check(part)

        rows.append(Row(f"decode {what}, first", best(ours, count, forget), theirs))
        rows.append(Row(f"decode {what}, again", best(ours, count), theirs))
        rows.append(Row(f"guard {what}", best(guarded, count), None))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    options = parser.parse_args()
    rows = [*encoding(), *decoding()]
    if options.json:
        result = {"python": platform.python_version(), "rows": [asdict(row) | {"ratio": row.ratio} for row in rows]}
        json.dump(result, sys.stdout, indent=2)
        print()
        return 0
    print(f"{'':44}{'ours us':>10}{'os-ken us':>12}{'times':>8}")
    for row in rows:
        theirs = "" if row.os_ken_us is None else f"{row.os_ken_us:.1f}"
        print(f"{row.what:44}{row.ours_us:>10.2f}{theirs:>12}{'' if row.ratio is None else f'{row.ratio:.0f}x':>8}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
