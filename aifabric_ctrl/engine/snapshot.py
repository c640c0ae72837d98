"""The engine's records as one immutable Fabric, rebuilt only when something the compiler reads has changed."""

from __future__ import annotations

from collections.abc import Mapping

from aifabric_ctrl.engine.context import Context
from aifabric_ctrl.engine.switches import Switches, SwitchRecord
from aifabric_ctrl.model.fabric import Address, Fabric, Host, Link, Switch
from aifabric_ctrl.model.ids import Dpid


class Snapshot:
    """Keeps the last Fabric and reuses the parts that are unchanged, so that memoised compilation can."""

    def __init__(self, context: Context, switches: Switches) -> None:
        self._context = context
        self._switches = switches
        self._parts: dict[Dpid, Switch] = {}
        self.fabric = Fabric()

    def build(
        self, links: tuple[Link, ...], hosts: Mapping[Address, Host], tombstones: frozenset[tuple[Dpid, Address]]
    ) -> Fabric:
        """The fabric of this moment; hosts without the time they were last seen, which changes no rule."""
        switches = {r.dpid: self._switch(r) for r in sorted(self._switches, key=lambda r: r.dpid)}
        self.fabric = Fabric(switches, links, dict(hosts), tombstones)
        return self.fabric

    def _switch(self, record: SwitchRecord) -> Switch:
        part = Switch(
            record.dpid,
            record.name,
            record.address,
            record.session is not None,
            record.programmed,
            dict(record.ports),
            record.features,
        )
        old = self._parts.get(record.dpid)
        if old == part:
            return old
        self._parts[record.dpid] = part
        return part
