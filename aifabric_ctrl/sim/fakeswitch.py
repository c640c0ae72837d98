"""A fake switch that speaks model values: it takes plans, answers with events and keeps strict tables.

No sockets and no clock; ``memnet`` joins several of these, ``client`` puts one behind real OpenFlow.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from aifabric_ctrl.model.effects import SendPlan, Stage
from aifabric_ctrl.model.events import Event, ObjectRefused, PlanAcked, Session, SwitchConnected, TablesRead
from aifabric_ctrl.model.fabric import Features, Port
from aifabric_ctrl.model.ids import Dpid, PortNo
from aifabric_ctrl.model.ownership import flow_is_ours, group_is_ours, meter_is_ours
from aifabric_ctrl.model.rules import Tables
from aifabric_ctrl.sim.tables import Limits, Refused, SwitchTables
from aifabric_ctrl.sim.topology import OVS_FEATURES
from aifabric_ctrl.southbound.sender import units


class Unit(NamedTuple):
    """Stages that are carried out together: one bundle, or plain stages with a barrier each."""

    stages: tuple[Stage, ...]
    bundle: bool


class FakeSwitch:
    """One switch: ports, features, tables.

    Args:
        rng: with it, what lies between two barriers is applied in random order (case CONN-05).
    """

    def __init__(
        self,
        dpid: Dpid,
        ports: Iterable[Port],
        features: Features = OVS_FEATURES,
        name: str = "",
        limits: Limits | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.dpid = dpid
        self.name = name
        self.features = features
        self.ports: dict[PortNo, Port] = {p.number: p for p in ports}
        room = limits or Limits(features.tables, groups=features.max_groups, meters=features.max_meters)
        self.tables = SwitchTables(set(self.ports), room)
        self.plans = 0
        self._rng = rng

    def connected(self, at: float, session: Session, address: str = "127.0.0.1:1") -> SwitchConnected:
        """The event of a finished handshake."""
        return SwitchConnected(at, session, self.dpid, address, tuple(self.ports.values()), self.features, self.name)

    def live(self, number: PortNo) -> bool:
        """Liveness as a watch port sees it: carrier, and BFD where it is on."""
        port = self.ports.get(number)
        return port is not None and not port.link_down and not port.admin_down and port.live

    def set_port(self, number: PortNo, *, link_down: bool | None = None, live: bool | None = None) -> Port:
        """Change a port's state; without carrier it is not live."""
        port = self.ports[number]
        down = port.link_down if link_down is None else link_down
        alive = (not down) if live is None else live and not down
        self.ports[number] = replace(port, link_down=down, live=alive)
        return self.ports[number]

    def restart(self) -> None:
        """Lose every table entry; ports and features stay."""
        self.tables.clear()

    def snapshot(self) -> Tables:
        return self.tables.snapshot()

    def handle(self, plan: SendPlan, at: float) -> list[Event]:
        """Carry out a whole plan at once: refusals, then the acknowledgement."""
        refused = [r for step in self.steps(plan) for r in self.apply(step)]
        return [*self.refusals(plan, refused, at), PlanAcked(at, plan.session, plan.plan)]

    def steps(self, plan: SendPlan) -> list[Unit]:
        """What a plan is on the wire: bundles, or stages with a barrier each, as the session would send them."""
        self.plans += 1
        return [Unit(u.stages, u.bundle) for u in units(plan.stages, self.features.bundles)]

    def apply(self, unit: Unit) -> list[Refused]:
        """Carry out one unit.  A bundle that fails as a whole is sent again stage by stage, as the session does."""
        if unit.bundle and not self.tables.apply_bundle([c for s in unit.stages for c in s.changes]):
            return []
        return [r for s in unit.stages for r in self.tables.apply_all(s.changes, self._rng)]

    @staticmethod
    def refusals(plan: SendPlan, refused: Iterable[Refused], at: float) -> list[Event]:
        return [ObjectRefused(at, plan.session, plan.plan, change.object, error) for change, error in refused]

    def read(self, at: float, session: Session) -> TablesRead:
        """The read-back: our objects as values, foreign ones as text."""
        tables = self.tables
        foreign = [f"flow {f.key}" for f in tables.flows.values() if not flow_is_ours(f.cookie)]
        foreign += [f"group {g:#x}" for g in tables.groups if not group_is_ours(g)]
        foreign += [f"meter {m:#x}" for m in tables.meters if not meter_is_ours(m)]
        return TablesRead(
            at,
            session,
            tuple(f for f in tables.flows.values() if flow_is_ours(f.cookie)),
            tuple(g for n, g in tables.groups.items() if group_is_ours(n)),
            tuple(m for n, m in tables.meters.items() if meter_is_ours(n)),
            tuple(foreign),
        )
