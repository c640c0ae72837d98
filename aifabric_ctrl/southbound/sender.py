"""Plans on one session: stages into messages, barriers and errors back into events.  No I/O and no clock.

A plan goes out as *units*.  Where the switch takes ONF bundles, neighbouring stages of flow and group changes form one
bundle, committed at once; meters may not be in a bundle and stay outside (DESIGN invariant 2).  Everything up to the
first bundle's outcome is pipelined, as is everything on a switch without bundles; what follows a bundle waits for the
commit, because deleting after a failed commit would break before making.  A failed bundle is sent again as plain
stages: the one culprit is refused then and the others go in (DESIGN invariant 7).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from aifabric_ctrl.model.effects import Change, SendPlan, Stage
from aifabric_ctrl.model.errors import ContractError
from aifabric_ctrl.model.events import Event, ObjectRefused, PlanAcked, Session
from aifabric_ctrl.model.rules import Flow, Group, Meter
from aifabric_ctrl.southbound.wire import constants as ofp
from aifabric_ctrl.southbound.wire import encode

BUNDLE_MESSAGES = 5_000  # 20,000 in one commit stalled forwarding long enough to flap 30 ms BFD (measured)

Item = Flow | Group | Meter


@dataclass(frozen=True, slots=True)
class _Unit:
    """Stages that go out together: one bundle, or one plain stage with its barrier."""

    stages: tuple[Stage, ...]
    bundle: bool


@dataclass
class _Plan:
    """A plan on its way."""

    number: int
    waiting: deque[_Unit]
    unit: _Unit | None = None  # the bundle whose outcome is open
    refusals: list[tuple[Item, str]] = field(default_factory=list)  # inside that bundle
    xids: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Sent:
    """What an xid stands for: role is object, bundled, stage (a barrier inside a plan), final, open or commit."""

    plan: _Plan
    role: str
    item: Item | None = None


class PlanSender:
    """Turns plans into messages and answers into events.

    Args:
        session: whose events these are.
        next_xid: gives transaction ids that nothing else on this connection uses.
        queue: takes an iterator of messages; it is drained lazily, so a large plan never stalls other switches.
        bundles: the switch takes ONF bundles.
    """

    def __init__(
        self, session: Session, next_xid: Callable[[], int], queue: Callable[[Iterator[bytes]], None], bundles: bool
    ) -> None:
        self._session = session
        self._next_xid = next_xid
        self._queue = queue
        self._bundles = bundles
        self._sent: dict[int, _Sent] = {}
        self._bundle_ids = 0
        self._unsayable: list[tuple[int, Item, str]] = []
        self.counts: Counter[str] = Counter()

    @property
    def outstanding(self) -> int:
        """Messages whose outcome is not known yet."""
        return len(self._sent)

    def start(self, effect: SendPlan) -> None:
        """Queue a plan."""
        plan = _Plan(effect.plan, deque(units(effect.stages, self._bundles)))
        self._queue(self._advance(plan))

    def late(self, now: float) -> list[Event]:
        """Refusals found while encoding, which happens when the output is drained."""
        if not self._unsayable:
            return []
        unsayable, self._unsayable = self._unsayable, []
        return [ObjectRefused(now, self._session, *found) for found in unsayable]

    def barrier(self, xid: int, now: float) -> list[Event] | None:
        """A BARRIER_REPLY; None when the xid is not ours."""
        sent = self._sent.pop(xid, None)
        if sent is None:
            return None
        sent.plan.xids.discard(xid)
        if sent.role != "final":
            return []
        if sent.plan.unit is not None:  # a commit that was never answered cannot be counted as done
            self._again(sent.plan)
            return []
        self._forget(sent.plan)
        return [PlanAcked(now, self._session, sent.plan.number)]

    def committed(self, xid: int, now: float) -> list[Event] | None:
        """A BUNDLE_CONTROL reply; None when the xid is not ours."""
        sent = self._sent.pop(xid, None)
        if sent is None:
            return None
        plan = sent.plan
        plan.xids.discard(xid)
        if sent.role != "commit":
            return []
        plan.unit = None
        # Open vSwitch commits the rest when one message was refused on its way into the bundle.
        events: list[Event] = [ObjectRefused(now, self._session, plan.number, i, e) for i, e in plan.refusals]
        plan.refusals.clear()
        if plan.waiting:
            self._queue(self._advance(plan))
        return events

    def error(self, xid: int, text: str, now: float) -> list[Event] | None:
        """An ERROR; None when the xid is not ours."""
        sent = self._sent.get(xid)
        if sent is None:
            return None
        if sent.role == "object":
            return [ObjectRefused(now, self._session, sent.plan.number, sent.item, text)]
        if sent.role == "bundled" and sent.item is not None:
            sent.plan.refusals.append((sent.item, text))
        elif sent.role == "commit":
            self._again(sent.plan)
        elif sent.role == "final":
            return [ObjectRefused(now, self._session, sent.plan.number, None, text), *(self.barrier(xid, now) or [])]
        return []

    def _again(self, plan: _Plan) -> None:
        """Send the stages of the failed bundle one by one, then what was waiting behind it."""
        if plan.unit is None:
            return
        plain = [_Unit((stage,), bundle=False) for stage in plan.unit.stages]
        plan.waiting.extendleft(reversed(plain))
        plan.unit = None
        plan.refusals.clear()
        self._forget(plan)
        self.counts["bundles_failed"] += 1
        self._queue(self._advance(plan))

    def _forget(self, plan: _Plan) -> None:
        for xid in plan.xids:
            self._sent.pop(xid, None)
        plan.xids.clear()

    def _note(self, plan: _Plan, role: str, item: Item | None = None) -> int:
        xid = self._next_xid()
        self._sent[xid] = _Sent(plan, role, item)
        plan.xids.add(xid)
        return xid

    def _advance(self, plan: _Plan) -> Iterator[bytes]:
        """Messages up to and including the next bundle; the last unit is followed by the plan's final barrier."""
        while plan.waiting:
            unit = plan.waiting.popleft()
            if unit.bundle:
                yield from self._bundle(plan, unit)
                break
            yield from self._stage(plan, unit.stages[0], last=not plan.waiting)
            if not plan.waiting:
                return
        if not plan.waiting:
            yield encode.barrier_request(self._note(plan, "final"))

    def _stage(self, plan: _Plan, stage: Stage, last: bool) -> Iterator[bytes]:
        for change in stage.changes:
            xid = self._note(plan, "object", change.object)
            yield self._message(plan, xid, change)
        yield encode.barrier_request(self._note(plan, "final" if last else "stage"))

    def _bundle(self, plan: _Plan, unit: _Unit) -> Iterator[bytes]:
        self._bundle_ids += 1
        bundle = self._bundle_ids
        plan.unit = unit
        yield encode.bundle_control(self._note(plan, "open"), bundle, ofp.BCT_OPEN_REQUEST)
        for stage in unit.stages:
            for change in stage.changes:
                xid = self._note(plan, "bundled", change.object)
                message = self._message(plan, xid, change)
                if message:
                    yield encode.bundle_add(xid, bundle, message)
        yield encode.bundle_control(self._note(plan, "commit"), bundle, ofp.BCT_COMMIT_REQUEST)

    def _message(self, plan: _Plan, xid: int, change: Change) -> bytes:
        """Empty when the object cannot be said in OpenFlow; that is reported like a refusal by the switch."""
        try:
            return self._encode(xid, change)
        except ContractError as error:
            self._unsayable.append((plan.number, change.object, f"not sent: {error}"))
            return b""

    def _encode(self, xid: int, change: Change) -> bytes:
        item, put = change.object, change.op == "put"
        if isinstance(item, Flow):
            self.counts["flow_mods"] += 1
            return encode.flow_put(xid, item) if put else encode.flow_delete_strict(xid, item)
        if isinstance(item, Group):
            self.counts["group_mods"] += 1
            return encode.group_put(xid, item, change.exists) if put else encode.group_delete(xid, item.group_id)
        self.counts["meter_mods"] += 1
        return encode.meter_put(xid, item, change.exists) if put else encode.meter_delete(xid, item.meter_id)


def units(stages: Iterable[Stage], bundles: bool) -> list[_Unit]:
    """Group stages: see the module's description.  Stages longer than a bundle are cut."""
    result: list[_Unit] = []
    run: list[Stage] = []
    room = BUNDLE_MESSAGES

    def close() -> None:
        nonlocal room
        messages = sum(len(s.changes) for s in run)
        if messages == 1:  # one message is as atomic without a bundle, and cheaper
            result.append(_Unit(tuple(run), bundle=False))
        elif run:
            result.append(_Unit(tuple(run), bundle=True))
        run.clear()
        room = BUNDLE_MESSAGES

    for stage in stages:
        if not bundles or any(isinstance(c.object, Meter) for c in stage.changes):
            close()
            result.append(_Unit((stage,), bundle=False))
            continue
        changes = stage.changes
        while changes:
            run.append(Stage(stage.name, changes[:room]))
            room -= len(run[-1].changes)
            changes = changes[len(run[-1].changes) :]
            if room == 0:
                close()
    close()
    return result
