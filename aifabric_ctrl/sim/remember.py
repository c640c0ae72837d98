"""A store in memory: what the engine asked to be kept, given back as ``Remembered``."""

from __future__ import annotations

from collections.abc import Mapping

from aifabric_ctrl.model.drains import Drain, DrainTarget
from aifabric_ctrl.model.effects import Effect, SaveDrain, SaveHost, SaveLink, SavePorts
from aifabric_ctrl.model.events import Remembered
from aifabric_ctrl.model.fabric import Address, Host, Link
from aifabric_ctrl.model.ids import Dpid, PortNo, PortRef


class MemStore:
    """Keeps hosts, links and port roles as the SQLite store does."""

    def __init__(self) -> None:
        self.hosts: dict[Address, Host] = {}
        self.links: dict[tuple[PortRef, PortRef], tuple[Link, float]] = {}
        self.drains: dict[DrainTarget, Drain] = {}
        self.roles: dict[Dpid, Mapping[PortNo, str]] = {}

    def take(self, effect: Effect) -> None:
        """Record a Save effect; others are ignored."""
        match effect:
            case SaveHost(host=host, gone=gone):
                if gone:
                    self.hosts.pop(host.ip, None)
                else:
                    self.hosts[host.ip] = host
            case SaveLink(link=link, gone=gone, held_until_s=held):
                if gone:
                    self.links.pop((link.a, link.b), None)
                else:
                    self.links[(link.a, link.b)] = (link, held)
            case SavePorts(dpid=dpid, roles=roles):
                self.roles[dpid] = dict(roles)
            case SaveDrain(drain=drain, gone=gone):
                self.drains.pop(drain.target, None)
                if not gone:
                    self.drains[drain.target] = drain
            case _:
                pass

    def remembered(self, at: float) -> Remembered:
        """What a restarted engine is told."""
        held = {(end.dpid, end.port): until for link, until in self.links.values() if until > at for end in (link.a, link.b)}
        links, hosts = tuple(x for x, _ in self.links.values()), tuple(self.hosts.values())
        return Remembered(at, dict(self.roles), links, hosts, held, tuple(self.drains.values()))
