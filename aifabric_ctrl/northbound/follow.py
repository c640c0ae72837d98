"""Follows one packet through the compiled tables of the whole fabric, keeping every hash choice with its share.

Built on ``verify.executor``, which runs one switch; ``verify.walk`` gives verdicts over many packets, this keeps what a
person wants to see.  Pure, bounded, and never raises on tables that are wrong: it says so where the packet stops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from aifabric_ctrl.engine.view import EngineView
from aifabric_ctrl.model.errors import ContractError
from aifabric_ctrl.model.fabric import Host, LinkState
from aifabric_ctrl.model.ids import PortRef
from aifabric_ctrl.model.rules import SELECT, Tables
from aifabric_ctrl.northbound.views import no_pause, port_live
from aifabric_ctrl.northbound.words import port_words, ref_words, switch_name, table_name
from aifabric_ctrl.verify.executor import GroupChoice, Outcome, Packet, Sent, bucket_alive, run

MAX_VISITS = 256  # switch visits followed; 64 spines and as many bounces fit
MAX_WAYS = 256  # whole ways listed

Place = tuple[PortRef, Packet]


@dataclass(frozen=True)
class Exit:
    """Where one sent copy goes: on to ``next``, to the wanted host (``delivered``), or to an end that ``stops`` explains."""

    sent: Sent
    to: str
    next: Place | None = None
    delivered: bool = False
    stops: str = ""


@dataclass(frozen=True)
class Choice:
    """One way a switch may treat the packet.  ``share`` is its part of the hash space, 0 to 1.

    Hash choices that send the same out of the same ports are one Choice: ``outcome`` is the first of ``variants``.
    """

    share: float
    outcome: Outcome
    exits: tuple[Exit, ...]
    stops: str = ""
    variants: int = 1


@dataclass(frozen=True)
class Visit:
    """One switch handling the packet as it came in at ``at``; ``error`` when its tables contradict themselves."""

    at: PortRef
    packet: Packet
    choices: tuple[Choice, ...]
    error: str = ""


@dataclass(frozen=True)
class Way:
    """One whole way: the ports crossed, as (in, out) pairs; ``stops`` is empty when it was delivered."""

    share: float
    crossed: tuple[tuple[PortRef, PortRef], ...]
    stops: str


@dataclass(frozen=True)
class Goal:
    """Who sends, and which address is to be reached; ``host`` is None when the address is the fabric's own or nobody's."""

    source: Host
    address: int
    version: int
    host: Host | None
    own: bool = False  # one of the fabric's gateways


@dataclass
class Journey:
    """Everything that was found, in the order a packet meets it."""

    start: Place
    visits: dict[Place, Visit] = field(default_factory=dict)
    cut_short: bool = False

    @cached_property
    def ways(self) -> tuple[Way, ...]:
        """Whole ways from start to end, at most MAX_WAYS, depth first without recursion."""
        found: list[Way] = []
        open_ways: list[tuple[Place, float, tuple[tuple[PortRef, PortRef], ...]]] = [(self.start, 1.0, ())]
        while open_ways and len(found) < MAX_WAYS:
            place, share, crossed = open_ways.pop()
            visit = self.visits.get(place)
            if visit is None or len(crossed) > MAX_VISITS:
                found.append(Way(share, crossed, "there are more ways than are followed"))
                continue
            if visit.error:
                found.append(Way(share, crossed, visit.error))
            for choice in reversed(visit.choices):
                if choice.stops:
                    found.append(Way(share * choice.share, crossed, choice.stops))
                for way_out in choice.exits:
                    longer = (*crossed, (place[0], PortRef(place[0].dpid, way_out.sent.port)))
                    if way_out.next is not None:
                        open_ways.append((way_out.next, share * choice.share, longer))
                    else:
                        found.append(Way(share * choice.share, longer, way_out.stops))
        return tuple(found)

    @property
    def delivered(self) -> float:
        """The share of hash choices that deliver, 0 to 1."""
        return min(1.0, sum(w.share for w in self.ways if not w.stops))


def follow(view: EngineView, goal: Goal, packet: Packet, pause: Callable[[], None] = no_pause) -> Journey:
    """Follow ``packet`` from the source's port; ``pause`` is called between switches."""
    start: Place = (goal.source.at, packet)
    journey = Journey(start)
    waiting = deque([start])
    far = _cables(view)
    while waiting:
        place = waiting.popleft()
        if place in journey.visits:
            continue
        if len(journey.visits) >= MAX_VISITS:
            journey.cut_short = True
            break
        visit = _visit(view, goal, place, far)
        journey.visits[place] = visit
        waiting.extend(e.next for c in visit.choices for e in c.exits if e.next is not None)
        pause()
    return journey


def _cables(view: EngineView) -> dict[PortRef, tuple[PortRef, LinkState]]:
    far: dict[PortRef, tuple[PortRef, LinkState]] = {}
    for link in view.fabric.links:
        far[link.a] = (link.b, link.state)
        far[link.b] = (link.a, link.state)
    return far


