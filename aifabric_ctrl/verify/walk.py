"""Carries a packet through the whole fabric, switch by switch, under every hash choice.

Pure.  It judges the tables as they are; what they should be is for the caller to say (``check_pair``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import NamedTuple

from aifabric_ctrl.model.errors import ContractError
from aifabric_ctrl.model.fabric import Link
from aifabric_ctrl.model.ids import Dpid, PortNo, PortRef
from aifabric_ctrl.model.rules import Tables
from aifabric_ctrl.verify.executor import Outcome, Packet, run
from aifabric_ctrl.verify.liveness import Liveness

LiveRef = Callable[[PortRef], bool]
_Node = tuple[PortRef, Packet]

# A packet that every switch decrements dies after 255 hops; beyond this the tables change it for ever.
MAX_HOPS = 1024
MAX_JOURNEYS = 100_000


class Hop(NamedTuple):
    """One transmission: a switch took the packet in at one port and sent it out of another (or the same)."""

    dpid: Dpid
    in_port: PortNo
    out_port: PortNo


class Visit(NamedTuple):
    """One switch's handling of the packet; ``outcome.trace`` says by which rules."""

    dpid: Dpid
    in_port: PortNo
    outcome: Outcome


class Delivery(NamedTuple):
    """The packet as it came out of a port that leads to no switch."""

    at: PortRef
    packet: Packet


class Loss(NamedTuple):
    """Where a copy ended and why; ``hole`` when a rule sent it into a dead link, which no switch notices."""

    at: PortRef
    text: str
    hole: bool


@dataclass(frozen=True)
class Journey:
    """What becomes of one packet under one set of hash choices.  A copied packet has all its branches in here."""

    hops: tuple[Hop, ...] = ()
    visits: tuple[Visit, ...] = ()
    delivered: tuple[Delivery, ...] = ()
    lost: tuple[Loss, ...] = ()
    controller: tuple[PortRef, ...] = ()

    @cached_property
    def sends(self) -> int:
        """The most transmissions over any one port (DESIGN 3 bounds this for bounced packets)."""
        return max(Counter((h.dpid, h.out_port) for h in self.hops).values(), default=0)

    def __str__(self) -> str:
        way = " ".join(f"{h.dpid:#x}:{h.in_port}>{h.out_port}" for h in self.hops)
        ends = [f"delivered at {d.at}" for d in self.delivered] + [f"lost at {x.at} ({x.text})" for x in self.lost]
        return f"{way}: {', '.join(ends) or 'to the controller'}"


def _join(parts: Iterable[Journey]) -> Journey:
    hops: tuple[Hop, ...] = ()
    visits: tuple[Visit, ...] = ()
    delivered: tuple[Delivery, ...] = ()
    lost: tuple[Loss, ...] = ()
    controller: tuple[PortRef, ...] = ()
    for part in parts:
        hops += part.hops
        visits += part.visits
        delivered += part.delivered
        lost += part.lost
        controller += part.controller
    return Journey(hops, visits, delivered, lost, controller)


