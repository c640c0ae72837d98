"""A whole fake fabric in memory, driving an ``Engine`` on virtual time: no sockets, no threads, no clock.

The same topology, engine inputs and seed give the same run.  Events of different switches reach the engine in random
order and with random delay; one connection keeps its order, as TCP does.  Data packets are carried by ``verify.executor``
over the strict tables of ``sim.tables``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from aifabric_ctrl.model.effects import Answer, Effect, Journal, PacketOut, SaveDrain, SaveHost, SaveLink, SavePorts, WantBfd
from aifabric_ctrl.model.events import Event, FrameIn, ObjectRefused, OperatorAsked, PortChanged, Remembered, Tick
from aifabric_ctrl.model.fabric import Link
from aifabric_ctrl.model.ids import Dpid, PortNo, PortRef
from aifabric_ctrl.model.rules import Tables
from aifabric_ctrl.sim.bfd import Bfd
from aifabric_ctrl.sim.channel import Channel, Delays
from aifabric_ctrl.sim.clock import Clock
from aifabric_ctrl.sim.fakeswitch import FakeSwitch
from aifabric_ctrl.sim.frame import frame_of, packet_of
from aifabric_ctrl.sim.remember import MemStore
from aifabric_ctrl.sim.topology import Topology
from aifabric_ctrl.sim.wires import Wires
from aifabric_ctrl.verify.executor import ToController
from aifabric_ctrl.verify.packet import Packet
from aifabric_ctrl.verify.walk import Walker

if TYPE_CHECKING:
    from aifabric_ctrl.engine.engine import Engine

SETTLE_LOOK_S = 0.05
NO_MATCH, ACTION = 0, 1  # OFPR_*


class MemNet:
    """Switches, cables and hosts of a topology, and one engine that controls them.

    Args:
        unordered: switches apply what lies between two barriers in random order (and take no bundles).
    """

    def __init__(
        self, topology: Topology, engine: Engine, seed: int = 0, *, unordered: bool = False, delays: Delays | None = None
    ) -> None:
        self.topology = topology
        self.clock = Clock()
        self.rng = random.Random(seed)
        self.delays = delays or Delays()
        self.store = MemStore()
        self.journal: list[tuple[float, Journal]] = []
        self.refused: list[ObjectRefused] = []
        self.observers: list[Callable[[Dpid], None]] = []
        self.answers: dict[int, Answer] = {}  # to operators, by request
        self.frames_in = 0
        self.switches: dict[Dpid, FakeSwitch] = {}
        self.channels: dict[Dpid, Channel] = {}
        for dpid, ports in topology.switches.items():
            features = topology.features[dpid]
            features = replace(features, bundles=False) if unordered else features
            order = random.Random(self.rng.random()) if unordered else None
            self._add_switch(FakeSwitch(dpid, ports, features, topology.names.get(dpid, ""), rng=order))
        self._engine: Engine | None = engine
        self._inbox: list[Event] = []
        self._awake = False
        self._tick_at: float | None = None
        self._sessions = 0
        self._requests = 0
        self.wires = Wires(
            topology,
            self.switches,
            self.clock.after,
            self._packet_in,
            self._port_event,
            lambda: self.bfd.wire_changed(),
            self.rng,
            self.delays.wire_s,
        )
        self.bfd = Bfd(self.clock, self.switches, self.wires.both_ways, self._port_event, self._to_engine)
        self.hosts, self.places, self.deliveries = self.wires.hosts, self.wires.places, self.wires.deliveries
        self.dead = self.wires.dead

    def _add_switch(self, switch: FakeSwitch) -> None:
        self.switches[switch.dpid] = switch
        self.channels[switch.dpid] = Channel(
            switch, self.clock, self.rng, self.delays, self._to_engine, self._packet_out, self._tables_changed
        )

    # -- time and engine -----------------------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """The running engine.  Raises RuntimeError while it is stopped."""
        if self._engine is None:
            raise RuntimeError("the engine is stopped")
        return self._engine

    @property
    def now(self) -> float:
        return self.clock.now

    def advance(self, seconds: float) -> None:
        """Let that much virtual time pass."""
        self.clock.run_until(self.clock.now + seconds)

    def settle(self, max_s: float = 30.0) -> None:
        """Let time pass until the engine is ready and nothing is on its way.

        Raises:
            TimeoutError: not within ``max_s``, with the engine's reasons.
        """
        end = self.now + max_s
        while self.now < end:
            self.advance(SETTLE_LOOK_S)
            if not self._inbox and all(c.idle for c in self.channels.values()) and self.engine.view().ready:
                return
        raise TimeoutError(f"not ready after {max_s} s: {'; '.join(self.engine.view().not_ready) or 'messages under way'}")

    def _to_engine(self, event: Event) -> None:
        if self._engine is None:
            return
        if isinstance(event, ObjectRefused):
            self.refused.append(event)
        self._inbox.append(event)
        if not self._awake:
            self._awake = True
            self.clock.after(self.rng.random() * self.delays.engine_s, self._run_engine)

    def _run_engine(self) -> None:
        self._awake = False
        inbox, self._inbox = self._inbox, []
        if self._engine is None:
            return
        for event in inbox:
            self._carry_out(self._engine.step(replace(event, at=self.now)))
        self._carry_out(self._engine.flush(self.now))
        self._arm()

    def _arm(self) -> None:
        due = self._engine.next_deadline() if self._engine is not None else None
        if due is None:
            return
        due = max(due, self.now + 0.0005)
        if self._tick_at is None or due < self._tick_at:
            self._tick_at = due
            self.clock.at(due, lambda: self._tick(due))

    def _tick(self, due: float) -> None:
        if self._tick_at != due:
            return
        self._tick_at = None
        self._to_engine(Tick(self.now))

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Journal():
                    self.journal.append((self.now, effect))
                case SaveHost() | SaveLink() | SavePorts() | SaveDrain():
                    self.store.take(effect)
                case Answer(request=request):
                    self.answers[request] = effect
                case WantBfd(links=links, interval_ms=interval):
                    self.bfd.want(links, interval / 1000)
                case _:
                    for channel in self.channels.values():
                        if channel.session == effect.session:
                            channel.send_down(effect)

    def stop_engine(self) -> None:
        """As kill -9: every connection is gone, nothing more is carried out; switches forward on."""
        self._engine = None
        self._inbox.clear()
        self._tick_at = None
        for channel in self.channels.values():
            channel.close("controller stopped", tell=False)

    def restart_engine(self, engine: Engine, remembered: Remembered | None = None, spread_s: float = 0.0) -> None:
        """Start another engine; it is told what the store remembers, then the switches connect (see ``connect_all``)."""
        self.stop_engine()
        self._engine = engine
        self._to_engine(remembered or self.store.remembered(self.now))
        self.connect_all(spread_s)

    def ask(self, verb: str, target: str = "", *, force: bool = False, who: str = "op", reason: str = "") -> int:
        """An operator asks; the answer will be in ``answers`` under the number returned."""
        self._requests += 1
        self._to_engine(OperatorAsked(self.now, self._requests, verb, target, who, reason, force, 1.7e9 + self.now))
        return self._requests

    # -- connections ---------------------------------------------------------------------------------------------------

    def connect_all(self, spread_s: float = 0.0) -> None:
        """Every switch that is alive connects, in random order, each at a random time within ``spread_s``.

        Open vSwitch tries again after 1, 2, 4, 8 s, so after a restart the first and the last are seconds apart.
        """
        dpids = [d for d in self.switches if d not in self.dead]
        self.rng.shuffle(dpids)
        for dpid in dpids:
            if spread_s:
                self.clock.after(self.rng.random() * spread_s, partial(self.connect, dpid))
            else:
                self.connect(dpid)

    def connect(self, dpid: Dpid) -> None:
        """One switch opens a connection (and, if it had one, abandons it without a word)."""
        self._sessions += 1
        self.channels[dpid].open(self._sessions)

    def disconnect(self, dpid: Dpid, late_s: float = 0.0) -> None:
        """The control connection breaks; tables and forwarding stay."""
        self.channels[dpid].close("connection lost", late_s=late_s)

    # -- faults --------------------------------------------------------------------------------------------------------

    def port_down(self, dpid: Dpid, port: PortNo) -> None:
        """Carrier goes at this port and at the port on the other end of its cable."""
        self.wires.carrier(PortRef(dpid, port), up=False)

    def port_up(self, dpid: Dpid, port: PortNo) -> None:
        self.wires.carrier(PortRef(dpid, port), up=True)

    def _port_event(self, ref: PortRef) -> None:
        channel = self.channels[ref.dpid]
        if channel.session is not None:
            channel.send_up(PortChanged(self.now, channel.session, "modify", self.switches[ref.dpid].ports[ref.port]))

    def silence(self, link: Link, direction: str = "both") -> None:
        """Frames stop without a port event: "ab" those sent by ``link.a``, "ba" the others, "both" all."""
        self.wires.silence(link, direction)

    def unsilence(self, link: Link, direction: str = "both") -> None:
        self.wires.unsilence(link, direction)

    def kill_switch(self, dpid: Dpid, *, carrier_lost: bool = True) -> None:
        """A switch dies: its tables are lost, its connection ends, its neighbours lose carrier (or only BFD)."""
        self.channels[dpid].close("connection lost")
        self.wires.kill(dpid, carrier_lost=carrier_lost)

    def start_switch(self, dpid: Dpid) -> None:
        """A dead switch comes back with empty tables and connects."""
        self.wires.revive(dpid)
        self.connect(dpid)

    # -- data plane ----------------------------------------------------------------------------------------------------

    def _packet_out(self, switch: FakeSwitch, effect: PacketOut) -> None:
        if switch.dpid not in self.wires.dead:
            self.wires.packet_out(switch.dpid, effect.in_port, effect.actions, effect.data)

    def _packet_in(self, dpid: Dpid, in_port: PortNo, up: ToController) -> None:
        channel = self.channels[dpid]
        if channel.session is not None:
            self.frames_in += 1
            reason, data = NO_MATCH if up.miss else ACTION, frame_of(up.packet)
            channel.send_up(FrameIn(self.now, channel.session, in_port, up.table, reason, up.cookie, data))

    def carries(self, out: PortRef) -> bool:
        """Does a frame sent out of this port arrive at what is plugged in there?"""
        return self.wires.carries(out)

    def from_host(self, name: str, packets: Sequence[Packet]) -> None:
        """A host sends these, now."""
        self.wires.from_host(name, packets)

    def send(self, name: str, packet: Packet | bytes, wait_s: float = 0.05) -> list[tuple[str, Packet]]:
        """A host sends exactly this frame; what reached any host within ``wait_s`` (ARP for it excepted).

        Raises:
            WireError: bytes that are no frame.
        """
        before = len(self.deliveries)
        self.from_host(name, [packet_of(packet) if isinstance(packet, bytes) else packet])
        self.advance(wait_s)
        return self.deliveries[before:]

    def ping(self, a: str, b: str, wait_s: float = 1.0, version: int = 4) -> bool:
        """One echo from a to b, with ARP or ND as a host does it; answered within ``wait_s``?"""
        return not self.ping_pairs([(a, b)], wait_s, version)

    def ping_pairs(self, pairs: Sequence[tuple[str, str]], wait_s: float = 1.0, version: int = 4) -> list[tuple[str, str]]:
        """One echo for each pair, all at once; the pairs without an answer within ``wait_s``."""
        sent = [(pair, self.wires.start_ping(*pair, version)) for pair in pairs]
        self.advance(wait_s)
        return [pair for pair, answered in sent if not answered()]

    def ping_all(self, wait_s: float = 1.0, version: int = 4) -> list[tuple[str, str]]:
        """Every ordered pair of hosts; those without an answer."""
        return self.ping_pairs([(a, b) for a in self.hosts for b in self.hosts if a != b], wait_s, version)

    def move_host(self, name: str, to: PortRef) -> None:
        """Plug a host in elsewhere; it says nothing by itself."""
        self.places[name] = to

    # -- looking -------------------------------------------------------------------------------------------------------

    def tables(self, dpid: Dpid) -> Tables:
        """What is on a switch now."""
        return self.switches[dpid].snapshot()

    def violations(self) -> list[str]:
        """What switches carried out or refused although it can only be a mistake of ours."""
        found = [f"{s.name or hex(d)}: {v}" for d, s in self.switches.items() for v in s.tables.violations]
        return found + [f"refused: {r.error}: {r.object}" for r in self.refused]

    def walker(self) -> Walker:
        """The fabric as it is this moment, for judging with ``verify.walk``."""
        return self.wires.walker()

    def _tables_changed(self, switch: FakeSwitch) -> None:
        for observer in self.observers:
            observer(switch.dpid)
