"""A piece of one switch's tables, built once and shared; and the builder that gives every rule its cookie and its why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from aifabric_ctrl.model.errors import ContractError
from aifabric_ctrl.model.ownership import cookie_for
from aifabric_ctrl.model.rules import Action, Flow, FlowKey, Group, Match, Meter, Tables, Why


@dataclass(slots=True)
class Section:
    """Rules that depend on the same inputs.  Finished sections are never changed: they are shared between compiles."""

    flows: dict[FlowKey, Flow] = field(default_factory=dict)
    why: dict[FlowKey, Why] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    group_why: dict[int, Why] = field(default_factory=dict)
    meters: dict[int, Meter] = field(default_factory=dict)

    def add(
        self,
        table: int,
        priority: int,
        match: Match,
        why: Why,
        *,
        meter: int | None = None,
        actions: tuple[Action, ...] = (),
        metadata: tuple[int, int] | None = None,
        goto: int | None = None,
    ) -> None:
        """Add one flow.

        Raises:
            ContractError: another rule has the same table, priority and match.
        """
        key = FlowKey(table, priority, match)
        if key in self.flows:
            raise ContractError(f"two rules at table {table} priority {priority} match {match}")
        self.flows[key] = Flow(table, priority, match, meter, actions, metadata, goto, cookie_for(why.owner, key))
        self.why[key] = why


def merge(sections: Iterable[Section]) -> Tables:
    """One switch's tables, in the order of the sections.

    Raises:
        ContractError: two sections claim one flow key.
    """
    flows: dict[FlowKey, Flow] = {}
    why: dict[FlowKey, Why] = {}
    groups: dict[int, Group] = {}
    group_why: dict[int, Why] = {}
    meters: dict[int, Meter] = {}
    expected = 0
    for section in sections:
        expected += len(section.flows)
        flows.update(section.flows)
        why.update(section.why)
        groups.update(section.groups)
        group_why.update(section.group_why)
        meters.update(section.meters)
    if len(flows) != expected:
        raise ContractError(f"{expected - len(flows)} rules of different sections share a key")
    return Tables(flows, groups, meters, why, group_why)
