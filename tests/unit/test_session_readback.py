"""Reading tables back: pages, pauses, what is ours, and what a switch may hold besides (DESIGN invariant 1)."""

from __future__ import annotations

import struct
from collections import Counter

import pytest

from aifabric_ctrl.model.effects import ReadTables
from aifabric_ctrl.model.events import Event, OddFrame, TablesRead
from aifabric_ctrl.model.ownership import COOKIE_NAMESPACE, GROUP_BASE, METER_BASE, cookie_for
from aifabric_ctrl.model.rules import INDIRECT, SELECT, Bucket, Flow, FlowKey, Group, Match, Meter, Output
from aifabric_ctrl.southbound.readback import PAGE_ENTRIES, pages, split_flows
from aifabric_ctrl.southbound.session import SwitchSession
from aifabric_ctrl.southbound.wire import constants as ofp
from aifabric_ctrl.southbound.wire import encode
from aifabric_ctrl.southbound.wire.decode import FlowStatsReply, decode
from tests.unit import session_kit as kit

ASKED = {ofp.MP_AGGREGATE: "aggregate", ofp.MP_FLOW: "flows", ofp.MP_GROUP_DESC: "groups", ofp.MP_METER_CONFIG: "meters"}


def ours(n: int) -> Flow:
    match = Match.of(eth_type=0x0800, ipv4_dst=n)
    return Flow(40, 100, match, actions=(Output(1),), cookie=cookie_for(f"host.{n}", FlowKey(40, 100, match)))


def foreign(n: int) -> Flow:
    return Flow(7, 5, Match.of(in_port=n), actions=(Output(2),), cookie=n)


def stats_entry(flow: Flow) -> bytes:
    """A flow's entry in a FLOW reply, from the bytes of the message that installs it."""
    raw = encode.flow_put(1, flow)
    size = 48 + len(raw) - 48
    head = struct.pack("!HBxIIHHHH4xQQQ", size, flow.table, 1, 0, flow.priority, 0, 0, 0, flow.cookie, 0, 0)
    return head + raw[48:]


def group_entry(group: Group) -> bytes:
    raw = encode.group_put(1, group, exists=False)
    return struct.pack("!HBxI", 8 + len(raw) - 16, {SELECT: 1, INDIRECT: 2}[group.type], group.group_id) + raw[16:]


def meter_entry(meter: Meter) -> bytes:
    raw = encode.meter_put(1, meter, exists=False)
    return struct.pack("!HHI", len(raw) - 8, 6, meter.meter_id) + raw[16:]


class Tables:
    """Answers table questions out of what it holds, and remembers what was asked."""

    def __init__(self, flows: list[Flow], groups: bytes = b"", meters: bytes = b"") -> None:
        self.flows, self.groups, self.meters = flows, groups, meters
        self.asked: list[str] = []
        self.sizes: list[int] = []
        self.silent = False
        self._handshake = kit.ovs_like()

    def __call__(self, kind: int, xid: int, raw: bytes) -> bytes:
        if kind != ofp.MULTIPART_REQUEST or kit.multipart_kind(raw) not in ASKED:
            return self._handshake(kind, xid, raw)
        what = kit.multipart_kind(raw)
        self.asked.append(ASKED[what])
        if self.silent:
            return b""
        if what == ofp.MP_GROUP_DESC:
            return kit.multipart(xid, what, self.groups)
        if what == ofp.MP_METER_CONFIG:
            return kit.multipart(xid, what, self.meters)
        cookie, mask = struct.unpack_from("!QQ", raw, 32)
        found = [f for f in self.flows if f.cookie & mask == cookie & mask]
        if what == ofp.MP_AGGREGATE:
            return kit.multipart(xid, what, struct.pack("!QQI4x", 0, 0, len(found)))
        self.sizes.append(len(found))
        parts = [found[i : i + 200] for i in range(0, len(found), 200)] or [[]]
        entries = [b"".join(stats_entry(f) for f in part) for part in parts]
        return b"".join(kit.multipart(xid, what, e, more=i < len(entries) - 1) for i, e in enumerate(entries))


def read(tables: Tables, most: float = 30.0) -> tuple[TablesRead, list[Event], float]:
    session, _ = kit.connected(tables)
    session.carry_out(ReadTables(7), 0.0)
    return finish(session, tables, most)


def finish(session: SwitchSession, tables: Tables, most: float) -> tuple[TablesRead, list[Event], float]:
    now, events = 0.0, []
    while now < most:
        events += kit.converse(session, tables, now)
        found = [e for e in events if isinstance(e, TablesRead)]
        if found:
            return found[0], events, now
        now = session.next_deadline
        events += session.tick(now)
    raise AssertionError(f"nothing was read; asked {tables.asked}")


def test_empty_tables() -> None:
    tables = Tables([])
    found, _, _ = read(tables)
    assert (found.flows, found.groups, found.meters, found.foreign) == ((), (), (), ())
    assert tables.asked == ["aggregate", "aggregate", "flows", "groups", "meters"]


