"""The fake switch's end of the wire against the controller's real session: bytes both ways, no sockets."""

from __future__ import annotations

import random

import pytest

from aifabric_ctrl.model.effects import Change, PacketOut, ReadTables, SendPlan
from aifabric_ctrl.model.errors import WireError
from aifabric_ctrl.model.events import FrameIn, ObjectRefused, OddFrame, PlanAcked, PortChanged, SwitchConnected, TablesRead
from aifabric_ctrl.model.rules import Flow, Match, Output, Tables, ToGroup, flow_table
from aifabric_ctrl.plan.believed import Believed
from aifabric_ctrl.plan.order import difference, stages
from aifabric_ctrl.sim.client import refuse_flows
from aifabric_ctrl.sim.fakeswitch import FakeSwitch
from aifabric_ctrl.sim.protocol import SwitchProtocol, covers
from aifabric_ctrl.sim.topology import OVS_FEATURES, PLAIN_FEATURES, make_port
from aifabric_ctrl.southbound.session import Limits, SwitchSession
from aifabric_ctrl.southbound.wire import constants as ofp
from aifabric_ctrl.southbound.wire import encode, switch_side
from aifabric_ctrl.southbound.wire import requests as rq
from tests.unit.test_fakeswitch import FIRST, GROUP, LAST, OURS, TABLES


class Pair:
    """A session and a fake switch with a wire between them; time stands still unless told."""

    def __init__(self, features=OVS_FEATURES, rng: random.Random | None = None) -> None:
        self.switch = FakeSwitch(0x11, [make_port(0x11, n) for n in (1, 2, 3)], features, "l1")
        self.outs: list[rq.PacketOut] = []
        self.protocol = SwitchProtocol(self.switch, self.outs.append, rng=rng)
        self.session = SwitchSession(7, "127.0.0.1:1", Limits(), 0.0)
        self.now = 0.0
        self.first = self.talk()
        if not any(isinstance(e, SwitchConnected) for e in self.first):
            self.first += self.wait(5.0)

    def talk(self) -> list:
        events = []
        for _ in range(200):
            said = self.session.take_output()
            self.session.wrote(len(said))
            if said:
                self.protocol.feed(said)
            answer = b"".join(self.protocol.take_output())
            events += self.session.feed(answer, self.now) if answer else []
            if not said and not answer:
                return events
        raise AssertionError("the conversation does not end")

    def wait(self, seconds: float) -> list:
        events = []
        end = self.now + seconds
        while self.now < end:
            self.now += 0.05
            events += self.session.tick(self.now) + self.talk()
        return events

    def tell(self, effect) -> list:
        self.session.carry_out(effect, self.now)
        return self.talk()

    def read(self) -> TablesRead:
        found = [e for e in self.tell(ReadTables(7)) + self.wait(5.0) if isinstance(e, TablesRead)]
        assert len(found) == 1
        return found[0]

    def install(self, tables: Tables, number: int = 1) -> list:
        read = self.read()
        believed = Believed.from_read(read.flows, read.groups, read.meters)
        return self.tell(SendPlan(7, number, stages(difference(tables, believed, 0.0))))


BOTH = pytest.mark.parametrize("features", [PLAIN_FEATURES, OVS_FEATURES], ids=["plain", "ovs"])


@BOTH
def test_handshake_finds_what_the_switch_has(features) -> None:
    (connected,) = [e for e in Pair(features).first if isinstance(e, SwitchConnected)]
    assert connected.dpid == 0x11
    assert [(p.number, p.name, p.usable) for p in connected.ports] == [(n, f"p{n}", True) for n in (1, 2, 3)]
    found = connected.features
    assert (found.bundles, found.nicira, found.max_meters) == (features.bundles, features.nicira, features.max_meters)
    assert found.max_groups == features.max_groups


@BOTH
def test_a_plan_goes_in_reads_back_equal_and_comes_out(features) -> None:
    pair = Pair(features)
    assert pair.install(TABLES) == [PlanAcked(pair.now, 7, 1)]
    read = pair.read()
    assert (set(read.flows), set(read.groups), set(read.meters)) == (
        {FIRST, LAST},
        set(TABLES.groups.values()),
        set(TABLES.meters.values()),
    )
    assert pair.install(Tables(), 2) == [PlanAcked(pair.now, 7, 2)]
    assert not pair.switch.tables.flows and not pair.switch.tables.groups and not pair.switch.tables.meters
    assert pair.switch.tables.violations == []


