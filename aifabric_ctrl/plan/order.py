"""Difference and order: make before break on one switch.

The order is one table, read top to bottom (DESIGN invariant 2)::

    meters put          a rule may not name a meter that is not there
    groups put          leaves of the chain first: a group may not name one that is not there
    flows put           last table first: a packet never reaches a table that does not know it yet;
                        in a table the higher priority first: an exception is there before the default turns
    flows deleted       first table first, the lower priority first
    groups deleted      users first
    meters deleted

A barrier follows each stage.  Groups and flows of one plan may be committed as one bundle by the session.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from aifabric_ctrl.model.effects import Change, Stage
from aifabric_ctrl.model.errors import ContractError
from aifabric_ctrl.model.rules import Flow, Group, Meter, Tables
from aifabric_ctrl.plan.believed import Believed


@dataclass(frozen=True, slots=True)
class Delta:
    """What to do to one switch."""

    meters_put: tuple[Change, ...] = ()
    groups_put: tuple[Change, ...] = ()
    flows_put: tuple[Change, ...] = ()
    flows_deleted: tuple[Change, ...] = ()
    groups_deleted: tuple[Change, ...] = ()
    meters_deleted: tuple[Change, ...] = ()

    @property
    def size(self) -> int:
        """Number of messages without barriers."""
        return (
            len(self.meters_put)
            + len(self.groups_put)
            + len(self.flows_put)
            + len(self.flows_deleted)
            + len(self.groups_deleted)
            + len(self.meters_deleted)
        )


def difference(
    desired: Tables, believed: Believed, now: float, *, additions_only: bool = False, keep_groups: Container[int] = ()
) -> Delta:
    """What turns ``believed`` into ``desired``; refused objects wait for their retry.

    Args:
        keep_groups: groups that nothing uses any more but that must not go yet.
        additions_only: install what is missing and touch nothing else (a switch whose surroundings are not known yet).
    """

    def puts(wanted: Mapping[object, Flow | Group | Meter], there: Mapping[object, Flow | Group | Meter]) -> tuple[Change, ...]:
        same = set(map(id, there.values()))
        return tuple(
            Change("put", item, exists=key in there)
            for key, item in wanted.items()
            if id(item) not in same
            and there.get(key) != item
            and not (additions_only and key in there)
            and not believed.waiting(item, now)
        )

    def deletes(wanted: Mapping[object, object], there: Mapping[object, Flow | Group | Meter]) -> tuple[Change, ...]:
        if additions_only:
            return ()
        same = set(map(id, wanted.values()))
        return tuple(Change("delete", item) for key, item in there.items() if id(item) not in same and key not in wanted)

    # Sections are shared between compiles, so nearly all that is wanted is the very object that was sent: both sides file
    # an object under its own key, and looking at identity first spares the hash of every match.
    return Delta(
        meters_put=puts(desired.meters, believed.meters),  # type: ignore[arg-type]
        groups_put=puts(desired.groups, believed.groups),  # type: ignore[arg-type]
        flows_put=puts(desired.flows, believed.flows),  # type: ignore[arg-type]
        flows_deleted=deletes(desired.flows, believed.flows),  # type: ignore[arg-type]
        groups_deleted=tuple(
            change
            for change in deletes(desired.groups, believed.groups)  # type: ignore[arg-type]
            if _group(change).group_id not in keep_groups
        ),
        meters_deleted=deletes(desired.meters, believed.meters),  # type: ignore[arg-type]
    )


def stages(delta: Delta) -> tuple[Stage, ...]:
    """The table above; empty stages are left out, so an unchanged plan is ()."""
    ordered: list[Stage] = []

    def add(name: str, changes: Iterable[Change]) -> None:
        some = tuple(changes)
        if some:
            ordered.append(Stage(name, some))

    add("meters put", delta.meters_put)
    for depth, changes in sorted(_by_depth(delta.groups_put).items()):
        add(f"groups put {depth}", changes)
    for (table, priority), changes in sorted(_by_place(delta.flows_put).items(), reverse=True):
        add(f"flows put table {table}/{priority}", changes)
    for (table, priority), changes in sorted(_by_place(delta.flows_deleted).items()):
        add(f"flows deleted table {table}/{priority}", changes)
    for depth, changes in sorted(_by_depth(delta.groups_deleted).items(), reverse=True):
        add(f"groups deleted {depth}", changes)
    add("meters deleted", delta.meters_deleted)
    return tuple(ordered)


def _by_depth(changes: Iterable[Change]) -> dict[int, list[Change]]:
    groups = [(_group(change), change) for change in changes]
    depths = group_depths({group.group_id: group for group, _ in groups})
    found: dict[int, list[Change]] = {}
    for group, change in groups:
        found.setdefault(depths[group.group_id], []).append(change)
    return found


def _by_place(changes: Iterable[Change]) -> dict[tuple[int, int], list[Change]]:
    found: dict[tuple[int, int], list[Change]] = {}
    for change in changes:
        found.setdefault(_place(change), []).append(change)
    return found


def group_depths(groups: Mapping[int, Group]) -> dict[int, int]:
    """How deep the chain below each group is, counting only groups in the mapping: 0 names none of them.

    Raises:
        ContractError: groups name each other in a circle.
    """
    depths: dict[int, int] = {}

    def depth(group_id: int, above: tuple[int, ...]) -> int:
        if group_id in above:
            raise ContractError(f"group {group_id:#x} names itself through {[hex(g) for g in above]}")
        if group_id not in depths:
            below = [depth(g, (*above, group_id)) for g in groups[group_id].references() if g in groups]
            depths[group_id] = 1 + max(below) if below else 0
        return depths[group_id]

    for group_id in groups:
        depth(group_id, ())
    return depths


def _group(change: Change) -> Group:
    if not isinstance(change.object, Group):
        raise ContractError("a group stage holds something else")
    return change.object


def _place(change: Change) -> tuple[int, int]:
    if not isinstance(change.object, Flow):
        raise ContractError("a flow stage holds something else")
    return change.object.table, change.object.priority
