"""Which flow entry matches: a tuple-space search, and the slow scan it must agree with.

Tuple space (Srinivasan et al., SIGCOMM'99; also OVS's classifier): entries that match the same fields under the same
masks share one dictionary, so a lookup costs one probe per distinct mask shape instead of one per entry.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from aifabric_ctrl.model.errors import ContractError
from aifabric_ctrl.model.rules import Flow, Match, Tables

Shape = tuple[tuple[str, int | None], ...]


@dataclass(slots=True)
class _Tuple:
    """Entries of one shape, highest priority first under each key."""

    shape: Shape
    top: int = -1
    entries: dict[tuple[int, ...], list[Flow]] = field(default_factory=dict)

    def add(self, flow: Flow) -> None:
        self.entries.setdefault(tuple(f.value for f in flow.match.fields), []).append(flow)
        self.top = max(self.top, flow.priority)

    def find(self, state: Mapping[str, int]) -> Flow | None:
        key: list[int] = []
        for name, mask in self.shape:
            value = state.get(name)
            if value is None:
                return None
            key.append(value if mask is None else value & mask)
        found = self.entries.get(tuple(key))
        return found[0] if found else None


class Index:
    """Lookup over the flows of one switch.  The flows must not change after the index is made."""

    __slots__ = ("_tables",)

    def __init__(self, flows: Iterable[Flow]) -> None:
        spaces: dict[int, dict[Shape, _Tuple]] = {}
        for flow in flows:
            shape = tuple((f.name, f.mask) for f in flow.match.fields)
            space = spaces.setdefault(flow.table, {})
            if shape not in space:
                space[shape] = _Tuple(shape)
            space[shape].add(flow)
        for space in spaces.values():
            for group in space.values():
                for found in group.entries.values():
                    found.sort(key=lambda f: -f.priority)
        self._tables = {table: sorted(space.values(), key=lambda t: -t.top) for table, space in spaces.items()}

    def lookup(self, table: int, state: Mapping[str, int]) -> Flow | None:
        """The matching entry of highest priority, or None (table miss).

        Raises:
            ContractError: two entries of that priority match, so the switch may take either (OpenFlow 1.3.5, 5.3).
        """
        best: Flow | None = None
        rival: Flow | None = None
        for space in self._tables.get(table, ()):
            if best is not None and space.top < best.priority:
                break
            found = space.find(state)
            if found is None:
                continue
            if best is None or found.priority > best.priority:
                best, rival = found, None
            elif found.priority == best.priority:
                rival = found
        if best is not None and rival is not None:
            raise ambiguous(best, rival)
        return best


def ambiguous(one: Flow, other: Flow) -> ContractError:
    """Two entries that a packet may take either of."""
    return ContractError(f"table {one.table} priority {one.priority}: a packet matches both [{one.match}] and [{other.match}]")


def matches(match: Match, state: Mapping[str, int]) -> bool:
    """Does a packet's state match?  Absent fields match nothing."""
    for name, value, mask in match.fields:
        have = state.get(name)
        if have is None or (have if mask is None else have & mask) != value:
            return False
    return True


def reference_lookup(flows: Iterable[Flow], table: int, state: Mapping[str, int]) -> Flow | None:
    """The same as :meth:`Index.lookup` by scanning every entry: slow, and plainly right.

    Raises:
        ContractError: as :meth:`Index.lookup`.
    """
    best: list[Flow] = []
    for flow in flows:
        if flow.table == table and matches(flow.match, state):
            if not best or flow.priority > best[0].priority:
                best = [flow]
            elif flow.priority == best[0].priority:
                best.append(flow)
    if len(best) > 1:
        raise ambiguous(best[0], best[1])
    return best[0] if best else None


# Tables cannot be a key (their mappings are not hashable), so the cache is by identity and the weak reference both
# guards against a recycled id and forgets the index with its tables.
_indexes: dict[int, tuple[weakref.ref[Tables], Index]] = {}


def index_of(tables: Tables) -> Index:
    """The index of a switch's tables, made once per Tables value (which must not be changed afterwards)."""
    key = id(tables)
    cached = _indexes.get(key)
    if cached is not None and cached[0]() is tables:
        return cached[1]
    index = Index(tables.flows.values())

    def forget(ref: weakref.ref[Tables]) -> None:
        held = _indexes.get(key)
        if held is not None and held[0] is ref:
            del _indexes[key]

    _indexes[key] = (weakref.ref(tables, forget), index)
    return index
