"""A session from HELLO to a known switch, and every way it can fail (cases CONN-10, FUZZ-01, FUZZ-04)."""

from __future__ import annotations

import struct

import pytest

from aifabric_ctrl.model.errors import WireError
from aifabric_ctrl.model.events import FrameIn, PortChanged, SwitchConnected
from aifabric_ctrl.model.fabric import Port
from aifabric_ctrl.model.frames import lldp
from aifabric_ctrl.southbound.session import Limits, SessionDead, SwitchSession
from aifabric_ctrl.southbound.wire import constants as ofp
from tests.unit import session_kit as kit


def fresh(limits: Limits | None = None) -> SwitchSession:
    session = SwitchSession(7, "192.0.2.1:40000", limits or Limits(), 0.0)
    [(kind, _, raw)] = kit.split(session.take_output())
    assert kind == ofp.HELLO
    assert raw[8:] == struct.pack("!HHI", 1, 8, 1 << 4)
    return session


def test_an_ovs_becomes_known() -> None:
    session, event = kit.connected(kit.ovs_like(dpid=0xFFFFFFFFFFFFFFFF))
    assert event.dpid == 2**64 - 1
    assert (event.session, event.address) == (7, "192.0.2.1:40000")
    assert [p.number for p in event.ports] == [1, 2]  # the local port is not one
    assert event.ports[0].usable and event.ports[1].link_down
    assert event.name == "s1"  # the local port's: dp_desc says "None"
    assert event.features.nicira and event.features.bundles
    assert event.features.max_meters == 262_144
    assert event.features.max_groups == 0xFFFFFF00
    assert not session.has_output


def test_a_switch_without_extensions_has_none() -> None:
    plain = kit.ovs_like(bundles=False)

    def answer(kind: int, xid: int, raw: bytes) -> bytes:
        if kind == ofp.MULTIPART_REQUEST and kit.multipart_kind(raw) == ofp.MP_DESC:
            return kit.desc(xid, "Acme", "Switchmaster", "edge-7")
        if kind == ofp.MULTIPART_REQUEST and kit.multipart_kind(raw) in (ofp.MP_GROUP_FEATURES, ofp.MP_METER_FEATURES):
            return kit.error(xid, ofp.ET_BAD_REQUEST, 2, raw[:64])
        return plain(kind, xid, raw)

    _, event = kit.connected(answer)
    assert not event.features.nicira and not event.features.bundles
    assert (event.features.max_groups, event.features.max_meters) == (0, 0)
    assert event.name == "edge-7"


def test_a_minimal_switch_is_served_after_a_grace() -> None:
    """A peer that answers HELLO, FEATURES and PORT_DESC and is silent about the rest."""
    full = kit.ovs_like()

    def answer(kind: int, xid: int, raw: bytes) -> bytes:
        if kind == ofp.MULTIPART_REQUEST and kit.multipart_kind(raw) != ofp.MP_PORT_DESC:
            return b""
        return b"" if kind in (ofp.EXPERIMENTER, ofp.BARRIER_REQUEST) else full(kind, xid, raw)

    session = SwitchSession(7, "192.0.2.1:40000", Limits(), 0.0)
    assert kit.converse(session, answer, now=1.0) == []
    assert 1.0 < session.next_deadline < 10.0
    [event] = session.tick(session.next_deadline)
    assert isinstance(event, SwitchConnected)
    assert not event.features.bundles


