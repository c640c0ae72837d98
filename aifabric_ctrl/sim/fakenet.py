"""A fake fabric of real OpenFlow connections: fake switches, cables and hosts against a running controller.

Runs an asyncio loop in a thread of its own; every public method may be called from outside and returns when done.
Nothing of the controller is imported, so the controller can be any process that listens.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from aifabric_ctrl.model.fabric import Link
from aifabric_ctrl.model.ids import Dpid, PortNo, PortRef
from aifabric_ctrl.model.rules import Tables
from aifabric_ctrl.sim.client import FakeSwitchClient, Manners
from aifabric_ctrl.sim.fakeswitch import FakeSwitch
from aifabric_ctrl.sim.frame import frame_of
from aifabric_ctrl.sim.protocol import SwitchProtocol
from aifabric_ctrl.sim.topology import Topology
from aifabric_ctrl.sim.wires import Wires
from aifabric_ctrl.southbound.wire.requests import PacketOut
from aifabric_ctrl.verify.executor import ToController
from aifabric_ctrl.verify.packet import Packet
from aifabric_ctrl.verify.walk import Walker

T = TypeVar("T")
LOOK_S = 0.02


class FakeNet:
    """Use it in a ``with`` statement; switches connect on :meth:`connect_all` or one by one.

    Args:
        unordered: switches carry out mods between two barriers in random order.
        manners: of every client; give one another set through ``clients[dpid].manners``.
    """

    def __init__(
        self,
        topology: Topology,
        host: str = "127.0.0.1",
        port: int = 6653,
        seed: int = 0,
        *,
        unordered: bool = False,
        manners: Manners | None = None,
    ) -> None:
        self.topology = topology
        self.switches = {
            dpid: FakeSwitch(dpid, ports, topology.features[dpid], topology.names.get(dpid, ""))
            for dpid, ports in topology.switches.items()
        }
        rng = random.Random(seed)
        self.wires = Wires(
            topology,
            self.switches,
            lambda seconds, act: self._loop.call_later(seconds, act),
            self._packet_in,
            self._port_event,
            lambda: None,
            rng,
            0.0002,
        )
        self.hosts = self.wires.hosts
        self.clients: dict[Dpid, FakeSwitchClient] = {}
        for dpid in self.switches:
            order = random.Random(rng.random()) if unordered else None
            make = self._protocol_maker(dpid, order)
            self.clients[dpid] = FakeSwitchClient(make, host, port, manners or Manners(reconnect_s=0.2))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fakenet", daemon=True)

    def _protocol_maker(self, dpid: Dpid, rng: random.Random | None) -> Callable[[], SwitchProtocol]:
        def packet_out(request: PacketOut) -> None:
            if dpid not in self.wires.dead:
                self.wires.packet_out(dpid, request.in_port, request.actions, request.data)

        return lambda: SwitchProtocol(self.switches[dpid], packet_out, rng=rng)

    # Life

    def __enter__(self) -> FakeNet:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wait(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _stop(self) -> None:
        await asyncio.gather(*(c.stop() for c in self.clients.values()))
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    def do(self, act: Callable[[], T]) -> T:
        """Run something on the loop, where all state may be looked at and changed."""

        async def run() -> T:
            return act()

        return self._wait(run())

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def until(self, true: Callable[[], bool], max_s: float = 10.0, what: str = "") -> None:
        """Look (on the loop) until it is true.

        Raises:
            TimeoutError: not within ``max_s``.
        """
        end = time.monotonic() + max_s
        while not self.do(true):
            if time.monotonic() > end:
                raise TimeoutError(f"not within {max_s} s: {what or true}")
            time.sleep(LOOK_S)

    # Connections

    def connect(self, dpid: Dpid) -> None:
        self.do(self.clients[dpid].start)

    def connect_all(self) -> None:
        for dpid in self.clients:
            self.connect(dpid)

    def disconnect(self, dpid: Dpid) -> None:
        """Close and stay away until :meth:`connect`; tables and forwarding stay."""
        self._wait(self.clients[dpid].stop())

    def _port_event(self, ref: PortRef) -> None:
        client = self.clients[ref.dpid]
        if client.protocol is not None:
            client.protocol.port_status(self.switches[ref.dpid].ports[ref.port])
            client.flush()

    def _packet_in(self, dpid: Dpid, in_port: PortNo, up: ToController) -> None:
        client = self.clients[dpid]
        if client.protocol is not None:
            client.protocol.packet_in(in_port, frame_of(up.packet), up.table, 0 if up.miss else 1, up.cookie)
            client.flush()

    # Faults; see ``Wires``

    def port_down(self, dpid: Dpid, port: PortNo) -> None:
        self.do(lambda: self.wires.carrier(PortRef(dpid, port), up=False))

    def port_up(self, dpid: Dpid, port: PortNo) -> None:
        self.do(lambda: self.wires.carrier(PortRef(dpid, port), up=True))

    def silence(self, link: Link, direction: str = "both") -> None:
        self.do(lambda: self.wires.silence(link, direction))

    def unsilence(self, link: Link, direction: str = "both") -> None:
        self.do(lambda: self.wires.unsilence(link, direction))

    def kill_switch(self, dpid: Dpid, *, carrier_lost: bool = True) -> None:
        self.disconnect(dpid)
        self.do(lambda: self.wires.kill(dpid, carrier_lost=carrier_lost))

    def start_switch(self, dpid: Dpid) -> None:
        self.do(lambda: self.wires.revive(dpid))
        self.connect(dpid)

    # Hosts and looking

    def from_host(self, name: str, packets: Sequence[Packet]) -> None:
        """A host sends these, now."""
        self.do(lambda: self.wires.from_host(name, packets))

    def ping(self, a: str, b: str, max_s: float = 2.0) -> bool:
        """One echo from a to b; answered within ``max_s``?"""
        answered = self.do(lambda: self.wires.start_ping(a, b))
        try:
            self.until(answered, max_s)
        except TimeoutError:
            return False
        return True

    def ping_all(self, max_s: float = 2.0) -> list[tuple[str, str]]:
        """Every ordered pair, one after the other, one packet each; those without an answer."""
        return [(a, b) for a in self.hosts for b in self.hosts if a != b and not self.ping(a, b, max_s)]

    def tables(self, dpid: Dpid) -> Tables:
        return self.do(self.switches[dpid].snapshot)

    def walker(self) -> Walker:
        return self.do(self.wires.walker)

    def violations(self) -> list[str]:
        """What switches carried out or refused although it can only be a mistake of the controller's."""

        def look() -> list[str]:
            found = [f"{s.name or hex(d)}: {v}" for d, s in self.switches.items() for v in s.tables.violations]
            for dpid, client in self.clients.items():
                asked = [] if self.switches[dpid].features.bundles else ["BAD_REQUEST/BAD_EXPERIMENTER"]
                for protocol in [*client.past, *([client.protocol] if client.protocol else [])]:
                    found += [f"{dpid:#x}: answered {e}" for e in protocol.errors if e not in asked]
            return found

        return self.do(look)
