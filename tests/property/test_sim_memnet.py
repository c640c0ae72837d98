"""Laws of the whole controller core on strict in-memory switches: whatever happens in whatever order, the end is the same.

Every example is one run on virtual time, given by its seed; a failing seed replays exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from aifabric_ctrl.engine.engine import Engine
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.sim.memnet import MemNet
from aifabric_ctrl.sim.topology import PLAIN_FEATURES, Topology, leaf_spine
from aifabric_ctrl.verify.executor import udp4
from aifabric_ctrl.verify.walk import Probe, Verdict, failures

# A smaller seed is no simpler run, so shrinking would only take time.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
HOLD_DOWNS_OVER_S = 65.0  # flap memory 60 s, and some


def engine() -> Engine:
    return Engine(Intent(), b"thirty-two bytes of test entropy")


def known_fabric(topology: Topology, seed: int, *, unordered: bool) -> MemNet:
    net = MemNet(topology, engine(), seed, unordered=unordered)
    net.connect_all()
    net.settle()
    net.ping_all(1.5)
    net.settle()
    assert net.ping_all(0.5) == []
    return net


def contents(net: MemNet) -> dict[int, tuple[dict, dict, dict]]:
    tables = {d: net.tables(d) for d in net.switches}
    return {d: (dict(t.flows), dict(t.groups), dict(t.meters)) for d, t in tables.items()}


def probes(net: MemNet, skip: frozenset[int] = frozenset()) -> list[Probe]:
    """One plain and one RoCE packet for each pair of hosts, but those on switches in ``skip``."""
    hosts = [s.host for n, s in net.hosts.items() if net.places[n].dpid not in skip]
    return [
        Probe(net.places[a.name], udp4(a.mac, Intent().gateway_mac, a.ip, b.ip, sport, dport), net.places[b.name])
        for a in hosts
        for b in hosts
        if a is not b
        for sport, dport in ((40_001, 80), (49_153, 4791))
    ]


# -- what can go wrong, and back ---------------------------------------------------------------------------------------


def cable(net: MemNet, rng: random.Random) -> None:
    link = rng.choice(net.topology.links)
    net.port_down(*link.a)
    net.advance(rng.random() * 2)
    net.port_up(*link.b)


def flap(net: MemNet, rng: random.Random) -> None:
    link = rng.choice(net.topology.links)
    for _ in range(rng.randrange(2, 8)):
        net.port_down(*link.a)
        net.advance(rng.random() * 0.1)
        net.port_up(*link.a)
        net.advance(rng.random() * 0.1)


def silence(net: MemNet, rng: random.Random) -> None:
    link, direction = rng.choice(net.topology.links), rng.choice(["ab", "ba", "both"])
    net.silence(link, direction)
    net.advance(rng.random() * 6)
    net.unsilence(link, direction)


def session(net: MemNet, rng: random.Random) -> None:
    dpid = rng.choice(list(net.switches))
    if rng.random() < 0.5:
        net.disconnect(dpid, late_s=rng.random() * 3)
        net.advance(rng.random())
    net.connect(dpid)


def switch(net: MemNet, rng: random.Random) -> None:
    dpid = rng.choice(list(net.switches))
    net.kill_switch(dpid, carrier_lost=rng.random() < 0.5)
    net.advance(rng.random() * 4)
    net.start_switch(dpid)


def controller(net: MemNet, rng: random.Random) -> None:
    net.restart_engine(engine(), spread_s=rng.choice([0.0, 3.0]))


def quiet(net: MemNet, rng: random.Random) -> None:
    net.advance(rng.random() * 20)


FAULTS: list[Callable[[MemNet, random.Random], None]] = [cable, flap, silence, session, switch, controller, quiet]


@settings(max_examples=25, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 1 << 32),
    unordered=st.booleans(),
    plain=st.booleans(),
    faults=st.lists(st.sampled_from(FAULTS), min_size=1, max_size=6),
)
def test_any_chain_of_faults_ends_in_the_same_tables(
    seed: int, unordered: bool, plain: bool, faults: list[Callable[[MemNet, random.Random], None]]
) -> None:
    topology = leaf_spine(3, 2, 2, features=PLAIN_FEATURES) if plain else leaf_spine(3, 2, 2)
    net = known_fabric(topology, seed, unordered=unordered)
    healthy = contents(net)
    rng = random.Random(seed)
    for fault in faults:
        fault(net, rng)
        net.advance(rng.random() * 2)
    net.advance(HOLD_DOWNS_OVER_S)
    net.settle(60.0)
    assert contents(net) == healthy
    assert net.ping_all(0.5) == []
    assert net.violations() == []
    assert not any(h.foreign for h in net.hosts.values()), "a host got what was for another"


def test_the_same_seed_gives_the_same_run() -> None:
    def story(seed: int) -> list[tuple[float, str]]:
        net = known_fabric(leaf_spine(3, 2, 1), seed, unordered=True)
        rng = random.Random(seed)
        for fault in FAULTS:
            fault(net, rng)
            net.advance(1.0)
        return [(at, entry.text) for at, entry in net.journal]

    assert story(5) == story(5)
    assert story(5) != story(6)


class Watcher:
    """Judges every state that tables pass through, each time a switch changed: every pair, every hash choice."""

    def __init__(self, net: MemNet) -> None:
        self.net = net
        self.doing = ""
        self.skip: frozenset[int] = frozenset()
        self.looks = 0
        self.bad: list[tuple[str, Probe, Verdict]] = []
        net.observers.append(self.look)

    def look(self, _: int = 0) -> None:
        self.looks += 1
        found = failures(self.net.walker(), probes(self.net, self.skip), max_sends=4)
        self.bad += [(self.doing, probe, verdict) for probe, verdict in found]

    def verdict(self) -> str:
        return "\n".join(f"{doing}: {probe.packet}: {verdict.example}" for doing, probe, verdict in self.bad[:3])


@settings(max_examples=8, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 32), unordered=st.booleans(), leaves=st.integers(2, 4), spines=st.integers(2, 3))
def test_one_fault_at_a_time_never_leaves_a_hole_in_any_state_between_two_barriers(
    seed: int, unordered: bool, leaves: int, spines: int
) -> None:
    """Make before break: a cable goes and comes, a controller and a session restart, a spine dies and returns."""
    net = known_fabric(leaf_spine(leaves, spines, 1), seed, unordered=unordered)
    watch, rng = Watcher(net), random.Random(seed)

    def then(doing: str, act: Callable[[], object], wait_s: float) -> None:
        watch.doing = doing
        act()
        watch.look()
        net.advance(wait_s)

    for _ in range(2):
        link = rng.choice(net.topology.links)
        then(f"{link.a} down", lambda link=link: net.port_down(*link.a), rng.random() * 3)
        then(f"{link.a} up", lambda link=link: net.port_up(*link.a), HOLD_DOWNS_OVER_S)
    then("controller restarts", lambda: net.restart_engine(engine(), spread_s=2.0), 5.0)
    then("session restarts", lambda: net.connect(rng.choice(list(net.switches))), 3.0)
    spine = rng.choice([d for d, s in net.switches.items() if s.name.startswith("s")])
    then("spine dies", lambda: net.kill_switch(spine), 3.0)
    then("spine returns", lambda: net.start_switch(spine), HOLD_DOWNS_OVER_S)
    net.settle()
    assert watch.bad == [], watch.verdict()
    assert watch.looks > 8 and net.violations() == []


@settings(max_examples=8, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 32), unordered=st.booleans(), leaves=st.integers(2, 4), spines=st.integers(2, 3))
def test_drains_never_leave_a_hole_in_any_state_between_two_barriers(
    seed: int, unordered: bool, leaves: int, spines: int
) -> None:
    """A spine, a leaf's cable and both again, undrained, asked in quick succession too, and with a controller that is killed."""
    net = known_fabric(leaf_spine(leaves, spines, 1), seed, unordered=unordered)
    healthy = contents(net)
    watch, rng = Watcher(net), random.Random(seed)
    spine, link = f"s{rng.randrange(spines) + 1}", rng.choice(net.topology.links)
    cable = f"{net.topology.names[link.a.dpid]}:{link.a.port}"
    for target in (spine, cable):
        for verb in ("drain", "undrain", "drain", "restart", "undrain"):
            watch.doing = f"{verb} {target}"
            if verb == "restart":
                net.restart_engine(engine(), spread_s=1.0)
                net.advance(1.5)  # names come with the switches
            else:
                net.ask(verb, target)
            net.advance(rng.choice([0.0005, 0.002, 0.01, 3.0]))
        net.advance(3.0)
    net.settle()
    assert watch.bad == [], watch.verdict()
    assert watch.looks > 4 and net.violations() == []
    assert contents(net) == healthy


