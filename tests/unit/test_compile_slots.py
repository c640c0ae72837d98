"""Slots and shards: even shares, even backups, and nobody moves who need not."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from aifabric_ctrl.compile.slots import CHAIN_MAX, chains, preferences, shard_count, slot_count
from aifabric_ctrl.compile.spread import HopSet

PORTS = {n: tuple(range(11, 11 + n)) for n in (1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64)}


def firsts(ports: tuple[int, ...], members: set[int], in_blocks: bool = False) -> list[int]:
    return [c[0] for c in chains(ports, members, slot_count(len(ports)), in_blocks)]


def test_slot_counts() -> None:
    assert [slot_count(n) for n in (1, 2, 3, 4, 5, 8, 64, 65, 100)] == [16, 16, 32, 32, 64, 64, 64, 65, 100]
    for n in range(1, 65):
        assert shard_count(n) >= 4 * n and shard_count(n).bit_count() == 1


@pytest.mark.parametrize("n", PORTS)
@pytest.mark.parametrize("in_blocks", [False, True])
def test_every_slot_orders_all_ports_and_primaries_are_even(n: int, in_blocks: bool) -> None:
    orders = preferences(PORTS[n], slot_count(n), in_blocks)
    assert all(sorted(order) == list(PORTS[n]) for order in orders)
    shares = Counter(order[0] for order in orders)
    assert len(shares) == n and max(shares.values()) - min(shares.values()) <= 1


@pytest.mark.parametrize("n", [3, 4, 5, 6, 8])
def test_after_one_failure_no_survivor_is_above_one_and_a_half_times_the_mean(n: int) -> None:
    for dead in PORTS[n]:
        left = Counter(firsts(PORTS[n], set(PORTS[n]) - {dead}))
        assert max(left.values()) <= 1.25 * slot_count(n) / (n - 1)


@pytest.mark.parametrize("n", [4, 5, 6, 8])
def test_after_two_failures_the_rest_is_still_shared(n: int) -> None:
    for one in PORTS[n]:
        for other in PORTS[n]:
            if one < other:
                left = Counter(firsts(PORTS[n], set(PORTS[n]) - {one, other}))
                assert max(left.values()) <= 1.5 * slot_count(n) / (n - 2)


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_only_slots_of_the_port_that_changes_move(n: int) -> None:
    rng = random.Random(n)
    up = set(PORTS[n])
    before = firsts(PORTS[n], up)
    for _ in range(200):
        port = rng.choice(PORTS[n])
        after_up = up ^ {port}
        if not after_up:
            continue
        after = firsts(PORTS[n], after_up)
        for was, now in zip(before, after, strict=True):
            assert was == now or port in (was, now)
        if port in up:  # it left: exactly its own slots move
            assert {s for s, (w, x) in enumerate(zip(before, after, strict=True)) if w != x} == {
                s for s, w in enumerate(before) if w == port
            }
        up, before = after_up, after
    assert firsts(PORTS[n], set(PORTS[n])) == [order[0] for order in preferences(PORTS[n], slot_count(n))], (
        "all back where they were"
    )


def test_chain_is_cut_to_four() -> None:
    assert {len(c) for c in chains(PORTS[8], PORTS[8], 64)} == {CHAIN_MAX}
    assert {len(c) for c in chains(PORTS[8], {11, 12}, 64)} == {2}


def test_spine_splits_what_one_uplink_of_a_leaf_sends_it() -> None:
    """The same hash picks the leaf's uplink and the spine's parallel link; both must still get their share."""
    leaf = firsts(PORTS[4], set(PORTS[4]))
    spine = firsts(PORTS[2], set(PORTS[2]), in_blocks=True)
    for uplink in PORTS[4]:
        reaching = [s % slot_count(2) for s, port in enumerate(leaf) if port == uplink]
        assert Counter(spine[s] for s in reaching) == {11: len(reaching) // 2, 12: len(reaching) // 2}


def linux_port(local_qpn: int, remote_qpn: int) -> int:
    """UDP source port of a queue pair without a flow label (Linux, include/rdma/ib_verbs.h)."""
    v = local_qpn * remote_qpn
    v ^= v >> 20
    v ^= v >> 40
    label = v & 0xFFFFF
    return ((label & 0x3FFF) ^ (label >> 14)) | 0xC000


def shares(uplinks: int, ports: list[int]) -> float:
    """Busiest uplink over the mean, for RoCE with these source ports."""
    shards = HopSet(PORTS[uplinks], PORTS[uplinks]).shards
    used = Counter(shards[p % len(shards)].ports[0] for p in ports)
    return max(used.values()) * uplinks / len(ports)


@pytest.mark.parametrize(("uplinks", "bound"), [(2, 1.0), (3, 1.05), (4, 1.0), (8, 1.0)])
def test_consecutive_source_ports_are_spread_exactly(uplinks: int, bound: float) -> None:
    for start in range(0xC000, 0xC000 + 128):
        assert shares(uplinks, [start + i for i in range(64)]) <= bound


# The figures of docs/decisions/0003-roce-shards.md: 1.2 is met over two uplinks; over more no function of the port's
# low bits meets it (searched), so these only keep it from getting worse than chance.
@pytest.mark.parametrize(("uplinks", "bound"), [(2, 1.2), (3, 1.4), (4, 1.45), (8, 1.9)])
def test_source_ports_derived_from_queue_pairs(uplinks: int, bound: float) -> None:
    found = []
    for seed in range(200):
        rng = random.Random(seed)
        a, b = rng.randrange(2, 1 << 24), rng.randrange(2, 1 << 24)
        found.append(shares(uplinks, [linux_port((a + i) & 0xFFFFFF, (b + i) & 0xFFFFFF) for i in range(64)]))
    found.sort()
    assert found[int(len(found) * 0.9)] <= bound


@pytest.mark.parametrize("uplinks", [2, 3, 4, 8, 16, 32])
def test_every_uplink_has_at_least_four_shards(uplinks: int) -> None:
    hops = HopSet(PORTS[uplinks], PORTS[uplinks])
    assert min(Counter(c.ports[0] for c in hops.shards).values()) >= 4


def test_one_port_needs_no_choice() -> None:
    hops = HopSet((12,), PORTS[4])
    assert [c.ports for c in hops.slots] == [(12,)] and not hops.shards


@pytest.mark.parametrize("uplinks_to_the_spine", [(11, 12), (11, 13)], ids=["cabled in blocks", "cabled alternately"])
def test_roce_that_reaches_a_spine_is_split_over_its_parallel_links(uplinks_to_the_spine: tuple[int, int]) -> None:
    leaf = HopSet(PORTS[4], PORTS[4]).shards
    spine = HopSet((1, 2), (1, 2), back=True).shards
    for uplink in uplinks_to_the_spine:
        reaching = [p for p in range(0xC000, 0xC100) if leaf[p % len(leaf)].ports[0] == uplink]
        used = Counter(spine[p % len(spine)].ports[0] for p in reaching)
        assert used == {1: len(reaching) // 2, 2: len(reaching) // 2}
