"""What a switch is told: matches, actions, flows, groups and meters as frozen values.

One representation serves the compiler, the diff, the wire codec (both ways), the packet executor and the strict fake
switch, so that "equal" means the same thing everywhere.  Values are normalised on construction to the form Open
vSwitch reads back (DESIGN 5): a full mask is folded to none, host bits under a mask are refused, instructions are
always meter, apply, metadata, goto, and fast-failover weights are 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from aifabric_ctrl.model.errors import ContractError
from aifabric_ctrl.model.fields import FIELDS
from aifabric_ctrl.model.ids import GROUP_ANY, PORT_ANY, Dpid, PortNo


class MatchField(NamedTuple):
    """One field of a match: ``mask`` is None for an exact match."""

    name: str
    value: int
    mask: int | None


@dataclass(frozen=True, slots=True)
class Match:
    """A set of fields in the registry's canonical order (prerequisites first); equal matches are equal values.

    Build one with :meth:`of`: ``Match.of(in_port=3, eth_type=0x0800, ipv4_dst=(0x0A000000, 0xFF000000))``.
    """

    fields: tuple[MatchField, ...] = ()

    @classmethod
    def of(cls, **fields: int | tuple[int, int]) -> Match:
        """Normalise and order.

        Raises:
            ContractError: unknown field, value too wide, host bits under the mask, mask on an unmaskable field, or a
                missing prerequisite (OpenFlow 1.3.5, 7.2.3.8).
        """
        given: list[MatchField] = []
        for name, raw in fields.items():
            given.append(_field(name, raw))
        given.sort(key=lambda f: FIELDS[f.name].order)
        match = cls(tuple(given))
        for matched in match.fields:
            FIELDS[matched.name].check_prerequisites(match)
        return match

    def get(self, name: str) -> MatchField | None:
        """The field of that name, or None."""
        for matched in self.fields:
            if matched.name == name:
                return matched
        return None

    def exact(self, name: str) -> int | None:
        """The value of an exactly matched field, or None."""
        matched = self.get(name)
        return matched.value if matched is not None and matched.mask is None else None

    def __str__(self) -> str:
        return ",".join(FIELDS[f.name].text(f.value, f.mask) for f in self.fields) or "any"


def _field(name: str, raw: int | tuple[int, int]) -> MatchField:
    spec = FIELDS.get(name)
    if spec is None:
        raise ContractError(f"match on unknown field {name!r}")
    value, mask = raw if isinstance(raw, tuple) else (raw, None)
    full = (1 << spec.bits) - 1
    if mask == full:
        mask = None
    if not 0 <= value <= full or (mask is not None and not 0 < mask <= full):
        raise ContractError(f"{name}={value:#x} mask {mask} does not fit {spec.bits} bits")
    if mask is not None and not spec.maskable:
        raise ContractError(f"{name} takes no mask")
    if mask is not None and value & ~mask:
        raise ContractError(f"{name}={value:#x}/{mask:#x} has bits outside its mask")
    return MatchField(name, value, mask)


@dataclass(frozen=True, slots=True)
class Output:
    """Send to a port; ``max_len`` matters only towards the controller (0xffff: whole packet)."""

    port: PortNo
    max_len: int = 0


@dataclass(frozen=True, slots=True)
class ToGroup:
    """Hand to a group."""

    group_id: int


@dataclass(frozen=True, slots=True)
class SetField:
    """Write one whole field."""

    field: str
    value: int


@dataclass(frozen=True, slots=True)
class Move:
    """Nicira register move: ``bits`` bits from ``src`` to ``dst`` (NXAST_REG_MOVE)."""

    src: str
    dst: str
    bits: int
    src_offset: int = 0
    dst_offset: int = 0


@dataclass(frozen=True, slots=True)
class DecTtl:
    """Decrement the IP TTL or hop limit; the packet is dropped at 0."""


@dataclass(frozen=True, slots=True)
class SetQueue:
    """Choose the egress queue."""

    queue_id: int


@dataclass(frozen=True, slots=True)
class PushVlan:
    """Push an 802.1Q tag."""

    ethertype: int = 0x8100


@dataclass(frozen=True, slots=True)
class PopVlan:
    """Pop the outer tag."""


Action = Output | ToGroup | SetField | Move | DecTtl | SetQueue | PushVlan | PopVlan


class FlowKey(NamedTuple):
    """What makes a flow entry the same entry (OpenFlow 1.3.5, 6.4)."""

    table: int
    priority: int
    match: Match


@dataclass(frozen=True, slots=True)
class Flow:
    """One flow entry.  No timeouts: nothing we install expires by itself."""

    table: int
    priority: int
    match: Match
    meter: int | None = None
    actions: tuple[Action, ...] = ()
    metadata: tuple[int, int] | None = None  # (value, mask)
    goto: int | None = None
    cookie: int = 0

    @property
    def key(self) -> FlowKey:
        return FlowKey(self.table, self.priority, self.match)


SELECT, FAST_FAILOVER, INDIRECT, ALL = "select", "ff", "indirect", "all"


@dataclass(frozen=True, slots=True)
class Bucket:
    """One way out of a group.  ``weight`` is 1 or more in a select group and 0 in every other type."""

    actions: tuple[Action, ...]
    weight: int = 0
    watch_port: PortNo = PORT_ANY
    watch_group: int = GROUP_ANY


@dataclass(frozen=True, slots=True)
class Group:
    """A group entry; two groups of equal type and buckets are shared under one id."""

    group_id: int
    type: str
    buckets: tuple[Bucket, ...]

    def references(self) -> tuple[int, ...]:
        """Ids of the groups this one sends to or watches, without repeats, ascending."""
        ids = {b.watch_group for b in self.buckets if b.watch_group != GROUP_ANY}
        ids.update(a.group_id for b in self.buckets for a in b.actions if isinstance(a, ToGroup))
        return tuple(sorted(ids))


@dataclass(frozen=True, slots=True)
class Meter:
    """A drop meter: ``rate`` packets/s (``pps``) or kbit/s, ``burst`` in packets or kbit.

    OVS takes a burst of 0 as one second's worth (DESIGN 5), so it is always explicit.
    """

    meter_id: int
    rate: int
    burst: int
    pps: bool = True


@dataclass(frozen=True, slots=True)
class Why:
    """Why an object is on a switch.

    Attributes:
        owner: stable dotted name; the cookie is made from it, so it must not change with a file's line numbers.
        reason: one sentence for a person.
        source: ``file:line`` of the policy or settings line behind it, or empty for a fact of the fabric.
    """

    owner: str
    reason: str
    source: str = ""


@dataclass(frozen=True)
class Tables:
    """Everything of ours on one switch: what should be (with ``why``), or what was read back (without)."""

    flows: Mapping[FlowKey, Flow] = field(default_factory=dict)
    groups: Mapping[int, Group] = field(default_factory=dict)
    meters: Mapping[int, Meter] = field(default_factory=dict)
    why: Mapping[FlowKey, Why] = field(default_factory=dict)
    group_why: Mapping[int, Why] = field(default_factory=dict)


@dataclass(frozen=True)
class Desired:
    """The compiler's answer: tables by datapath id."""

    tables: Mapping[Dpid, Tables]


def flow_table(flows: Iterable[Flow]) -> dict[FlowKey, Flow]:
    """Index flows by key.

    Raises:
        ContractError: two flows share a key but differ.
    """
    table: dict[FlowKey, Flow] = {}
    for flow in flows:
        old = table.setdefault(flow.key, flow)
        if old != flow:
            raise ContractError(f"two rules at table {flow.table} priority {flow.priority} match {flow.match}")
    return table