@pytest.mark.parametrize(
    ("hello", "agreed"),
    [
        (kit.hello(4, (4,)), True),
        (kit.hello(4, None), True),
        (kit.hello(6, (4, 6)), True),
        (kit.hello(6, None), True),  # the lower of the two header versions (OpenFlow 1.3.5, 6.3.1)
        (kit.hello(1, None), False),
        (kit.hello(1, (1,)), False),
        (kit.hello(6, (5, 6)), False),
        (kit.hello(4, (1, 5)), False),  # the bitmap counts, not the header
        (kit.message(ofp.HELLO, 1, struct.pack("!HHII", 1, 12, 1 << 4, 1) + bytes(4)), True),  # two bitmap words
        (kit.message(ofp.HELLO, 1, struct.pack("!HHI", 99, 8, 0)), True),  # an element nobody knows
    ],
)
def test_versions(hello: bytes, agreed: bool) -> None:
    session = fresh()
    if agreed:
        session.feed(hello, 0.1)
        assert [k for k, _, _ in kit.split(session.take_output())] == [ofp.FEATURES_REQUEST]
        return
    with pytest.raises(SessionDead) as dead:
        session.feed(hello, 0.1)
    assert dead.value.kind == "version_mismatch"
    assert "protocols=OpenFlow13" in str(dead.value)
    assert "192.0.2.1" in str(dead.value)
    [(kind, _, raw)] = kit.split(session.take_output())
    assert (kind, raw[8:12]) == (ofp.ERROR, struct.pack("!HH", ofp.ET_HELLO_FAILED, ofp.HFC_INCOMPATIBLE))


def test_a_second_hello_changes_nothing() -> None:
    session = fresh()
    session.feed(kit.hello() + kit.hello(), 0.1)
    assert [k for k, _, _ in kit.split(session.take_output())] == [ofp.FEATURES_REQUEST]


@pytest.mark.parametrize(
    "bad",
    [
        kit.message(ofp.HELLO, 1, struct.pack("!HHI", 1, 0, 0)),  # the sixteen bytes that stop other controllers
        kit.message(ofp.HELLO, 1, struct.pack("!HHI", 1, 2, 0)),
        kit.message(ofp.HELLO, 1, struct.pack("!HHI", 1, 6, 0)),  # a bitmap that is not whole words
        struct.pack("!BBHI", 4, ofp.HELLO, 7, 1),  # shorter than its header
        struct.pack("!BBHI", 4, ofp.HELLO, 0, 1),
        b"GET / HTTP/1.1\r\nHost: fabric\r\n\r\n",
        kit.features_reply(1),  # before HELLO
    ],
)
def test_hostile_first_bytes_end_the_session(bad: bytes) -> None:
    session = fresh()
    with pytest.raises((WireError, SessionDead)):
        session.feed(bad, 0.1)


def test_bytes_may_come_one_at_a_time() -> None:
    session = fresh()
    for byte in kit.hello():
        session.feed(bytes([byte]), 0.1)
    assert [k for k, _, _ in kit.split(session.take_output())] == [ofp.FEATURES_REQUEST]


def test_silence_ends_the_handshake() -> None:
    session = fresh(Limits(handshake_s=10.0))
    assert session.next_deadline == 10.0
    assert session.tick(9.9) == []
    session.feed(kit.hello(), 9.95)
    with pytest.raises(SessionDead, match=r"no FEATURES_REPLY within 10 s") as dead:
        session.tick(10.0)
    assert dead.value.kind == "handshake_timeout"


def test_auxiliary_connections_are_refused() -> None:
    session = fresh()
    session.feed(kit.hello(), 0.1)
    with pytest.raises(SessionDead, match="auxiliary"):
        session.feed(kit.features_reply(2, auxiliary=1), 0.2)


def test_an_endless_port_list_is_cut() -> None:
    session = fresh(Limits(reply_parts=50))
    session.feed(kit.hello(), 0.1)
    session.take_output()
    session.feed(kit.features_reply(2), 0.1)
    asked = {kit.multipart_kind(raw): xid for kind, xid, raw in kit.split(session.take_output()) if kind == ofp.MULTIPART_REQUEST}
    with pytest.raises(WireError, match="parts"):
        for number in range(1, 100):
            session.feed(kit.port_desc(asked[ofp.MP_PORT_DESC], [Port(number)], more=True), 0.2)


