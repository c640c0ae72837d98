"""Reading a switch's tables back in pages.  No I/O; knows what to ask next and when it has everything.

One dump of 10,000 flows stalls forwarding long enough to flap every 30 ms BFD session (measured, DESIGN invariant 1).
So the number of our flows is asked for first, and they are read by slices of the cookie's page field, one request at a
time with a pause between.  Foreign objects are described, never touched.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from aifabric_ctrl.model.events import Session, TablesRead
from aifabric_ctrl.model.ownership import (
    COOKIE_NAMESPACE,
    COOKIE_NAMESPACE_MASK,
    PAGE_BITS,
    PAGE_SHIFT,
    flow_is_ours,
    group_is_ours,
    meter_is_ours,
)
from aifabric_ctrl.model.rules import INDIRECT, Flow, Group, Meter
from aifabric_ctrl.southbound.wire import constants as ofp
from aifabric_ctrl.southbound.wire import encode
from aifabric_ctrl.southbound.wire import messages as m

PAGE_ENTRIES = 2_500
# Pages are even only on average: with 3/4 of the bound as the mean, six standard deviations still fit.
PAGE_MEAN = PAGE_ENTRIES * 3 // 4
PAUSE_S = 0.02  # lets forwarding threads in
RETRY_S = 10.0
FOREIGN_LISTED = 20
SPLIT_BYTES = 4_096
ENTRIES_AT = 16  # in a multipart message
_FLOW_TYPE = struct.pack("!H", ofp.MP_FLOW)

TablesPart = m.AggregateReply | m.FlowStatsReply | m.GroupDescReply | m.MeterConfigReply

NAMESPACE = COOKIE_NAMESPACE << 48
OURS = (NAMESPACE, COOKIE_NAMESPACE_MASK)
EVERYTHING = (0, 0)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: ``what`` is aggregate, flows, groups or meters; the cookie pair matters for the first two."""

    what: str
    cookie: tuple[int, int] = EVERYTHING

    def encode(self, xid: int) -> bytes:
        if self.what == "aggregate":
            return encode.aggregate_request(xid, *self.cookie)
        if self.what == "flows":
            return encode.flow_stats_request(xid, *self.cookie)
        return encode.group_desc_request(xid) if self.what == "groups" else encode.meter_config_request(xid)


@dataclass
class _Found:
    flows: list[Flow] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    meters: list[Meter] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    foreign_flows: int = 0  # by count
    foreign_described: int = 0
    unlisted: int = 0


