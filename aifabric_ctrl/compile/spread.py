"""Table SPREAD and its groups: a next-hop set to one of its ports, evenly, with the backups of DESIGN 3 behind each.

A select group over fixed slots serves everything; RoCE goes by the low bits of its UDP source port instead, because
OVS's userspace datapath leaves UDP ports out of the select hash (DESIGN 3, "RoCE needs help").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from aifabric_ctrl.compile.family import Family
from aifabric_ctrl.compile.groups import Back, Chain, Content, Select, build, closure, probe
from aifabric_ctrl.compile.section import Section
from aifabric_ctrl.compile.slots import chains, shard_count, slot_count
from aifabric_ctrl.compile.tables import NEXT_HOP_SET, ROCE_PORT, SPREAD, Priority
from aifabric_ctrl.model.fields import IPPROTO_UDP
from aifabric_ctrl.model.ids import PortNo
from aifabric_ctrl.model.rules import Match, ToGroup, Why

# Next-hop set ids, 12 bits.  A set of one port, the usual case at a spine, is named by the port, so that it cannot
# collide; the others are hashed into the upper half.
BACK_SET = 2047
_HASHED_BASE, _HASHED_BITS = 2048, 11


@dataclass(frozen=True)
class HopSet:
    """Where packets for some destination may go from one switch.

    Attributes:
        members: ports that lie on a shortest path now, ascending.
        among: the ports the slots are laid out over; they depend on the cabling only.
        back: after the last member, return the packet to the port it came from (a spine under repair).
        in_blocks: see ``slots.preferences``.
    """

    members: tuple[PortNo, ...]
    among: tuple[PortNo, ...] = ()
    back: bool = False

    @cached_property
    def text(self) -> str:
        return ",".join([*map(str, self.members), *(["back"] if self.back else [])]) or "none"

    @cached_property
    def _among(self) -> tuple[PortNo, ...]:
        return tuple(sorted({*self.among, *self.members}))

    @cached_property
    def slots(self) -> tuple[Chain, ...]:
        """One chain a slot; a single one when all slots agree, none without members."""
        if not self.members:
            return ()
        found = self._chains(slot_count(len(self._among)))
        return found if len(set(found)) > 1 else found[:1]

    @cached_property
    def shards(self) -> tuple[Chain, ...]:
        """One chain a RoCE shard; none when there is no choice to make."""
        return self._chains(shard_count(len(self._among))) if len(self.slots) > 1 else ()

    def _chains(self, count: int) -> tuple[Chain, ...]:
        return tuple(Chain(ports, self.back) for ports in chains(self._among, self.members, count, in_blocks=self.back))

    @cached_property
    def target(self) -> Content:
        """What packets of this set are handed to."""
        if not self.members:
            return Back()
        return Select(self.slots) if len(self.slots) > 1 else self.slots[0]

    @cached_property
    def contents(self) -> tuple[Content, ...]:
        """All groups it needs, referred-to first."""
        return tuple(closure([self.target, *self.shards]))


def number(sets: Iterable[HopSet]) -> dict[HopSet, int]:
    """Metadata values for the sets of one switch, by content: 1 .. 4095."""
    numbers: dict[HopSet, int] = {}
    hashed: dict[str, HopSet] = {}
    for hops in sets:
        if not hops.members:
            numbers[hops] = BACK_SET
        elif len(hops.members) == 1 and hops.members[0] < BACK_SET:
            numbers[hops] = hops.members[0]
        else:
            hashed[hops.text] = hops
    placed = probe(hashed, _HASHED_BITS, _HASHED_BASE, 1 << _HASHED_BITS)
    numbers.update({hops: placed[text] for text, hops in hashed.items()})
    return numbers


def group_why(content: Content) -> Why:
    if isinstance(content, Back):
        return Why("group/back", "returns a packet to the port it came from: the leaf there tries its next uplink")
    if isinstance(content, Chain):
        return Why(f"group/{content.text.replace(' ', '/')}", content.describes)
    ports = sorted({p for c in content.slots for p in c.ports})
    listed = ",".join(map(str, ports))
    return Why(f"group/select/{listed}", f"{len(content.slots)} equal slots over ports {listed}, each with its own backups")


def add_groups(section: Section, contents: Iterable[Content], ids: Mapping[str, int]) -> None:
    for content in contents:
        group = build(content, ids)
        section.groups[group.group_id] = group
        section.group_why[group.group_id] = group_why(content)


def spread_section(family: Family, hops: HopSet, set_id: int, ids: Mapping[str, int], shards: bool) -> Section:
    """The rules and groups of one next-hop set.  ``ids`` maps group contents to ids; ``shards`` turns RoCE's rules on."""
    section = Section()
    add_groups(section, hops.contents if shards else closure([hops.target]), ids)
    member: dict[str, int | tuple[int, int]] = {"metadata": NEXT_HOP_SET.of(set_id), "eth_type": family.eth_type}
    section.add(
        SPREAD,
        Priority.SPREAD_ANY,
        Match.of(**member),
        Why(f"spread/{hops.text}/{family.name}", f"next-hop set {set_id} is ports {hops.text}"),
        actions=(ToGroup(ids[hops.target.text]),),
    )
    for shard, chain in enumerate(hops.shards if shards else ()):
        section.add(
            SPREAD,
            Priority.SPREAD_ROCE,
            Match.of(**member, ip_proto=IPPROTO_UDP, udp_src=(shard, len(hops.shards) - 1), udp_dst=ROCE_PORT),
            Why(f"spread/{hops.text}/{family.name}/roce", f"RoCE shard {shard} of {len(hops.shards)}: {chain.describes}"),
            actions=(ToGroup(ids[chain.text]),),
        )
    return section
