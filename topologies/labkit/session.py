"""One lab session: the fabric that is up now, its controller and its traffic; brings them up, settles them, cleans up."""

import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit import failures, ovs
from labkit.controller import Controller, free_port
from labkit.errors import LabError, PhaseError
from labkit.fabric import Fabric, Link, Shape
from labkit.traffic import Flow, FlowSet, Traffic

CONNECT_BOUND_S = 60
PING_BOUND_S = 40
READY_BOUND_S = 30
SETTLE_BOUND_S = 60
ROUTE_TABLE = 40
PATH_PROBES = 4
BUILD_ATTEMPTS = 2


@dataclass(frozen=True)
class Options:
    shape: Shape
    trials: int
    manager: Path
    state_dir: Path
    openflow_port: int
    api_port: int
    datapath: str
    ipv6: bool = False  # traffic goes over IPv6


@dataclass
class Started:
    """What was seen while a fabric came up."""

    seconds: float
    ping: dict[str, Any]
    unasked: dict[str, int]
    samples: list[str]  # a few of the unasked frames, in hexadecimal
    route_entries: dict[str, int] = field(default_factory=dict)  # leaf: table 40 entries for other leaves
    settled_at: float = 0.0  # monotonic seconds


class Lab:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.daemon = ovs.Daemon()
        self.traffic = Traffic()
        self._begin = time.monotonic()
        self._fabric: Fabric | None = None
        self._controller: Controller | None = None
        self._flaps: dict[str, int] = {}
        self._failed: Counter[Shape] = Counter()
        self._built = 0
        self.log: Path | None = None  # of the last controller, also after it was taken down
        self.started: dict[Shape, Started] = {}

    @property
    def fabric(self) -> Fabric:
        if self._fabric is None:
            raise PhaseError("no fabric is up")
        return self._fabric

    @property
    def controller(self) -> Controller:
        if self._controller is None:
            raise PhaseError("no controller is up")
        return self._controller

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._begin:5.0f} s] {text}", file=sys.stderr, flush=True)

    def use(self, shape: Shape) -> None:
        """Makes `shape` the fabric that is up, with a controller that has an empty store, and waits until all is settled."""
        if self._fabric is not None and self._fabric.shape == shape:
            return
        if self._failed[shape] >= BUILD_ATTEMPTS:
            raise PhaseError(f"this fabric did not come up {BUILD_ATTEMPTS} times and is not tried again")
        self.take_down()
        self.say(f"building {shape} ({'kernel' if self.options.datapath == 'kernel' else 'userspace'} datapath)")
        try:
            self._build(shape)
        except (LabError, PhaseError):
            self._failed[shape] += 1
            self.take_down()
            raise

    def _build(self, shape: Shape) -> None:
        self._built += 1
        openflow, api = free_port(self.options.openflow_port), free_port(self.options.api_port)
        directory = self.options.state_dir / f"fabric{self._built}"
        self._controller = Controller(self.options.manager, directory, openflow, api)
        self.log = self._controller.log
        self._controller.start()
        self._fabric = Fabric(shape, openflow, self.options.datapath, self.options.ipv6)
        self._fabric.build()
        self.started[shape] = self._come_up(self._fabric)
        self.settle()
        self.started[shape].settled_at = time.monotonic()
        self.started[shape].route_entries = {f"l{leaf}": self._route_entries(leaf) for leaf in range(1, shape.leaves + 1)}

    def _come_up(self, fabric: Fabric) -> Started:
        self.traffic.start([], sniff_hosts=fabric.hosts)
        self.traffic.begin_ping(fabric.hosts, CONNECT_BOUND_S + PING_BOUND_S)
        fabric.connect()
        connected_at = fabric.wait_connected(CONNECT_BOUND_S)
        self.say("all switches connected")
        ping = self.traffic.end_ping(CONNECT_BOUND_S + PING_BOUND_S + 5)
        heard = self.traffic.stop()
        if ping["missing"]:
            missing = ", ".join("-".join(pair) for pair in ping["missing"][:6])
            raise PhaseError(f"{len(ping['missing'])} of {ping['pairs']} pairs never answered a ping ({missing} ...)")
        return Started(ping["last_at"] - connected_at, ping, dict(heard.unasked.get("start", {})), heard.samples)

    def _route_entries(self, leaf: int) -> int:
        """Entries of the route table that are not one of the leaf's own hosts."""
        kind = "ipv6_dst" if self.options.ipv6 else "nw_dst"
        own = {f"{kind}={host.ip}" for host in self.fabric.hosts_of(leaf)}
        matches = [line.split(" actions=")[0] for line in ovs.flows(f"l{leaf}", ROUTE_TABLE)]
        return sum(not any(part in own for part in match.replace(" ", ",").split(",")) for match in matches)

    def settle(self, bound_s: float = SETTLE_BOUND_S) -> float:
        """Waits until the controller is ready and every link is up with BFD running. Returns the seconds that took."""
        begin = time.monotonic()
        self.controller.wait_ready(len(self.fabric.bridges), READY_BOUND_S)
        wrong: list[str] = []
        while time.monotonic() - begin < bound_s:
            wrong = self.controller.links_not_up(len(self.fabric.links), bfd=True)
            if not wrong:
                return time.monotonic() - begin
            time.sleep(0.1)
        raise PhaseError(f"links not up after {bound_s:g} s: {'; '.join(wrong[:4])}")

    def settle_without_controller(self, bound_s: float = 15) -> None:
        """Waits until every link's ends forward, by the switches' own word."""
        ends = [end for link in self.fabric.links for end in (link.leaf_end, link.spine_end)]
        end = time.monotonic() + bound_s
        while not all(ovs.forwarding(ends)):
            if time.monotonic() > end:
                raise PhaseError(f"links not forwarding after {bound_s:g} s without a controller")
            time.sleep(0.1)
        time.sleep(0.5)

    def crossing(self, link: Link) -> tuple[Flow, Flow]:
        """A flow that goes up `link` and one that comes down it, found by sending and looking."""
        pairs = [
            Flow(a, b) for a in self.fabric.hosts for b in self.fabric.hosts if link.leaf in (a.leaf, b.leaf) and a.leaf != b.leaf
        ]
        self.traffic.start([FlowSet(2000, pairs, PATH_PROBES * len(pairs))], sniff=[link.leaf_end])
        time.sleep(PATH_PROBES * len(pairs) / 2000 + 0.1)
        result = self.traffic.stop()
        chosen = []
        for direction, what in (("out", "up"), ("in", "down")):
            seen = [flow for flow, _uplinks in sorted(result.uplinks_of("start", direction).items())]
            if not seen:
                raise PhaseError(f"of {len(pairs)} host pairs none goes {what} {link.leaf_end}: traffic is not spread")
            chosen.append(pairs[seen[0]])
        return chosen[0], chosen[1]

    def watch(self) -> None:
        """From now on `stalled` counts."""
        failures.broken.clear()
        self._flaps = ovs.bfd_flaps([end for link in self.fabric.links for end in (link.leaf_end, link.spine_end)])

    def stalled(self) -> list[str]:
        """Links nobody broke since `watch` whose BFD expired all the same: the machine, or its Open vSwitch, stood still."""
        spared = [link for link in self.fabric.links if link not in failures.broken]
        now = ovs.bfd_flaps([link.leaf_end for link in spared])
        return [link.leaf_end for link in spared if now[link.leaf_end] > self._flaps.get(link.leaf_end, 0)]

    def recover(self) -> None:
        """After a row that failed half-way: mend all links, forget its traffic, bring the daemon and the controller back."""
        self.traffic.reset()
        self.daemon.ensure()
        if self._fabric is not None:
            failures.heal_everything(self._fabric.links)
        if self._controller is not None and not self._controller.alive():
            self._controller.start()

    def take_down(self) -> None:
        """The fabric and the controller; each even if the other's end fails."""
        steps: list[Callable[[], object]] = [self.traffic.reset, self.daemon.ensure]
        steps += [part.close for part in (self._fabric,) if part] + [part.stop for part in (self._controller,) if part]
        self._fabric = self._controller = None
        for step in steps:
            try:
                step()
            except (LabError, PhaseError, OSError) as error:
                self.say(f"clean-up: {error}")

    def close(self) -> None:
        self.take_down()
        self.traffic.close()
