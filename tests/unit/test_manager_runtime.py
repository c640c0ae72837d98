"""The glue around the engine: what goes first, what is bounded, what is remembered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aifabric_ctrl.framework import hub
from aifabric_ctrl.model.effects import Effect, Journal, SavePorts
from aifabric_ctrl.model.errors import StoreError
from aifabric_ctrl.model.events import Event, FrameIn, OddFrame, PortChanged, Remembered, Tick
from aifabric_ctrl.model.fabric import Port
from aifabric_ctrl.runtime import EVENTS_KEPT, EXIT_CRASH, FRAMES_KEPT, Controller
from aifabric_ctrl.settings import load_settings
from aifabric_ctrl.store.sqlite import SqliteStore, open_store

PATIENCE_S = 10.0
FRAME = FrameIn(0.0, 1, 1, 0, 0, 0, bytes(12) + b"\x08\x06" + bytes(40))
LLDP = FrameIn(0.0, 1, 1, 0, 0, 0, bytes(12) + b"\x88\xcc" + bytes(40))
DOWN = PortChanged(0.0, 1, "modify", Port(1, link_down=True))


class StubEngine:
    """Writes down what it is told; ``answers`` maps an event type to effects."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.flushed_after: list[int] = []
        self.answers: dict[type, list[Effect]] = {}
        self.deadline: float | None = None
        self.fails = False

    def step(self, event: Event) -> list[Effect]:
        if self.fails and not isinstance(event, Remembered):
            raise KeyError("a bug")
        self.told.append(event)
        if isinstance(event, Tick):
            self.deadline = None
        return self.answers.get(type(event), [])

    def flush(self, now: float) -> list[Effect]:
        self.flushed_after.append(len(self.told))
        return []

    def handed_over(self, now: float) -> None:
        """The runtime says so after every flush."""

    def next_deadline(self) -> float | None:
        return self.deadline


class Bench:
    def __init__(self, state: Path) -> None:
        settings = load_settings({"AIFABRIC_STATE_DIR": str(state), "AIFABRIC_OVSDB": "off"})
        self.store: SqliteStore = open_store(state)
        self.exits: list[int] = []
        self.controller = Controller(settings, self.store, crash=self.exits.append)
        self.engine = StubEngine()
        self.controller._engine = self.engine  # type: ignore[assignment]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "state")
    yield made
    made.controller.stop()


def until(true: Callable[[], Any]) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > limit:
            raise AssertionError("it did not happen")
        hub.sleep(0.005)


def test_what_was_remembered_comes_first(bench: Bench) -> None:
    bench.controller.post(DOWN)
    bench.controller.start()
    until(lambda: len(bench.engine.told) == 2)
    assert {type(e) for e in bench.engine.told} == {Remembered, PortChanged}


def test_a_flood_of_frames_delays_no_port_event(bench: Bench) -> None:
    for _ in range(FRAMES_KEPT + 100):
        bench.controller.post(FRAME)
    bench.controller.post(DOWN)
    bench.controller.post(LLDP)
    assert bench.controller.counts["frames_dropped_overload"] == 100
    bench.controller.start()
    until(lambda: len(bench.engine.told) == FRAMES_KEPT + 3)
    assert DOWN in bench.engine.told[:3] and LLDP in bench.engine.told[:3]
    assert bench.engine.flushed_after[0] < 100  # and is acted on before the flood is through


def test_other_events_are_never_dropped_but_hold_the_readers_back(bench: Bench) -> None:
    for _ in range(EVENTS_KEPT + 1):
        bench.controller.post(DOWN)
    assert bench.controller.server._overloaded()
    bench.controller.start()
    until(lambda: len(bench.engine.told) == EVENTS_KEPT + 2)
    assert not bench.controller.server._overloaded()


def test_a_deadline_gives_a_tick(bench: Bench) -> None:
    bench.controller.start()
    until(lambda: bench.engine.flushed_after)
    bench.engine.deadline = time.monotonic() + 0.05
    bench.controller.post(DOWN)  # the loop looks at the deadline when it goes round
    until(lambda: any(isinstance(e, Tick) for e in bench.engine.told))


def test_the_journal_and_roles_reach_the_store(bench: Bench, tmp_path: Path) -> None:
    bench.engine.answers[PortChanged] = [Journal("alarm", "test", "something happened"), SavePorts(7, {1: "edge"})]
    bench.controller.start()
    bench.controller.post(DOWN)
    until(lambda: len(bench.engine.told) == 2)
    bench.controller.stop()
    again = open_store(tmp_path / "state")
    assert again.load(0.0, "").switches == {7: {1: "edge"}}
    assert [row.kind for row in again.journal(10)] == ["test"]
    again.close()


def test_a_store_that_fails_is_told_once_and_does_not_end_us(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr("aifabric_ctrl.runtime.STORE_EVERY_S", 0.01)
    monkeypatch.setattr(bench.store, "flush", fail)
    bench.controller.start()
    until(lambda: [e for e in bench.engine.told if isinstance(e, OddFrame)])
    hub.sleep(0.1)
    assert [e.kind for e in bench.engine.told if isinstance(e, OddFrame)] == ["store_failed"]


def test_an_engine_that_fails_ends_the_process_and_leaves_a_line(bench: Bench, tmp_path: Path) -> None:
    bench.engine.fails = True
    bench.controller.start()
    bench.controller.post(DOWN)
    until(lambda: bench.exits)
    assert bench.exits == [EXIT_CRASH]
    again = open_store(tmp_path / "state")
    [line] = again.journal(10)
    assert (line.severity, line.kind) == ("alarm", "engine_crash")
    assert "a bug" in line.text
    again.close()
