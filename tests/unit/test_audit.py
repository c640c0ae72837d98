"""Audits on strict in-memory switches: what is found, what is put right, and that our own plans are never a finding."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aifabric_ctrl.model.effects import Answer
from aifabric_ctrl.model.rules import Flow
from aifabric_ctrl.sim.memnet import MemNet
from tests.unit.engine_lab import LEAF1, SPINE1, UPLINK1, fabric, kinds, wanted_and_there_agree


def audit(net: MemNet, target: str = "", *, repair: bool = False, wait_s: float = 3.0) -> Answer:
    request = net.ask("repair" if repair else "audit", target)
    net.advance(wait_s)
    return net.answers[request]


def spoil(net: MemNet) -> None:
    """Somebody takes a rule away, changes one, and adds one under our cookie."""
    tables = net.switches[LEAF1].tables
    flows = [f for f in tables.flows.values() if f.table == 40]
    del tables.flows[flows[0].key]
    tables.flows[flows[1].key] = replace(flows[1], actions=())
    extra = replace(flows[1], priority=flows[1].priority + 1)
    tables.flows[extra.key] = extra
    tables._snapshot = None  # what a switch keeps for those who look


def test_a_clean_fabric_is_clean_and_one_that_is_away_is_listed() -> None:
    net = fabric()
    answer = audit(net)
    assert answer.ok and answer.data["clean"], answer.text
    assert answer.text == "5 switches audited, 0 differences"
    net.disconnect(SPINE1)
    net.advance(0.5)
    answer = audit(net)
    assert answer.text == "4 switches audited, 0 differences, 1 away"
    assert [r["switch"] for r in answer.data["switches"] if r["state"] == "away"] == ["s1"]  # type: ignore[attr-defined]


def test_what_is_missing_excess_and_different_is_named_with_its_reason_and_put_right_only_on_request() -> None:
    net = fabric(audit_repair=False, reread_s=0.0)
    spoil(net)
    answer = audit(net, "l1")
    (row,) = answer.data["switches"]  # type: ignore[misc]
    assert sorted(f["kind"] for f in row["findings"]) == ["different", "excess", "missing"]
    assert all(f["why"] for f in row["findings"] if f["kind"] != "excess")
    assert not answer.data["clean"] and not wanted_and_there_agree(net)
    assert audit(net, "l1", repair=True).data["differences"] == 3
    net.settle()
    assert wanted_and_there_agree(net)
    assert audit(net, "l1").data["clean"]
    assert net.engine.view().audits[LEAF1].differences == 0


@pytest.mark.parametrize("repair", [True, False])
def test_the_periodic_look_finds_and_repairs_as_set(repair: bool) -> None:
    net = fabric(audit_repair=repair)
    spoil(net)
    net.advance(70.0)
    assert "tables_differ" in kinds(net)
    assert wanted_and_there_agree(net) is repair


def test_a_switch_that_is_not_known() -> None:
    answer = audit(fabric(), "l9")
    assert not answer.ok and "no switch is called 'l9'; did you mean" in answer.text


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1 << 32), unordered=st.booleans(), gaps=st.lists(st.floats(0.0, 0.02), min_size=4, max_size=12))
def test_plans_that_cross_an_audit_are_no_finding(seed: int, unordered: bool, gaps: list[float]) -> None:
    net = fabric(seed=seed, unordered=unordered)
    asked = []
    for n, gap in enumerate(gaps):
        asked.append(net.ask("audit"))
        (net.port_down if n % 2 == 0 else net.port_up)(LEAF1, UPLINK1)
        net.advance(gap)
    net.advance(5.0)
    net.settle()
    answers = [net.answers[number] for number in asked]
    assert all(a.ok and a.data["differences"] == 0 for a in answers), [a.text for a in answers]
    assert "tables_differ" not in kinds(net)


def test_a_comparison_is_made_in_slices() -> None:
    net = fabric()
    engine, before = net.engine, net.engine._audit
    record = engine._switches.by_dpid[LEAF1]
    assert record.session is not None and record.believed is not None
    record.read_clean = True
    before.read(record, net.switches[LEAF1].read(net.now, record.session))
    rounds = 0
    while before._jobs:
        engine.flush(net.now)
        rounds += 1
    flows: list[Flow] = list(net.tables(LEAF1).flows.values())
    assert rounds >= len(flows) // 200 + 1
    assert engine.view().audits[LEAF1].flows == len(flows)
