"""Audits: what a switch holds against what we left there, object by object, on request and from time to time.

A comparison is made in slices, for a switch of 20,000 flows takes tens of milliseconds and a repair must not wait for
it.  It counts only if nothing was sent to the switch from the question to the end of the comparison (``read_clean``);
else the switch is asked again once it is quiet.  So a plan that crosses a read-back is never taken for a difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from aifabric_ctrl.engine.context import Context
from aifabric_ctrl.engine.switches import Item, Switches, SwitchRecord, object_text, why_of
from aifabric_ctrl.engine.view import AuditResult, Finding
from aifabric_ctrl.model.effects import Answer, ReadTables
from aifabric_ctrl.model.events import TablesRead
from aifabric_ctrl.model.ids import Dpid, dpid_text
from aifabric_ctrl.plan.believed import Believed

SLICE = 200  # objects compared between two looks at everything else: about a millisecond
ANSWER_S = 50.0  # a switch that never becomes quiet is reported as such
FINDINGS_KEPT = 100  # a switch
REQUESTS_MAX = 16


@dataclass
class _Job:
    """One comparison under way."""

    event: TablesRead
    believed: Believed
    items: Iterator[Item]
    same: int = 0
    wrong: int = 0  # excess or different
    findings: list[Finding] = field(default_factory=list)


@dataclass
class _Request:
    number: int
    repair: bool
    until: float
    waiting: set[Dpid]
    done: dict[Dpid, AuditResult] = field(default_factory=dict)


class Audit:
    """Comparisons under way, requests that wait for them, and the last result of each switch."""

    def __init__(self, context: Context, switches: Switches) -> None:
        self._context = context
        self._switches = switches
        self._jobs: dict[Dpid, _Job] = {}
        self._requests: list[_Request] = []
        self._asked: dict[Dpid, int] = {}  # session that was asked for a request
        self.last: dict[Dpid, AuditResult] = {}

    # -- requests ------------------------------------------------------------------------------------------------------

    def ask(self, number: int, dpids: set[Dpid], *, repair: bool) -> None:
        """Audit these switches; the answer comes when all are compared, or with what is known after ``ANSWER_S``."""
        if len(self._requests) >= REQUESTS_MAX:
            self._context.emit(Answer(number, False, "too many audits are under way; try again in a minute"))
            return
        self._requests.append(_Request(number, repair, self._context.now + ANSWER_S, set(dpids)))

    def work(self) -> list[TablesRead]:
        """One slice.  Returns read-backs that show what we did not do and are to be put right."""
        self._ask_quiet()
        wrong: list[TablesRead] = []
        for dpid, job in list(self._jobs.items()):
            if self._compare(self._switches.by_dpid.get(dpid), job):
                del self._jobs[dpid]
                wrong += self._finished(dpid, job)
            break  # one slice a call, whoever it is for
        self._answer()
        return wrong

    def next_deadline(self) -> float | None:
        if self._jobs:
            return self._context.now
        return min((r.until for r in self._requests), default=None)

    def _ask_quiet(self) -> None:
        for dpid in {d for r in self._requests for d in r.waiting}:
            record = self._switches.by_dpid.get(dpid)
            if record is None or record.session is None:
                self._result(dpid, AuditResult("away", self._context.now))
            elif self._asked.get(dpid) != record.session and quiet(record):
                self._asked[dpid] = record.session
                record.read_clean = True
                self._context.emit(ReadTables(record.session))

    # -- comparison ----------------------------------------------------------------------------------------------------

    def read(self, record: SwitchRecord, event: TablesRead) -> None:
        """A synchronised switch was read again: begin to compare, unless a plan of ours crossed that."""
        if not record.read_clean or record.outstanding or record.believed is None:
            self._asked.pop(record.dpid, None)
            return
        items: Iterator[Item] = iter((*event.meters, *event.groups, *event.flows))
        self._jobs[record.dpid] = _Job(event, record.believed, items)

    def _compare(self, record: SwitchRecord | None, job: _Job) -> bool:
        """Go on; True at the end, or when what is compared is no longer so."""
        if record is None or not _valid(record, job):
            return True
        for _ in range(SLICE):
            item = next(job.items, None)
            if item is None:
                return True
            there = job.believed.there(item)
            if there == item:
                job.same += 1
                continue
            kind = "excess" if there is None else "different"
            job.wrong += 1
            if len(job.findings) < FINDINGS_KEPT:
                job.findings.append(Finding(kind, object_text(item), "" if there is None else why_of(there, record.synced)))
        return False

    def _finished(self, dpid: Dpid, job: _Job) -> list[TablesRead]:
        record = self._switches.by_dpid.get(dpid)
        self._asked.pop(dpid, None)
        if record is None or not _valid(record, job):
            return []  # asked again when it is quiet
        believed = job.believed
        wanted = len(believed.flows) + len(believed.groups) + len(believed.meters)
        total = job.wrong
        if job.same < wanted:  # something is different or not there at all
            missing = self._missing(record, job)
            total += len(missing)
            job.findings = [*job.findings, *missing][:FINDINGS_KEPT]
        refused = [Finding("refused", object_text(f.item), f"{f.error}; it is tried again") for f in believed.failed.values()]
        event = job.event
        counts = (len(event.flows), len(event.groups), len(event.meters))
        findings = (*job.findings, *refused)[:FINDINGS_KEPT]
        result = AuditResult("audited", self._context.now, total + len(refused), findings, event.foreign, *counts)
        repair = self._context.intent.audit_repair if not self._asking(dpid) else any(r.repair for r in self._asking(dpid))
        record.foreign = event.foreign
        self._result(dpid, result)
        if not total:
            return []
        self._context.count("tables_differed")
        what = "put right" if repair else "left so; 'aifabric audit --repair' puts it right"
        first = job.findings[0]
        text = (
            f"{record.text}: {total} entries are not as we left them (changed behind our back?); {what}"
            f" (first: {first.kind} {first.object})"
        )
        self._context.note_quietly(dpid, "alarm", "tables_differ", text, {"dpid": dpid_text(dpid)})
        return [event] if repair else []

    def _missing(self, record: SwitchRecord, job: _Job) -> list[Finding]:
        there = Believed.from_read(job.event.flows, job.event.groups, job.event.meters)
        believed = job.believed
        items: list[Item] = [*believed.flows.values(), *believed.groups.values(), *believed.meters.values()]
        lost = [item for item in items if there.there(item) is None]
        return [Finding("missing", object_text(item), why_of(item, record.synced)) for item in lost]

    def _asking(self, dpid: Dpid) -> list[_Request]:
        return [r for r in self._requests if dpid in r.waiting]

    def _result(self, dpid: Dpid, result: AuditResult) -> None:
        if result.state == "audited":
            self.last[dpid] = result
        for request in self._asking(dpid):
            request.waiting.discard(dpid)
            request.done[dpid] = result

    # -- answers -------------------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        now = self._context.now
        for request in [r for r in self._requests if not r.waiting or r.until <= now]:
            self._requests.remove(request)
            for dpid in request.waiting:
                request.done[dpid] = AuditResult("busy", now)
            self._context.emit(self._summary(request))

    def _summary(self, request: _Request) -> Answer:
        rows = [self._json(dpid, request.done[dpid]) for dpid in sorted(request.done)]
        total = sum(r.differences for r in request.done.values())
        states = [r.state for r in request.done.values()]
        text = f"{states.count('audited')} switches audited, {total} differences"
        for state, words in (("away", "away"), ("busy", "did not come to rest")):
            if states.count(state):
                text += f", {states.count(state)} {words}"
        text += ", being put right" if total and request.repair else ""
        clean = not total and "busy" not in states
        return Answer(request.number, True, text, {"clean": clean, "differences": total, "switches": rows})

    def _json(self, dpid: Dpid, result: AuditResult) -> dict[str, object]:
        record = self._switches.by_dpid.get(dpid)
        return {
            "switch": record.text if record is not None else dpid_text(dpid),
            "dpid": dpid_text(dpid),
            "state": result.state,
            "differences": result.differences,
            "findings": [{"kind": f.kind, "object": f.object, "why": f.why} for f in result.findings],
            "foreign": list(result.foreign),
            "flows": result.flows,
            "groups": result.groups,
            "meters": result.meters,
        }


def quiet(record: SwitchRecord) -> bool:
    """Synchronised, with nothing under way."""
    return record.session is not None and record.believed is not None and record.synced is not None and not record.outstanding


def _valid(record: SwitchRecord, job: _Job) -> bool:
    same = record.session == job.event.session and record.believed is job.believed
    return same and record.read_clean and not record.outstanding
