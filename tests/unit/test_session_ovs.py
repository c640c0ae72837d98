"""A session with a real Open vSwitch bridge, over its management socket: handshake, bundles, the culprit, read-back."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from aifabric_ctrl.model.effects import Change, PacketOut, ReadTables, SendPlan, Stage
from aifabric_ctrl.model.events import Event, ObjectRefused, PlanAcked, PortChanged, SwitchConnected, TablesRead
from aifabric_ctrl.model.ids import PORT_LOCAL
from aifabric_ctrl.model.ownership import GROUP_BASE, METER_BASE, cookie_for
from aifabric_ctrl.model.rules import SELECT, Bucket, Flow, FlowKey, Group, Match, Meter, Output, ToGroup
from aifabric_ctrl.southbound.session import Limits, SwitchSession
from tests.unit import session_kit as kit
from tests.wire.ovs import RUN_DIR, Bridge, missing, vsctl

pytestmark = pytest.mark.integration
PATIENCE_S = 15.0
METER = Meter(METER_BASE + 1, 100, 10)
GROUP = Group(GROUP_BASE + 1, SELECT, (Bucket((Output(1),), 1, watch_port=1),))


@pytest.fixture(scope="module")
def bridge() -> Iterator[Bridge]:
    reason = missing()
    if reason and (os.environ.get("CI") or os.environ.get("AIFABRIC_REQUIRE_INTEGRATION")):
        pytest.fail(reason, pytrace=False)
    if reason:
        pytest.skip(reason)
    with Bridge("ts0") as made:
        vsctl("add-port", "ts0", "ts0p1", "--", "set", "interface", "ts0p1", "type=internal", "ofport_request=1")
        yield made


class Wire:
    """A session joined to the bridge's socket."""

    def __init__(self, bridge: Bridge) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(f"{RUN_DIR}/{bridge.name}.mgmt")
        self.session = SwitchSession(1, f"{bridge.name}:0", Limits(), time.monotonic())
        self.events: list[Event] = []

    def __enter__(self) -> Wire:
        self.until(SwitchConnected)
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def do(self, effect: SendPlan | PacketOut | ReadTables, answer: type) -> Event:
        self.session.carry_out(effect, time.monotonic())
        return self.until(answer)

    def until(self, kind: type, meanwhile: Callable[[], None] = lambda: None) -> Event:
        """Move bytes until an event of that kind comes, and return it."""
        limit, start = time.monotonic() + PATIENCE_S, len(self.events)
        meanwhile()
        while time.monotonic() < limit:
            while data := self.session.take_output():
                self.sock.sendall(data)
                self.session.wrote(len(data))
            ready, _, _ = select.select([self.sock], [], [], max(0.0, min(0.2, self.session.next_deadline - time.monotonic())))
            now = time.monotonic()
            if ready:
                self.events += kit.take(self.session, self.sock.recv(65_536), now)
            if now >= self.session.next_deadline:
                self.events += self.session.tick(now)
            for event in self.events[start:]:
                if isinstance(event, kind):
                    return event
        raise AssertionError(f"no {kind.__name__}; {self.events}")


def flow(n: int, port: int | None = None, group: int = GROUP.group_id) -> Flow:
    match = Match.of(eth_type=0x0800, ipv4_dst=0x0A000000 + n)
    action = ToGroup(group) if port is None else Output(port)
    return Flow(40, 100, match, actions=(action,), cookie=cookie_for(f"test.{n}", FlowKey(40, 100, match)))


def plan(number: int, *stages: tuple[Change, ...]) -> SendPlan:
    return SendPlan(1, number, tuple(Stage(str(n), changes) for n, changes in enumerate(stages)))


def put(*items: Flow | Group | Meter) -> tuple[Change, ...]:
    return tuple(Change("put", item) for item in items)


def read(wire: Wire) -> TablesRead:
    found = wire.do(ReadTables(1), TablesRead)
    if not isinstance(found, TablesRead):
        raise TypeError(found)
    return found


def test_the_handshake_finds_open_vswitch(bridge: Bridge) -> None:
    with Wire(bridge) as wire:
        [event] = wire.events
        if not isinstance(event, SwitchConnected):
            raise TypeError(event)
        assert event.name == "ts0"
        assert event.features.nicira and event.features.bundles
        assert event.features.max_meters > 1000
        assert [(p.number, p.name) for p in event.ports] == [(1, "ts0p1")]
        assert PORT_LOCAL not in [p.number for p in event.ports]


def test_what_a_bundle_installs_is_read_back_equal(bridge: Bridge) -> None:
    bridge.clear()
    flows = [flow(n) for n in range(300)]
    with Wire(bridge) as wire:
        wire.do(plan(1, put(METER), put(GROUP), put(*flows)), PlanAcked)
        assert not [e for e in wire.events if isinstance(e, ObjectRefused)]
        found = read(wire)
        assert set(found.flows) == set(flows)
        assert found.groups == (GROUP,)
        assert found.meters == (METER,)
        assert found.foreign == ()
        gone = tuple(Change("delete", f) for f in flows), (Change("delete", GROUP),), (Change("delete", METER),)
        wire.do(plan(2, *gone), PlanAcked)
        found = read(wire)
        assert (found.flows, found.groups, found.meters) == ((), (), ())


def test_one_bad_object_in_a_bundle_is_found_and_the_others_go_in(bridge: Bridge) -> None:
    bridge.clear()
    orphan = flow(99, group=GROUP.group_id + 5)  # a group that is not there
    with Wire(bridge) as wire:
        wire.do(plan(3, put(GROUP), put(flow(1), orphan, flow(2))), PlanAcked)
        refused = [e for e in wire.events if isinstance(e, ObjectRefused)]
        assert [(e.plan, e.object) for e in refused] == [(3, orphan)]
        assert "BAD_OUT_GROUP" in refused[0].error
        assert set(read(wire).flows) == {flow(1), flow(2)}
        assert wire.session.totals()["bundles_failed"] == 1


def test_many_flows_are_read_in_pages(bridge: Bridge) -> None:
    bridge.clear()
    flows = [flow(n, port=1) for n in range(6_000)]
    with Wire(bridge) as wire:
        wire.do(plan(4, put(*flows)), PlanAcked)
        assert set(read(wire).flows) == set(flows)
    bridge.clear()


def test_foreign_flows_are_told_and_left(bridge: Bridge) -> None:
    bridge.clear()
    stranger = Flow(3, 9, Match.of(in_port=1), actions=(Output(PORT_LOCAL),), cookie=0xBEEF)
    with Wire(bridge) as wire:
        wire.do(plan(5, put(stranger), put(flow(1, port=1))), PlanAcked)
        found = read(wire)
        assert found.flows == (flow(1, port=1),)
        assert found.foreign == ("flow table 3 priority 9 cookie 0xbeef in_port=1",)


def test_a_port_change_arrives(bridge: Bridge) -> None:
    def add() -> None:
        vsctl("add-port", "ts0", "ts0p2", "--", "set", "interface", "ts0p2", "type=internal")

    with Wire(bridge) as wire:
        event = wire.until(PortChanged, add)
        assert isinstance(event, PortChanged)
        assert (event.reason, event.port.name) == ("add", "ts0p2")
        vsctl("del-port", "ts0", "ts0p2")
