"""How we recognise our own objects on a switch, also after a restart or in somebody else's dump.

Flows carry a cookie: 16 bits namespace, 12 bits page, 4 bits zero, 32 bits hash of the owner's name.  The page spreads
entries evenly so that a read-back can ask for a slice by cookie mask (DESIGN invariant 1).  Groups and meters have no
cookie and are ours by id range.
"""

from __future__ import annotations

import hashlib

from aifabric_ctrl.model.rules import FlowKey

COOKIE_NAMESPACE = 0xA1FA
COOKIE_NAMESPACE_MASK = 0xFFFF << 48
PAGE_BITS = 12
PAGE_SHIFT = 36

GROUP_BASE = 0x0A000000  # 2**24 ids, far from the reserved range above 0xffffff00
GROUP_SPAN = 1 << 24
METER_BASE = 0x10000  # OVS's userspace datapath takes 2**18 meters
METER_SPAN = 0x10000


def stable_hash(text: str, bits: int) -> int:
    """The same number for the same text on every machine and in every process (BLAKE2b, truncated)."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> (64 - bits)


def cookie_for(owner: str, key: FlowKey) -> int:
    """The cookie of a flow: the page comes from the key, the hash from the owner's name."""
    page = stable_hash(f"{key.table}/{key.priority}/{key.match}", PAGE_BITS)
    return COOKIE_NAMESPACE << 48 | page << PAGE_SHIFT | stable_hash(owner, 32)


def flow_is_ours(cookie: int) -> bool:
    return cookie >> 48 == COOKIE_NAMESPACE


def group_is_ours(group_id: int) -> bool:
    return GROUP_BASE <= group_id < GROUP_BASE + GROUP_SPAN


def meter_is_ours(meter_id: int) -> bool:
    return METER_BASE <= meter_id < METER_BASE + METER_SPAN
