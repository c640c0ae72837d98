"""What the engine makes of OVSDB's reports: alarms about fail modes, and which links may start BFD together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import networkx as nx
import pytest

from aifabric_ctrl.model.effects import WantBfd
from aifabric_ctrl.model.events import BfdReport
from aifabric_ctrl.model.ids import PortRef
from aifabric_ctrl.sim.memnet import MemNet
from aifabric_ctrl.sim.topology import leaf_spine
from tests.unit.engine_lab import LEAF1, engine, fabric, kinds

Ends = tuple[PortRef, PortRef]


@pytest.mark.parametrize("early", [False, True], ids=["connected", "not yet connected"])
def test_a_fail_mode_that_would_flood_is_an_alarm_and_not_ready(early: bool) -> None:
    net = MemNet(leaf_spine(2, 2, 1), engine(bfd=False))
    report = BfdReport(net.now, LEAF1, {}, "standalone")
    if early:
        net._to_engine(report)
        net.advance(1.0)
    net.connect_all()
    if not early:
        net.settle()
        net._to_engine(report)
    net.advance(10.0)
    assert kinds(net).count("fail_mode_unsafe") == 1
    assert not net.engine.view().ready and "standalone" in " ".join(net.engine.view().not_ready)
    net._to_engine(BfdReport(net.now, LEAF1, {}, "secure"))
    net.settle()


def test_a_problem_of_the_worker_is_shown() -> None:
    net = fabric()
    net._to_engine(BfdReport(net.now, LEAF1, {101: "off"}, "secure", "port 101 has BFD settings that are not ours"))
    net.advance(0.1)
    assert "bfd_problem" in kinds(net)
    assert net.engine.view().bfd[PortRef(LEAF1, 101)] == "off"


class SlowBfd:
    """Sessions that take a second and a half, with the port dead meanwhile, as Open vSwitch has it."""

    HANDSHAKE_S = 1.5

    def __init__(self, net: MemNet, broken: Sequence[Ends] = ()) -> None:
        self.net, self.broken = net, frozenset(broken)
        self.state: dict[Ends, str] = {}
        self.together: list[frozenset[Ends]] = []

    def want(self, wish: WantBfd) -> None:
        for link in wish.start:
            if self.state.get(link, "off") == "off":
                self._set(link, "down")
                wait_s = 10.0 if link in self.broken else self.HANDSHAKE_S
                self.net.clock.after(wait_s, partial(self._set, link, "off" if link in self.broken else "up"))
        self.together.append(frozenset(link for link, state in self.state.items() if state == "down"))

    def _set(self, link: Ends, state: str) -> None:
        self.state[link] = state
        for end in link:
            self.net.switches[end.dpid].set_port(end.port, live=state != "down")
            self.net._port_event(end)
            states = {e.port: s for other, s in self.state.items() for e in other if e.dpid == end.dpid}
            self.net._to_engine(BfdReport(self.net.now, end.dpid, states, "secure"))


def start(leaves: int, spines: int, monkeypatch: pytest.MonkeyPatch, broken: Sequence[int] = ()) -> tuple[MemNet, SlowBfd]:
    net = MemNet(leaf_spine(leaves, spines, 1), engine())
    links = [(link.a, link.b) for link in net.topology.links]
    slow = SlowBfd(net, [links[n] for n in broken])

    def carry_out(effects: object, usual: object = net._carry_out) -> None:
        for effect in effects:  # type: ignore[attr-defined]
            if isinstance(effect, WantBfd):
                slow.want(effect)
            else:
                usual([effect])  # type: ignore[operator]

    monkeypatch.setattr(net, "_carry_out", carry_out)
    net.connect_all()
    return net, slow


@pytest.mark.parametrize(("leaves", "spines"), [(2, 2), (4, 2), (3, 4)])
def test_leaves_stay_connected_while_bfd_starts(leaves: int, spines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net, slow = start(leaves, spines, monkeypatch)
    net.advance(12.0 + 6.0 * spines)
    assert set(slow.state.values()) == {"up"} and len(slow.state) == leaves * spines
    for dead in slow.together:
        graph = nx.Graph((link.a.dpid, link.b.dpid) for link in net.topology.links if (link.a, link.b) not in dead)
        for leaf in range(1, leaves):
            # By one spine: traffic never goes through a third leaf.
            assert set(graph[LEAF1]) & set(graph[LEAF1 + leaf]), dead
    assert "link_held" not in kinds(net)
    assert net.ping_all(2.0) == []


def test_a_link_whose_session_never_comes_up_keeps_nobody_else_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    net, slow = start(2, 2, monkeypatch, broken=[0])
    net.advance(60.0)
    assert sorted(slow.state.values()).count("up") == 3