def test_any_order_between_barriers_is_fine() -> None:
    for seed in range(20):
        pair = Pair(PLAIN_FEATURES, random.Random(seed))
        assert pair.install(TABLES) == [PlanAcked(pair.now, 7, 1)]
        assert pair.install(Tables(), 2) == [PlanAcked(pair.now, 7, 2)]
        assert pair.switch.tables.violations == [] and pair.protocol.errors.count("BAD_ACTION/BAD_OUT_GROUP") == 0


@BOTH
def test_err_01_refusals_name_their_object(features) -> None:
    """The third and the fifth flow are refused; everything else goes in (case ERR-01)."""
    flows = [Flow(0, 1, Match.of(in_port=n), actions=(Output(2),), cookie=OURS | n) for n in range(1, 7)]
    pair = Pair(features)
    refusals = {3: "BAD_MATCH/BAD_PREREQ", 5: "BAD_ACTION/BAD_OUT_PORT"}
    if features.bundles:  # a bundle stops at its first bad message and the flows come again, one by one
        refusals = {3: refusals[3], 3 + 3: refusals[3], 3 + 5: refusals[5]}
    pair.switch.tables.inject = refuse_flows(refusals)
    events = pair.install(Tables(flow_table(flows)))
    refused = [(e.object, e.error) for e in events if isinstance(e, ObjectRefused)]
    assert refused == [(flows[2], "BAD_MATCH/BAD_PREREQ"), (flows[4], "BAD_ACTION/BAD_OUT_PORT")]
    assert events[-1] == PlanAcked(pair.now, 7, 1)
    assert set(pair.switch.tables.flows.values()) == {flows[n] for n in (0, 1, 3, 5)}


def test_err_01_odd_errors_do_no_harm() -> None:
    pair = Pair()
    for odd in (
        switch_side.error(0x7FFFFFF0, 2, 4, b"\x04\x0e\x00\x10"),
        switch_side.error(0x7FFFFFF1, 0xFFFF, 7, b"?", 0x00ABCDEF),
        switch_side.error(0x7FFFFFF2, 5, 1, b""),
    ):
        pair.protocol.say(odd)
    events = pair.talk()
    assert len(events) == 3 and all(isinstance(e, OddFrame) for e in events)
    assert pair.install(TABLES)[-1] == PlanAcked(pair.now, 7, 1)


def test_deletes_are_strict_and_say_any() -> None:
    """Case CONN-06: neighbours with another cookie or a wider match stay."""
    pair = Pair()
    pair.install(TABLES)
    foreign = Flow(40, 1, Match.of(in_port=1), cookie=5)
    pair.switch.tables.apply(Change("put", foreign))
    pair.install(Tables(), 2)
    assert list(pair.switch.tables.flows.values()) == [foreign]
    deletes = [m for m in pair.protocol.mods if isinstance(m, rq.FlowMod) and m.command != ofp.FC_ADD]
    assert deletes and all(m.command == ofp.FC_DELETE_STRICT for m in deletes)
    assert all(m.out_port == m.out_group == 0xFFFFFFFF for m in deletes)


def test_a_delete_with_a_wrong_filter_deletes_nothing_and_is_noticed() -> None:
    pair = Pair()
    pair.install(TABLES)
    good = encode.flow_delete_strict(9, LAST)
    out_port_zero = good[:36] + bytes(4) + good[40:]
    assert switch_side.decode_request(out_port_zero).out_port == 0
    pair.protocol.feed(out_port_zero)
    assert LAST.key in pair.switch.tables.flows
    assert [v.split(":")[0] for v in pair.switch.tables.violations] == ["delete that matches no flow"]
    pair.protocol.feed(good)
    assert LAST.key not in pair.switch.tables.flows


def test_a_wide_delete_takes_what_it_covers() -> None:
    pair = Pair()
    for n, match in enumerate([Match.of(in_port=1), Match.of(in_port=1, eth_type=0x800), Match.of(in_port=2)]):
        pair.switch.tables.apply(Change("put", Flow(0, n, match)))
    strict = encode.flow_delete_strict(9, Flow(0, 0, Match.of(in_port=1)))
    pair.protocol.feed(strict[:25] + bytes([ofp.FC_DELETE]) + strict[26:])
    assert [f.priority for f in pair.switch.tables.flows.values()] == [2]


def test_covers() -> None:
    ten = Match.of(eth_type=0x800, ipv4_dst=(0x0A000000, 0xFF000000))
    ten_one = Match.of(eth_type=0x800, ipv4_dst=(0x0A010000, 0xFFFF0000))
    exact = Match.of(eth_type=0x800, ipv4_dst=0x0A010203)
    assert covers(Match.of(), exact) and covers(ten, ten_one) and covers(ten_one, exact) and covers(exact, exact)
    assert not covers(ten_one, ten) and not covers(exact, ten_one) and not covers(exact, Match.of())
    assert not covers(Match.of(eth_type=0x800, ipv4_dst=0x0B010203), exact)


