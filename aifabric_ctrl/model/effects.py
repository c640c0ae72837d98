"""Everything the engine can ask for, as a closed union.  The shells carry these out; the core never does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aifabric_ctrl.model.drains import Drain
from aifabric_ctrl.model.events import Session
from aifabric_ctrl.model.fabric import Host, Link
from aifabric_ctrl.model.ids import PORT_CONTROLLER, Dpid, PortNo, PortRef
from aifabric_ctrl.model.rules import Action, Flow, Group, Meter


@dataclass(frozen=True, slots=True)
class Change:
    """One message to a switch.  ``op`` is "put" (add or replace) or "delete".

    A flow is put with ADD (which replaces, keeps counters and takes the new cookie), a group or meter with MODIFY when
    ``exists`` and ADD otherwise; deletes are strict, with out_port and out_group ANY.
    """

    op: str
    object: Flow | Group | Meter
    exists: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """Changes that may be carried out in any order; a barrier follows."""

    name: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class SendPlan:
    """Send the stages in order.  Neighbouring stages of groups and flows may be committed as one ONF bundle."""

    session: Session
    plan: int
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class PacketOut:
    """Send a frame from a switch; the session may drop it when its bucket for such frames is empty."""

    session: Session
    actions: tuple[Action, ...]
    data: bytes
    in_port: PortNo = PORT_CONTROLLER


@dataclass(frozen=True, slots=True)
class ReadTables:
    """Read back flows, groups and meters in pages; answered by TablesRead."""

    session: Session


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Drop the connection."""

    session: Session
    reason: str


@dataclass(frozen=True, slots=True)
class SaveHost:
    """Store (or, when ``gone``, forget) one host."""

    host: Host
    gone: bool = False


@dataclass(frozen=True, slots=True)
class SaveLink:
    """Store (or forget) one link, with the time its hold-down ends (monotonic s, 0 for none)."""

    link: Link
    gone: bool = False
    held_until_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SavePorts:
    """Store a switch's port roles by number (the role's value)."""

    dpid: Dpid
    roles: Mapping[PortNo, str]


@dataclass(frozen=True, slots=True)
class SaveDrain:
    """Store (or forget) one drain."""

    drain: Drain
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to an ``OperatorAsked``: done or not, a sentence for a person (what is wrong, what to do), JSON-able data."""

    request: int
    ok: bool
    text: str
    data: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WantBfd:
    """Want BFD on both ends of exactly these links (the whole set at this moment), with this interval.

    Only links in ``start`` may begin now, all of them at once; the others keep what they have.
    """

    links: tuple[tuple[PortRef, PortRef], ...]
    interval_ms: int
    start: tuple[tuple[PortRef, PortRef], ...] = ()


@dataclass(frozen=True, slots=True)
class Journal:
    """One line for people: ``severity`` is info, warning or alarm; ``kind`` a stable name; ``data`` JSON-able."""

    severity: str
    kind: str
    text: str
    data: Mapping[str, object] = field(default_factory=dict)


Effect = (
    SendPlan | PacketOut | ReadTables | CloseSession | SaveHost | SaveLink | SavePorts | SaveDrain | WantBfd | Answer | Journal
)
