"""Plans on a session: stages, barriers, bundles, and errors that find their object (case ERR-01)."""

from __future__ import annotations

from aifabric_ctrl.model.effects import Change, PacketOut, SendPlan, Stage
from aifabric_ctrl.model.events import Event, ObjectRefused, OddFrame, PlanAcked
from aifabric_ctrl.model.ids import PORT_ANY
from aifabric_ctrl.model.rules import SELECT, Bucket, Flow, Group, Match, Meter, Output, ToGroup
from aifabric_ctrl.southbound.sender import BUNDLE_MESSAGES, units
from aifabric_ctrl.southbound.session import OUTPUT_SLICE_BYTES, Limits, SwitchSession
from aifabric_ctrl.southbound.wire import constants as ofp
from tests.unit import session_kit as kit

METER = Meter(0x10001, 100, 10)
GROUP = Group(0x0A000001, SELECT, (Bucket((Output(1),), 1, watch_port=1),))


def flow(n: int) -> Flow:
    return Flow(40, 100, Match.of(eth_type=0x0800, ipv4_dst=n), actions=(ToGroup(GROUP.group_id),), cookie=0xA1FA << 48 | n)


def put(*items: Flow | Group | Meter, name: str = "put") -> Stage:
    return Stage(name, tuple(Change("put", item) for item in items))


def delete(*items: Flow | Group | Meter) -> Stage:
    return Stage("delete", tuple(Change("delete", item) for item in items))


def plan(*stages: Stage, number: int = 1) -> SendPlan:
    return SendPlan(7, number, stages)


def said(session: SwitchSession) -> list[tuple[int, int, bytes]]:
    output = bytearray()
    while part := session.take_output():
        output += part
        session.wrote(len(part))
    return kit.split(bytes(output))


def kinds(messages: list[tuple[int, int, bytes]]) -> list[str]:
    names = {ofp.FLOW_MOD: "flow", ofp.GROUP_MOD: "group", ofp.METER_MOD: "meter", ofp.BARRIER_REQUEST: "barrier"}
    controls = {0: "open", 4: "commit", -1: "add"}
    return [controls[kit.bundle_control_of(raw)[1]] if kind == ofp.EXPERIMENTER else names[kind] for kind, _, raw in messages]


def without_bundles() -> SwitchSession:
    return kit.connected(kit.ovs_like(bundles=False))[0]


def barrier(session: SwitchSession, xid: int, now: float = 1.0) -> list[Event]:
    return session.feed(kit.message(ofp.BARRIER_REPLY, xid), now)


def test_plain_stages_are_pipelined_with_a_barrier_each() -> None:
    session = without_bundles()
    session.carry_out(plan(put(METER), put(GROUP), put(flow(1), flow(2)), delete(flow(3))), 0.0)
    messages = said(session)
    assert kinds(messages) == ["meter", "barrier", "group", "barrier", "flow", "flow", "barrier", "flow", "barrier"]
    barriers = [xid for kind, xid, _ in messages if kind == ofp.BARRIER_REQUEST]
    assert [barrier(session, xid) for xid in barriers[:-1]] == [[], [], []]
    assert barrier(session, barriers[-1], 4.0) == [PlanAcked(4.0, 7, 1)]
    assert barrier(session, barriers[-1], 4.0) == []  # once
    totals = session.totals()
    assert (totals["flow_mods_sent"], totals["group_mods_sent"], totals["meter_mods_sent"]) == (3, 1, 1)


