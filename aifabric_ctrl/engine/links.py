"""Cables between switches: confirmed in both directions, held down after a flap, quarantined when they contradict.

State follows from facts, never from the order they came in (DESIGN invariant 4)::

    both ends usable and heard both ways      UP, or HELD while its hold-down runs
    heard one way only                        ONE_WAY
    anything else                             DOWN

A link that works and is drained becomes DRAINED in two steps: it is no longer settled, so only its own ends use it; once
every switch has acknowledged that, it is DRAINED.  Undrained it is UP and settles like a new one.

Hold-down is for coming back only: going away takes effect at once, whatever the last event was decides the final state
(case FF-05), and a link that alone joins its two ends is not held.  A switch that reboots is held like a cable that was
pulled: its tables are empty at first anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from networkx.utils import UnionFind

from aifabric_ctrl.engine.context import Context
from aifabric_ctrl.engine.switches import Switches
from aifabric_ctrl.model.backoff import backoff_s
from aifabric_ctrl.model.effects import SaveLink
from aifabric_ctrl.model.fabric import Link, LinkState, PortRole, Role
from aifabric_ctrl.model.ids import Dpid, PortRef

LinkKey = tuple[PortRef, PortRef]
FLAPS_KEPT = 32  # more make no longer pause
WORKING = (LinkState.UP, LinkState.DRAINED)  # both ends hear each other
QUARANTINE = "joins two switches of the same tier; not used (relayed LLDP or wrong cabling)"


@dataclass
class LinkRecord:
    """One cable.  ``heard_ab`` means: b has heard a's probes since both ports came up."""

    a: PortRef
    b: PortRef
    heard_ab: bool = False
    heard_ba: bool = False
    state: LinkState = LinkState.DOWN
    settled: bool = False
    quarantined: bool = False
    drained: bool = False  # wanted; the state follows after the barriers
    ever_up: bool = False
    held_until: float = 0.0
    flaps: list[float] = field(default_factory=list)
    bfd_starting: bool = False  # BFD was just asked for: the first loss of liveness is ours, not a flap
    one_way_since: float | None = None  # told to people once it has lasted
    saved: tuple[LinkState, float] | None = None

    @property
    def key(self) -> LinkKey:
        return self.a, self.b

    @property
    def moving(self) -> bool:
        """On its way to be used, or left, by everybody."""
        return self.state is LinkState.UP and not self.settled

    def other(self, end: PortRef) -> PortRef:
        return self.b if end == self.a else self.a


