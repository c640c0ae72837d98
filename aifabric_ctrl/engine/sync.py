"""Keeping each switch's tables equal to what was compiled for it.

A switch goes reading -> settling -> syncing -> in_sync.  Until its own ports are classified only the base rules are added
(discovery needs them) and nothing is changed or removed: what it forwards with now may be right (DESIGN invariant 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from aifabric_ctrl.compile import base_tables
from aifabric_ctrl.engine.context import Context
from aifabric_ctrl.engine.switches import Item, Outstanding, Switches, SwitchRecord, object_text, why_of
from aifabric_ctrl.model.effects import CloseSession, ReadTables, SendPlan
from aifabric_ctrl.model.events import ObjectRefused, PlanAcked, Session, TablesRead
from aifabric_ctrl.model.fabric import Fabric
from aifabric_ctrl.model.ids import dpid_text
from aifabric_ctrl.model.ownership import stable_hash
from aifabric_ctrl.model.rules import Desired, Flow, Group, Tables
from aifabric_ctrl.plan.believed import Believed
from aifabric_ctrl.plan.order import Delta, difference, stages

ANSWER_WITHIN_S = 60.0  # a read-back of 20,000 flows in pages takes a few seconds, a plan of as many about two
LOOK_EVERY_S = 1.0
# How long a group outlives its last rule.  0: at 1 s a switch that reconnected stayed "syncing" (decision 0006).
RETIRE_S = 0.0
ADOPT_S = 10.0  # Open vSwitch reconnects within 8 s: by then every switch that has tables of ours is back


@dataclass
class Sent:
    """What one round sent: (session, plan) pairs and the number of messages without barriers."""

    plans: list[tuple[Session, int]] = field(default_factory=list)
    messages: int = 0


class Sync:
    """Read-backs, differences, acknowledgements and refusals."""

    def __init__(self, context: Context, switches: Switches) -> None:
        self._context = context
        self._switches = switches
        self._started: float | None = None
        self._look_at = 0.0

    def read(self, event: TablesRead) -> bool:
        """A switch's tables as they are.  False for a session that is nobody's any more."""
        record = self._switches.of_session(event.session)
        if record is None:
            return False
        record.believed = Believed.from_read(event.flows, event.groups, event.meters)
        record.reread_at = self._context.now + self._context.intent.reread_s * (1 + stable_hash(str(record.dpid), 8) / 256)
        record.synced, record.base_sent = None, False
        record.foreign = event.foreign
        if not event.flows:
            # A new switch, or one that rebooted: not a way through until its tables are in.
            record.programmed = False
        elif not record.programmed:
            # Tables of ours that the store knows nothing of (it was lost): they forward, so nothing is changed before
            # every switch had time to come back and tell what it holds.
            record.programmed = True
            record.adopt_until = max(self.started_at() + ADOPT_S, self._context.now + LOOK_EVERY_S)
        if event.foreign:
            text = f"{record.text}: {len(event.foreign)} objects are not ours; left alone (first: {event.foreign[0]})"
            self._context.note_quietly(record.dpid, "warning", "foreign_objects", text, {"dpid": dpid_text(record.dpid)})
        return True

    def _reread(self, record: SwitchRecord) -> None:
        """Ask a quiet, synchronised switch again what it holds: others can write to it too."""
        interval = self._context.intent.reread_s
        if record.session is None or record.synced is None or record.outstanding or not interval:
            return
        if record.reread_at <= self._context.now:
            record.reread_at = self._context.now + interval
            record.read_clean = True
            self._context.emit(ReadTables(record.session))

    def started_at(self) -> float:
        """When the first switch was read back."""
        if self._started is None:
            self._started = self._context.now
        return self._started

    def send(self, desired: Desired, fabric: Fabric, complete: Callable[[SwitchRecord], bool]) -> Sent:
        """Send every switch what it lacks; one whose tables are right gets nothing (DESIGN invariant 3)."""
        sent = Sent()
        for record in self._switches:
            tables = desired.tables.get(record.dpid)
            if record.session is None or record.believed is None or tables is None:
                continue
            if self._context.now >= record.adopt_until and ((record.programmed and not record.adopt_until) or complete(record)):
                record.adopt_until = 0.0
                self._send_full(record, record.believed, tables, sent)
            elif not record.base_sent:
                record.base_sent = True
                base = base_tables(fabric.switches[record.dpid], self._context.intent)
                delta = difference(base, record.believed, self._context.now, additions_only=True)
                self._emit(record, record.believed, delta, sent, full=False)
        return sent

    def _send_full(self, record: SwitchRecord, believed: Believed, tables: Tables, sent: Sent) -> None:
        if record.synced is tables and not self._retry_due(believed) and not self._retire_due(record):
            return
        record.synced = tables
        believed.forget_failures(tables)
        now = self._context.now
        unused = [g for g in believed.groups if g not in tables.groups]
        retiring = {g: record.retiring.get(g, now + RETIRE_S) for g in unused}
        record.retiring = {g: at for g, at in retiring.items() if at > now}
        delta = difference(tables, believed, now, keep_groups=record.retiring)
        self._emit(record, believed, delta, sent, full=True)

    def _emit(self, record: SwitchRecord, believed: Believed, delta: Delta, sent: Sent, full: bool) -> None:
        session = record.session
        if session is None:
            return
        if not delta.size:
            if full and not record.outstanding:
                record.programmed = True
            return
        ordered = stages(delta)
        plan = self._switches.next_plan()
        puts: dict[Item, Item | None] = {}
        for stage in ordered:
            for change in stage.changes:
                if change.op == "put":
                    puts[change.object] = believed.there(change.object)
                    believed.put(change.object)
                else:
                    believed.remove(change.object)
                kind = "flow" if isinstance(change.object, Flow) else "group" if isinstance(change.object, Group) else "meter"
                self._context.count(f"{kind}_mods_sent")
        record.outstanding[plan] = Outstanding(plan, puts, delta.size, self._context.now)
        record.read_clean = False
        self._context.emit(SendPlan(session, plan, ordered))
        sent.plans.append((session, plan))
        sent.messages += delta.size

    def acked(self, event: PlanAcked) -> bool:
        """A plan's last barrier.  True when it made a switch a way through."""
        record = self._switches.of_session(event.session)
        done = record.outstanding.pop(event.plan, None) if record is not None else None
        if record is None or done is None:
            return False
        if record.believed is not None and record.believed.failed:
            for item in done.puts:
                if item not in done.refused:
                    record.believed.accepted(item)
        if record.synced is not None and not record.programmed and not record.outstanding:
            record.programmed = True
            return True
        return False

    def refused(self, event: ObjectRefused, desired: Desired) -> None:
        """The switch refused one object: it becomes FAILED, people see it, the others go on."""
        record = self._switches.of_session(event.session)
        if record is None or record.believed is None:
            return
        self._context.count("objects_refused")
        if event.object is None:
            text = f"{record.text}: refused something of plan {event.plan}: {event.error}"
            self._context.note_quietly((record.dpid, event.error), "alarm", "object_refused", text)
            return
        outstanding = record.outstanding.get(event.plan)
        if outstanding is not None:
            outstanding.refused.append(event.object)
            if event.object not in outstanding.puts:
                # A delete was refused: the object is still there, and the next plan tries again.
                record.believed.put(event.object)
                text = f"{record.text}: deleting {object_text(event.object)} refused: {event.error}"
                self._context.note_quietly((record.dpid, object_text(event.object)), "alarm", "object_refused", text)
                return
        before = outstanding.puts.get(event.object) if outstanding is not None else None
        failure = record.believed.refuse(event.object, event.error, self._context.now, before)
        why = why_of(event.object, desired.tables.get(record.dpid))
        text = f"{record.text}: {object_text(event.object)} refused: {event.error}; needed because {why or 'of an earlier plan'}"
        data = {"dpid": dpid_text(record.dpid), "error": event.error, "retries": failure.retries}
        self._context.note_quietly((record.dpid, object_text(event.object)), "alarm", "object_refused", text, data)

    def outstanding(self, since: float) -> set[tuple[Session, int]]:
        """Plans that wait for their last barrier, of switches with none older than ``since``."""
        waiting: set[tuple[Session, int]] = set()
        for record in self._switches:
            plans = record.outstanding.values()
            if record.session is not None and all(p.sent_at >= since for p in plans):
                waiting.update((record.session, p.plan) for p in plans)
        return waiting

    def tick(self) -> None:
        """A switch that answers echoes but neither barriers nor read-backs is no use: end the session, start afresh."""
        if self._context.now < self._look_at:
            return
        self._look_at = self._context.now + LOOK_EVERY_S
        for record in self._switches:
            self._reread(record)
            if record.session is None or record.closing:
                continue
            oldest = min((p.sent_at for p in record.outstanding.values()), default=math.inf)
            if record.believed is None:
                oldest = min(oldest, record.connected_at)
            if oldest + ANSWER_WITHIN_S <= self._context.now:
                record.closing = True
                text = f"{record.text} has not answered for {ANSWER_WITHIN_S:.0f} s; its session is closed and starts afresh"
                self._context.note("alarm", "switch_stuck", text, {"dpid": dpid_text(record.dpid)})
                self._context.emit(CloseSession(record.session, "no answer to a plan or a read-back"))

    def due(self, complete: Callable[[SwitchRecord], bool]) -> bool:
        """A retry, or the end of an adoption, asks for a new round of plans."""
        now = self._context.now
        if any(0.0 < r.adopt_until <= now and r.session is not None and complete(r) for r in self._switches):
            return True
        if any(r.session is not None and r.synced is not None and self._retire_due(r) for r in self._switches):
            return True
        retry = self.next_deadline()
        return retry is not None and retry <= now

    def _retire_due(self, record: SwitchRecord) -> bool:
        return bool(record.retiring) and min(record.retiring.values()) <= self._context.now

    def _retry_due(self, believed: Believed) -> bool:
        due = believed.next_retry_s()
        return due is not None and due <= self._context.now

    def next_deadline(self) -> float | None:
        """The earliest retry of a switch that is sent its full tables (others retry with their first full plan)."""
        times = [r.believed.next_retry_s() for r in self._switches if r.believed is not None and r.synced is not None]
        return min((t for t in times if t is not None), default=None)

    def next_look(self) -> float | None:
        """When stuck or adopted switches are to be looked at again."""
        waits = any(r.session is not None and (r.outstanding or r.believed is None) for r in self._switches)
        adopting = [r.adopt_until for r in self._switches if r.session is not None and r.adopt_until > self._context.now]
        rereads = [r.reread_at for r in self._switches if r.session is not None and r.synced is not None]
        looks = [self._look_at] if waits else []
        if rereads and self._context.intent.reread_s:
            looks.append(max(min(rereads), self._look_at))
        retiring = [at for r in self._switches if r.session is not None and r.synced is not None for at in r.retiring.values()]
        return min(adopting + looks + retiring, default=None)