def test_errors_find_their_object_and_the_others_go_on() -> None:
    session = without_bundles()
    flows = [flow(n) for n in range(6)]
    session.carry_out(plan(put(*flows)), 0.0)
    messages = said(session)
    third, fifth, last = messages[2], messages[4], messages[-1]
    events = session.feed(kit.error(third[1], ofp.ET_BAD_MATCH, ofp.BMC_BAD_PREREQ, third[2][:64]), 1.0)
    events += session.feed(kit.error(fifth[1], ofp.ET_BAD_ACTION, 4, fifth[2][:64]), 1.1)
    assert events == [
        ObjectRefused(1.0, 7, 1, flows[2], "BAD_MATCH/BAD_PREREQ"),
        ObjectRefused(1.1, 7, 1, flows[4], "BAD_ACTION/BAD_OUT_PORT"),
    ]
    assert barrier(session, last[1], 2.0) == [PlanAcked(2.0, 7, 1)]


def test_odd_errors_are_counted_and_nothing_else() -> None:
    session = without_bundles()
    session.carry_out(plan(put(flow(1))), 0.0)
    mod = said(session)[0]
    odd = session.feed(
        kit.error(0x7FFFFFFF, ofp.ET_BAD_MATCH, 9)  # an xid nobody used
        + kit.error(0x7FFFFFFE, 0xFFFF, 7, b"\0\0\x23\x20")  # experimenter type
        + kit.error(0x7FFFFFFD, 99, 99),  # unknown type, no data
        1.0,
    )
    assert [(type(e), getattr(e, "kind", "")) for e in odd] == [(OddFrame, "error_unmatched")] * 3
    [event] = session.feed(kit.error(mod[1], ofp.ET_BAD_MATCH, 9), 1.0)  # ours, with empty data
    assert isinstance(event, ObjectRefused)


def test_groups_and_flows_are_one_bundle_with_meters_around_it() -> None:
    session, _ = kit.connected()
    session.carry_out(plan(put(METER), put(GROUP), put(flow(1), flow(2)), delete(flow(3)), delete(METER)), 0.0)
    messages = said(session)
    assert kinds(messages) == ["meter", "barrier", "open", "add", "add", "add", "add", "commit"]
    _, _, added = messages[3]
    assert added[24 + 1] == ofp.GROUP_MOD  # the message inside
    commit = messages[-1]
    assert session.feed(kit.bundle_reply(commit[1], 1, ofp.BCT_COMMIT_REPLY), 1.0) == []
    rest = said(session)
    assert kinds(rest) == ["meter", "barrier"]
    assert barrier(session, rest[-1][1], 2.0) == [PlanAcked(2.0, 7, 1)]


def test_a_plan_of_one_bundle_needs_one_round_trip() -> None:
    session, _ = kit.connected()
    session.carry_out(plan(put(GROUP), put(flow(1))), 0.0)
    messages = said(session)
    assert kinds(messages) == ["open", "add", "add", "commit", "barrier"]
    answers = kit.bundle_reply(messages[0][1], 1, 1) + kit.bundle_reply(messages[3][1], 1, 5)
    assert session.feed(answers + kit.message(ofp.BARRIER_REPLY, messages[4][1]), 3.0) == [PlanAcked(3.0, 7, 1)]


def test_a_single_change_needs_no_bundle() -> None:
    session, _ = kit.connected()
    session.carry_out(plan(put(flow(1))), 0.0)
    assert kinds(said(session)) == ["flow", "barrier"]


def test_an_empty_plan_is_a_barrier() -> None:
    session, _ = kit.connected()
    session.carry_out(plan(), 0.0)
    [(kind, xid, _)] = said(session)
    assert kind == ofp.BARRIER_REQUEST
    assert barrier(session, xid) == [PlanAcked(1.0, 7, 1)]


