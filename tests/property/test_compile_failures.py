"""What the tables deliver while links fail, every hash choice tried: before the controller has acted, and after."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aifabric_ctrl.compile import compile_fabric, verify_contract
from aifabric_ctrl.compile.contract import overlapping
from aifabric_ctrl.model.fabric import Fabric, Link, LinkState
from aifabric_ctrl.model.ids import Dpid
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.model.rules import Tables
from aifabric_ctrl.verify.walk import Walker, check_pair, live_without
from tests.unit.test_compile_support import all_pairs, leaf_spine, with_links

MAX_SENDS = 4  # DESIGN 3: a packet with TTL 64 crosses no port more often, whatever fails
ROCE = 4791

quick = settings(max_examples=8, deadline=None, derandomize=True)
shapes = st.builds(leaf_spine, leaves=st.integers(2, 5), spines=st.integers(2, 5), hosts=st.just(1), parallel=st.integers(1, 2))


def tables_of(fabric: Fabric) -> dict[Dpid, Tables]:
    tables = dict(compile_fabric(fabric, Intent()).tables)
    for one in tables.values():
        verify_contract(one)
    return tables


def connected(fabric: Fabric, dead: Sequence[Link], one: Dpid, other: Dpid) -> bool:
    """Some spine still has a link to both leaves."""
    ends = [(k.a.dpid, k.b.dpid) for k in fabric.links if k not in dead]
    return bool({s for leaf, s in ends if leaf == one} & {s for leaf, s in ends if leaf == other})


def judge(fabric: Fabric, tables: dict[Dpid, Tables], dead: Sequence[Link], max_sends: int = MAX_SENDS) -> None:
    walker = Walker(tables, fabric.links, live_without(dead_links=dead))
    touched = {k.a.dpid for k in dead}
    for destination_port in (5001, ROCE):
        every = all_pairs(fabric, destination_port)
        # traffic between leaves that lost nothing sees no difference; one such pair stands for the others
        for probe in every if not dead else [p for p in every if touched & {p.start.dpid, p.to.dpid}] + every[-1:]:
            verdict = check_pair(walker, *probe)
            assert verdict.worst_sends <= max_sends, (dead, str(verdict.example))
            if connected(fabric, dead, probe.start.dpid, probe.to.dpid):
                assert verdict.delivered, (dead, str(verdict.example))
            else:
                assert not verdict.delivered


@quick
@given(shapes)
def test_healthy_fabric_delivers_everything_on_shortest_paths(fabric: Fabric) -> None:
    tables = tables_of(fabric)
    assert all(overlapping(one.flows.values()) is None for one in tables.values())
    judge(fabric, tables, (), max_sends=1)


@quick
@given(shapes)
def test_every_single_failure_is_survived_without_and_with_the_controller(fabric: Fabric) -> None:
    healthy = tables_of(fabric)
    for dead in fabric.links:
        judge(fabric, healthy, (dead,))
    for dead in fabric.links[:: max(1, len(fabric.links) // 4)]:
        judge(fabric, tables_of(with_links(fabric, LinkState.DOWN, dead)), (dead,), max_sends=1)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(shapes, st.data())
def test_pairs_of_failures_are_bounded_and_survived_where_connected(fabric: Fabric, data: st.DataObject) -> None:
    pairs = list(combinations(fabric.links, 2))
    healthy = tables_of(fabric)
    for dead in data.draw(st.lists(st.sampled_from(pairs), min_size=4, max_size=4, unique=True)) if len(pairs) > 4 else pairs:
        judge(fabric, healthy, dead)
        judge(fabric, tables_of(with_links(fabric, LinkState.DOWN, *dead)), dead, max_sends=1)
        # the controller has repaired the first, the second comes on top
        judge(fabric, tables_of(with_links(fabric, LinkState.DOWN, dead[0])), dead)


@pytest.mark.parametrize(("leaves", "spines"), [(3, 3), (2, 4), (4, 2)])
def test_every_pair_of_failures_on_small_fabrics(leaves: int, spines: int) -> None:
    fabric = leaf_spine(leaves, spines)
    healthy = tables_of(fabric)
    for dead in combinations(fabric.links, 2):
        judge(fabric, healthy, dead)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_two_spines_with_parallel_links_survive_up_to_three_failures(count: int) -> None:
    fabric = leaf_spine(2, 2, parallel=2)
    healthy = tables_of(fabric)
    for dead in combinations(fabric.links, count):
        judge(fabric, healthy, dead)
        judge(fabric, tables_of(with_links(fabric, LinkState.DOWN, *dead)), dead, max_sends=1)


@pytest.mark.parametrize(("leaves", "spines", "parallel"), [(3, 2, 1), (3, 4, 1), (3, 2, 2), (5, 5, 1)])
def test_dead_leaf_costs_at_most_four_transmissions(leaves: int, spines: int, parallel: int) -> None:
    fabric = leaf_spine(leaves, spines, parallel=parallel)
    victim = fabric.links[0].a.dpid
    judge(fabric, tables_of(fabric), [k for k in fabric.links if k.a.dpid == victim])


@pytest.mark.parametrize(("spines", "parallel"), [(2, 1), (4, 1), (2, 2)])
def test_dead_spine_costs_nothing(spines: int, parallel: int) -> None:
    fabric = leaf_spine(3, spines, parallel=parallel)
    victim = fabric.links[-1].b.dpid
    judge(fabric, tables_of(fabric), [k for k in fabric.links if k.b.dpid == victim], max_sends=1)
