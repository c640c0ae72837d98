"""The step loop: events in, effects out, one caller, no I/O.

::

    event --> step(): intake / discovery / links / hosts / sync    marks what changed
    queue empty --> flush(): fabric -> compile -> difference -> stages -> SendPlan
    barriers --> fences open --> hosts and links take their next step --> flush() again
"""

from __future__ import annotations

from collections import deque

from aifabric_ctrl.compile import Cache, compile_fabric, hosts_in, verify_contract
from aifabric_ctrl.engine.audit import Audit
from aifabric_ctrl.engine.bfd import BfdTurns
from aifabric_ctrl.engine.context import Context
from aifabric_ctrl.engine.discovery import Discovery
from aifabric_ctrl.engine.drains import Drains
from aifabric_ctrl.engine.fences import FENCE_MAX_S, Fence, Fences
from aifabric_ctrl.engine.holding import Holding
from aifabric_ctrl.engine.hosts import Hosts
from aifabric_ctrl.engine.intake import Intake
from aifabric_ctrl.engine.links import Links
from aifabric_ctrl.engine.neighbours import Neighbours
from aifabric_ctrl.engine.snapshot import Snapshot
from aifabric_ctrl.engine.switches import Switches
from aifabric_ctrl.engine.sync import Sync
from aifabric_ctrl.engine.view import Convergence, EngineView
from aifabric_ctrl.model import events as ev
from aifabric_ctrl.model.effects import Answer, Effect, ReadTables
from aifabric_ctrl.model.errors import ContractError, InvalidValue
from aifabric_ctrl.model.fabric import Address, Fabric, PortRole
from aifabric_ctrl.model.ids import Dpid, PortRef, dpid_text
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.model.rules import Desired

CONVERGENCES_KEPT = 1000
SAFE_FAIL_MODES = ("", "secure")  # "" is unknown: no OVSDB tells us
STEPS_PER_FLUSH = 8  # a host takes two steps, a link one; more than a few in one flush would be a loop


