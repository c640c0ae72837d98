"""Keeping each switch's tables equal to what was compiled for it.

A switch goes reading -> settling -> syncing -> in_sync.  Until its own ports are classified only the base rules are added
(discovery needs them) and nothing is changed or removed: what it forwards with now may be right (DESIGN invariant 1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from aifabric_ctrl.compile import base_tables
from aifabric_ctrl.engine.context import Context
from aifabric_ctrl.engine.switches import Outstanding, Switches, SwitchRecord, object_text, why_of
from aifabric_ctrl.model.effects import SendPlan
from aifabric_ctrl.model.events import ObjectRefused, PlanAcked, Session, TablesRead
from aifabric_ctrl.model.fabric import Fabric
from aifabric_ctrl.model.ids import dpid_text
from aifabric_ctrl.model.rules import Desired, Flow, Group, Tables
from aifabric_ctrl.plan.believed import Believed
from aifabric_ctrl.plan.order import Delta, difference, stages


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

    def read(self, event: TablesRead) -> bool:
        """A switch's tables as they are.  False for a session that is nobody's any more."""
        record = self._switches.of_session(event.session)
        if record is None:
            return False
        record.believed = Believed.from_read(event.flows, event.groups, event.meters)
        record.synced, record.base_sent = None, False
        record.foreign = event.foreign
        if not event.flows:
            # A new switch, or one that rebooted: not a way through until its tables are in.
            record.programmed = False
        if event.foreign:
            text = f"{record.text}: {len(event.foreign)} objects are not ours; left alone (first: {event.foreign[0]})"
            self._context.note_quietly(record.dpid, "warning", "foreign_objects", text, {"dpid": dpid_text(record.dpid)})
        return True

    def send(self, desired: Desired, fabric: Fabric, complete: Callable[[SwitchRecord], bool]) -> Sent:
        """Send every switch what it lacks; one whose tables are right gets nothing (DESIGN invariant 3)."""
        sent = Sent()
        for record in self._switches:
            tables = desired.tables.get(record.dpid)
            if record.session is None or record.believed is None or tables is None:
                continue
            if record.programmed or complete(record):
                self._send_full(record, record.believed, tables, sent)
            elif not record.base_sent:
                record.base_sent = True
                base = base_tables(fabric.switches[record.dpid], self._context.intent)
                delta = difference(base, record.believed, self._context.now, additions_only=True)
                self._emit(record, record.believed, delta, sent, completes=False)
        return sent

    def _send_full(self, record: SwitchRecord, believed: Believed, tables: Tables, sent: Sent) -> None:
        if record.synced is tables and not self._retry_due(believed):
            return
        record.synced = tables
        delta = difference(tables, believed, self._context.now)
        self._emit(record, believed, delta, sent, completes=True)

    def _emit(self, record: SwitchRecord, believed: Believed, delta: Delta, sent: Sent, completes: bool) -> None:
        session = record.session
        if session is None:
            return
        if not delta.size:
            if completes and not record.outstanding:
                record.programmed = True
            return
        ordered = stages(delta)
        plan = self._switches.next_plan()
        puts = []
        for stage in ordered:
            for change in stage.changes:
                if change.op == "put":
                    believed.put(change.object)
                    puts.append(change.object)
                else:
                    believed.remove(change.object)
                kind = "flow" if isinstance(change.object, Flow) else "group" if isinstance(change.object, Group) else "meter"
                self._context.count(f"{kind}_mods_sent")
        record.outstanding[plan] = Outstanding(plan, tuple(puts), delta.size, completes)
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
        if done.completes and not record.programmed and not record.outstanding:
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
        failure = record.believed.refuse(event.object, event.error, self._context.now)
        why = why_of(event.object, desired.tables.get(record.dpid))
        text = f"{record.text}: {object_text(event.object)} refused: {event.error}; needed because {why or 'of an earlier plan'}"
        data = {"dpid": dpid_text(record.dpid), "error": event.error, "retries": failure.retries}
        self._context.note_quietly((record.dpid, object_text(event.object)), "alarm", "object_refused", text, data)

    def outstanding(self) -> set[tuple[Session, int]]:
        """Every plan that waits for its last barrier."""
        return {(r.session, plan) for r in self._switches if r.session is not None for plan in r.outstanding}

    def retry_due(self) -> bool:
        return any(r.believed is not None and self._retry_due(r.believed) for r in self._switches if r.session is not None)

    def _retry_due(self, believed: Believed) -> bool:
        due = believed.next_retry_s()
        return due is not None and due <= self._context.now

    def next_deadline(self) -> float | None:
        times = [r.believed.next_retry_s() for r in self._switches if r.session is not None and r.believed is not None]
        return min((t for t in times if t is not None), default=None)
