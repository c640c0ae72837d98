"""The fake switch takes plans as a switch would and answers with the engine's events."""

from __future__ import annotations

import random

from aifabric_ctrl.model.effects import Change, SendPlan, Stage
from aifabric_ctrl.model.events import ObjectRefused, PlanAcked
from aifabric_ctrl.model.ownership import COOKIE_NAMESPACE, GROUP_BASE, METER_BASE
from aifabric_ctrl.model.rules import SELECT, Bucket, Flow, Group, Match, Meter, Output, Tables, ToGroup, flow_table
from aifabric_ctrl.plan.believed import Believed
from aifabric_ctrl.plan.order import difference, stages
from aifabric_ctrl.sim.fakeswitch import FakeSwitch
from aifabric_ctrl.sim.topology import OVS_FEATURES, PLAIN_FEATURES, make_port

OURS = COOKIE_NAMESPACE << 48
GROUP = Group(GROUP_BASE, SELECT, (Bucket((Output(1),), 1, 1), Bucket((Output(2),), 1, 2)))
CHAIN = Group(GROUP_BASE + 1, SELECT, (Bucket((ToGroup(GROUP_BASE),), 1, watch_group=GROUP_BASE),))
METER = Meter(METER_BASE, 100, 10)
FIRST = Flow(0, 1, Match.of(), meter=METER_BASE, goto=40, cookie=OURS | 1)
LAST = Flow(40, 1, Match.of(), actions=(ToGroup(GROUP_BASE + 1),), cookie=OURS | 2)
TABLES = Tables(flow_table([FIRST, LAST]), {g.group_id: g for g in (CHAIN, GROUP)}, {METER_BASE: METER})


def switch(features=PLAIN_FEATURES, rng: random.Random | None = None) -> FakeSwitch:
    return FakeSwitch(0x11, [make_port(0x11, n) for n in (1, 2, 3)], features, "l1", rng=rng)


def plan_for(there: FakeSwitch, tables: Tables, number: int = 1) -> SendPlan:
    read = there.read(0.0, 7)
    believed = Believed.from_read(read.flows, read.groups, read.meters)
    return SendPlan(7, number, stages(difference(tables, believed, 0.0)))


def holds(there: FakeSwitch, tables: Tables) -> bool:
    now = there.snapshot()
    return (dict(now.flows), dict(now.groups), dict(now.meters)) == (tables.flows, tables.groups, tables.meters)


def test_a_plan_in_and_out_again_leaves_nothing_to_complain_about() -> None:
    for features in (PLAIN_FEATURES, OVS_FEATURES):
        there = switch(features)
        assert there.handle(plan_for(there, TABLES), 5.0) == [PlanAcked(5.0, 7, 1)]
        assert holds(there, TABLES)
        assert plan_for(there, TABLES).stages == ()
        assert there.handle(plan_for(there, Tables(), 2), 6.0) == [PlanAcked(6.0, 7, 2)]
        assert holds(there, Tables()) and there.tables.violations == []


def test_stages_survive_any_order_between_barriers() -> None:
    for seed in range(50):
        there = switch(rng=random.Random(seed))
        assert len(there.handle(plan_for(there, TABLES), 1.0)) == 1
        assert len(there.handle(plan_for(there, Tables()), 2.0)) == 1
        assert there.tables.violations == []


def test_without_stages_some_order_fails() -> None:
    """The fake switch is strict enough to notice a controller that forgets its barriers (case CONN-05)."""
    flat = Stage("all", tuple(c for s in plan_for(switch(), TABLES).stages for c in s.changes))
    answers = [switch(rng=random.Random(seed)).handle(SendPlan(7, 1, (flat,)), 1.0) for seed in range(30)]
    errors = {e.error for events in answers for e in events if isinstance(e, ObjectRefused)}
    assert "BAD_ACTION/BAD_OUT_GROUP" in errors and "METER_MOD_FAILED/INVALID_METER" in errors


def test_a_refusal_names_its_object_and_the_rest_goes_on() -> None:
    bad = Flow(40, 2, Match.of(in_port=1), actions=(Output(9),), cookie=OURS)
    for features in (PLAIN_FEATURES, OVS_FEATURES):
        there = switch(features)
        wanted = Tables(flow_table([FIRST, LAST, bad]), TABLES.groups, TABLES.meters)
        events = there.handle(plan_for(there, wanted), 1.0)
        assert events == [ObjectRefused(1.0, 7, 1, bad, "BAD_ACTION/BAD_OUT_PORT"), PlanAcked(1.0, 7, 1)]
        assert holds(there, TABLES)


def test_meters_stay_outside_the_bundle() -> None:
    there = switch(OVS_FEATURES)
    kinds = [{type(c.object).__name__ for s in unit.stages for c in s.changes} for unit in there.steps(plan_for(there, TABLES))]
    assert kinds == [{"Meter"}, {"Group", "Flow"}]
    there.handle(plan_for(there, TABLES), 1.0)
    kinds = [{type(c.object).__name__ for s in unit.stages for c in s.changes} for unit in there.steps(plan_for(there, Tables()))]
    assert kinds == [{"Group", "Flow"}, {"Meter"}]


def test_read_back_tells_ours_from_foreign() -> None:
    there = switch()
    there.handle(plan_for(there, TABLES), 1.0)
    foreign = Flow(0, 9, Match.of(in_port=3), cookie=5)
    there.tables.apply(Change("put", foreign))
    there.tables.apply(Change("put", Group(1, SELECT, (Bucket((Output(1),), 1),))))
    read = there.read(3.0, 9)
    assert (read.at, read.session) == (3.0, 9)
    assert {f.key for f in read.flows} == set(TABLES.flows) and {g.group_id for g in read.groups} == set(TABLES.groups)
    assert len(read.foreign) == 2


def test_ports_and_restart() -> None:
    there = switch()
    there.handle(plan_for(there, TABLES), 1.0)
    assert there.live(1)
    assert there.set_port(1, live=False).usable is True, "a port never seen live counts by its link"
    assert not there.live(1)
    there.set_port(1, link_down=True)
    assert not there.live(1) and not there.ports[1].live
    there.set_port(1, link_down=False)
    assert there.live(1) and not there.live(77)
    there.restart()
    assert holds(there, Tables())
    event = there.connected(4.0, 3)
    assert (event.dpid, event.session, len(event.ports), event.features) == (0x11, 3, 3, PLAIN_FEATURES)
