"""Groups by content: two users of the same buckets share one group, and its id follows from its content alone.

Ids are a hash with deterministic probing over what one switch holds, so two controllers, or one before and after a
restart, choose the same ones; they stay inside our own range (see ``model.ownership``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from aifabric_ctrl.model.ids import PORT_IN_PORT, PortNo
from aifabric_ctrl.model.ownership import GROUP_BASE, GROUP_SPAN, stable_hash
from aifabric_ctrl.model.rules import FAST_FAILOVER, INDIRECT, SELECT, Bucket, Group, Output, ToGroup

_ID_BITS = GROUP_SPAN.bit_length() - 1


@dataclass(frozen=True)
class Back:
    """Sends a packet back out of the port it came in by.

    A group of its own because a fast-failover bucket must watch something, and a group without anything to watch is
    always live.
    """

    @cached_property
    def text(self) -> str:
        return "back"


@dataclass(frozen=True)
class Chain:
    """Fast failover: the first live port of ``ports``; after them, when ``back``, the in-port."""

    ports: tuple[PortNo, ...]
    back: bool = False

    @cached_property
    def text(self) -> str:
        return "chain " + ",".join([*map(str, self.ports), *(["back"] if self.back else [])])

    @cached_property
    def describes(self) -> str:
        first = " else ".join([*(f"port {p}" for p in self.ports), *(["back to the in-port"] if self.back else [])])
        return f"first live of: {first}"


@dataclass(frozen=True)
class Select:
    """One equal bucket a slot, each to that slot's chain."""

    slots: tuple[Chain, ...]

    @cached_property
    def text(self) -> str:
        return "select " + ";".join(c.text for c in self.slots)


Content = Back | Chain | Select


def closure(contents: Iterable[Content]) -> list[Content]:
    """The contents and everything they refer to, each once, referred-to first."""
    seen: dict[str, Content] = {}
    for content in contents:
        for part in content.slots if isinstance(content, Select) else ():
            _with_back(part, seen)
        _with_back(content, seen)
    return list(seen.values())


def _with_back(content: Content, seen: dict[str, Content]) -> None:
    if isinstance(content, Chain) and content.back:
        seen.setdefault(Back().text, Back())
    seen.setdefault(content.text, content)


@lru_cache(maxsize=8192)
def _home(text: str) -> int:
    return stable_hash(text, 64)


def probe(texts: Iterable[str], bits: int, base: int, span: int) -> dict[str, int]:
    """A number in ``base .. base+span-1`` for each text: its hash, or the next free one.

    Texts are placed in order of (full hash, text), so the result depends on the set alone.

    Raises:
        OverflowError: more texts than numbers.
    """
    taken: set[int] = set()
    placed: dict[str, int] = {}
    for text in sorted(set(texts), key=lambda t: (_home(t), t)):
        if len(taken) >= span:
            raise OverflowError(f"more than {span} numbers needed")
        offset = (_home(text) >> (64 - bits)) % span
        while offset in taken:
            offset = (offset + 1) % span
        taken.add(offset)
        placed[text] = base + offset
    return placed


def assign(contents: Iterable[Content]) -> dict[str, int]:
    """Group ids by content text, for all groups of one switch."""
    return probe((c.text for c in contents), _ID_BITS, GROUP_BASE, GROUP_SPAN)


def build(content: Content, ids: Mapping[str, int]) -> Group:
    """The group entry of a content."""
    group_id = ids[content.text]
    if isinstance(content, Back):
        return Group(group_id, INDIRECT, (Bucket((Output(PORT_IN_PORT),)),))
    if isinstance(content, Chain):
        buckets = [Bucket((Output(port),), watch_port=port) for port in content.ports]
        if content.back:
            back = ids[Back().text]
            buckets.append(Bucket((ToGroup(back),), watch_group=back))
        return Group(group_id, FAST_FAILOVER, tuple(buckets))
    return Group(
        group_id,
        SELECT,
        tuple(Bucket((ToGroup(ids[c.text]),), weight=1, watch_group=ids[c.text]) for c in content.slots),
    )