class Engine:
    """Deterministic controller core.

    Args:
        intent: validated settings.
        entropy: at least 16 random bytes from the shell; the key of our LLDP tokens is made from them.
    """

    def __init__(self, intent: Intent, entropy: bytes) -> None:
        self._context = Context(intent)
        self._switches = Switches(self._context)
        self._links = Links(self._context, self._switches, lambda: self._snapshot.fabric.roles)
        self._drains = Drains(self._context, self._switches, self._links)
        self._links.drained_by = self._drains.link
        self._snapshot = Snapshot(self._context, self._switches, self._drains)
        self._discovery = Discovery(self._context, self._switches, self._links, entropy)
        self._hosts = Hosts(self._context, self._switches, self._discovery.host_seen, self._links.joined)
        self._holding = Holding(self._context, self._switches)
        self._neighbours = Neighbours(self._context, self._switches, self._hosts)
        self._intake = Intake(self._context, self._switches, self._discovery, self._hosts, self._holding, self._neighbours)
        self._sync = Sync(self._context, self._switches)
        self._audit = Audit(self._context, self._switches)
        self._fences = Fences()
        self._cache = Cache()
        self._desired = Desired({})
        self._cause: tuple[str, float] | None = None
        self._convergence: deque[Convergence] = deque(maxlen=CONVERGENCES_KEPT)
        self._bfd = BfdTurns(self._context, self._links)
        self._fail_modes: dict[Dpid, str] = {}  # also of switches that have not connected yet
        self._arrived: set[Address] = set()  # became REACHABLE; their held packets go once that is installed
        self._changed = False

    # -- events --------------------------------------------------------------------------------------------------------

    def step(self, event: ev.Event) -> list[Effect]:
        """Take one event.  Tables are not touched before :meth:`flush`."""
        self._context.now = max(self._context.now, event.at)
        match event:
            case ev.FrameIn():
                self._intake.frame(event)
            case ev.PlanAcked():
                self._fences.acked(event.session, event.plan)
                self._changed |= self._sync.acked(event)
            case ev.PortChanged():
                self._port_changed(event)
            case ev.SwitchConnected():
                self._connected(event)
            case ev.SwitchGone():
                self._gone(event)
            case ev.TablesRead():
                self._tables_read(event)
            case ev.ObjectRefused():
                self._sync.refused(event, self._desired)
                self._changed = True
            case ev.BfdReport():
                self._bfd_reported(event)
            case ev.OddFrame():
                self._odd(event)
            case ev.DuplicateVerdict():
                text = f"{dpid_text(event.dpid)} is claimed twice: {event.winner} stays, {event.loser} was closed"
                data = {"dpid": dpid_text(event.dpid), "winner": event.winner, "loser": event.loser}
                # By host, not by TCP port: a switch that is refused tries again every second from another one.
                key = (event.dpid, event.winner.rpartition(":")[0], event.loser.rpartition(":")[0])
                self._context.note_quietly(key, "alarm", "duplicate_dpid", text, data)
            case ev.Remembered():
                self._remembered(event)
            case ev.BlueprintRead():
                self._blueprint_read(event)
            case ev.OperatorAsked():
                self._operator_asked(event)
            case ev.Tick():
                pass
        self._tick()
        return self._context.take()

    def _tick(self) -> None:
        self._discovery.tick()
        self._links.tick()
        self._hosts.tick()
        self._holding.tick()
        self._neighbours.tick()
        self._sync.tick()

    def _remembered(self, event: ev.Remembered) -> None:
        for dpid, ports in event.switches.items():
            self._switches.remember(dpid, {n: PortRole(r) for n, r in ports.items()})
        for link in event.links:
            for end in link.ends:
                self._switches.remember(end.dpid, {end.port: PortRole.FABRIC})
        self._drains.restore(event.drains)
        self._links.restore(event.links, event.held_until_s)
        self._hosts.restore(event.hosts)
        if event.switches or event.hosts:
            text = f"remembered {len(event.switches)} switches, {len(event.links)} links, {len(event.hosts)} hosts"
            self._context.note("info", "restored", text)

    def _operator_asked(self, event: ev.OperatorAsked) -> None:
        if event.verb in ("drain", "undrain"):
            self._changed |= self._drains.ask(event, self._snapshot.fabric)
        elif event.verb in ("audit", "repair"):
            self._audit_asked(event)
        else:
            self._context.emit(Answer(event.request, False, f"{event.verb!r} is not something this controller does"))

    def _audit_asked(self, event: ev.OperatorAsked) -> None:
        try:
            wanted = {self._drains.switch_named(event.target)} if event.target else {r.dpid for r in self._switches}
        except InvalidValue as error:
            self._context.emit(Answer(event.request, False, f"{error.what}; {error.do}"))
            return
        self._audit.ask(event.request, wanted, repair=event.verb == "repair")

    def _blueprint_read(self, event: ev.BlueprintRead) -> None:
        if event.refused:
            self._context.note("alarm", "fabric_file_refused", f"{event.refused}; the one in use stays")
            return
        self._context.blueprint = event.blueprint
        self._changed = True

    def _connected(self, event: ev.SwitchConnected) -> None:
        record, before = self._switches.connected(event)
        self._fences.keep_sessions({r.session for r in self._switches if r.session is not None})
        self._context.note(
            "info", "switch_connected", f"{record.text} connected from {event.address}", {"dpid": dpid_text(event.dpid)}
        )
        self._discovery.switch_connected(record, before)
        self._context.emit(ReadTables(event.session))
        self._changed = True

    def _gone(self, event: ev.SwitchGone) -> None:
        record = self._switches.gone(event)
        self._fences.session_ended(event.session)
        if record is not None:
            text = f"{record.text}: {event.reason}; it keeps forwarding with the tables it has"
            self._context.note("warning", "switch_gone", text, {"dpid": dpid_text(record.dpid)})
            self._changed = True
            self._forget_unused()

    def _port_changed(self, event: ev.PortChanged) -> None:
        change = self._switches.port_changed(event)
        if change is None:
            return
        record, before, after = change
        ref = PortRef(record.dpid, event.port.number)
        if after is None:
            self._discovery.port_removed(ref)
            self._note_cause(f"{record.port_text(ref.port)} removed", event.at)
        else:
            self._discovery.port_changed(ref, before, after)
            if before is not None and before.usable != after.usable:
                self._note_cause(f"{record.port_text(ref.port)} {'up' if after.usable else 'down'}", event.at)
            if before is not None and before.link_down and not after.link_down:
                self._hosts.carrier_back(ref)
        self._changed = True

    def _note_cause(self, text: str, at: float) -> None:
        if self._cause is None:
            self._cause = (text, at)

    def _tables_read(self, event: ev.TablesRead) -> None:
        record = self._switches.of_session(event.session)
        if record is not None and record.synced is not None and record.believed is not None:
            self._audit.read(record, event)  # a later look; what differs comes back from its comparison
            return
        self._adopt(event)

    def _adopt(self, event: ev.TablesRead) -> None:
        if not self._sync.read(event):
            return
        self._changed = True
        record = self._switches.of_session(event.session)
        if record is not None and record.adopt_until:
            for address, mac, port in hosts_in(event.flows):
                self._hosts.adopt(address, mac, PortRef(record.dpid, port))

    def _bfd_reported(self, event: ev.BfdReport) -> None:
        record = self._switches.by_dpid.get(event.dpid)
        self._bfd.reported(event.dpid, event.states)
        if self._fail_modes.get(event.dpid) != event.fail_mode:
            self._fail_modes[event.dpid] = event.fail_mode
            if event.fail_mode not in SAFE_FAIL_MODES:
                name = record.text if record is not None else dpid_text(event.dpid)
                text = f"{name}: fail mode {event.fail_mode!r} would flood without a controller; set it to secure"
                self._context.note("alarm", "fail_mode_unsafe", text, {"dpid": dpid_text(event.dpid)})
        if event.error:
            name = record.text if record is not None else dpid_text(event.dpid)
            text = f"{name}: {event.error}"
            self._context.note_quietly((event.dpid, event.error), "warning", "bfd_problem", text, {"dpid": dpid_text(event.dpid)})

    def _odd(self, event: ev.OddFrame) -> None:
        self._context.count(event.kind)
        record = self._switches.of_session(event.session)
        where = f"{record.text}: " if record is not None else ""
        self._context.note_quietly((event.kind, event.session), "warning", event.kind, where + event.text)

    # -- consequences --------------------------------------------------------------------------------------------------

    def flush(self, now: float) -> list[Effect]:
        """Compile and send what changed.  Call when no event is waiting; cheap when nothing changed."""
        self._context.now = max(self._context.now, now)
        for wrong in self._audit.work():
            self._adopt(wrong)
        for _ in range(STEPS_PER_FLUSH):
            opened = self._open_fences()
            if self._links.dirty:
                self._links.rescue()
            self._purge_hosts_on_cables()
            if self._dirty() or self._sync.due(self._discovery.complete):
                self._plan()
            elif not opened:
                break
        self._drains.answer()
        self._want_bfd()
        self._discovery.save()
        return self._context.take()

    def _dirty(self) -> bool:
        return self._changed or self._links.dirty or self._hosts.dirty or self._discovery.dirty

    def handed_over(self, now: float) -> None:
        """The shell says that the effects of the last flush are with the sessions."""
        self._fences.handed_over(now)

    def _open_fences(self) -> bool:
        fences = self._fences.take_open(self._context.now)
        for fence in fences:
            self._links.settle(fence.links)
            self._arrived.update(self._hosts.step(fence.hosts))
            for ip in fence.announced:
                self._holding.release(ip)
            if fence.cause:
                self._convergence.append(self._converged(fence))
        return bool(fences)

    def _converged(self, fence: Fence) -> Convergence:
        now = self._context.now
        handed = now if fence.handed_at is None else min(fence.handed_at, now)
        planned, took = (handed - fence.cause_at) * 1000, (now - fence.cause_at) * 1000
        return Convergence(fence.cause, fence.cause_at, planned, took, fence.messages, fence.switches)

    def _purge_hosts_on_cables(self) -> None:
        if self._discovery.dirty:
            for record in self._links.by_key.values():
                if not record.quarantined:
                    for end in record.key:
                        self._hosts.port_became_fabric(end)

    def _plan(self) -> None:
        self._forget_unused()
        fabric = self._snapshot.build(self._links.snapshot(), self._hosts.by_ip, frozenset(self._hosts.tombstones))
        self._links.reconsider()
        if self._links.snapshot() != fabric.links:
            fabric = self._snapshot.build(self._links.snapshot(), self._hosts.by_ip, frozenset(self._hosts.tombstones))
        self._desired = self._compile(fabric)
        self._changed = self._links.dirty = self._hosts.dirty = self._discovery.dirty = False
        programmed = [r.programmed for r in self._switches]
        sent = self._sync.send(self._desired, fabric, self._discovery.complete)
        self._changed = programmed != [r.programmed for r in self._switches]
        waiting_hosts, waiting_links = self._fences.waits_for()
        hosts = [ip for ip in self._hosts.stepping() if ip not in waiting_hosts]
        links = [k for k in self._links.unsettled() if k not in waiting_links]
        announced, self._arrived = sorted(self._arrived, key=str), set()
        cause, self._cause = self._cause, None
        if not (hosts or links or announced or sent.plans):
            return
        fence = Fence(self._context.now, self._sync.outstanding(self._context.now - FENCE_MAX_S), hosts, links, announced)
        if cause is not None and sent.plans:
            fence.cause, fence.cause_at = cause
            fence.messages, fence.switches = sent.messages, len(sent.plans)
        self._fences.add(fence)

    def _forget_unused(self) -> None:
        """Switches that are away and hold no link and no host: strangers, and those whose cables lead elsewhere now."""
        for record in list(self._switches):
            unused = record.session is None and not self._links.of_switch(record.dpid)
            if unused and not self._hosts.of_switch(record.dpid):
                self._discovery.forget(record)
                self._switches.forget(record.dpid)

    def _compile(self, fabric: Fabric) -> Desired:
        """The new tables, or for a switch whose new ones break the pipeline's contract the last good ones."""
        try:
            desired = compile_fabric(fabric, self._context.intent, self._cache)
        except ContractError as problem:
            self._context.note("alarm", "plan_refused", f"nothing is changed: {problem.what} (a fault of the controller)")
            return self._desired
        tables = dict(desired.tables)
        for dpid, new in desired.tables.items():
            old = self._desired.tables.get(dpid)
            if new is old:
                continue
            try:
                verify_contract(new, old)
            except ContractError as problem:
                text = f"{fabric.switches[dpid].text} keeps its tables: {problem.what} (a fault of the controller)"
                self._context.note_quietly(dpid, "alarm", "plan_refused", text, {"dpid": dpid_text(dpid)})
                if old is not None:
                    tables[dpid] = old
                else:
                    del tables[dpid]  # a switch without compiled tables is left as it is
        return Desired(tables)

    def _want_bfd(self) -> None:
        if not self._context.intent.bfd or not self._settled():
            return
        self._bfd.want(self._snapshot.fabric.roles)

    def _settled(self) -> bool:
        """Every connected switch is read back and classified; before that the set of links is not the whole set."""
        connected = [r for r in self._switches if r.session is not None]
        return bool(connected) and all(r.believed is not None and self._discovery.complete(r) for r in connected)

    def next_deadline(self) -> float | None:
        """When :meth:`step` with a Tick and :meth:`flush` are due even if nothing happens (monotonic s)."""
        deadlines = (
            self._discovery.next_deadline(),
            self._links.next_deadline(),
            self._hosts.next_deadline(),
            self._holding.next_deadline(),
            self._neighbours.next_deadline(),
            self._fences.next_deadline(),
            self._sync.next_deadline(),
            self._sync.next_look(),
            self._bfd.next_deadline(),
            self._drains.next_deadline(),
            self._audit.next_deadline(),
        )
        return min((d for d in deadlines if d is not None), default=None)

    # -- for people ----------------------------------------------------------------------------------------------------

    def view(self) -> EngineView:
        """A read-only picture of this moment."""
        reasons = self._not_ready()
        return EngineView(
            now_s=self._context.now,
            ready=not reasons,
            not_ready=reasons,
            fabric=self._snapshot.fabric,
            intent=self._context.intent,
            desired=self._desired,
            switches={
                r.dpid: self._switches.status(r, self._desired.tables.get(r.dpid), self._fail_modes.get(r.dpid, ""))
                for r in self._switches
            },
            bfd=dict(self._bfd.states),
            held_until_s=self._links.held_until(),
            seen_s=dict(self._hosts.seen),
            journal=tuple(self._context.journal),
            counters=dict(self._context.counters),
            convergence=tuple(self._convergence),
            audits=dict(self._audit.last),
            drains=tuple((d, self._drains.text(t)) for t, d in sorted(self._drains.by_target.items(), key=lambda x: str(x[0]))),
        )

    def _not_ready(self) -> tuple[str, ...]:
        connected = [r for r in self._switches if r.session is not None]
        reasons = [] if connected else ["no switch is connected"]
        for record in connected:
            sync = self._switches.sync_text(record)
            if sync != "in_sync":
                reasons.append(f"{record.text} is {sync}")
            elif not self._discovery.complete(record):
                reasons.append(f"{record.text}: discovery has not settled")
            mode = self._fail_modes.get(record.dpid, "")
            if mode not in SAFE_FAIL_MODES:
                reasons.append(f"{record.text}: fail mode {mode} would flood without a controller")
        if self._fences.pending or self._changed or self._links.unsettled():
            reasons.append("a change is under way")
        return tuple(reasons)
