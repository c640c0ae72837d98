"""Everything that can happen to the engine, as a closed union.  Each event carries its time.

``at`` is monotonic seconds (CLOCK_MONOTONIC), the only clock the core knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aifabric_ctrl.model.blueprint import Blueprint
from aifabric_ctrl.model.drains import Drain
from aifabric_ctrl.model.fabric import Features, Host, Link, Port
from aifabric_ctrl.model.ids import Dpid, PortNo
from aifabric_ctrl.model.rules import Flow, Group, Meter

Session = int  # one TCP connection of one switch; never reused within a process


@dataclass(frozen=True, slots=True)
class Remembered:
    """What the store knew at start.  ``switches`` maps dpid to {port number: role value}."""

    at: float
    switches: Mapping[Dpid, Mapping[PortNo, str]] = field(default_factory=dict)
    links: tuple[Link, ...] = ()
    hosts: tuple[Host, ...] = ()
    held_until_s: Mapping[tuple[Dpid, PortNo], float] = field(default_factory=dict)
    drains: tuple[Drain, ...] = ()


@dataclass(frozen=True, slots=True)
class SwitchConnected:
    """A session finished its handshake: identity, ports and features are known."""

    at: float
    session: Session
    dpid: Dpid
    address: str
    ports: tuple[Port, ...]
    features: Features
    name: str = ""


@dataclass(frozen=True, slots=True)
class SwitchGone:
    """A session ended, for whatever reason."""

    at: float
    session: Session
    reason: str


@dataclass(frozen=True, slots=True)
class PortChanged:
    """PORT_STATUS.  ``reason`` is "add", "delete" or "modify"; unknown reasons arrive as "modify"."""

    at: float
    session: Session
    reason: str
    port: Port


@dataclass(frozen=True, slots=True)
class FrameIn:
    """PACKET_IN: a frame as it arrived at ``port``; ``reason`` is OFPR_*, ``table`` the table that sent it."""

    at: float
    session: Session
    port: PortNo
    table: int
    reason: int
    cookie: int
    data: bytes


@dataclass(frozen=True, slots=True)
class TablesRead:
    """A complete read-back: ours (by cookie, by id range), and one line of text about each foreign object or about them all."""

    at: float
    session: Session
    flows: tuple[Flow, ...]
    groups: tuple[Group, ...]
    meters: tuple[Meter, ...]
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanAcked:
    """The last barrier of a plan came back."""

    at: float
    session: Session
    plan: int


@dataclass(frozen=True, slots=True)
class ObjectRefused:
    """The switch answered one object of a plan with an error (``error`` is text like "BAD_ACTION/BAD_OUT_PORT")."""

    at: float
    session: Session
    plan: int
    object: Flow | Group | Meter | None
    error: str


@dataclass(frozen=True, slots=True)
class OddFrame:
    """Something from a session that was counted and dropped (kind is a counter name), e.g. "error_unmatched"."""

    at: float
    session: Session
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class DuplicateVerdict:
    """A second connection claimed a live dpid: ``winner`` stays, ``loser`` was closed."""

    at: float
    dpid: Dpid
    winner: str
    loser: str


@dataclass(frozen=True, slots=True)
class BfdReport:
    """The OVSDB worker's view of one bridge: BFD state by port number ("up", "down", "init", "admin_down", "off"),
    and its fail mode ("secure", "standalone" or "")."""

    at: float
    dpid: Dpid
    states: Mapping[PortNo, str]
    fail_mode: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class BlueprintRead:
    """The fabric file was read, at start or because it changed.  ``refused`` non-empty: it is bad, and the one in use stays."""

    at: float
    blueprint: Blueprint
    refused: str = ""


@dataclass(frozen=True, slots=True)
class OperatorAsked:
    """A request of an operator, answered by one ``Answer`` effect with the same ``request``, at once or later.

    ``verb`` is "drain", "undrain", "audit" or "repair"; ``target`` is as the operator wrote it (empty: everything);
    ``wall_s`` is seconds since the Unix epoch.
    """

    at: float
    request: int
    verb: str
    target: str = ""
    who: str = ""
    reason: str = ""
    force: bool = False
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; nothing else happened."""

    at: float


Event = (
    Remembered
    | SwitchConnected
    | SwitchGone
    | PortChanged
    | FrameIn
    | TablesRead
    | PlanAcked
    | ObjectRefused
    | OddFrame
    | DuplicateVerdict
    | BfdReport
    | BlueprintRead
    | OperatorAsked
    | Tick
)