def test_port_changes_during_the_handshake_are_kept() -> None:
    full = kit.ovs_like()
    later = Port(9, "s1-eth9")

    def answer(kind: int, xid: int, raw: bytes) -> bytes:
        if kind == ofp.MULTIPART_REQUEST and kit.multipart_kind(raw) == ofp.MP_PORT_DESC:
            down = Port(1, "s1-eth1", link_down=True, live=False)
            changes = kit.port_status(2, down) + kit.port_status(0, later) + kit.port_status(1, kit.PORTS[1])
            # The list is older than the changes that follow it, although one of its parts comes after them.
            return kit.port_desc(xid, kit.PORTS[:2], more=True) + changes + kit.port_desc(xid, kit.PORTS[2:])
        if kind == ofp.FEATURES_REQUEST:
            return kit.port_status(1, kit.PORTS[0]) + full(kind, xid, raw)  # older than the list: no news
        return full(kind, xid, raw)

    _, event = kit.connected(answer)
    assert [(p.number, p.link_down) for p in event.ports] == [(1, True), (9, False)]


def test_frames_before_the_end_of_the_handshake_are_dropped_and_later_ones_counted() -> None:
    session, _ = kit.connected(limits=Limits(frames_per_s=10))
    frames = [e for e in session.feed(kit.packet_in(3, b"x" * 60, table=40) * 25, 0.0) if isinstance(e, FrameIn)]
    assert len(frames) == 10
    assert (frames[0].port, frames[0].table, frames[0].data) == (3, 40, b"x" * 60)
    assert session.totals()["packet_ins_dropped"] == 15
    assert len(session.feed(kit.packet_in(3, b"x" * 60), 0.5)) == 1


def test_a_flood_of_host_frames_does_not_use_up_the_room_for_discovery() -> None:
    session, _ = kit.connected(limits=Limits(frames_per_s=10, probes_per_s=5))
    session.feed(kit.packet_in(3, b"x" * 60) * 25, 0.0)
    probe = lldp(1, 2, 0x020000000001, 120, b"token")
    assert [e.data for e in session.feed(kit.packet_in(4, probe) * 9, 0.0) if isinstance(e, FrameIn)] == [probe] * 5


def test_port_status_after_the_handshake() -> None:
    session, _ = kit.connected()
    down = Port(1, "s1-eth1", link_down=True, live=False)
    [event] = session.feed(kit.port_status(2, down), 3.0)
    assert event == PortChanged(3.0, 7, "modify", down)
    [event] = session.feed(kit.port_status(77, down), 3.0)
    assert isinstance(event, PortChanged) and event.reason == "modify"


def test_echo_is_answered_and_missing_answers_end_the_session() -> None:
    session, _ = kit.connected(limits=Limits(echo_interval_s=5.0, echo_lost=2))
    session.feed(kit.message(ofp.ECHO_REQUEST, 99, b"beat"), 1.0)
    assert kit.split(session.take_output())[0] == (ofp.ECHO_REPLY, 99, kit.message(ofp.ECHO_REPLY, 99, b"beat"))
    assert session.next_deadline == 5.0
    session.tick(5.0)
    kit.converse(session, kit.ovs_like(), now=5.1)
    session.tick(10.0)
    session.tick(15.0)
    with pytest.raises(SessionDead, match="2 echo requests") as dead:
        session.tick(20.0)
    assert dead.value.kind == "echo_timeout"


def test_a_probe_wants_its_own_answer() -> None:
    session, _ = kit.connected()
    session.tick(5.0)
    keepalive = kit.split(session.take_output())[0]
    session.probe(5.1)
    probe = kit.split(session.take_output())[0]
    session.feed(kit.message(ofp.ECHO_REPLY, keepalive[1]), 5.2)
    assert not session.probe_answered
    session.feed(kit.message(ofp.ECHO_REPLY, probe[1]), 5.2)
    assert session.probe_answered


def test_a_peer_that_does_not_read_is_dropped() -> None:
    session, _ = kit.connected(limits=Limits(output_bytes=100_000))
    with pytest.raises(SessionDead, match="does not read"):
        for _ in range(10):
            session.feed(kit.message(ofp.ECHO_REQUEST, 1, bytes(60_000)), 1.0)