class Links:
    """All links by their ordered ends."""

    def __init__(self, context: Context, switches: Switches, roles: Callable[[], Mapping[Dpid, Role]]) -> None:
        self._context = context
        self._switches = switches
        self.roles = roles
        self.drained_by: Callable[[LinkRecord], bool] = lambda _: False
        self.on_accepted: Callable[[LinkKey], None] = lambda _: None
        self.on_quarantined: Callable[[LinkKey], None] = lambda _: None
        self._ends_of: dict[Dpid, set[PortRef]] = {}
        self.by_key: dict[LinkKey, LinkRecord] = {}
        self.by_port: dict[PortRef, LinkRecord] = {}
        self._bfd_seen_up: set[PortRef] = set()
        self._bfd_up: set[PortRef] = set()
        self.bfd_started: frozenset[LinkKey] = frozenset()  # links whose BFD was asked to begin
        self._wake_at = math.inf
        self.dirty = False

    def restore(self, links: tuple[Link, ...], held: Mapping[tuple[Dpid, int], float]) -> None:
        """Take the store's links as they were; probes and port states correct them within seconds."""
        for link in links:
            record = LinkRecord(link.a, link.b, heard_ab=True, heard_ba=True, ever_up=True)
            record.held_until = held.get(link.a, 0.0)
            record.state = LinkState.HELD if record.held_until > self._context.now else LinkState.UP
            self._add(record)
            if link.state is LinkState.DRAINED and record.drained:
                record.state = LinkState.DRAINED
            record.settled = record.state is LinkState.UP and not record.drained and link.state is not LinkState.DRAINED
            record.saved = (link.state, record.held_until)
            self._wake_at = min(self._wake_at, self._wakes_at(record) or math.inf)

    def heard(self, sender: PortRef, receiver: PortRef) -> bool:
        """A probe from ``sender`` arrived at ``receiver``.  False when the pair cannot be a link."""
        key = (min(sender, receiver), max(sender, receiver))
        record = self.by_key.get(key)
        if record is None:
            if not self._make_room(sender, receiver):
                return False
            record = LinkRecord(*key, quarantined=self._contradicts(*key))
            self._add(record)
            if record.quarantined:
                self._note(
                    "alarm", "link_quarantined", record, "joins two switches of the same tier; not used (forged or wrong cabling)"
                )
        if sender == record.a:
            record.heard_ab = True
        else:
            record.heard_ba = True
        self.evaluate(record)
        return True

    def direction_lost(self, sender: PortRef) -> None:
        """Too many probes sent from this end went unheard."""
        record = self.by_port.get(sender)
        if record is None:
            return
        if record.state in WORKING and self._bfd_up.issuperset(record.key):
            self._context.count("lldp_lost_while_bfd_up")
            ends = f"{self._switches.text(record.a)} <-> {self._switches.text(record.b)}"
            text = f"{ends}: LLDP is lost but BFD is up at both ends; the link stays in use"
            self._context.note_quietly(record.key, "warning", "lldp_lost", text)
            return
        if sender == record.a:
            record.heard_ab = False
        else:
            record.heard_ba = False
        self.evaluate(record, "probes from " + self._switches.text(sender) + " are not heard at the other end")

    def port_changed(self, ref: PortRef, usable: bool, carrier: bool) -> None:
        """One end's state changed; after a loss both directions must be heard again."""
        record = self.by_port.get(ref)
        if record is None:
            return
        if not usable:
            record.heard_ab = record.heard_ba = False
        why = "" if usable else self._switches.text(ref) + (" is not live (BFD)" if carrier else " is down")
        self.evaluate(record, why)

    def remove(self, record: LinkRecord, why: str) -> None:
        """Forget a cable, e.g. because a host hangs there now."""
        self._note("info", "link_removed", record, why)
        self.by_key.pop(record.key, None)
        for end in record.key:
            if self.by_port.get(end) is record:
                del self.by_port[end]
                self._ends_of[end.dpid].discard(end)
        self._context.emit(SaveLink(self.link(record), gone=True))
        self.dirty = True

    def evaluate(self, record: LinkRecord, why: str = "") -> None:
        """Bring the state in line with the facts."""
        new = self._state_now(record)
        old = record.state
        if new is old:
            return
        now = self._context.now
        if old in WORKING:
            record.settled = False
            record.bfd_starting = self._bfd_starting(record)
            if not record.bfd_starting and not record.drained and new is not LinkState.QUARANTINED:
                recent = [t for t in record.flaps if t > now - self._context.intent.flap_memory_s]
                record.flaps = [*recent[-FLAPS_KEPT:], now]
        record.state = new
        record.one_way_since = now if new is LinkState.ONE_WAY and old not in WORKING and not record.drained else None
        self._wake_at = min(self._wake_at, self._wakes_at(record) or math.inf)
        if new in WORKING:
            record.bfd_starting = False
        self.dirty = True
        self._announce(record, old, why)
        self._save(record)

    def _state_now(self, record: LinkRecord) -> LinkState:
        if record.quarantined:
            return LinkState.QUARANTINED
        if not (self._usable(record.a) and self._usable(record.b)):
            return LinkState.DOWN
        if not (record.heard_ab and record.heard_ba):
            return LinkState.ONE_WAY if record.heard_ab or record.heard_ba else LinkState.DOWN
        if record.state in WORKING:
            return record.state
        if record.drained:  # carries nothing, so it need not be held down either
            record.ever_up = True
            return LinkState.DRAINED
        now = self._context.now
        if record.state is LinkState.HELD:
            return LinkState.UP if now >= record.held_until else LinkState.HELD
        if not record.ever_up or record.bfd_starting or record.state is LinkState.QUARANTINED:
            record.ever_up = True
            return LinkState.UP
        recent = [t for t in record.flaps if t > now - self._context.intent.flap_memory_s]
        intent = self._context.intent
        record.held_until = now + backoff_s(intent.hold_down_s, len(recent) - 1, intent.hold_down_max_s)
        return LinkState.HELD

    def tick(self) -> None:
        """End hold-downs that are over; tell people of links that stay one-way."""
        now = self._context.now
        if now < self._wake_at:
            return
        for record in self.by_key.values():
            if record.state is LinkState.HELD and record.held_until <= now:
                self.evaluate(record)
            elif record.one_way_since is not None and record.one_way_since + self._patience_s <= now:
                record.one_way_since = None
                self._note("alarm", "link_one_way", record, "is heard in one direction only; not used")
        self._wake_at = min((t for t in map(self._wakes_at, self.by_key.values()) if t is not None), default=math.inf)

    @property
    def _patience_s(self) -> float:
        return self._context.intent.probe_interval_s * self._context.intent.probes_lost

    def _wakes_at(self, record: LinkRecord) -> float | None:
        if record.state is LinkState.HELD:
            return record.held_until
        return None if record.one_way_since is None else record.one_way_since + self._patience_s

    def next_deadline(self) -> float | None:
        return self._wake_at if self._wake_at < math.inf else None

    def joined(self, dpid: Dpid) -> bool:
        """Some link of this switch works, as far as can be seen."""
        return any(r.state in (*WORKING, LinkState.HELD) and dpid in (r.a.dpid, r.b.dpid) for r in self.by_key.values())

    def of_switch(self, dpid: Dpid) -> bool:
        """Any link of this switch is known."""
        return bool(self._ends_of.get(dpid))

    def unsettled(self) -> list[LinkKey]:
        """Links that are UP at their own ends and not yet counted on elsewhere."""
        return [r.key for r in self.by_key.values() if r.moving]

    def settle(self, keys: list[LinkKey]) -> None:
        """Both ends have acknowledged tables that use these links."""
        for key in keys:
            record = self.by_key.get(key)
            if record is None or not record.moving:
                continue
            self.dirty = True
            if record.drained:
                self._set_drained(record)
            else:
                record.settled = True

    def redrain(self) -> None:
        """What is drained has changed: begin to leave links, or to use them again."""
        for record in self.by_key.values():
            wanted = self.drained_by(record)
            if wanted is record.drained:
                continue
            record.drained = wanted
            self.dirty = True
            if record.state is LinkState.UP:
                record.settled = False
            elif record.state is LinkState.DRAINED:
                record.state = LinkState.UP
                self._announce(record, LinkState.DRAINED, "")
                self._save(record)
            else:
                self.evaluate(record)

    def _set_drained(self, record: LinkRecord) -> None:
        record.state = LinkState.DRAINED
        self._announce(record, LinkState.UP, "")
        self._save(record)

    def link(self, record: LinkRecord) -> Link:
        return Link(record.a, record.b, record.state, record.settled)

    def snapshot(self) -> tuple[Link, ...]:
        return tuple(self.link(self.by_key[k]) for k in sorted(self.by_key))

    def rescue(self) -> None:
        """A working link is not held down when nothing else joins its two ends: a flapping path is better than none.

        Its flaps are remembered, so it is held again as soon as something else connects them.
        """
        held = [r for r in self.by_key.values() if r.state is LinkState.HELD]
        if not held:
            return
        joined = UnionFind([end.dpid for r in self.by_key.values() for end in r.key])
        for record in self.by_key.values():
            if record.state is LinkState.UP:
                joined.union(record.a.dpid, record.b.dpid)
        for record in held:
            if joined[record.a.dpid] != joined[record.b.dpid]:
                joined.union(record.a.dpid, record.b.dpid)
                record.held_until = self._context.now
                self.evaluate(record)

    def held_until(self) -> dict[PortRef, float]:
        """When hold-downs end, by the link's first end."""
        return {r.a: r.held_until for r in self.by_key.values() if r.state is LinkState.HELD}

    def bfd_state(self, end: PortRef, state: str) -> None:
        """BFD of a port as its switch reports it."""
        if state == "up":
            self._bfd_seen_up.add(end)
            self._bfd_up.add(end)
            return
        self._bfd_up.discard(end)
        if state == "off":
            self._bfd_seen_up.discard(end)

    def _bfd_starting(self, record: LinkRecord) -> bool:
        """Liveness is lost with the carrier there and BFD never yet up: we have just turned BFD on, no cable failed."""
        if record.key not in self.bfd_started:
            return False
        ports = [self._switches.port(end) for end in record.key]
        carrier = all(p is not None and not p.link_down and not p.admin_down for p in ports)
        silent = any(p is not None and not p.live for p in ports)
        return carrier and silent and not self._bfd_seen_up.intersection(record.key)

    def wanted_bfd(self) -> tuple[LinkKey, ...]:
        """Links that should be watched by BFD: confirmed once and not quarantined, whoever is connected right now."""
        return tuple(k for k, r in sorted(self.by_key.items()) if r.ever_up and not r.quarantined)

    def _add(self, record: LinkRecord) -> None:
        record.drained = self.drained_by(record)
        self.by_key[record.key] = record
        for end in record.key:
            self.by_port[end] = record
            self._ends_of.setdefault(end.dpid, set()).add(end)
        self.dirty = True

    def _make_room(self, sender: PortRef, receiver: PortRef) -> bool:
        """A port has one cable: an old link yields when it is no longer heard, else the newcomer is refused."""
        for end in (sender, receiver):
            old = self.by_port.get(end)
            if old is None:
                continue
            if old.heard_ab and old.heard_ba and old.state in (*WORKING, LinkState.HELD) and self._there(old.other(end)):
                text = f"{self._switches.text(end)} hears a second neighbour; is there a hub, or is LLDP being relayed?"
                self._context.note_quietly(end, "alarm", "link_two_neighbours", text, {"port": str(end)})
                return False
            self.remove(old, "the cable was moved: another neighbour is heard")
        return True

    def _contradicts(self, a: PortRef, b: PortRef) -> bool:
        """In a tiered fabric two leaves, or two spines, are never joined (DESIGN 3, "What is a link").

        Both must have a place already, confirmed by a switch of the other tier that is certain of its own: a spine
        without a single open edge port, or any leaf.  So meshes, and racks whose hosts have not spoken, are left alone,
        and a new switch gets its place by its first link.
        """
        roles = self.roles()
        role = roles.get(a.dpid)
        if role is not roles.get(b.dpid) or role not in (Role.LEAF, Role.SPINE):
            return False
        return self._placed(a.dpid, role, roles, (a, b)) and self._placed(b.dpid, role, roles, (a, b))

    def _placed(self, dpid: Dpid, role: Role, roles: Mapping[Dpid, Role], but: LinkKey) -> bool:
        """One certain spine confirms a leaf; a spine needs two leaves, for one leaf also hangs at the end of a chain."""
        other = Role.SPINE if role is Role.LEAF else Role.LEAF
        confirming: set[Dpid] = set()
        for end in self._ends_of.get(dpid, ()):
            record = self.by_port.get(end)
            if record is None or record.key == but or record.quarantined or not record.ever_up:
                continue
            far = record.other(end).dpid
            if roles.get(far) is other and (other is Role.LEAF or not self._open_edge(far)):
                confirming.add(far)
        return len(confirming) >= (2 if role is Role.SPINE else 1)

    def _open_edge(self, dpid: Dpid) -> bool:
        switch = self._switches.by_dpid.get(dpid)
        return switch is None or any(p.role is PortRole.EDGE and p.usable for p in switch.ports.values())

    def reconsider(self) -> None:
        """Roles may have changed: what no longer contradicts them is used, what does now is not."""
        for record in self.by_key.values():
            contradicts = self._contradicts(*record.key)
            if contradicts is record.quarantined:
                continue
            record.quarantined = contradicts
            if contradicts:
                self._note("alarm", "link_quarantined", record, QUARANTINE)
                self.on_quarantined(record.key)
            else:
                self.on_accepted(record.key)
            self.evaluate(record)

    def _there(self, end: PortRef) -> bool:
        """Its switch is connected, so its probes would be heard if the cable still led there."""
        record = self._switches.by_dpid.get(end.dpid)
        return record is not None and record.session is not None

    def _usable(self, end: PortRef) -> bool:
        """A port of a switch that is away counts as usable: only the end we can see can tell (fail static)."""
        record = self._switches.by_dpid.get(end.dpid)
        if record is None or record.session is None:
            return True
        port = record.ports.get(end.port)
        return port is not None and port.usable

    def _announce(self, record: LinkRecord, old: LinkState, why: str) -> None:
        new = record.state
        if new is LinkState.UP:
            self._note("info", "link_up", record, "carries traffic")
        elif new is LinkState.DRAINED:
            self._note("info", "link_drained", record, "works; drained, so it carries no traffic")
        elif new is LinkState.HELD:
            pause = record.held_until - self._context.now
            self._note("info", "link_held", record, f"works again; held down for {pause:.1f} s ({len(record.flaps)} flaps)")
        elif new is LinkState.ONE_WAY:
            if old is LinkState.UP:
                self._note("alarm", "link_one_way", record, why or "is heard in one direction only; not used")
        elif new is LinkState.DOWN and record.ever_up:
            severity = "info" if record.drained else "warning"  # who works on it knows
            self._note(severity, "link_down", record, (why or "is down") + (" (drained)" if record.drained else ""))

    def _note(self, severity: str, kind: str, record: LinkRecord, text: str) -> None:
        ends = f"{self._switches.text(record.a)} <-> {self._switches.text(record.b)}"
        self._context.note(
            severity, kind, f"{ends}: {text}", {"a": str(record.a), "b": str(record.b), "state": record.state.value}
        )

    def _save(self, record: LinkRecord) -> None:
        keep = record.ever_up and not record.quarantined
        held = record.held_until if record.state is LinkState.HELD else 0.0
        if keep and record.saved != (record.state, held):
            record.saved = (record.state, held)
            self._context.emit(SaveLink(self.link(record), held_until_s=held))
