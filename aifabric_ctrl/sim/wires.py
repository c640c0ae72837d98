"""Cables and hosts between fake switches: carries packets, loses them where it should, tells of carrier changes.

Time is somebody else's (``after``): virtual in ``memnet``, an event loop's in ``fakenet``.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence

from aifabric_ctrl.model.errors import WireError
from aifabric_ctrl.model.fabric import Link
from aifabric_ctrl.model.ids import Dpid, PortNo, PortRef
from aifabric_ctrl.model.rules import Action, Bucket, Group
from aifabric_ctrl.sim.fakeswitch import FakeSwitch
from aifabric_ctrl.sim.frame import packet_of
from aifabric_ctrl.sim.host import HostStack
from aifabric_ctrl.sim.topology import Topology
from aifabric_ctrl.verify.executor import Outcome, ToController, run, run_actions
from aifabric_ctrl.verify.packet import Packet
from aifabric_ctrl.verify.walk import Walker


class Wires:
    """What joins the switches of a topology.

    Args:
        after: run something that many seconds later.
        packet_in: a switch sends this packet, which came in at that port, to its controller.
        port_event: a port's state changed; its switch should say so.
        changed: told whenever what the wires carry changed.
    """

    def __init__(
        self,
        topology: Topology,
        switches: Mapping[Dpid, FakeSwitch],
        after: Callable[[float, Callable[[], None]], object],
        packet_in: Callable[[Dpid, PortNo, ToController], None],
        port_event: Callable[[PortRef], None],
        changed: Callable[[], None],
        rng: random.Random,
        delay_s: float,
    ) -> None:
        self.topology = topology
        self.switches = switches
        self.hosts = {h.name: HostStack(h) for h in topology.hosts}
        self.places = {h.name: h.at for h in topology.hosts}
        self.deliveries: list[tuple[str, Packet]] = []
        self.dead: set[Dpid] = set()
        self.silent: set[PortRef] = set()
        self._far = {x.a: x.b for x in topology.links} | {x.b: x.a for x in topology.links}
        self._after = after
        self._packet_in = packet_in
        self._port_event = port_event
        self._changed = changed
        self._rng = rng
        self._delay_s = delay_s
        self._pings = 0

    # Faults

    def carrier(self, ref: PortRef, *, up: bool) -> None:
        """Carrier comes or goes at this port and at the other end of its cable."""
        for end in [ref] + ([self._far[ref]] if ref in self._far else []):
            if end.dpid not in self.dead:
                self._set_carrier(end, up=up)
        self._changed()

    def _set_carrier(self, end: PortRef, *, up: bool) -> None:
        switch = self.switches[end.dpid]
        if switch.ports[end.port].link_down == up:
            switch.set_port(end.port, link_down=not up)
            self._port_event(end)

    def silence(self, link: Link, direction: str = "both") -> None:
        """Frames stop without a port event: "ab" those sent by ``link.a``, "ba" the others, "both" all."""
        self.silent |= senders(link, direction)
        self._changed()

    def unsilence(self, link: Link, direction: str = "both") -> None:
        self.silent -= senders(link, direction)
        self._changed()

    def kill(self, dpid: Dpid, *, carrier_lost: bool = True) -> None:
        """A switch dies and loses its tables; its neighbours lose carrier, or only hear nothing any more."""
        self.dead.add(dpid)
        self.switches[dpid].restart()
        if carrier_lost:
            for number in self.switches[dpid].ports:
                far = self._far.get(PortRef(dpid, number))
                if far is not None and far.dpid not in self.dead:
                    self._set_carrier(far, up=False)
        self._changed()

    def revive(self, dpid: Dpid) -> None:
        """A dead switch is back, with empty tables."""
        self.dead.discard(dpid)
        for number in self.switches[dpid].ports:
            far = self._far.get(PortRef(dpid, number))
            self.switches[dpid].set_port(number, link_down=far is not None and far.dpid in self.dead)
            if far is not None and far.dpid not in self.dead:
                self._set_carrier(far, up=True)
        self._changed()

    # Carrying

    def carries(self, out: PortRef) -> bool:
        """Does a frame sent out of this port arrive at what is plugged in there?"""
        far = self._far.get(out)
        ends = [out] if far is None else [out, far]
        if any(e.dpid in self.dead or self.switches[e.dpid].ports[e.port].link_down for e in ends):
            return False
        return out not in self.silent

    def both_ways(self, a: PortRef, b: PortRef) -> bool:
        return self.carries(a) and self.carries(b)

    def packet_out(self, dpid: Dpid, in_port: PortNo, actions: Sequence[Action], data: bytes) -> None:
        """A switch carries out a packet-out; a frame that is none is dropped."""
        switch = self.switches[dpid]
        try:
            packet = packet_of(data)
        except WireError:
            return
        (outcome,) = run_actions(switch.snapshot(), actions, packet, in_port, switch.live, hash_choice(packet))
        self._carry(switch, in_port, outcome)

    def arrive(self, at: PortRef, packet: Packet) -> None:
        """A frame comes in at a port of a switch."""
        if at.dpid in self.dead or self.switches[at.dpid].ports[at.port].link_down:
            return
        switch = self.switches[at.dpid]
        (outcome,) = run(switch.snapshot(), packet, at.port, switch.live, hash_choice(packet))
        self._carry(switch, at.port, outcome)

    def _carry(self, switch: FakeSwitch, in_port: PortNo, outcome: Outcome) -> None:
        for up in outcome.controller:
            self._packet_in(switch.dpid, in_port, up)
        for sent in outcome.outputs:
            self._transmit(PortRef(switch.dpid, sent.port), sent.packet)

    def _transmit(self, out: PortRef, packet: Packet) -> None:
        if out.port not in self.switches[out.dpid].ports or not self.carries(out):
            return
        far = self._far.get(out)
        if far is not None:
            self._later(lambda: self.arrive(far, packet))
            return
        for name in [n for n, place in self.places.items() if place == out]:
            self._later(lambda name=name: self._at_host(name, packet))  # type: ignore[misc]

    def _later(self, act: Callable[[], None]) -> None:
        self._after(self._rng.random() * self._delay_s, act)

    # Hosts

    def _at_host(self, name: str, packet: Packet) -> None:
        stack = self.hosts[name]
        before = len(stack.received) + len(stack.foreign)
        answers = stack.receive(packet)
        if len(stack.received) + len(stack.foreign) > before:
            self.deliveries.append((name, packet))
        self.from_host(name, answers)

    def from_host(self, name: str, packets: Sequence[Packet]) -> None:
        """A host sends these, now."""
        at = self.places[name]
        for packet in packets:
            self._later(lambda packet=packet: self.arrive(at, packet))  # type: ignore[misc]

    def start_ping(self, a: str, b: str, version: int = 4) -> Callable[[], bool]:
        """Send one echo from a to b; call the result to know whether it was answered."""
        self._pings += 1
        ident, stack, there = self._pings, self.hosts[a], self.hosts[b].host
        ip = there.ip if version == 4 else there.ip6
        self.from_host(a, stack.ping(ip, ident) if version == 4 else stack.ping6(ip, ident))
        return lambda: stack.answered(ip, ident)

    def walker(self) -> Walker:
        """The fabric as it is this moment, for judging with ``verify.walk``."""
        tables = {d: s.snapshot() for d, s in self.switches.items() if d not in self.dead}
        return Walker(tables, self.topology.links, lambda ref: self.switches[ref.dpid].live(ref.port), self.carries)


def senders(link: Link, direction: str) -> set[PortRef]:
    """Raises KeyError for anything but "ab", "ba", "both"."""
    return {"ab": {link.a}, "ba": {link.b}, "both": {link.a, link.b}}[direction]


def hash_choice(packet: Packet) -> Callable[[Group, Sequence[Bucket]], int]:
    """A switch's hash: the flow picks a slot, a dead slot's flows go to the next live one (as OVS's dp_hash)."""
    flow = repr([packet.get(n) for n in ("ip_proto", "ipv4_src", "ipv4_dst", "ipv6_src", "ipv6_dst", "tcp_src", "tcp_dst")])
    digest = int.from_bytes(hashlib.blake2b(flow.encode(), digest_size=4).digest(), "big")

    def choose(group: Group, live: Sequence[Bucket]) -> int:
        places = {id(bucket): place for place, bucket in enumerate(live)}
        slots = group.buckets
        for step in range(len(slots)):
            place = places.get(id(slots[(digest + step) % len(slots)]))
            if place is not None:
                return place
        return 0

    return choose
