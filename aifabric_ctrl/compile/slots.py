"""Slots: how a next-hop set's traffic is cut into equal parts, and where each part goes when a port is away.

The number of slots and each slot's order of preference over the switch's ports depend on the cabling only.  A slot
uses the first ports of its order that are in the set, so a port that leaves or returns moves only the slots whose
first choice it is or was: flows on the other ports stay where they are (RoCE suffers from reordering).
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from aifabric_ctrl.model.ids import PortNo

SLOTS_PER_UPLINK = 8  # seven survivors can share a dead port's slots evenly
SLOTS_MIN = 16
SLOTS_MAX = 64  # OVS's dp_hash has 256 entries and wants 4 per bucket; above that it hashes otherwise
CHAIN_MAX = 4  # a primary and three backups; the controller replaces them long before a fourth failure
SHARDS_PER_UPLINK = 4
SHARDS_MAX = 256


def _power_of_two(at_least: int) -> int:
    return 1 << max(0, at_least - 1).bit_length()


def slot_count(ports: int) -> int:
    """Slots for that many ports: a power of two from 16 to 64, or one a port above 64 ports."""
    return ports if ports > SLOTS_MAX else min(SLOTS_MAX, max(SLOTS_MIN, _power_of_two(SLOTS_PER_UPLINK * ports)))


def shard_count(ports: int) -> int:
    """RoCE shards: as many as slots, and at least four a port; always a power of two, because a mask picks them."""
    return min(SHARDS_MAX, _power_of_two(max(slot_count(ports), SHARDS_PER_UPLINK * ports)))


def _order(ports: tuple[PortNo, ...], primary: int, turn: int) -> tuple[PortNo, ...]:
    """One slot's preference: the primary, then the others.

    ``turn`` numbers the slots of one primary.  It is read as digits in the mixed base (n-1)(n-2)...: the first digit
    picks the second choice, the next the third, each counted on from the choice before, so that second choices are
    spread evenly, and third choices among the slots that share a second one.
    """
    chosen = [ports[primary]]
    rest = ports[primary + 1 :] + ports[:primary]
    while rest:
        turn, at = divmod(turn, len(rest))
        chosen.append(rest[at])
        rest = rest[at + 1 :] + rest[:at]
    return tuple(chosen)


@lru_cache(maxsize=1024)
def preferences(ports: tuple[PortNo, ...], count: int, in_blocks: bool = False) -> tuple[tuple[PortNo, ...], ...]:
    """Each slot's preference over ``ports``, slot by slot.

    ``in_blocks`` gives neighbouring slots one primary instead of alternating them.  Spines use it: a leaf has already
    chosen by the low bits of the same hash, so that what reaches one spine differs only in the high ones.
    """
    n = len(ports)
    orders = []
    turns = [0] * n
    for slot in range(count):
        primary = slot * n // count if in_blocks else slot % n
        orders.append(_order(ports, primary, turns[primary]))
        turns[primary] += 1
    return tuple(orders)


@lru_cache(maxsize=4096)
def _chains(ports: tuple[PortNo, ...], members: frozenset[PortNo], count: int, in_blocks: bool) -> tuple[tuple[PortNo, ...], ...]:
    orders = preferences(ports, count, in_blocks)
    return tuple(tuple([p for p in order if p in members][:CHAIN_MAX]) for order in orders)


def chains(
    ports: tuple[PortNo, ...], members: Collection[PortNo], count: int, in_blocks: bool = False
) -> tuple[tuple[PortNo, ...], ...]:
    """Each slot's ports in order of preference, restricted to ``members`` and to the first four."""
    return _chains(ports, frozenset(members), count, in_blocks)
