"""Difference and order: nothing for an unchanged plan, and never a rule before what it needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aifabric_ctrl.model.effects import Stage
from aifabric_ctrl.model.errors import ContractError
from aifabric_ctrl.model.rules import (
    FAST_FAILOVER,
    SELECT,
    Bucket,
    Flow,
    Group,
    Match,
    Meter,
    Output,
    Tables,
    ToGroup,
    flow_table,
)
from aifabric_ctrl.plan.believed import Believed
from aifabric_ctrl.plan.order import difference, group_depths, stages

CHAIN = Group(0x0A000001, FAST_FAILOVER, (Bucket((Output(1),), watch_port=1), Bucket((Output(2),), watch_port=2)))
SPREAD = Group(0x0A000002, SELECT, (Bucket((ToGroup(CHAIN.group_id),), weight=1, watch_group=CHAIN.group_id),))
METER = Meter(0x10001, 100, 50)
ROUTE = Flow(40, 10, Match.of(eth_type=0x0800), goto=50)
USE = Flow(50, 10, Match.of(eth_type=0x0800), actions=(ToGroup(SPREAD.group_id),))
LEARN = Flow(0, 5, Match.of(in_port=1), meter=METER.meter_id, actions=(Output(0xFFFFFFFD, 0xFFFF),))


def tables(*flows: Flow, groups: tuple[Group, ...] = (CHAIN, SPREAD), meters: tuple[Meter, ...] = (METER,)) -> Tables:
    return Tables(flow_table(flows), {g.group_id: g for g in groups}, {m.meter_id: m for m in meters})


def believed_of(wanted: Tables) -> Believed:
    return Believed.from_read(wanted.flows.values(), wanted.groups.values(), wanted.meters.values())


def order_of(ordered: tuple[Stage, ...]) -> list[object]:
    return [change.object for stage in ordered for change in stage.changes]


def test_an_unchanged_plan_sends_nothing() -> None:
    wanted = tables(ROUTE, USE, LEARN)
    delta = difference(wanted, believed_of(wanted), 0.0)
    assert delta.size == 0
    assert stages(delta) == ()


def test_equal_objects_of_a_read_back_and_the_very_same_ones_are_both_left_alone() -> None:
    same = tables(ROUTE, USE, LEARN)
    copies = [replace(f) for f in same.flows.values()], [replace(g) for g in same.groups.values()], [replace(METER)]
    turned = replace(USE, actions=())
    for believed in (believed_of(same), Believed.from_read(*copies)):
        assert difference(same, believed, 0.0).size == 0
        assert [c.object for c in difference(tables(ROUTE, turned, LEARN), believed, 0.0).flows_put] == [turned]
        assert [c.object for c in difference(tables(ROUTE, LEARN), believed, 0.0).flows_deleted] == [USE]


def test_no_match_is_hashed_for_what_did_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    same = tables(ROUTE, USE, LEARN)
    believed = believed_of(same)

    def hashed(_: Match) -> int:
        raise AssertionError("a match was hashed")

    monkeypatch.setattr(Match, "__hash__", hashed)
    assert difference(same, believed, 0.0).size == 0


def test_everything_is_put_before_what_needs_it() -> None:
    order = order_of(stages(difference(tables(LEARN, ROUTE, USE), Believed(), 0.0)))
    assert [order.index(o) for o in (METER, CHAIN, SPREAD, USE, ROUTE, LEARN)] == [0, 1, 2, 3, 4, 5]


def test_everything_is_deleted_after_what_needs_it() -> None:
    full = tables(LEARN, ROUTE, USE)
    order = order_of(stages(difference(tables(groups=(), meters=()), believed_of(full), 0.0)))
    assert [order.index(o) for o in (LEARN, ROUTE, USE, SPREAD, CHAIN, METER)] == [0, 1, 2, 3, 4, 5]


def test_puts_come_before_deletes_and_groups_that_replace_each_other_coexist() -> None:
    newer = Group(0x0A000003, FAST_FAILOVER, (Bucket((Output(2),), watch_port=2),))
    turned = Flow(50, 10, USE.match, actions=(ToGroup(newer.group_id),))
    ordered = stages(difference(tables(ROUTE, turned, LEARN, groups=(newer,)), believed_of(tables(ROUTE, USE, LEARN)), 0.0))
    assert order_of(ordered) == [newer, turned, SPREAD, CHAIN]


def test_an_exception_is_there_before_the_default_turns() -> None:
    exception = Flow(40, 20, Match.of(eth_type=0x0800, ipv4_dst=0x0A000001), goto=50, metadata=(1 << 32, 0xFFF << 32))
    default = Flow(40, 10, Match.of(eth_type=0x0800), goto=50, metadata=(2 << 32, 0xFFF << 32))
    ordered = stages(difference(tables(default, exception, groups=(), meters=()), Believed(), 0.0))
    assert [s.changes[0].object for s in ordered] == [exception, default]


def test_additions_only_touches_nothing_that_is_there() -> None:
    there = tables(ROUTE, groups=(), meters=())
    turned = Flow(40, 10, ROUTE.match)
    wanted = tables(turned, USE, groups=(CHAIN, SPREAD), meters=())
    delta = difference(wanted, believed_of(there), 0.0, additions_only=True)
    assert [c.object for c in delta.flows_put] == [USE]
    assert delta.flows_deleted == ()


def test_a_refused_object_waits_and_a_different_one_does_not() -> None:
    wanted = tables(USE)
    believed = Believed()
    failure = believed.refuse(USE, "BAD_ACTION/BAD_OUT_GROUP", now=10.0)
    assert failure.retry_at_s == 11.0
    assert difference(wanted, believed, 10.5).flows_put == ()
    assert [c.object for c in difference(wanted, believed, 11.0).flows_put] == [USE]
    other = Flow(50, 10, USE.match, actions=(Output(1),))
    assert [c.object for c in difference(tables(other), believed, 10.5).flows_put] == [other]


def test_retries_slow_down_and_success_forgets() -> None:
    believed = Believed()
    pauses = [believed.refuse(USE, "x", 0.0).retry_at_s for _ in range(9)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    believed.accepted(USE)
    assert believed.failed == {}


def test_groups_in_a_circle_are_our_bug() -> None:
    a = Group(1, SELECT, (Bucket((ToGroup(2),), weight=1, watch_group=2),))
    b = Group(2, SELECT, (Bucket((ToGroup(1),), weight=1, watch_group=1),))
    with pytest.raises(ContractError):
        group_depths({1: a, 2: b})