def _visit(view: EngineView, goal: Goal, place: Place, far: dict[PortRef, tuple[PortRef, LinkState]]) -> Visit:
    at, packet = place
    name = switch_name(view.fabric, at.dpid)
    tables = view.desired.tables.get(at.dpid)
    if tables is None:
        return Visit(at, packet, (), f"nothing is compiled for {name}, so nothing is known of what it does")
    live = port_live(view, at.dpid)
    try:
        outcomes = run(tables, packet, at.port, live)
        choices = [Choice(_share(tables, outcome, live), outcome, *_ends(view, goal, at, outcome, far)) for outcome in outcomes]
    except ContractError as error:
        return Visit(at, packet, (), f"the tables of {name} contradict themselves: {error.what}")
    return Visit(at, packet, _merged(choices))


def _merged(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    """Slots differ in their second choices (their backup chains), which make no difference while the first is live."""
    kept: dict[tuple[tuple[Exit, ...], str], Choice] = {}
    for choice in choices:
        key = (choice.exits, choice.stops)
        old = kept.get(key)
        kept[key] = choice if old is None else replace(old, share=old.share + choice.share, variants=old.variants + 1)
    return tuple(kept.values())


def _share(tables: Tables, outcome: Outcome, live: Callable[[int], bool]) -> float:
    share = 1.0
    for step in outcome.trace:
        for choice in step.groups:
            share *= choice_share(tables, choice, live)
    return share


def choice_share(tables: Tables, choice: GroupChoice, live: Callable[[int], bool]) -> float:
    """The part of a select group's live weight that leads to the same actions as the bucket chosen; 1 for other types."""
    if choice.group.type != SELECT or choice.bucket is None:
        return 1.0
    alive = [b for b in choice.group.buckets if b.weight > 0 and bucket_alive(tables, b, live)]
    total = sum(b.weight for b in alive)
    same = sum(b.weight for b in alive if b.actions == choice.bucket.actions)
    return same / total if total else 1.0


def _ends(
    view: EngineView, goal: Goal, at: PortRef, outcome: Outcome, far: dict[PortRef, tuple[PortRef, LinkState]]
) -> tuple[tuple[Exit, ...], str]:
    """Where what the switch sent goes, and why nothing (or nothing more) comes of it."""
    exits = tuple(_exit(view, goal, at, sent, far) for sent in outcome.outputs)
    name = switch_name(view.fabric, at.dpid)
    if outcome.controller and not exits:
        first = outcome.controller[0]
        return (
            exits,
            f"{name} hands it to the controller (table {first.table} {table_name(first.table)}): {_controller_words(goal)}",
        )
    if outcome.dropped_at:
        last = outcome.trace[-1] if outcome.trace else None
        why = view.desired.tables[at.dpid].why.get(last.flow.key) if last is not None and last.flow is not None else None
        reason = f" ({why.reason})" if why is not None and why.reason else ""
        return exits, f"{name} drops it: {outcome.dropped_at}{reason}"
    return exits, ""


def _controller_words(goal: Goal) -> str:
    if goal.host is None and not goal.own:
        return "no host is known to have that address; the controller asks for it on the host ports"
    return "the controller decides"


def _exit(view: EngineView, goal: Goal, at: PortRef, sent: Sent, far: dict[PortRef, tuple[PortRef, LinkState]]) -> Exit:
    out = PortRef(at.dpid, sent.port)
    here = ref_words(view.fabric, out)
    if not port_live(view, at.dpid)(sent.port):
        return Exit(sent, "nobody", stops=f"{here} is down, so it is lost there")
    cable = far.get(out)
    if cable is not None:
        end, state = cable
        to = ref_words(view.fabric, end)
        if not port_live(view, end.dpid)(end.port):
            return Exit(sent, to, stops=f"the other end of {here} ({to}) is down, so it is lost there")
        if state in (LinkState.DOWN, LinkState.ONE_WAY):
            return Exit(sent, to, stops=f"the link from {here} to {to} is {state.value}, so it is lost there")
        return Exit(sent, to, next=(end, sent.packet))
    return _to_host(view, goal, out, sent, here)


def _to_host(view: EngineView, goal: Goal, out: PortRef, sent: Sent, here: str) -> Exit:
    names = ("ipv4_src", "ipv4_dst") if goal.version == 4 else ("ipv6_src", "ipv6_dst")
    source, destination = (sent.packet.get(n) for n in names)
    if goal.own and out == goal.source.at and source == goal.address:
        return Exit(sent, f"{goal.source.ip}: the fabric's own answer", delivered=True)
    host = goal.host
    if host is not None and out == host.at:
        if destination != goal.address:
            return Exit(sent, str(host.ip), stops=f"{here} sends it to {host.ip} with another destination address")
        if sent.packet.get("eth_dst") != host.mac:
            return Exit(sent, str(host.ip), stops=f"{here} sends it to a MAC address that {host.ip} does not have")
        return Exit(sent, f"{host.ip} at {here}", delivered=True)
    others = [str(h.ip) for h in view.fabric.hosts.values() if h.at == out]
    if others:
        return Exit(sent, others[0], stops=f"{here} leads to {others[0]}, not to the host asked for")
    return Exit(sent, "nothing known", stops=f"it leaves by {here}, where no switch and no host is known")


def hop_words(view: EngineView, crossed: tuple[tuple[PortRef, PortRef], ...]) -> str:
    """``l1 > s2 > l3``, or with the port when two switches have parallel cables a reader must tell apart."""
    return " > ".join(switch_name(view.fabric, into.dpid) for into, _ in crossed)


def exit_words(view: EngineView, port: PortRef) -> str:
    """The port of an exit in words."""
    return port_words(view.fabric.switches.get(port.dpid), port.port)