class ReadBack:
    """One complete read of one switch.

    Drive it with :meth:`start`, :meth:`part` for every reply part, :meth:`refused` for an error and :meth:`tick`.  Each
    returns the next message to send, or None; :attr:`result` is set when all is read.
    """

    def __init__(self, session: Session, next_xid: Callable[[], int], meters: bool) -> None:
        self._session = session
        self._next_xid = next_xid
        self._meters = meters
        self._asks = self._plan()
        self._ask: Ask | None = None
        self._count = 0  # the last aggregate's answer
        self._found = _Found()
        self._resume_at = float("inf")
        self._retry_at = float("inf")
        self.xid = -1
        self.retries = 0
        self.result: TablesRead | None = None

    def start(self, now: float) -> bytes | None:
        """The first request."""
        return self._next(now)

    @property
    def next_deadline(self) -> float:
        return min(self._resume_at, self._retry_at)

    def tick(self, now: float) -> bytes | None:
        """Go on after a pause; ask again when nothing came for ``RETRY_S``."""
        if now >= self._resume_at:
            self._resume_at = float("inf")
            return self._send(now)
        if now >= self._retry_at and self._ask is not None:
            self.retries += 1
            return self._send(now)
        return None

    def part(self, reply: TablesPart, now: float) -> bytes | None:
        """One part of a reply to :attr:`xid`."""
        self._retry_at = now + RETRY_S
        self._take(reply)
        return None if reply.more else self._next(now)

    def _take(self, reply: TablesPart) -> None:
        found = self._found
        if isinstance(reply, m.AggregateReply):
            self._count = reply.flow_count
        elif isinstance(reply, m.FlowStatsReply):
            for entry in reply.entries:
                self._take_flow(entry.flow)
        elif isinstance(reply, m.GroupDescReply):
            for group in reply.groups:
                if isinstance(group, Group) and group_is_ours(group.group_id):
                    found.groups.append(group)
                elif isinstance(group, m.Unrepresentable) and group_is_ours(group.id):
                    # Without buckets it equals nothing we want, so it will be modified or deleted, by its id.
                    found.groups.append(Group(group.id, INDIRECT, ()))
                else:
                    self._describe(str(group) if isinstance(group, m.Unrepresentable) else f"group {group.group_id}")
        else:
            for meter in reply.meters:
                if isinstance(meter, Meter) and meter_is_ours(meter.meter_id):
                    found.meters.append(meter)
                elif isinstance(meter, m.Unrepresentable) and meter_is_ours(meter.id):
                    found.meters.append(Meter(meter.id, 0, 0))
                else:
                    self._describe(str(meter) if isinstance(meter, m.Unrepresentable) else f"meter {meter.meter_id}")

    def _take_flow(self, flow: Flow | m.Unrepresentable) -> None:
        if isinstance(flow, Flow) and flow_is_ours(flow.cookie):
            self._found.flows.append(flow)
            return
        if flow_is_ours(flow.cookie):
            self._describe(f"ours but unreadable: {flow}")
            return
        self._found.foreign_described += 1
        text = f"flow table {flow.table} priority {flow.priority} cookie {flow.cookie:#x} {getattr(flow, 'match', '')}"
        self._describe(text.strip())

    def _describe(self, text: str) -> None:
        if len(self._found.foreign) < FOREIGN_LISTED:
            self._found.foreign.append(text)
        else:
            self._found.unlisted += 1

    def refused(self, text: str, now: float) -> bytes | None:
        """The switch answered the request with an error: what it was about does not exist there, or cannot be read."""
        if self._ask is not None and self._ask.what not in ("meters", "groups"):
            self._found.foreign.append(f"could not be read: {self._ask.what} ({text})")
        return self._next(now)

    def _plan(self) -> Iterator[Ask]:
        yield Ask("aggregate", OURS)
        ours = self._count
        yield Ask("aggregate", EVERYTHING)
        total = self._count
        self._found.foreign_flows = max(0, total - ours)
        if self._found.foreign_flows and total <= PAGE_ENTRIES:
            yield Ask("flows", EVERYTHING)
        else:
            yield from (Ask("flows", pair) for pair in pages(ours))
        yield Ask("groups")
        if self._meters:
            yield Ask("meters")

    def _next(self, now: float) -> bytes | None:
        before = self._ask
        self._ask = next(self._asks, None)
        if self._ask is None:
            self._retry_at = float("inf")
            self._finish(now)
            return None
        if before is not None and before.what == self._ask.what == "flows":
            self._resume_at, self._retry_at = now + PAUSE_S, float("inf")
            return None
        return self._send(now)

    def _send(self, now: float) -> bytes | None:
        if self._ask is None:
            return None
        self.xid = self._next_xid()
        self._retry_at = now + RETRY_S
        return self._ask.encode(self.xid)

    def _finish(self, now: float) -> None:
        found, foreign = self._found, self._found.foreign
        more = found.unlisted + max(0, found.foreign_flows - found.foreign_described)
        if more:
            foreign.append(f"{more} more flows, groups or meters that are not ours")
        flows = {flow.key: flow for flow in found.flows}  # a retry may have read a page twice
        groups = {group.group_id: group for group in found.groups}
        meters = {meter.meter_id: meter for meter in found.meters}
        self.result = TablesRead(
            now, self._session, tuple(flows.values()), tuple(groups.values()), tuple(meters.values()), tuple(foreign)
        )


def split_flows(raw: bytes) -> list[bytes]:
    """A part of a FLOW reply as several smaller ones, so that it can be decoded in slices; other messages as they are.

    ``raw`` has passed the guard: the lengths in it are sound.
    """
    if len(raw) <= SPLIT_BYTES or raw[8:10] != _FLOW_TYPE:
        return [raw]
    pieces: list[bytes] = []
    start = position = ENTRIES_AT
    while position < len(raw):
        position += raw[position] << 8 | raw[position + 1]
        if position - start >= SPLIT_BYTES or position >= len(raw):
            head = bytearray(raw[:ENTRIES_AT])
            struct.pack_into("!H", head, 2, ENTRIES_AT + position - start)
            if position < len(raw):
                struct.pack_into("!H", head, 10, ofp.MPF_MORE)
            pieces.append(bytes(head) + raw[start:position])
            start = position
    return pieces


def pages(flows: int) -> list[tuple[int, int]]:
    """(cookie, mask) pairs that together cover our namespace, each holding about ``PAGE_MEAN`` of ``flows`` entries."""
    bits = 0
    while bits < PAGE_BITS and flows >> bits > (PAGE_ENTRIES if bits == 0 else PAGE_MEAN):
        bits += 1
    shift = PAGE_SHIFT + PAGE_BITS - bits
    mask = COOKIE_NAMESPACE_MASK | ((1 << bits) - 1) << shift
    return [(NAMESPACE | page << shift, mask) for page in range(1 << bits)]
