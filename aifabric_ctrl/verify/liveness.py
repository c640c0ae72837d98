"""What is live on one switch at one moment: ports, buckets, groups, and the choices a select group has.

Everything is worked out once per value, because a select group of many slots over chains would otherwise be asked the
same thing for every packet.
"""

from __future__ import annotations

from collections.abc import Callable

from aifabric_ctrl.model.errors import ContractError
from aifabric_ctrl.model.ids import GROUP_ANY, PORT_ANY, PortNo
from aifabric_ctrl.model.rules import Action, Bucket, Group, Tables

LivePort = Callable[[PortNo], bool]

MAX_DEPTH = 64  # groups below groups; OVS gives up at the same depth


class Liveness:
    """Answers for one switch's tables under one state of its ports; both must not change while it is used."""

    __slots__ = ("_different", "_groups", "_live", "_places", "_ports", "tables")

    def __init__(self, tables: Tables, live: LivePort) -> None:
        self.tables = tables
        self._live = live
        self._ports: dict[PortNo, bool] = {}
        self._groups: dict[int, bool] = {}
        self._places: dict[int, tuple[int, ...]] = {}
        self._different: dict[int, tuple[int, ...]] = {}

    def __call__(self, port: PortNo) -> bool:
        known = self._ports.get(port)
        if known is None:
            known = self._ports[port] = self._live(port)
        return known

    def bucket(self, bucket: Bucket, depth: int = 0) -> bool:
        """A bucket that watches nothing is live; one that watches both lives while either does (as OVS)."""
        if bucket.watch_port == PORT_ANY and bucket.watch_group == GROUP_ANY:
            return True
        if bucket.watch_port != PORT_ANY and self(bucket.watch_port):
            return True
        return bucket.watch_group != GROUP_ANY and self.group(bucket.watch_group, depth + 1)

    def group(self, group_id: int, depth: int = 0) -> bool:
        """A group is live while any of its buckets is.

        Raises:
            ContractError: groups watch each other in a circle.
        """
        known = self._groups.get(group_id)
        if known is not None:
            return known
        if depth > MAX_DEPTH:
            raise ContractError(f"group {group_id:#x} is watched {MAX_DEPTH} levels deep")
        group = self.tables.groups.get(group_id)
        alive = group is not None and any(self.bucket(b, depth) for b in group.buckets)
        self._groups[group_id] = alive
        return alive

    def places(self, group: Group) -> tuple[int, ...]:
        """Where a select group's live buckets are, in order."""
        known = self._places.get(group.group_id)
        if known is None:
            known = tuple(n for n, b in enumerate(group.buckets) if b.weight > 0 and self.bucket(b))
            self._places[group.group_id] = known
        return known

    def different(self, group: Group) -> tuple[int, ...]:
        """The first of each set of live buckets that do the same."""
        known = self._different.get(group.group_id)
        if known is None:
            first: dict[tuple[Action, ...], int] = {}
            for place in self.places(group):
                first.setdefault(group.buckets[place].actions, place)
            known = self._different[group.group_id] = tuple(first.values())
        return known


def liveness(tables: Tables, live: LivePort) -> Liveness:
    """``live`` itself when it already is the liveness of these tables."""
    return live if isinstance(live, Liveness) and live.tables is tables else Liveness(tables, live)


def bucket_alive(tables: Tables, bucket: Bucket, live: LivePort) -> bool:
    """One bucket's liveness.  Raises ContractError as :meth:`Liveness.group`."""
    return liveness(tables, live).bucket(bucket)
