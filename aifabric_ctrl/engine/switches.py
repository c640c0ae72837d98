"""Switches and their sessions: who is connected, what its ports are, what its tables are believed to hold.

Everything is keyed by session where a late event of an old connection could otherwise hit the new one (DESIGN
invariant 9, case CONN-03).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from aifabric_ctrl.engine.context import Context
from aifabric_ctrl.engine.view import FailedObject, SwitchStatus
from aifabric_ctrl.model.events import PortChanged, Session, SwitchConnected, SwitchGone
from aifabric_ctrl.model.fabric import Features, Port, PortRole
from aifabric_ctrl.model.ids import Dpid, PortNo, PortRef, dpid_text, is_physical
from aifabric_ctrl.model.rules import Flow, Group, Meter, Tables
from aifabric_ctrl.plan.believed import Believed

Item = Flow | Group | Meter
PORTS_MAX = 2048  # of one switch; the largest chassis have a quarter of that


@dataclass
class Outstanding:
    """A plan that was sent and whose last barrier has not come back."""

    plan: int
    puts: dict[Item, Item | None]  # what was put, and what was at its place before
    objects: int
    sent_at: float
    refused: list[Item] = field(default_factory=list)


@dataclass
class SwitchRecord:
    """One switch, connected or remembered."""

    dpid: Dpid
    name: str = ""
    address: str = ""
    session: Session | None = None
    features: Features = field(default_factory=Features)
    ports: dict[PortNo, Port] = field(default_factory=dict)
    believed: Believed | None = None  # None until read back in this session
    outstanding: dict[int, Outstanding] = field(default_factory=dict)
    programmed: bool = False
    synced: Tables | None = None  # the compiled tables that were last sent in full
    base_sent: bool = False
    foreign: tuple[str, ...] = ()
    connected_at: float = 0.0
    closing: bool = False
    retiring: dict[int, float] = field(default_factory=dict)  # groups nothing uses any more, and when they go
    reread_at: float = 0.0  # when its tables are read back again
    read_clean: bool = False  # nothing was sent since they were last asked for
    adopt_until: float = 0.0  # has tables the store did not know; they are left alone until then

    @property
    def text(self) -> str:
        return self.name or dpid_text(self.dpid)

    def port_text(self, port: PortNo) -> str:
        """``leaf1:3`` or ``leaf1:l1-eth3`` when the switch names its ports."""
        known = self.ports.get(port)
        return f"{self.text}:{port}" + (f" ({known.name})" if known and known.name else "")


class Switches:
    """All switches by dpid."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.by_dpid: dict[Dpid, SwitchRecord] = {}
        self._dpid_by_session: dict[Session, Dpid] = {}
        self._plans = 0

    def __iter__(self) -> Iterator[SwitchRecord]:
        return iter(self.by_dpid.values())

    def of_session(self, session: Session) -> SwitchRecord | None:
        """The switch whose current session this is; None for a session that has been replaced or has ended."""
        dpid = self._dpid_by_session.get(session)
        record = self.by_dpid.get(dpid) if dpid is not None else None
        return record if record is not None and record.session == session else None

    def port(self, ref: PortRef) -> Port | None:
        record = self.by_dpid.get(ref.dpid)
        return record.ports.get(ref.port) if record else None

    def text(self, ref: PortRef) -> str:
        """A port as people know it."""
        record = self.by_dpid.get(ref.dpid)
        return record.port_text(ref.port) if record else str(ref)

    def remember(self, dpid: Dpid, roles: Mapping[PortNo, PortRole]) -> None:
        """A switch the store knows, until it connects taken to forward as it did (fail static)."""
        record = self.by_dpid.setdefault(dpid, SwitchRecord(dpid))
        record.programmed = True
        for number, role in roles.items():
            record.ports.setdefault(number, Port(number, role=role))

    def connected(self, event: SwitchConnected) -> tuple[SwitchRecord, dict[PortNo, Port]]:
        """Take over a session.  Returns the record and the ports as they were known before."""
        record = self.by_dpid.setdefault(event.dpid, SwitchRecord(event.dpid))
        if record.session is not None:
            self._dpid_by_session.pop(record.session, None)
        before = record.ports
        record.session, record.address, record.features = event.session, event.address, event.features
        record.name = event.name or record.name
        record.ports = {p.number: self._merge(record, before.get(p.number), p) for p in event.ports if is_physical(p.number)}
        record.believed, record.synced, record.base_sent = None, None, False
        record.outstanding.clear()
        record.retiring.clear()
        record.connected_at, record.closing, record.adopt_until = event.at, False, 0.0
        self._dpid_by_session[event.session] = event.dpid
        return record, before

    def gone(self, event: SwitchGone) -> SwitchRecord | None:
        """End a session; None when it was not anybody's current one."""
        record = self.of_session(event.session)
        self._dpid_by_session.pop(event.session, None)
        if record is not None:
            record.session, record.believed, record.synced = None, None, None
            record.outstanding.clear()
        return record

    def forget(self, dpid: Dpid) -> None:
        """A switch that never carried anything is gone: remember nothing of it."""
        self.by_dpid.pop(dpid, None)

    def port_changed(self, event: PortChanged) -> tuple[SwitchRecord, Port | None, Port | None] | None:
        """Apply a PORT_STATUS.  Returns (record, before, after), after None for a deleted port."""
        record = self.of_session(event.session)
        if record is None or not is_physical(event.port.number):
            return None
        before = record.ports.get(event.port.number)
        if before is None and len(record.ports) >= PORTS_MAX:
            self._context.count("ports_ignored")
            return None
        if event.reason == "delete":
            return record, record.ports.pop(event.port.number, None), None
        after = self._merge(record, before, event.port)
        record.ports[after.number] = after
        return record, before, after

    @staticmethod
    def _merge(record: SwitchRecord, before: Port | None, port: Port) -> Port:
        # Open vSwitch always reports liveness, so "not live" at first sight already means a dead BFD session.
        ever = port.live or record.features.nicira or (before is not None and before.ever_live)
        same = before is not None and before.name in (port.name, "")  # a remembered port has no name
        role = before.role if before is not None and same else PortRole.UNKNOWN
        return replace(port, ever_live=ever, role=role)

    def next_plan(self) -> int:
        self._plans += 1
        return self._plans

    def status(self, record: SwitchRecord, wanted: Tables | None, fail_mode: str) -> SwitchStatus:
        """For the view."""
        believed = record.believed or Believed()
        failed = tuple(
            FailedObject(object_text(f.item), f.error, why_of(f.item, wanted), f.retries, f.retry_at_s)
            for f in believed.failed.values()
        )
        return SwitchStatus(
            sync=self.sync_text(record),
            flows=len(believed.flows),
            groups=len(believed.groups),
            meters=len(believed.meters),
            pending=sum(o.objects for o in record.outstanding.values()),
            failed=failed,
            foreign=record.foreign,
            fail_mode=fail_mode,
            connected_at_s=record.connected_at,
        )

    @staticmethod
    def sync_text(record: SwitchRecord) -> str:
        """away, reading, settling, syncing, failed or in_sync."""
        if record.session is None:
            return "away"
        if record.believed is None:
            return "reading"
        if record.synced is None:
            return "settling"
        if record.outstanding or record.retiring:
            return "syncing"
        return "failed" if record.believed.failed else "in_sync"


def object_text(item: Item) -> str:
    """An object as people know it."""
    if isinstance(item, Flow):
        return f"rule table {item.table} priority {item.priority} {item.match}"
    if isinstance(item, Group):
        return f"group {item.group_id:#x} ({item.type}, {len(item.buckets)} buckets)"
    return f"meter {item.meter_id:#x}"


def why_of(item: Item, wanted: Tables | None) -> str:
    """The reason an object should exist, or empty."""
    if wanted is None:
        return ""
    why = wanted.why.get(item.key) if isinstance(item, Flow) else wanted.group_why.get(getattr(item, "group_id", -1))
    return why.reason if why else ""
