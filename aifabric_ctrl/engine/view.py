"""What the northbound may see of the engine: one read-only value, cheap to make, safe to keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aifabric_ctrl.model.drains import Drain
from aifabric_ctrl.model.fabric import Address, Fabric
from aifabric_ctrl.model.ids import Dpid, PortRef
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.model.rules import Desired


@dataclass(frozen=True, slots=True)
class FailedObject:
    """One object a switch refused, as text, with the switch's error and the reason the object should exist."""

    object: str
    error: str
    why: str
    retries: int
    retry_at_s: float


@dataclass(frozen=True, slots=True)
class SwitchStatus:
    """One switch's synchronisation.

    ``sync`` is one of: away, reading, settling, syncing, in_sync, failed.  ``pending`` counts objects sent and not yet
    covered by a barrier.
    """

    sync: str
    flows: int = 0
    groups: int = 0
    meters: int = 0
    pending: int = 0
    failed: tuple[FailedObject, ...] = ()
    foreign: tuple[str, ...] = ()
    fail_mode: str = ""
    connected_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One object of an audit: ``kind`` is missing, excess, different or refused; ``why`` it should exist."""

    kind: str
    object: str
    why: str


@dataclass(frozen=True, slots=True)
class AuditResult:
    """What an audit of one switch found.  ``state`` is audited, away or busy (did not come to rest)."""

    state: str
    at_s: float
    differences: int = 0
    findings: tuple[Finding, ...] = ()
    foreign: tuple[str, ...] = ()
    flows: int = 0
    groups: int = 0
    meters: int = 0


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One line of the journal; ids rise by one, so a reader can ask for what came after the last it saw."""

    id: int
    at_s: float
    severity: str
    kind: str
    text: str
    data: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Convergence:
    """From an event that changed the plan to the last barrier of what it changed.

    ``planned_ms`` is the part until everything was handed to the sessions: what the controller itself took.  It is
    ``duration_ms`` where no shell tells the engine.
    """

    cause: str
    at_s: float
    planned_ms: float
    duration_ms: float
    messages: int
    switches: int


@dataclass(frozen=True)
class EngineView:
    """Everything the CLI, the API and the dashboard read."""

    now_s: float
    ready: bool
    not_ready: tuple[str, ...]
    fabric: Fabric
    intent: Intent
    desired: Desired
    switches: Mapping[Dpid, SwitchStatus]
    bfd: Mapping[PortRef, str] = field(default_factory=dict)
    held_until_s: Mapping[PortRef, float] = field(default_factory=dict)
    seen_s: Mapping[Address, float] = field(default_factory=dict)  # when each host was last heard of (monotonic s)
    journal: Sequence[JournalEntry] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    convergence: Sequence[Convergence] = ()
    audits: Mapping[Dpid, AuditResult] = field(default_factory=dict)  # the last of each switch
    drains: Sequence[tuple[Drain, str]] = ()  # each with its target as people know it