class Walker:
    """One state of the fabric: which tables, which cables, which ports are live.

    Args:
        live: whether a port is live in its own switch's eyes; what watch ports see.
        carries: whether what is sent out of a port arrives.  Without it a cable carries while both its ends are
            live; pass one to model silent cuts, where ports stay live (an edge port carries while it is live).
    """

    def __init__(
        self,
        tables_by_dpid: Mapping[Dpid, Tables],
        links: Iterable[Link],
        live: LiveRef,
        carries: LiveRef | None = None,
        max_hops: int = MAX_HOPS,
    ) -> None:
        self._tables = tables_by_dpid
        self._far: dict[PortRef, PortRef] = {}
        for link in links:
            self._far[link.a] = link.b
            self._far[link.b] = link.a
        self._live = live
        self._carries = carries if carries is not None else self._both_live
        self._max_hops = max_hops
        self._outcomes: dict[_Node, list[Outcome]] = {}
        self._known: dict[_Node, list[Journey]] = {}
        self._alive = {d: Liveness(t, partial(self._port_live, d)) for d, t in tables_by_dpid.items()}

    def _port_live(self, dpid: Dpid, port: PortNo) -> bool:
        return self._live(PortRef(dpid, port))

    def _both_live(self, port: PortRef) -> bool:
        far = self._far.get(port)
        return self._live(port) and (far is None or self._live(far))

    def walk(self, start: PortRef, packet: Packet) -> list[Journey]:
        """Every distinct journey of a packet that enters the fabric at ``start``.

        Depth first without recursion (a bouncing packet may travel for 255 hops); each (port, packet) is run once.

        Raises:
            ContractError: the tables are wrong in themselves, or a packet comes back unchanged to where it was.
        """
        way: list[_Node] = [(start, packet)]
        open_nodes = {way[0]}
        while way:
            node = way[-1]
            waiting = next((n for n in self._next(node) if n not in self._known), None)
            if waiting is None:
                self._known[node] = self._journeys(node)
                open_nodes.discard(way.pop())
            elif waiting in open_nodes or len(way) > self._max_hops:
                raise ContractError(f"{waiting[1]} travels for ever, seen again at {waiting[0]}")
            else:
                way.append(waiting)
                open_nodes.add(waiting)
        return self._known[(start, packet)]

    def _handled(self, node: _Node) -> list[Outcome]:
        outcomes = self._outcomes.get(node)
        if outcomes is None:
            at, packet = node
            outcomes = run(self._tables[at.dpid], packet, at.port, self._alive[at.dpid])
            self._outcomes[node] = outcomes
        return outcomes

    def _arrives(self, out: PortRef) -> PortRef | None:
        """The port at the other end when a frame sent from here reaches a switch."""
        return self._far.get(out) if self._carries(out) else None

    def _next(self, node: _Node) -> Iterator[_Node]:
        at = node[0]
        if at.dpid in self._tables:
            for outcome in self._handled(node):
                for sent in outcome.outputs:
                    far = self._arrives(PortRef(at.dpid, sent.port))
                    if far is not None:
                        yield far, sent.packet

    def _journeys(self, node: _Node) -> list[Journey]:
        at = node[0]
        if at.dpid not in self._tables:
            return [Journey(lost=(Loss(at, "switch has no tables", False),))]
        journeys = [j for outcome in self._handled(node) for j in self._after(at, outcome)]
        if len(journeys) > MAX_JOURNEYS:
            raise ContractError(f"{node[1]} has more than {MAX_JOURNEYS} ways from {at}")
        return journeys

    def _after(self, at: PortRef, outcome: Outcome) -> list[Journey]:
        here = Journey(
            visits=(Visit(at.dpid, at.port, outcome),),
            lost=(Loss(at, outcome.dropped_at, False),) if outcome.dropped_at else (),
            controller=(at,) * len(outcome.controller),
        )
        branches = [self._sent(at, PortRef(at.dpid, s.port), s.packet) for s in outcome.outputs]
        return [_join((here, *branch)) for branch in product(*branches)]

    def _sent(self, at: PortRef, out: PortRef, packet: Packet) -> list[Journey]:
        hop = Journey(hops=(Hop(at.dpid, at.port, out.port),))
        if not self._carries(out):
            return [_join((hop, Journey(lost=(Loss(out, "sent into a dead link", True),))))]
        far = self._far.get(out)
        if far is None:
            return [_join((hop, Journey(delivered=(Delivery(out, packet),))))]
        return [_join((hop, rest)) for rest in self._known[(far, packet)]]


def walk(
    tables_by_dpid: Mapping[Dpid, Tables],
    links: Iterable[Link],
    start: PortRef,
    packet: Packet,
    live: LiveRef,
    max_hops: int = MAX_HOPS,
) -> list[Journey]:
    """One packet through one state of the fabric; make a :class:`Walker` for several.  Raises as it does."""
    return Walker(tables_by_dpid, links, live, max_hops=max_hops).walk(start, packet)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one packet: is it delivered whatever the hashes, how often does it cross one port, and a journey to look at.

    ``example`` is a failing journey when there is one, else the one with the most sends.
    """

    delivered: bool
    worst_sends: int
    example: Journey


def judge(journeys: Iterable[Journey], to: PortRef) -> Verdict:
    """Delivered means: in every journey exactly one copy, at ``to``, and no other copy anywhere."""
    worst = Journey()
    failing: Journey | None = None
    for journey in journeys:
        if journey.sends > worst.sends or not worst.visits:
            worst = journey
        if failing is None and (journey.lost or [d.at for d in journey.delivered] != [to]):
            failing = journey
    return Verdict(failing is None and bool(worst.visits), worst.sends, failing or worst)


def check_pair(walker: Walker, start: PortRef, packet: Packet, to: PortRef) -> Verdict:
    """Does this packet, entering at ``start``, come out at ``to`` under every hash choice?  Raises as ``Walker.walk``."""
    return judge(walker.walk(start, packet), to)


class Probe(NamedTuple):
    """A packet, where it enters and where it must come out."""

    start: PortRef
    packet: Packet
    to: PortRef


def failures(walker: Walker, probes: Iterable[Probe], max_sends: int | None = None) -> list[tuple[Probe, Verdict]]:
    """The probes that are not delivered under every hash choice, or cross a port more than ``max_sends`` times."""
    bad: list[tuple[Probe, Verdict]] = []
    for probe in probes:
        verdict = check_pair(walker, *probe)
        if not verdict.delivered or (max_sends is not None and verdict.worst_sends > max_sends):
            bad.append((probe, verdict))
    return bad


def delivers_everywhere(walker: Walker, probes: Iterable[Probe]) -> bool:
    """Every probe is delivered under every hash choice."""
    return not failures(walker, probes)


def live_without(dead: Iterable[PortRef] = (), dead_links: Iterable[Link] = (), dead_switches: Iterable[Dpid] = ()) -> LiveRef:
    """A liveness function: all is well but for these.  Both ends of a dead link see it (carrier or BFD).

    A dead switch's own ports are dead; its neighbours' ports to it must be named through ``dead_links``.
    """
    gone = set(dead)
    for link in dead_links:
        gone |= {link.a, link.b}
    switches = set(dead_switches)
    return lambda port: port not in gone and port.dpid not in switches
