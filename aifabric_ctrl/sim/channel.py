"""The control channel of one in-memory switch: ordered as TCP is, each message late by a random time.

What lies between two barriers is a step of its own, so that every state between two stages exists for a while and can
be looked at.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from aifabric_ctrl.model.effects import CloseSession, Effect, PacketOut, ReadTables, SendPlan
from aifabric_ctrl.model.events import Event, PlanAcked, Session, SwitchGone
from aifabric_ctrl.sim.clock import Clock
from aifabric_ctrl.sim.fakeswitch import FakeSwitch, Unit


@dataclass
class Delays:
    """Longest delays in seconds; each one drawn is uniform below it."""

    control_s: float = 0.005  # one way, per message
    step_s: float = 0.004  # one barrier
    wire_s: float = 0.0002
    engine_s: float = 0.002  # from an event's arrival until the engine takes it


class Channel:
    """One switch's connection: effects in, events out.

    Args:
        deliver: takes an event to the engine.
        packet_out: carries out a packet-out on the data plane.
        changed: told after every step that changed tables.
    """

    def __init__(
        self,
        switch: FakeSwitch,
        clock: Clock,
        rng: random.Random,
        delays: Delays,
        deliver: Callable[[Event], None],
        packet_out: Callable[[FakeSwitch, PacketOut], None],
        changed: Callable[[FakeSwitch], None],
    ) -> None:
        self.switch = switch
        self.session: Session | None = None
        self.packet_outs = 0
        self._clock = clock
        self._rng = rng
        self._delays = delays
        self._deliver = deliver
        self._packet_out = packet_out
        self._changed = changed
        self._work: deque[Callable[[], None]] = deque()
        self._busy = False
        self._up_last = 0.0
        self._down_last = 0.0
        self._epoch = 0

    @property
    def idle(self) -> bool:
        return not self._busy and not self._work

    def open(self, session: Session) -> None:
        """The switch connects; what was in flight on an older connection is lost."""
        self._reset()
        self.session = session
        self.send_up(self.switch.connected(self._clock.now, session))

    def close(self, reason: str, *, tell: bool = True, late_s: float = 0.0) -> None:
        """The connection ends.  The engine hears it ``late_s`` later, as when a dead peer is only noticed by silence."""
        session = self.session
        self._reset()
        if tell and session is not None:
            event_at = self._clock.now + late_s
            self._clock.at(event_at, lambda: self._deliver(SwitchGone(self._clock.now, session, reason)))

    def _reset(self) -> None:
        self.session = None
        self._work.clear()
        self._busy = False
        self._epoch += 1
        self._up_last = self._down_last = self._clock.now

    def send_up(self, event: Event) -> None:
        """Towards the engine, never overtaking what was sent before on this connection."""
        self._up_last = max(self._up_last, self._clock.now + self._rng.random() * self._delays.control_s)
        epoch = self._epoch
        self._clock.at(self._up_last, lambda: self._deliver(event) if epoch == self._epoch else None)

    def send_down(self, effect: Effect) -> None:
        """From the engine to the switch, in order."""
        self._down_last = max(self._down_last, self._clock.now + self._rng.random() * self._delays.control_s)
        epoch = self._epoch
        self._clock.at(self._down_last, lambda: self._arrive(effect) if epoch == self._epoch else None)

    def _arrive(self, effect: Effect) -> None:
        match effect:
            case SendPlan():
                self._queue_plan(effect)
            case ReadTables(session=session):
                self._work.append(lambda: self.send_up(self.switch.read(self._clock.now, session)))
            case PacketOut():
                self._work.append(lambda: self._do_packet_out(effect))
            case CloseSession(reason=reason):
                self.close(reason)
                return
            case _:
                return
        self._next()

    def _do_packet_out(self, effect: PacketOut) -> None:
        self.packet_outs += 1
        self._packet_out(self.switch, effect)

    def _queue_plan(self, plan: SendPlan) -> None:
        for unit in self.switch.steps(plan):

            def carry_out(unit: Unit = unit) -> None:
                refused = self.switch.apply(unit)
                for event in self.switch.refusals(plan, refused, self._clock.now):
                    self.send_up(event)
                self._changed(self.switch)

            self._work.append(carry_out)
        self._work.append(lambda: self.send_up(PlanAcked(self._clock.now, plan.session, plan.plan)))

    def _next(self) -> None:
        if self._busy or not self._work:
            return
        self._busy = True
        epoch = self._epoch

        def work() -> None:
            if epoch != self._epoch:
                return
            self._work.popleft()()
            self._busy = False
            self._next()

        self._clock.after(self._rng.random() * self._delays.step_s, work)
