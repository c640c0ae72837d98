"""When which link starts BFD: one plane of the fabric at a time, so that nobody is cut off while sessions come up.

A port counts as dead from the moment BFD is switched on until the session is up (1-3 s in Open vSwitch).  Starting one
link of each leaf at a time is not enough: with two spines, leaf A without spine 1 and leaf B without spine 2 have no path
left between them.  All links of one spine may start together; elsewhere (rings, meshes) one link at a time.
Links that carry nothing may start at any time.
"""

from __future__ import annotations

from collections.abc import Mapping

from aifabric_ctrl.engine.context import Context
from aifabric_ctrl.engine.links import LinkKey, LinkRecord, Links
from aifabric_ctrl.model.effects import WantBfd
from aifabric_ctrl.model.fabric import LinkState, Role
from aifabric_ctrl.model.ids import Dpid, PortRef, dpid_text

PLANE_S = 12.0  # a plane whose sessions do not come up makes way for the next; the OVSDB worker gives up after 10 s
AGAIN_S = 60.0  # and is tried again after this


class BfdTurns:
    """Says which links are wanted with BFD and which of them may start it now."""

    def __init__(self, context: Context, links: Links) -> None:
        self._context = context
        self._links = links
        self.states: dict[PortRef, str] = {}
        self._plane: str | None = None
        self._plane_until = 0.0
        self._tried: dict[str, float] = {}
        self._last: WantBfd | None = None

    def reported(self, dpid: Dpid, states: Mapping[int, str]) -> None:
        """One bridge's BFD states by port number."""
        for ref in [r for r in self.states if r.dpid == dpid]:
            del self.states[ref]
            if ref.port not in states:
                self._links.bfd_state(ref, "off")
        for number, state in states.items():
            ref = PortRef(dpid, number)
            self.states[ref] = state
            self._links.bfd_state(ref, state)

    def want(self, roles: Mapping[Dpid, Role]) -> None:
        """Emit the wish when it has changed."""
        wanted = self._links.wanted_bfd()
        pending: dict[str, list[LinkKey]] = {}
        start: list[LinkKey] = []
        for key in wanted:
            record = self._links.by_key[key]
            if record.state not in (LinkState.UP, LinkState.DRAINED) and not record.bfd_starting:
                start.append(key)
            elif not self._up(key):
                pending.setdefault(self._plane_of(record, roles), []).append(key)
        plane = self._turn(sorted(pending))
        if plane is not None:
            start += pending[plane]
        wish = WantBfd(wanted, self._context.intent.bfd_interval_ms, tuple(sorted(start)))
        if wish != self._last:
            self._last = wish
            self._links.bfd_started |= set(wish.start)
            self._context.emit(wish)

    def _up(self, key: LinkKey) -> bool:
        return all(self.states.get(end) == "up" for end in key)

    def _plane_of(self, record: LinkRecord, roles: Mapping[Dpid, Role]) -> str:
        spines = [end.dpid for end in record.key if roles.get(end.dpid) is Role.SPINE]
        return f"spine {dpid_text(spines[0])}" if len(spines) == 1 else f"link {record.a} {record.b}"

    def _turn(self, planes: list[str]) -> str | None:
        """The plane whose turn it is; None while there is nothing to start or every plane failed lately."""
        now = self._context.now
        if self._plane in planes and now < self._plane_until:
            return self._plane
        if self._plane in planes:
            self._tried[self._plane or ""] = now
        self._tried = {p: at for p, at in self._tried.items() if p in planes and now < at + AGAIN_S}
        self._plane = next((p for p in planes if p not in self._tried), None)
        self._plane_until = now + PLANE_S
        return self._plane

    def next_deadline(self) -> float | None:
        """When it is the next plane's turn; None when that moment has passed and :meth:`want` has yet to be asked."""
        due = self._plane_until if self._plane is not None else min((at + AGAIN_S for at in self._tried.values()), default=None)
        return due if due is not None and due > self._context.now else None