@settings(max_examples=10, deadline=None, phases=PHASES)
@given(seed=st.integers(0, 1 << 32), unordered=st.booleans(), after_s=st.floats(0.0, 1.3))
def test_a_controller_killed_at_any_moment_of_its_start_is_followed_well(seed: int, unordered: bool, after_s: float) -> None:
    """Half-installed tables are read back and completed: no error, no leftover, the same end."""
    net = MemNet(leaf_spine(3, 2, 1), engine(), seed, unordered=unordered)
    net.connect_all()
    for name in net.hosts:
        net.from_host(name, net.hosts[name].ping(net.hosts["h1"].host.ip, 0))
    net.advance(after_s)
    net.restart_engine(engine())
    net.settle()
    net.ping_all(1.5)
    net.settle()
    assert net.ping_all(0.5) == [] and net.violations() == []
    desired = net.engine.view().desired.tables
    for dpid in net.switches:
        there = net.tables(dpid)
        wanted = desired[dpid]
        assert (dict(there.flows), dict(there.groups), dict(there.meters)) == (wanted.flows, wanted.groups, wanted.meters)


@settings(max_examples=8, deadline=None, phases=PHASES)
@given(seed=st.integers(0, 1 << 32), unordered=st.booleans(), spread_s=st.sampled_from([0.0, 0.3, 4.0]))
def test_a_restart_on_an_unchanged_fabric_says_nothing_to_switches(seed: int, unordered: bool, spread_s: float) -> None:
    """Also while some switches have not come back yet: what they forward with is remembered (fail static)."""
    net = known_fabric(leaf_spine(4, 2, 2), seed, unordered=unordered)
    before = {d: s.tables.changes for d, s in net.switches.items()}
    net.restart_engine(engine(), spread_s=spread_s)
    net.advance(spread_s)
    net.settle()
    net.advance(5.0)
    assert {d: s.tables.changes - before[d] for d, s in net.switches.items()} == dict.fromkeys(net.switches, 0)


def test_hold_down_never_cuts_off_a_leaf_that_a_working_cable_reaches() -> None:
    net = known_fabric(leaf_spine(2, 2, 1), 1, unordered=False)
    first, second = (x for x in net.topology.links if x.a.dpid == 0x11)
    for wait_s in (3.0, 5.0, 9.0, 1.0):
        net.port_down(*first.a)
        net.advance(1.5)
        net.port_up(*first.a)
        net.advance(wait_s)
    net.port_down(*second.a)
    net.advance(0.5)
    assert net.ping("h1", "h2", 0.2)
