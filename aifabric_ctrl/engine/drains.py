"""Drains: keeping traffic off a switch, a cable or a host port, with nothing lost and nobody cut off unawares.

Make before break, in two steps (:mod:`aifabric_ctrl.engine.links` takes them): first a drained cable is UP but not settled,
so that everybody but its own two ends steers away from it; after those barriers it is DRAINED and its ends leave it as well.
This module only decides what is to be drained, whether that may be, and answers whoever asked.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from aifabric_ctrl.compile.snapshot import take
from aifabric_ctrl.engine.context import Context
from aifabric_ctrl.engine.links import LinkKey, LinkRecord, Links
from aifabric_ctrl.engine.switches import Switches, SwitchRecord
from aifabric_ctrl.model.drains import Drain, DrainTarget
from aifabric_ctrl.model.effects import Answer, SaveDrain
from aifabric_ctrl.model.errors import InvalidValue
from aifabric_ctrl.model.events import OperatorAsked
from aifabric_ctrl.model.fabric import Fabric, Host, Link, LinkState, Reach, Role
from aifabric_ctrl.model.ids import Dpid, PortRef, dpid_text

ANSWER_S = 10.0  # an answer waits this long for barriers; the drain itself goes on
NAMED = 4  # hosts or leaves that a refusal names
DRAINS_MAX = 4096


@dataclass
class _Waiting:
    """Who waits for which cables to be left (or used again)."""

    request: int
    keys: list[LinkKey]
    until: float
    text: str
    data: dict[str, object]


class Drains:
    """What operators drained, by target."""

    def __init__(self, context: Context, switches: Switches, links: Links) -> None:
        self._context = context
        self._switches = switches
        self._links = links
        self.by_target: dict[DrainTarget, Drain] = {}
        self._waiting: list[_Waiting] = []

    def restore(self, drains: Sequence[Drain]) -> None:
        """Take the store's drains; call it before the links are restored."""
        self.by_target = {d.target: d for d in drains}

    def link(self, record: LinkRecord) -> bool:
        """Is this cable to be kept free of traffic, by itself or because of a switch at its end?"""
        if not self.by_target:
            return False
        if DrainTarget(record.a.dpid, record.a, record.b) in self.by_target:
            return True
        return any(self.switch(end.dpid) or self.port(end) for end in record.key)

    def switch(self, dpid: Dpid) -> bool:
        return DrainTarget(dpid) in self.by_target

    def port(self, ref: PortRef) -> bool:
        return DrainTarget(ref.dpid, ref) in self.by_target

    # -- requests ------------------------------------------------------------------------------------------------------

    def ask(self, event: OperatorAsked, fabric: Fabric) -> bool:
        """Drain or undrain.  True when something changes; the answer comes at once or when the tables are there."""
        try:
            target = self._target(event.target)
            if event.verb == "undrain":
                return self._undrain(event, target)
            return self._drain(event, target, fabric)
        except InvalidValue as error:
            self._context.emit(Answer(event.request, False, f"{error.what}; {error.do}" if error.do else error.what))
            return False

    def _drain(self, event: OperatorAsked, target: DrainTarget, fabric: Fabric) -> bool:
        old = self.by_target.get(target)
        name = self.text(target)
        if old is not None:
            text = f"{name} is drained already, by {old.who or 'somebody'}" + (f" ({old.reason})" if old.reason else "")
            self._context.emit(Answer(event.request, True, text, {"changed": False, "target": name}))
            return False
        if len(self.by_target) >= DRAINS_MAX:
            raise InvalidValue(f"{DRAINS_MAX} drains are in force", "undrain something first")
        refusals = self._refusals(target, fabric)
        if refusals and not event.force:
            raise InvalidValue(f"{name} is not drained: {'; '.join(refusals)}", "insist with --force")
        drain = Drain(target, event.who, event.reason, event.wall_s)
        self.by_target[target] = drain
        self._context.emit(SaveDrain(drain))
        self._note("drained", drain, refusals)
        warned = f" (forced: {'; '.join(refusals)})" if refusals else ""
        self._changed(event.request, target, f"{name} is drained{warned}", {"warnings": refusals})
        return True

    def _undrain(self, event: OperatorAsked, target: DrainTarget) -> bool:
        name = self.text(target)
        drain = self.by_target.pop(target, None)
        if drain is None:
            text = f"{name} is not drained"
            by_switch = [d for d in self.by_target if d.port is None and target.port is not None and d.dpid in _ends(target)]
            if by_switch:
                raise InvalidValue(f"{name} is drained with {self.text(by_switch[0])}", "undrain that")
            self._context.emit(Answer(event.request, True, text, {"changed": False, "target": name}))
            return False
        self._context.emit(SaveDrain(drain, gone=True))
        self._note("undrained", replace(drain, who=event.who, reason=event.reason))
        self._changed(event.request, target, f"{name} is used again", {})
        return True

    def _note(self, kind: str, drain: Drain, refusals: Sequence[str] = ()) -> None:
        text = f"{self.text(drain.target)} {kind} by {drain.who or 'somebody'}" + (f": {drain.reason}" if drain.reason else "")
        data = {"target": str(drain.target), "who": drain.who, "reason": drain.reason, "forced": list(refusals)}
        self._context.note("warning" if refusals else "info", kind, text, data)

    def _changed(self, request: int, target: DrainTarget, text: str, data: dict[str, object]) -> None:
        self._links.redrain()
        keys = [r.key for r in self._covered(target)]
        data = {"changed": True, "target": self.text(target), "links": len(keys), **data}
        self._waiting.append(_Waiting(request, keys, self._context.now + ANSWER_S, text, data))

    def answer(self) -> None:
        """Tell whose drains are complete, and whose take too long."""
        left = []
        for waiting in self._waiting:
            moving = [k for k in waiting.keys if (r := self._links.by_key.get(k)) is not None and r.moving]
            if moving and self._context.now < waiting.until:
                left.append(waiting)
                continue
            late = f"; still waiting for switches at {len(moving)} links, see 'aifabric status'" if moving else ""
            data = {**waiting.data, "complete": not moving}
            self._context.emit(Answer(waiting.request, True, waiting.text + late, data))
        self._waiting = left

    def next_deadline(self) -> float | None:
        return min((w.until for w in self._waiting), default=None)

    # -- may it be? ----------------------------------------------------------------------------------------------------

    def _covered(self, target: DrainTarget) -> list[LinkRecord]:
        if target.port is None:
            return [r for r in self._links.by_key.values() if target.dpid in (r.a.dpid, r.b.dpid)]
        record = self._links.by_port.get(target.port)
        return [record] if record is not None and (target.far is None or record.key == (target.port, target.far)) else []

    def _refusals(self, target: DrainTarget, fabric: Fabric) -> list[str]:
        keys = {r.key for r in self._covered(target)}
        lost = {link.ends for link in fabric.links if link.ends in keys and link.state in (LinkState.UP, LinkState.HELD)}
        if target.port is not None and not keys:
            return self._only_here(target.port, fabric)
        after = [replace(x, state=LinkState.DRAINED, settled=False) if x.ends in lost else x for x in fabric.links]
        cut = self._cut_off(fabric, replace(fabric, links=tuple(after)))
        return cut or self._below_floor(target, fabric.links, after)

    def _only_here(self, port: PortRef, fabric: Fabric) -> list[str]:
        alone = [h for h in fabric.hosts.values() if h.at == port and not h.also and h.reach >= Reach.LOCAL]
        return [f"{_named([str(h.ip) for h in alone])} can be reached nowhere else and would keep using it"] if alone else []

    def _cut_off(self, before: Fabric, after: Fabric) -> list[str]:
        """Leaves whose hosts reach each other now and would not: by the compiler's own paths."""
        was, then = take(before, self._context.intent).paths, take(after, self._context.intent).paths
        housed: dict[Dpid, list[Host]] = {}
        for host in after.hosts.values():
            if host.reach >= Reach.LOCAL:
                housed.setdefault(host.at.dpid, []).append(host)
        lost: dict[Dpid, set[Dpid]] = {}
        for there in sorted(housed):
            now, later = was.distances(there), then.distances(there)
            for here, hosts in housed.items():
                elsewhere = all(any(home.dpid in later for home in h.homes) for h in hosts)
                if here in now and here not in later and not elsewhere:
                    lost.setdefault(here, set()).add(there)
        found: list[str] = []
        told: set[Dpid] = set()
        for here in sorted(lost, key=lambda d: (-len(lost[d]), d)):
            if not lost[here] <= told:  # else the other side has told it
                told.add(here)
                hosts_text = _named([str(h.ip) for h in sorted(housed[here], key=lambda h: (h.ip.version, int(h.ip)))])
                others = _named([after.switches[d].text for d in sorted(lost[here])])
                found.append(f"{hosts_text} on {after.switches[here].text} would be cut off from {others}")
        return found[:NAMED]

    def _below_floor(self, target: DrainTarget, before: Sequence[Link], after: Sequence[Link]) -> list[str]:
        floor = self._context.intent.drain_floor_percent
        total, had, left = _capacity(before, False), _capacity(before, True), _capacity(after, True)
        housing = {d for d in total if d != target.dpid or target.port is not None}
        roles = self._links.roles()
        found = []
        for dpid in sorted(housing):
            keeps = 100 * left.get(dpid, 0) / total[dpid]
            loses = left.get(dpid, 0) < had.get(dpid, 0)
            if roles.get(dpid) is Role.LEAF and loses and keeps < floor:
                found.append(f"{self._name(dpid)} would keep {keeps:.0f}% of its uplink capacity (floor {floor}%)")
        return found

    # -- names ---------------------------------------------------------------------------------------------------------

    def _name(self, dpid: Dpid) -> str:
        record = self._switches.by_dpid.get(dpid)
        return record.text if record is not None else dpid_text(dpid)

    def text(self, target: DrainTarget) -> str:
        """A target as people know it."""
        if target.port is None:
            return self._name(target.dpid)
        near = self._switches.text(target.port)
        return near if target.far is None else f"{near} <-> {self._switches.text(target.far)}"

    def _target(self, text: str) -> DrainTarget:
        """``spine1``, a datapath id, or ``leaf1:11`` (number or name of a port).

        Raises:
            InvalidValue: there is no such thing; names the closest.
        """
        record = self._switch_called(text)
        if record is not None:
            return DrainTarget(record.dpid)
        name, colon, port = text.rpartition(":")
        record = self._switch_called(name) if colon else None
        if record is None:
            known = [n for r in self._switches for n in (r.name, dpid_text(r.dpid)) if n]
            raise InvalidValue(f"no switch is called {(name if colon else text)!r}", _nearest(name if colon else text, known))
        number = next((n for n, p in sorted(record.ports.items()) if port in (str(n), p.name)), None)
        if number is None:
            ports = [x for n, p in record.ports.items() for x in (str(n), p.name) if x]
            raise InvalidValue(f"{record.text} has no port {port!r}", _nearest(port, ports))
        ref = PortRef(record.dpid, number)
        known_drain = next((t for t in self.by_target if ref in (t.port, t.far)), None)
        cable = self._links.by_port.get(ref)
        if known_drain is not None:
            return known_drain
        return DrainTarget(ref.dpid, ref) if cable is None else DrainTarget(cable.a.dpid, cable.a, cable.b)

    def switch_named(self, text: str) -> Dpid:
        """A switch by name or datapath id.

        Raises:
            InvalidValue: there is none; names the closest.
        """
        record = self._switch_called(text)
        if record is None:
            known = [n for r in self._switches for n in (r.name, dpid_text(r.dpid)) if n]
            raise InvalidValue(f"no switch is called {text!r}", _nearest(text, known))
        return record.dpid

    def _switch_called(self, text: str) -> SwitchRecord | None:
        named = [r for r in self._switches if text and r.name == text]
        if len(named) > 1:
            ids = ", ".join(dpid_text(r.dpid) for r in named)
            raise InvalidValue(f"{len(named)} switches are called {text}", f"use a datapath id: {ids}")
        return named[0] if named else next((r for r in self._switches if dpid_text(r.dpid) == text.lower()), None)


def _ends(target: DrainTarget) -> set[Dpid]:
    return {ref.dpid for ref in (target.port, target.far) if ref is not None}


def _capacity(links: Sequence[Link], usable: bool) -> dict[Dpid, int]:
    """Capacity of each switch's cables, or of those that may carry traffic; cables of unknown speed count 1 each."""
    found: dict[Dpid, int] = {}
    for link in links:
        good = link.state in (LinkState.UP, LinkState.HELD) if usable else link.state is not LinkState.QUARANTINED
        for end in link.ends if good else ():
            found[end.dpid] = found.get(end.dpid, 0) + (link.capacity_bps or 1)
    return found


def _named(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _nearest(text: str, known: list[str]) -> str:
    near = difflib.get_close_matches(text, known, 3, 0.5)
    return f"did you mean {' or '.join(near)}?" if near else "see 'aifabric topology --ports'"
