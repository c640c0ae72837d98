"""The running controller: one engine greenlet between the queues of events and the shells that carry effects out.

Glue only: it decides nothing about the network.  If the engine fails, that is logged, the journal is kept and the
process ends with status 70; the switches keep forwarding and whoever supervises us starts us again.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from greenlet import GreenletExit

from aifabric_ctrl.engine.engine import Engine
from aifabric_ctrl.engine.view import EngineView
from aifabric_ctrl.framework import hub
from aifabric_ctrl.model.effects import Answer, CloseSession, Effect, Journal, PacketOut, ReadTables, SendPlan, WantBfd
from aifabric_ctrl.model.errors import StoreError
from aifabric_ctrl.model.events import Event, FrameIn, OddFrame, OperatorAsked, Tick
from aifabric_ctrl.settings import Settings
from aifabric_ctrl.southbound.server import Server
from aifabric_ctrl.southbound.session import Limits
from aifabric_ctrl.store import Store

LOG = logging.getLogger("aifabric_ctrl")
EXIT_CRASH = 70  # EX_SOFTWARE of sysexits.h
LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "alarm": logging.ERROR}

FRAMES_KEPT = 5_000  # frames waiting for the engine; more are dropped and counted, for a flood must not delay port events
FRAMES_A_ROUND = 64  # frames between two looks at everything else
EVENTS_KEPT = 20_000  # other events waiting before switches are read no further
SLICE_S = 0.002  # the engine lets the sockets in this often
ANSWER_WAIT_S = 60.0  # an audit reads back every switch
ANSWER_POLL_S = 0.02
STORE_EVERY_S = 0.5
TIDY_EVERY_S = 60.0
COLLECT_EVERY_S = 3600.0
LAG_EVERY_S = 0.02
VIEW_KEPT_S = 1.0  # the shells' counters may rise without the engine
ETH_LLDP = b"\x88\xcc"


class Controller:
    """Engine, store, OpenFlow server and OVSDB worker of one process.

    Args:
        settings: checked settings.
        store: what was remembered.
        bfd: the OVSDB worker, or None when there is none.
        clock: monotonic seconds.
        crash: ends the process; replaced in tests.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        bfd: Any = None,
        clock: Callable[[], float] = time.monotonic,
        crash: Callable[[int], Any] = os._exit,
    ) -> None:
        self._settings = settings
        self._store = store
        self._bfd = bfd
        self._clock = clock
        self._crash = crash
        self._engine = Engine(settings.intent, os.urandom(32))
        self._events: deque[Event] = deque()
        self._frames: deque[Event] = deque()
        self._wake = hub.Event()
        self._stopping = False
        self._rounds = 0
        self._view: EngineView | None = None
        self._viewed = (0, 0.0)
        self._requests = 0
        self._answers: dict[int, Answer] = {}  # only of requests that somebody waits for
        self._asking: set[int] = set()
        self.counts: Counter[str] = Counter()
        limits = Limits(
            handshake_s=settings.handshake_timeout_s, echo_interval_s=settings.echo_interval_s, echo_lost=settings.echo_lost
        )
        self.server = Server(self.post, lambda: len(self._events) > EVENTS_KEPT, limits, clock=clock)

    # Events

    def post(self, event: Event) -> None:
        """Queue an event.  Host frames have a queue of their own, so that a flood of them delays nothing else."""
        if isinstance(event, FrameIn) and event.data[12:14] != ETH_LLDP:
            if len(self._frames) >= FRAMES_KEPT:
                self.counts["frames_dropped_overload"] += 1
                return
            self._frames.append(event)
        else:
            self._events.append(event)
        self._wake.set()

    def note(self, kind: str, text: str) -> None:
        """Put a warning of a shell into the journal."""
        self.post(OddFrame(self._clock(), 0, kind, text))

    def ask(self, verb: str, target: str, who: str, reason: str, force: bool) -> Answer | None:
        """Put an operator's request to the engine and wait for its answer; None when there is none in ``ANSWER_WAIT_S``."""
        self._requests += 1
        number = self._requests
        self._asking.add(number)
        now = self._clock()
        self.post(OperatorAsked(now, number, verb, target, who, reason, force, time.time()))
        try:
            while number not in self._answers:
                if self._stopping or self._clock() > now + ANSWER_WAIT_S:
                    return None
                hub.sleep(ANSWER_POLL_S)
            return self._answers.pop(number)
        finally:
            self._asking.discard(number)

    def view(self) -> EngineView:
        """What the API shows, with the shells' counters added; the same object until something may have changed."""
        now = self._clock()
        if self._view is None or self._rounds != self._viewed[0] or now > self._viewed[1] + VIEW_KEPT_S:
            view = self._engine.view()
            counters = {**view.counters, **self.server.totals(), **self.counts}
            self._view = dataclasses.replace(view, counters=counters)
            self._viewed = (self._rounds, now)
        return self._view

    # Life

    def start(self) -> Any:
        """Restore what was remembered and start the greenlets; returns the engine's.

        Raises:
            StoreError: what was remembered cannot be read.
        """
        self.post(self._store.load(self._clock(), _boot_id()))
        for notice in self._store.notices:
            self._journal(notice)
        for work in (self._keep_store, self._measure_lag):
            hub.spawn(work)
        if self._bfd is not None:
            self._bfd.start()
            hub.spawn(self._read_bfd)
        _tame_collector()
        return hub.spawn(self._run)

    def stop(self) -> None:
        """Close connections, keep the journal; changes nothing on any switch."""
        self._stopping = True
        self._wake.set()
        self.server.close()
        if self._bfd is not None:
            self._bfd.stop()
        try:
            self._store.close()
        except StoreError as error:
            LOG.error("%s", error)

    def _run(self) -> None:
        finished = False
        try:
            self._loop()
            finished = True
        except GreenletExit:
            finished = True  # the framework kills it when the application is stopped
        finally:
            if not finished:
                self._crashed()

    def _crashed(self) -> None:
        text = "the engine failed; the controller ends and the switches keep forwarding"
        LOG.critical("%s\n%s", text, traceback.format_exc())
        last = traceback.format_exc().strip().splitlines()[-1]
        try:
            self._store.save_journal(Journal("alarm", "engine_crash", f"{text}: {last}"), time.time())
            self._store.close()
        except StoreError as error:
            LOG.error("%s", error)
        if self._bfd is not None:
            self._bfd.stop()
        logging.shutdown()
        self._crash(EXIT_CRASH)

    def _loop(self) -> None:
        while not self._stopping:
            self._wait()
            started = self._round(self._events, len(self._events), self._clock())
            started = self._round(self._frames, min(FRAMES_A_ROUND, len(self._frames)), started)
            now = self._clock()
            deadline = self._engine.next_deadline()
            if deadline is not None and deadline <= now:
                self._carry_out(self._engine.step(Tick(now)))
            self._carry_out(self._engine.flush(now))
            self._engine.handed_over(self._clock())
            self._rounds += 1
            hub.sleep(0)

    def _wait(self) -> None:
        if self._events or self._frames:
            return
        self._wake.clear()
        deadline = self._engine.next_deadline()
        if deadline is None:
            self._wake.wait()
        elif (left := deadline - self._clock()) > 0:
            self._wake.wait(timeout=left)

    def _round(self, queue: deque[Event], most: int, started: float) -> float:
        """Step the engine over some events; lets others run every SLICE_S, and returns when it last did."""
        for _ in range(most):
            self._carry_out(self._engine.step(queue.popleft()))
            if self._clock() - started > SLICE_S:
                hub.sleep(0)
                started = self._clock()
        return started

    # Effects

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, (SendPlan, PacketOut, ReadTables, CloseSession)):
                self.server.carry_out(effect)
            elif isinstance(effect, Journal):
                self._journal(effect)
            elif isinstance(effect, WantBfd):
                if self._bfd is not None:
                    self._bfd.want(effect)
            elif isinstance(effect, Answer):
                if effect.request in self._asking:
                    self._answers[effect.request] = effect
            else:
                self._store.save(effect)

    def _journal(self, entry: Journal) -> None:
        LOG.log(LEVELS.get(entry.severity, logging.WARNING), "%s: %s", entry.kind, entry.text)
        self._store.save_journal(entry, time.time())

    # Beside the engine

    def _keep_store(self) -> None:
        failing, tidied, collected = False, self._clock(), self._clock()
        while not self._stopping:
            hub.sleep(STORE_EVERY_S)
            try:
                self._store.flush()
                if self._clock() - tidied > TIDY_EVERY_S:
                    tidied = self._clock()
                    self._store.tidy()
                if self._clock() - collected > COLLECT_EVERY_S:
                    collected = self._clock()
                    gc.collect()
                failing = False
            except StoreError as error:
                if not failing:
                    self.note("store_failed", str(error))
                failing = True

    def _read_bfd(self) -> None:
        while not self._stopping:
            for event in self._bfd.events():
                self.post(event)
            hub.sleep(0.05)

    def _measure_lag(self) -> None:
        """How late the hub runs what is due: what a switch's bytes would wait (DESIGN invariant 12)."""
        while not self._stopping:
            due = self._clock() + LAG_EVERY_S
            hub.sleep(LAG_EVERY_S)
            late_us = int((self._clock() - due) * 1e6)
            self.counts["loop_late_us_max"] = max(self.counts["loop_late_us_max"], late_us)
            self.counts["loop_samples"] += 1
            for bound_ms in (5, 20, 100):
                if late_us > bound_ms * 1000:
                    self.counts[f"loop_late_over_{bound_ms}_ms"] += 1


def _tame_collector() -> None:
    """Keep Python's cycle collector from stopping the world.

    A full collection of a large fabric's rules takes 100-170 ms (measured with 80,000 flows), more than a BFD failure.
    Our values hold no cycles, so reference counts free them: what exists now is left out, young objects are
    collected in portions of about 2 ms, and everything once an hour.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 10, 1_000_000)


def _boot_id() -> str:
    """Tells boots apart: monotonic times of another boot mean nothing.  Empty where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
