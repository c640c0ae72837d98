"""Who holds a datapath id (DESIGN invariant 9; cases CONN-02 and CONN-03)."""

from __future__ import annotations

from aifabric_ctrl.model.events import DuplicateVerdict
from aifabric_ctrl.southbound.registry import PROOF_S, Admit, Close, Probe, Registry

DPID = 2**64 - 1
OLD, NEW, THIRD = 1, 2, 3


def registry_with_holder() -> Registry:
    registry = Registry()
    assert registry.connected(OLD, DPID, "a:1", 0.0) == [Admit(OLD)]
    return registry


def test_a_live_holder_stays_and_the_newcomer_is_refused_loudly() -> None:
    registry = registry_with_holder()
    assert registry.connected(NEW, DPID, "b:2", 10.0) == [Probe(OLD)]
    close, verdict = registry.answered(OLD, 10.1)
    assert isinstance(close, Close) and close.session == NEW and "a:1" in close.reason
    assert verdict == DuplicateVerdict(10.1, DPID, winner="a:1", loser="b:2")
    assert registry.holder(DPID) == OLD
    assert registry.gone(NEW, 10.2) == []  # the refused one's end is nobody's business
    assert registry.tick(99.0) == []


def test_a_dead_holder_loses_after_a_second() -> None:
    registry = registry_with_holder()
    registry.connected(NEW, DPID, "b:2", 10.0)
    assert registry.next_deadline == 10.0 + PROOF_S
    assert registry.tick(10.5) == []
    close, verdict, admit = registry.tick(11.0)
    assert isinstance(close, Close) and close.session == OLD
    assert verdict == DuplicateVerdict(11.0, DPID, winner="b:2", loser="a:1")
    assert admit == Admit(NEW)
    assert registry.gone(OLD, 11.1) == []  # CONN-03: the stale end does not remove the new one
    assert registry.gone(OLD, 16.0) == []
    assert registry.holder(DPID) == NEW
    assert registry.answered(OLD, 16.0) == []


def test_a_plain_reconnect_is_nobodys_fault() -> None:
    registry = registry_with_holder()
    registry.connected(NEW, DPID, "a:2", 10.0)
    assert registry.gone(OLD, 10.2) == [Admit(NEW)]
    assert registry.holder(DPID) == NEW
    assert registry.tick(99.0) == []


def test_a_challenger_that_gives_up_leaves_the_holder() -> None:
    registry = registry_with_holder()
    registry.connected(NEW, DPID, "b:2", 10.0)
    assert registry.gone(NEW, 10.2) == []
    assert registry.holder(DPID) == OLD
    assert registry.answered(OLD, 10.3) == []
    assert registry.connected(THIRD, DPID, "c:3", 11.0) == [Probe(OLD)]


def test_a_third_claim_during_a_contest_is_refused_at_once() -> None:
    registry = registry_with_holder()
    registry.connected(NEW, DPID, "b:2", 10.0)
    close, verdict = registry.connected(THIRD, DPID, "c:3", 10.1)
    assert isinstance(close, Close) and close.session == THIRD
    assert isinstance(verdict, DuplicateVerdict) and verdict.loser == "c:3"
    assert [type(o) for o in registry.tick(11.0)] == [Close, DuplicateVerdict, Admit]
    assert registry.holder(DPID) == NEW


def test_other_datapath_ids_are_unaffected() -> None:
    registry = registry_with_holder()
    assert registry.connected(NEW, 0, "b:2", 1.0) == [Admit(NEW)]
    registry.connected(THIRD, DPID, "c:3", 2.0)
    assert registry.gone(NEW, 2.1) == []
    assert registry.holder(0) is None
    assert registry.holder(DPID) == OLD