def test_a_failed_bundle_is_sent_again_as_stages_and_the_culprit_found() -> None:
    session, _ = kit.connected()
    bad = flow(66)
    session.carry_out(plan(put(GROUP), put(flow(1), bad), delete(flow(3))), 0.0)
    messages = said(session)
    assert kinds(messages) == ["open", "add", "add", "add", "add", "commit", "barrier"]
    failed = kit.error(messages[3][1], ofp.ET_BAD_ACTION, 4) + kit.error(messages[5][1], 0xFFFF, 2313, b"\x4f\x4e\x46\0")
    assert session.feed(failed, 1.0) == []
    assert barrier(session, messages[6][1]) == []  # the old plan's end means nothing any more
    again = said(session)
    assert kinds(again) == ["group", "barrier", "flow", "flow", "barrier", "flow", "barrier"]
    events = session.feed(kit.error(again[3][1], ofp.ET_BAD_ACTION, 4), 2.0) + barrier(session, again[-1][1], 2.5)
    assert events == [ObjectRefused(2.0, 7, 1, bad, "BAD_ACTION/BAD_OUT_PORT"), PlanAcked(2.5, 7, 1)]
    assert session.totals()["bundles_failed"] == 1


def test_what_follows_a_bundle_waits_for_it() -> None:
    """Deleting after a commit that failed would break before it makes."""
    session, _ = kit.connected()
    session.carry_out(plan(put(GROUP), put(flow(1)), delete(METER)), 0.0)
    messages = said(session)
    assert kinds(messages) == ["open", "add", "add", "commit"]
    session.feed(kit.error(messages[3][1], 0xFFFF, 2313, b"\x4f\x4e\x46\0"), 1.0)
    assert kinds(said(session)) == ["group", "barrier", "flow", "barrier", "meter", "barrier"]


def test_a_commit_that_is_never_answered_counts_as_failed() -> None:
    session, _ = kit.connected()
    session.carry_out(plan(put(GROUP), put(flow(1))), 0.0)
    messages = said(session)
    assert barrier(session, messages[-1][1]) == []
    assert kinds(said(session)) == ["group", "barrier", "flow", "barrier"]


def test_a_message_refused_on_its_way_into_a_bundle_that_commits() -> None:
    session, _ = kit.connected()
    session.carry_out(plan(put(GROUP), put(flow(1))), 0.0)
    messages = said(session)
    session.feed(kit.error(messages[2][1], ofp.ET_BAD_MATCH, 9), 1.0)
    [event] = session.feed(kit.bundle_reply(messages[3][1], 1, ofp.BCT_COMMIT_REPLY), 1.5)
    assert event == ObjectRefused(1.5, 7, 1, flow(1), "BAD_MATCH/BAD_PREREQ")
    assert barrier(session, messages[-1][1], 2.0) == [PlanAcked(2.0, 7, 1)]


def test_large_plans_are_cut_into_bundles_and_drained_in_slices() -> None:
    stages = [put(*(flow(n) for n in range(BUNDLE_MESSAGES + 10)))]
    sizes = [sum(len(s.changes) for s in unit.stages) for unit in units(stages, bundles=True)]
    assert sizes == [BUNDLE_MESSAGES, 10]
    session, _ = kit.connected()
    session.carry_out(plan(*stages), 0.0)
    assert len(session.take_output()) < OUTPUT_SLICE_BYTES + 1_000


def test_an_object_that_cannot_be_said_is_refused_like_by_the_switch() -> None:
    session = without_bundles()
    huge = Group(0x0A000002, SELECT, tuple(Bucket((Output(1),), 1, watch_port=PORT_ANY) for _ in range(5_000)))
    session.carry_out(plan(put(huge), put(flow(1))), 0.0)
    messages = said(session)
    assert kinds(messages) == ["barrier", "flow", "barrier"]
    events = barrier(session, messages[-1][1], 1.0)
    assert [type(e) for e in events] == [ObjectRefused, PlanAcked]


def test_packet_outs_have_a_bucket_of_their_own() -> None:
    session, _ = kit.connected(limits=Limits(packet_outs_per_s=5))
    for _ in range(8):
        session.carry_out(PacketOut(7, (Output(1),), b"x" * 60), 0.0)
    assert len(said(session)) == 5
    assert session.totals()["packet_outs_dropped"] == 3
    assert session.totals()["packet_outs_sent"] == 5
