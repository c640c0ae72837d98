"""Drains: what an operator keeps traffic off, who did it, when and why."""

from __future__ import annotations

from dataclasses import dataclass

from aifabric_ctrl.model.ids import Dpid, PortRef, dpid_text


@dataclass(frozen=True, slots=True, order=True)
class DrainTarget:
    """What is drained: a whole switch (``port`` None), a host port (``far`` None) or a cable (ends in order)."""

    dpid: Dpid
    port: PortRef | None = None
    far: PortRef | None = None

    def __str__(self) -> str:
        if self.port is None:
            return dpid_text(self.dpid)
        return str(self.port) if self.far is None else f"{self.port} <-> {self.far}"


@dataclass(frozen=True, slots=True)
class Drain:
    """One drain.  ``since_wall_s`` is seconds since the Unix epoch, given by the shell that took the request."""

    target: DrainTarget
    who: str
    reason: str
    since_wall_s: float