def test_ours_is_told_from_foreign() -> None:
    group = Group(GROUP_BASE + 1, SELECT, (Bucket((Output(1),), 1, watch_port=1),))
    other = Group(5, INDIRECT, (Bucket((Output(1),)),))
    meter = Meter(METER_BASE + 1, 100, 10)
    mine = [ours(n) for n in range(50)]
    tables = Tables(
        [*mine, *(foreign(n) for n in range(1, 40))],
        group_entry(group) + group_entry(other),
        meter_entry(meter) + meter_entry(Meter(3, 5, 5)),
    )
    found, _, _ = read(tables)
    assert set(found.flows) == set(mine)
    assert found.groups == (group,)
    assert found.meters == (meter,)
    assert tables.asked.count("flows") == 1  # few enough for one look at everything
    assert "flow table 7 priority 5 cookie 0x1 in_port=1" in found.foreign
    assert len(found.foreign) == 21
    assert found.foreign[-1].startswith("21 more")  # 19 flows, a group and a meter


def test_many_flows_are_read_in_pages_with_pauses() -> None:
    mine = [ours(n) for n in range(9_000)]
    tables = Tables([*mine, *(foreign(n) for n in range(1, 4))])
    found, _, took = read(tables)
    assert set(found.flows) == set(mine)
    assert len(tables.sizes) == 8
    assert max(tables.sizes) <= PAGE_ENTRIES
    assert took >= 7 * 0.019
    assert found.foreign == ("3 more flows, groups or meters that are not ours",)


@pytest.mark.parametrize("count", [0, 1, PAGE_ENTRIES, PAGE_ENTRIES + 1, 20_000, 300_000, 10**9])
def test_pages_cover_the_namespace_once(count: int) -> None:
    found = pages(count)
    hits = Counter(
        sum(1 for value, mask in found if cookie & mask == value)
        for cookie in (COOKIE_NAMESPACE << 48 | page << 36 | 0x1234 for page in range(0, 4096, 17))
    )
    assert set(hits) == {1}
    assert len(found) <= 4096
    assert not any(0xBEEF << 48 & mask == value for value, mask in found)


def test_our_object_that_cannot_be_understood_can_be_removed() -> None:
    """It comes back without content: unequal to anything wanted, so modified or deleted by its id."""
    strange_meter = struct.pack("!HHI", 8, 6, METER_BASE + 9)  # a meter without a band
    strange_group = struct.pack("!HBxI", 8, 77, GROUP_BASE + 9)
    found, _, _ = read(Tables([], strange_group, strange_meter))
    assert [g.group_id for g in found.groups] == [GROUP_BASE + 9]
    assert [m.meter_id for m in found.meters] == [METER_BASE + 9]


def test_a_switch_that_refuses_a_question_is_read_as_far_as_it_goes() -> None:
    tables = Tables([ours(1)])

    def answer(kind: int, xid: int, raw: bytes) -> bytes:
        if kind == ofp.MULTIPART_REQUEST and kit.multipart_kind(raw) == ofp.MP_METER_CONFIG:
            return kit.error(xid, ofp.ET_BAD_REQUEST, 2, raw[:64])
        return tables(kind, xid, raw)

    session, _ = kit.connected(answer)
    session.carry_out(ReadTables(7), 0.0)
    events = kit.converse(session, answer)
    assert [getattr(e, "kind", type(e)) for e in events] == ["readback_refused", TablesRead]


def test_silence_is_asked_again_and_told() -> None:
    tables = Tables([ours(1)])
    session, _ = kit.connected(tables)
    tables.silent = True
    session.carry_out(ReadTables(7), 0.0)
    kit.converse(session, tables)
    now = 0.0
    events: list[Event] = []
    while not events:
        now = session.next_deadline
        events += session.tick(now)
        kit.converse(session, kit.ovs_like() if now < 10 else tables, now)
    assert [e.kind for e in events if isinstance(e, OddFrame)] == ["readback_unanswered"]
    tables.silent = False
    found, _, _ = finish(session, tables, 60.0)
    assert found.flows == (ours(1),)


def test_a_large_part_is_decoded_in_slices() -> None:
    """Forty milliseconds in one piece would keep a port-down of another switch waiting."""
    flows = [ours(n) for n in range(400)]
    raw = kit.multipart(9, ofp.MP_FLOW, b"".join(stats_entry(f) for f in flows), more=True)
    pieces = split_flows(raw)
    assert len(pieces) > 5 and max(map(len, pieces)) < 5_000
    replies = [decode(piece) for piece in pieces]
    assert all(isinstance(r, FlowStatsReply) and r.more and r.xid == 9 for r in replies)
    assert [e.flow for r in replies if isinstance(r, FlowStatsReply) for e in r.entries] == flows
    last = [decode(piece) for piece in split_flows(raw[:10] + b"\0\0" + raw[12:])]
    assert [r.more for r in last if isinstance(r, FlowStatsReply)] == [True] * (len(last) - 1) + [False]
    tables = Tables(flows)
    session, _ = kit.connected(tables)
    session.carry_out(ReadTables(7), 0.0)
    for _ in range(2):
        session.feed(b"".join(tables(*one) for one in kit.split(session.take_output())), 0.0)
    asked = kit.split(session.take_output())
    session.feed(tables(*asked[0]), 0.0)
    assert session.backlog
