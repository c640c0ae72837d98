"""Fabric and intent in, every switch's tables out.  Pure; sections whose inputs did not change are the same objects.

This is in the failover path: after one link's change only the routes and groups that follow from it are rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple, ParamSpec, TypeVar, cast

from aifabric_ctrl.compile import base, dest, meters, neighbour, port, route, spread
from aifabric_ctrl.compile.family import FAMILIES, Family, scopes
from aifabric_ctrl.compile.groups import Chain, assign, closure
from aifabric_ctrl.compile.section import Section, merge
from aifabric_ctrl.compile.snapshot import Snapshot, SwitchFacts, take
from aifabric_ctrl.compile.spread import HopSet
from aifabric_ctrl.model.fabric import Fabric, Switch
from aifabric_ctrl.model.ids import Dpid, PortNo
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.model.ownership import GROUP_BASE, GROUP_SPAN, stable_hash
from aifabric_ctrl.model.rules import Desired, Tables

T = TypeVar("T")
P = ParamSpec("P")

GENERATIONS = 4  # compiles an unused result is kept for: a flapping link finds its old rules again


class Cache:
    """Results by their inputs, of the last few compiles.  Only a help: without one the answer is the same."""

    def __init__(self) -> None:
        self._generations: list[dict[Hashable, object]] = [{}]
        self._intent: Intent | None = None

    def start(self, intent: Intent) -> None:
        """Begin a compile; what was not used in the last few is forgotten, and everything when the intent changed."""
        if intent != self._intent:
            self._generations, self._intent = [], intent
        self._generations = [{}, *self._generations[: GENERATIONS - 1]]

    @property
    def size(self) -> int:
        """Results held."""
        return sum(map(len, self._generations))

    def get(self, key: Hashable, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``make`` with these arguments; ``key`` must name it and everything it depends on but the intent."""
        current = self._generations[0]
        for generation in self._generations:
            if key in generation:
                value = generation[key]
                break
        else:
            value = make(*args, **kwargs)
        current[key] = value
        return cast(T, value)


def compile_fabric(fabric: Fabric, intent: Intent, cache: Cache | None = None) -> Desired:
    """What every known switch should hold, by dpid in ascending order.

    Equal inputs give equal tables in equal order; with a cache, unchanged switches give the identical ``Tables``.

    Raises:
        ContractError: the inputs cannot be told apart by rules (a mistake of ours, never of a host's).
    """
    cache = cache or Cache()
    cache.start(intent)
    snapshot = take(fabric, intent)
    tables: dict[Dpid, Tables] = {}
    for dpid, facts in snapshot.switches.items():
        sections = tuple(_Compiler(snapshot, facts, fabric.switches[dpid], intent, cache).sections())
        tables[dpid] = cache.get(("tables", dpid, tuple(map(id, sections))), _merged, sections)[1]
    return Desired(tables)


def _merged(sections: tuple[Section, ...]) -> tuple[tuple[Section, ...], Tables]:
    """The tables, with the sections: while both are kept, no other section can have their ids."""
    return sections, merge(sections)


class _Plan(NamedTuple):
    """How one switch reaches the other leaves in one family.

    ``exceptions`` are leaves with routes of their own; ``used`` the sets that need rules in SPREAD, each once.
    """

    family: Family
    default: HopSet | None
    exceptions: dict[Dpid, HopSet]
    used: tuple[HopSet, ...]


