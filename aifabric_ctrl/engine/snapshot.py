"""The engine's records as one immutable Fabric, rebuilt only when something the compiler reads has changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aifabric_ctrl.engine.context import Context
from aifabric_ctrl.engine.drains import Drains
from aifabric_ctrl.engine.switches import Switches, SwitchRecord
from aifabric_ctrl.model.fabric import Address, Fabric, Host, Link, Switch
from aifabric_ctrl.model.ids import Dpid


class Snapshot:
    """Keeps the last Fabric and reuses the parts that are unchanged, so that memoised compilation can."""

    def __init__(self, context: Context, switches: Switches, drains: Drains) -> None:
        self._context = context
        self._drains = drains
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
        ports = dict(record.ports)
        for target in self._drains.by_target:
            if target.dpid == record.dpid and target.port is not None and target.far is None and target.port.port in ports:
                ports[target.port.port] = replace(ports[target.port.port], drained=True)
        part = Switch(
            record.dpid,
            record.name,
            record.address,
            record.session is not None,
            record.programmed,
            ports,
            record.features,
            drained=self._drains.switch(record.dpid),
        )
        old = self._parts.get(record.dpid)
        if old == part:
            return old
        self._parts[record.dpid] = part
        return part