def bundle(number: int, control: int, flags: int = 3) -> bytes:
    return encode.bundle_control(100 + control, number, control, flags)


def errors_after(pair: Pair, *messages: bytes) -> list[str]:
    for message in messages:
        pair.protocol.feed(message)
    pair.protocol.take_output()
    return pair.protocol.errors


def test_bundle_rules() -> None:
    add = encode.bundle_add(50, 1, encode.flow_put(50, Flow(0, 1, Match.of(), actions=(Output(1),))))
    bad = encode.bundle_add(51, 1, encode.flow_put(51, Flow(0, 2, Match.of(), actions=(ToGroup(77),))))
    meter = encode.bundle_add(52, 1, encode.meter_put(52, next(iter(TABLES.meters.values())), False))
    opened, commit = bundle(1, ofp.BCT_OPEN_REQUEST), bundle(1, ofp.BCT_COMMIT_REQUEST)
    assert errors_after(Pair(), add) == ["BUNDLE/BAD_ID"]
    assert errors_after(Pair(), opened, opened) == ["BUNDLE/BAD_ID"]
    assert errors_after(Pair(), commit) == ["BUNDLE/BAD_ID"]
    assert errors_after(Pair(), opened, meter) == ["BUNDLE/MSG_UNSUP"]
    assert errors_after(Pair(), bundle(1, ofp.BCT_OPEN_REQUEST, 1), add) == ["BUNDLE/BAD_FLAGS"]
    assert errors_after(Pair(), opened, bundle(1, ofp.BCT_CLOSE_REQUEST), add) == ["BUNDLE/BUNDLE_CLOSED"]
    pair = Pair()
    assert errors_after(pair, opened, add, bad, commit) == ["BAD_ACTION/BAD_OUT_GROUP", "BUNDLE/MSG_FAILED"]
    assert not pair.switch.tables.flows
    assert errors_after(pair, opened, add, bundle(1, ofp.BCT_DISCARD_REQUEST))[2:] == []
    assert not pair.switch.tables.flows
    assert errors_after(pair, opened, add, commit)[2:] == [] and len(pair.switch.tables.flows) == 1


def test_frames_and_ports_come_up_and_frames_go_down() -> None:
    pair = Pair()
    pair.protocol.packet_in(3, b"frame" * 20, table=20, reason=0, cookie=77)
    pair.protocol.port_status(pair.switch.set_port(2, link_down=True))
    frame, port = pair.talk()
    assert frame == FrameIn(0.0, 7, 3, 20, 0, 77, b"frame" * 20)
    assert isinstance(port, PortChanged) and port.port.link_down and port.port.number == 2
    pair.tell(PacketOut(7, (Output(1),), b"down", 3))
    assert [(o.in_port, o.actions, o.data) for o in pair.outs] == [(3, (Output(1),), b"down")]


def test_a_switch_that_stops_answering_echo_is_given_up() -> None:
    from aifabric_ctrl.southbound.session import SessionDead

    pair = Pair()
    pair.wait(20.0)
    pair.protocol.mute_echo = True
    with pytest.raises(SessionDead, match="echo"):
        pair.wait(60.0)


def test_a_controller_that_breaks_the_protocol_is_noticed() -> None:
    for bad in (b"\x04\x00\x00\x04\x00\x00\x00\x01", b"\x01\x00\x00\x08\x00\x00\x00\x01"):
        with pytest.raises(WireError):
            SwitchProtocol(FakeSwitch(1, [])).feed(bad)
    pair = Pair()
    pair.protocol.feed(bytes([4, 200, 0, 8, 0, 0, 0, 5]))
    assert pair.protocol.errors[-1] == "BAD_REQUEST/BAD_TYPE"


def test_bytes_may_come_in_any_pieces() -> None:
    whole = b"".join([encode.hello(1), encode.features_request(2), encode.group_put(3, GROUP, False), encode.barrier_request(4)])
    protocol = SwitchProtocol(FakeSwitch(0x11, [make_port(0x11, n) for n in (1, 2)]))
    for n in range(len(whole)):
        protocol.feed(whole[n : n + 1])
    kinds = [m[1] for m in protocol.take_output()]
    assert kinds == [ofp.HELLO, ofp.FEATURES_REPLY, ofp.BARRIER_REPLY]
    assert set(protocol.switch.tables.groups) == {GROUP.group_id}