class _Compiler:
    """One switch's sections, in the order of the pipeline."""

    def __init__(self, snapshot: Snapshot, facts: SwitchFacts, switch: Switch, intent: Intent, cache: Cache) -> None:
        self.snapshot = snapshot
        self.facts = facts
        self.intent = intent
        self.cache = cache
        self.nicira = switch.features.nicira
        self.metered = meters.available(switch.features)
        self.bounces = snapshot.repair and facts.leafward
        uplinks = facts.fabric_ports if self.bounces else ()
        self.meters = cache.get(
            ("meters", self.metered, facts.edge_ports, uplinks), meters.plan, self.metered, facts.edge_ports, uplinks
        )

    def sections(self) -> Iterator[Section]:
        yield self.cache.get(("base", self.metered), base.base_section, self.metered, self.intent)
        yield from self._lldp()
        for family in FAMILIES:
            yield from self._port(family)
            yield from self._own(family)
        yield from self._policy()
        yield from self._routes([self._plan(family) for family in FAMILIES])

    def _lldp(self) -> Iterator[Section]:
        for number in self.facts.edge_ports:
            meter = self.meters.unknown_host.get(number)
            yield self.cache.get(("lldp", number, meter), port.lldp_section, number, meter)

    def _port(self, family: Family) -> Iterator[Section]:
        facts, cache = self.facts, self.cache
        yield cache.get(("fabric", family, facts.fabric_ports), port.fabric_section, family, facts.fabric_ports)
        if not facts.edge_ports:
            return
        if self.nicira:
            yield cache.get(("never", family), port.never_section, family)
            if family.version == 6:
                yield cache.get(("neighbour",), neighbour.answer_section, self.intent.gateway_mac)
        by_port = port.by_port(facts.hosts[family.name])
        for number in facts.edge_ports:
            meter = self.meters.unknown_host.get(number)
            hosts = tuple(by_port.get(number, ()))
            key = ("edge", family, number, hosts, meter, self.nicira)
            yield cache.get(key, port.edge_section, family, number, hosts, meter, self.nicira, self.intent)

    def _own(self, family: Family) -> Iterator[Section]:
        for hosts in port.by_port(self.facts.hosts[family.name]).values():
            own = tuple(hosts)
            yield self.cache.get(("own", family, own), route.own_section, family, own, self.intent.gateway_mac)
        gone = self.facts.gone[family.name]
        if gone:
            yield self.cache.get(("gone", family, gone), route.gone_section, family, gone)

    def _policy(self) -> Iterator[Section]:
        edge = bool(self.facts.edge_ports)
        yield self.cache.get(("class", edge), dest.class_section, edge)
        if not edge:
            return
        meter = self.meters.unknown_destination
        for family in FAMILIES:
            reachable = self.snapshot.reachable[family.name]
            key = ("dest", family, reachable, meter, self.nicira)
            yield self.cache.get(key, dest.dest_section, family, reachable, meter, self.nicira, self.intent)
        yield self.cache.get(("policy",), dest.policy_section)

    def _plan(self, family: Family) -> _Plan:
        facts, snapshot = self.facts, self.snapshot
        routed = snapshot.routed[family.name]
        targets = {d: self._hops(d) for d in sorted({*snapshot.leaves, *routed}) if d != facts.dpid}
        default = route.commonest(list(targets.values())) if self.bounces else None
        exceptions = {d: hops for d, hops in targets.items() if d in routed and hops != default}
        reached = [h for h in exceptions.values() if h.members or h.back]
        return _Plan(family, default, exceptions, tuple(dict.fromkeys([*([default] if default else []), *reached])))

    def _routes(self, plans: list[_Plan]) -> Iterator[Section]:
        """Ids are given for all families at once: one switch has one set of group ids and of next-hop set numbers."""
        cache = self.cache
        used = tuple(dict.fromkeys(h for plan in plans for h in plan.used))
        chains = self._bounce_chains()
        ids, moved = cache.get(("ids", used, chains), _group_ids, used, tuple(c for _, c in chains))
        numbers = cache.get(("numbers", used), spread.number, used)
        for plan in plans:
            for uplink, chain in chains:
                yield self._bounce(plan.family, uplink, chain, ids)
            if plan.default is not None:
                set_id = numbers[plan.default]
                scope = scopes(plan.family, self.intent.prefixes)
                key = ("default", plan.family, plan.default, set_id)
                yield cache.get(key, route.default_section, plan.family, scope, plan.default, set_id)
            yield from self._exceptions(plan, numbers)
            for hops in plan.used:
                set_id = numbers[hops]
                spread_key = ("spread", plan.family, hops, set_id, moved, self.nicira)
                yield cache.get(spread_key, spread.spread_section, plan.family, hops, set_id, ids, self.nicira)

    def _exceptions(self, plan: _Plan, numbers: dict[HopSet, int]) -> Iterator[Section]:
        for leaf, hops in plan.exceptions.items():
            set_id = numbers.get(hops)
            if set_id is None and plan.default is None:
                continue  # nothing would route it anyway
            name, addresses = self.snapshot.switches[leaf].name, self.snapshot.routed[plan.family.name][leaf]
            key = ("leaf", plan.family, leaf, name, addresses, hops, set_id)
            yield self.cache.get(key, route.leaf_section, plan.family, leaf, name, addresses, hops, set_id)

    def _hops(self, leaf: Dpid) -> HopSet:
        facts, snapshot = self.facts, self.snapshot
        members = snapshot.paths.next_hops(facts.dpid, leaf)
        if snapshot.repair and not facts.leafward:
            return HopSet(members, tuple(c.port for c in facts.cables if c.far == leaf) if members else (), back=True)
        return HopSet(members, tuple(c.port for c in facts.cables) if members else ())

    def _bounce_chains(self) -> tuple[tuple[PortNo, Chain], ...]:
        if not self.bounces:
            return ()
        facts = self.facts
        usable = {c.port for c in facts.cables if c.up and c.far in self.snapshot.transit}
        return tuple((p, Chain(route.bounce_order(facts.cables, p, usable))) for p in facts.fabric_ports)

    def _bounce(self, family: Family, uplink: PortNo, chain: Chain, ids: dict[str, int]) -> Section:
        group_id = ids[chain.text] if chain.ports else None
        meter = self.meters.repair.get(uplink)
        key = ("bounce", family, uplink, chain, group_id, meter)
        return self.cache.get(key, route.bounce_section, family, uplink, chain, group_id, meter, self.intent)


def _group_ids(sets: tuple[HopSet, ...], chains: tuple[Chain, ...]) -> tuple[dict[str, int], tuple[tuple[str, int], ...]]:
    """Ids of all groups of one switch, and those that had to give way to another (nearly always none)."""
    contents = closure([*(c for s in sets for c in s.contents), *(c for c in chains if c.ports)])
    ids = assign(contents)
    bits = GROUP_SPAN.bit_length() - 1
    moved = tuple((text, n) for text, n in sorted(ids.items()) if n != GROUP_BASE + stable_hash(text, bits))
    return ids, moved
