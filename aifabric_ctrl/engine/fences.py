"""Waiting for barriers across switches: what may only happen after every switch has what was sent before.

A fence opens when all plans outstanding at its creation are acknowledged (or their session ended), or after
``FENCE_MAX_S``: one stuck switch may not stop the rest of the fabric (DESIGN invariant 7).  A switch that has been waited
for in vain is not waited for again before it answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aifabric_ctrl.engine.links import LinkKey
from aifabric_ctrl.model.events import Session
from aifabric_ctrl.model.fabric import Address

FENCE_MAX_S = 2.0  # with it a held first packet (3 s) still goes; healthy switches answer in milliseconds


@dataclass
class Fence:
    """What waits, and for which plans."""

    made_at: float
    waiting: set[tuple[Session, int]]
    hosts: list[Address] = field(default_factory=list)
    links: list[LinkKey] = field(default_factory=list)
    announced: list[Address] = field(default_factory=list)  # reachable once this opens: held packets go
    cause: str = ""
    cause_at: float = 0.0
    messages: int = 0
    switches: int = 0
    handed_at: float | None = None

    def open(self, now: float) -> bool:
        return not self.waiting or now >= self.made_at + FENCE_MAX_S


class Fences:
    """Open fences in order of creation."""

    def __init__(self) -> None:
        self._fences: list[Fence] = []

    def add(self, fence: Fence) -> None:
        self._fences.append(fence)

    def acked(self, session: Session, plan: int) -> None:
        for fence in self._fences:
            fence.waiting.discard((session, plan))

    def keep_sessions(self, live: set[Session]) -> None:
        """Sessions that were replaced will never answer."""
        for fence in self._fences:
            fence.waiting = {w for w in fence.waiting if w[0] in live}

    def session_ended(self, session: Session) -> None:
        for fence in self._fences:
            fence.waiting = {w for w in fence.waiting if w[0] != session}

    def take_open(self, now: float) -> list[Fence]:
        """Fences that have opened, oldest first; a later one never overtakes an earlier one."""
        ready: list[Fence] = []
        while self._fences and self._fences[0].open(now):
            ready.append(self._fences.pop(0))
        return ready

    def handed_over(self, now: float) -> None:
        """Everything sent so far is with the sessions."""
        for fence in reversed(self._fences):
            if fence.handed_at is not None:
                break
            fence.handed_at = now

    @property
    def pending(self) -> bool:
        return bool(self._fences)

    def waits_for(self) -> tuple[set[Address], set[LinkKey]]:
        """What is behind a fence already."""
        hosts = {ip for f in self._fences for ip in f.hosts}
        links = {k for f in self._fences for k in f.links}
        return hosts, links

    def next_deadline(self) -> float | None:
        return self._fences[0].made_at + FENCE_MAX_S if self._fences else None
