"""Nothing that could loop, hang or crash a parser passes the guard; everything a real switch says does."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aifabric_ctrl.model.errors import WireError
from aifabric_ctrl.southbound.guard import Framer, Phase, check
from aifabric_ctrl.southbound.wire import constants as ofp
from aifabric_ctrl.southbound.wire import decode, switch_side
from tests.wire import oracle
from tests.wire.bound import bounded
from tests.wire.strategies import FROM_SWITCH, PORT


def whole(kind: int, body: bytes, version: int = 4) -> bytes:
    return struct.pack("!BBHI", version, kind, 8 + len(body), 1) + body


def part(kind: int, body: bytes) -> bytes:
    return switch_side.multipart(1, kind, body)


OUTPUT = struct.pack("!HHIH6x", 0, 16, 1, 0)


def flow_entry(length: int = 56, match: bytes = struct.pack("!HH4x", 1, 4), rest: bytes = b"") -> bytes:
    return struct.pack("!HBxIIHHHH4xQQQ", length, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) + match + rest


def bucket(length: int, actions: bytes = b"") -> bytes:
    return struct.pack("!HHII4x", length, 1, 1, 1) + actions


def group_desc(*buckets: bytes, length: int | None = None) -> bytes:
    body = b"".join(buckets)
    return struct.pack("!HBxI", 8 + len(body) if length is None else length, 1, 7) + body


def table_features(prop: bytes, length: int | None = None) -> bytes:
    return struct.pack("!HB5x32sQQII", 64 + len(prop) if length is None else length, 1, b"t", 0, 0, 0, 0) + prop


BAD: dict[str, bytes] = {
    # FUZZ-01
    "hello element length 0": whole(ofp.HELLO, struct.pack("!HH4x", 1, 0)),
    "hello element length 2": whole(ofp.HELLO, struct.pack("!HH4x", 1, 2)),
    "hello element too long": whole(ofp.HELLO, struct.pack("!HH4x", 1, 16)),
    "hello bitmap without a word": whole(ofp.HELLO, struct.pack("!HH4x", 1, 4)),
    "hello element cut short": whole(ofp.HELLO, b"\0\1"),
    # FUZZ-02, the seven that hung os-ken 4.2.2
    "group description length 0": part(ofp.MP_GROUP_DESC, group_desc(length=0)),
    "bucket length 0": part(ofp.MP_GROUP_DESC, group_desc(bucket(0))),
    "flow entry length 0": part(ofp.MP_FLOW, flow_entry(0)),
    "table property length 0": part(ofp.MP_TABLE_FEATURES, table_features(struct.pack("!HH4x", 0, 0))),
    "group statistics length 0": part(ofp.MP_GROUP, struct.pack("!H38x", 0)),
    "meter statistics length 0": part(ofp.MP_METER, struct.pack("!IH34x", 1, 0)),
    "queue property length 0": whole(
        ofp.QUEUE_GET_CONFIG_REPLY, struct.pack("!I4xIIH6x", 1, 1, 1, 32) + struct.pack("!HH12x", 1, 0)
    ),
    # and the rest of the same kind
    "queue length 0": whole(ofp.QUEUE_GET_CONFIG_REPLY, struct.pack("!I4xIIH6x", 1, 1, 1, 0)),
    "queue too long": whole(ofp.QUEUE_GET_CONFIG_REPLY, struct.pack("!I4xIIH6x", 1, 1, 1, 64)),
    "group description too long": part(ofp.MP_GROUP_DESC, group_desc(length=64)),
    "group description cut": part(ofp.MP_GROUP_DESC, b"\0\x08\1\0"),
    "bucket too long": part(ofp.MP_GROUP_DESC, group_desc(bucket(32))),
    "bucket not a multiple of 8": part(ofp.MP_GROUP_DESC, group_desc(bucket(20, bytes(4)))),
    "action in bucket length 0": part(ofp.MP_GROUP_DESC, group_desc(bucket(24, struct.pack("!HH4x", 0, 0)))),
    "action in bucket too long": part(ofp.MP_GROUP_DESC, group_desc(bucket(24, struct.pack("!HH4x", 0, 16)))),
    "flow entry too short": part(ofp.MP_FLOW, flow_entry(48)),
    "flow entry too long": part(ofp.MP_FLOW, flow_entry(64)),
    "flow match length 0": part(ofp.MP_FLOW, flow_entry(56, struct.pack("!HH4x", 1, 0))),
    "flow match too long": part(ofp.MP_FLOW, flow_entry(56, struct.pack("!HH4x", 1, 64))),
    "flow match of another type": part(ofp.MP_FLOW, flow_entry(56, struct.pack("!HH4x", 0, 4))),
    "oxm length 0": part(ofp.MP_FLOW, flow_entry(56, struct.pack("!HHI", 1, 8, 0x80000000))),
    "oxm too long": part(ofp.MP_FLOW, flow_entry(56, struct.pack("!HHI", 1, 8, 0x80000004))),
    "oxm experimenter without value": part(ofp.MP_FLOW, flow_entry(64, struct.pack("!HHII4x", 1, 12, 0xFFFF5404, 1))),
    "instruction length 0": part(ofp.MP_FLOW, flow_entry(64, rest=struct.pack("!HH4x", 4, 0))),
    "instruction length 4": part(ofp.MP_FLOW, flow_entry(64, rest=struct.pack("!HH4x", 1, 4))),
    "instruction too long": part(ofp.MP_FLOW, flow_entry(64, rest=struct.pack("!HH4x", 4, 24))),
    "write-metadata too short": part(ofp.MP_FLOW, flow_entry(64, rest=struct.pack("!HH4x", 2, 8))),
    "action length 0": part(ofp.MP_FLOW, flow_entry(72, rest=struct.pack("!HH4x", 4, 16) + struct.pack("!HH4x", 0, 0))),
    "action length 6": part(ofp.MP_FLOW, flow_entry(72, rest=struct.pack("!HH4x", 4, 16) + struct.pack("!HH4x", 0, 6))),
    "written action length 0": part(ofp.MP_FLOW, flow_entry(72, rest=struct.pack("!HH4x", 3, 16) + struct.pack("!HH4x", 0, 0))),
    "set-field oxm too long": part(
        ofp.MP_FLOW, flow_entry(72, rest=struct.pack("!HH4x", 4, 16) + struct.pack("!HHI", 25, 8, 0x800000FF))
    ),
    "group statistics too long": part(ofp.MP_GROUP, struct.pack("!H38x", 56)),
    "group statistics half a bucket": part(ofp.MP_GROUP, struct.pack("!H46x", 48)),
    "meter statistics too long": part(ofp.MP_METER, struct.pack("!IH34x", 1, 56)),
    "meter configuration length 0": part(ofp.MP_METER_CONFIG, struct.pack("!HHI", 0, 1, 1)),
    "meter configuration too long": part(ofp.MP_METER_CONFIG, struct.pack("!HHI", 16, 1, 1)),
    "meter band length 0": part(ofp.MP_METER_CONFIG, struct.pack("!HHI", 24, 1, 1) + struct.pack("!HH12x", 1, 0)),
    "meter band too long": part(ofp.MP_METER_CONFIG, struct.pack("!HHI", 24, 1, 1) + struct.pack("!HH12x", 1, 32)),
    "table features length 0": part(ofp.MP_TABLE_FEATURES, table_features(b"", length=0)),
    "table property too long": part(ofp.MP_TABLE_FEATURES, table_features(struct.pack("!HH4x", 0, 16))),
    "table property id length 0": part(ofp.MP_TABLE_FEATURES, table_features(struct.pack("!HHHH", 0, 8, 1, 0))),
    "port statistics cut": part(ofp.MP_PORT_STATS, bytes(111)),
    "queue statistics cut": part(ofp.MP_QUEUE, bytes(41)),
    "port description cut": part(ofp.MP_PORT_DESC, bytes(65)),
    "table statistics cut": part(ofp.MP_TABLE, bytes(23)),
    "description empty": part(ofp.MP_DESC, b""),
    "aggregate empty": part(ofp.MP_AGGREGATE, b""),
    "group features empty": part(ofp.MP_GROUP_FEATURES, b""),
    "meter features empty": part(ofp.MP_METER_FEATURES, b""),
    "multipart never asked for": part(ofp.MP_EXPERIMENTER, bytes(16)),
    "multipart header cut": whole(ofp.MULTIPART_REPLY, b"\0\1"),
    "features cut": whole(ofp.FEATURES_REPLY, bytes(16)),
    "port status cut": whole(ofp.PORT_STATUS, bytes(64)),
    "role cut": whole(ofp.ROLE_REPLY, bytes(8)),
    "async cut": whole(ofp.GET_ASYNC_REPLY, bytes(8)),
    "config cut": whole(ofp.GET_CONFIG_REPLY, b""),
    "barrier with a body": whole(ofp.BARRIER_REPLY, bytes(8)),
    "error cut": whole(ofp.ERROR, bytes(2)),
    "experimenter error cut": whole(ofp.ERROR, b"\xff\xff\0\0"),
    "experimenter cut": whole(ofp.EXPERIMENTER, bytes(4)),
    "bundle control cut": whole(ofp.EXPERIMENTER, struct.pack("!II", ofp.ONF_EXPERIMENTER, 2300)),
    "bundle property length 0": whole(ofp.EXPERIMENTER, struct.pack("!IIIHHHH4x", ofp.ONF_EXPERIMENTER, 2300, 1, 1, 0, 1, 0)),
    "bundle add from a switch": whole(ofp.EXPERIMENTER, struct.pack("!II24x", ofp.ONF_EXPERIMENTER, 2301)),
    "packet-in cut": whole(ofp.PACKET_IN, bytes(24)),
    "packet-in match too long": whole(ofp.PACKET_IN, bytes(16) + struct.pack("!HH6x", 1, 400)),
    "packet-in without padding": whole(ofp.PACKET_IN, bytes(16) + struct.pack("!HHI", 1, 8, 0x80000000) + b"\0"),
    "flow removed cut": whole(ofp.FLOW_REMOVED, bytes(40)),
    "flow removed with a tail": whole(ofp.FLOW_REMOVED, bytes(40) + struct.pack("!HH4x", 1, 4) + bytes(8)),
    "a controller's message": whole(ofp.FLOW_MOD, bytes(48)),
    "unknown type": whole(99, b""),
    "version 1.0 after HELLO": whole(ofp.BARRIER_REPLY, b"", version=1),
    "version 0 in HELLO": whole(ofp.HELLO, b"", version=0),
    "header only half": b"\x04\x00\x00",
    "length too small": struct.pack("!BBHI", 4, ofp.HELLO, 4, 1),
    "length too large": struct.pack("!BBHI", 4, ofp.HELLO, 16, 1),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_lengths_are_refused(name: str) -> None:
    with bounded(), pytest.raises(WireError):
        check(BAD[name])


@pytest.mark.parametrize("name", BAD)
def test_our_decoder_does_not_need_the_guard_to_stop(name: str) -> None:
    with bounded(), contextlib.suppress(WireError):
        decode.decode(BAD[name])


GOOD = {
    **FROM_SWITCH,
    "empty group": part(ofp.MP_GROUP_DESC, group_desc()),
    "flow removed": whole(ofp.FLOW_REMOVED, bytes(40) + struct.pack("!HH4x", 1, 4)),
    "queue config": whole(ofp.QUEUE_GET_CONFIG_REPLY, struct.pack("!I4xIIH6x", 1, 1, 1, 32) + struct.pack("!HH12x", 1, 16)),
    "table features": part(
        ofp.MP_TABLE_FEATURES, table_features(struct.pack("!HHHHHH4x", 0, 12, 1, 4, 4, 4) + struct.pack("!HHI", 8, 8, 0x80000004))
    ),
    "table statistics": part(ofp.MP_TABLE, bytes(48)),
    "meter statistics": part(ofp.MP_METER, struct.pack("!IH50x", 1, 56)),
    "async": whole(ofp.GET_ASYNC_REPLY, bytes(24)),
    "config": whole(ofp.GET_CONFIG_REPLY, bytes(4)),
    "foreign experimenter": whole(ofp.EXPERIMENTER, struct.pack("!II3x", 0x2320, 5)),
    "hello of 1.0": whole(ofp.HELLO, b"", version=1),
    "error of 1.0": whole(ofp.ERROR, bytes(4), version=1),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_messages_pass(name: str) -> None:
    check(GOOD[name])
    decode.decode(GOOD[name])


def test_what_may_arrive_when() -> None:
    for name, raw in FROM_SWITCH.items():
        early = name.startswith(("hello", "error", "echo"))
        middle = early or name in ("features_reply", "packet_in", "port_status", "bundle_reply")
        for phase, allowed in ((Phase.HELLO, early), (Phase.FEATURES, middle), (Phase.MAIN, True)):
            if allowed:
                check(raw, phase)
            else:
                with pytest.raises(WireError):
                    check(raw, phase)


# ---- framing ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(sorted(FROM_SWITCH)), max_size=5), st.data())
def test_any_cut_of_the_stream_gives_the_same_messages(names: list[str], data: st.DataObject) -> None:
    stream = b"".join(FROM_SWITCH[name] for name in names)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    framer, found = Framer(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += framer.feed(stream[start:end])
    assert found == [FROM_SWITCH[name] for name in names]
    assert framer.pending == 0


@pytest.mark.parametrize("length", range(8))
def test_a_length_below_the_header_ends_the_stream(length: int) -> None:
    framer = Framer()
    with pytest.raises(WireError):
        framer.feed(struct.pack("!BBHI", 4, 0, length, 1))
    with pytest.raises(WireError):
        framer.feed(FROM_SWITCH["hello"])
    assert framer.pending == 0


def test_an_announced_length_holds_no_more_than_one_message() -> None:
    framer = Framer()
    assert framer.feed(struct.pack("!BBHI", 4, ofp.PACKET_IN, 0xFFFF, 1)) == []
    for _ in range(10):
        framer.feed(bytes(6000))
    assert framer.pending == 60008
    (message,) = framer.feed(bytes(5527))
    assert len(message) == 0xFFFF
    assert framer.pending == 0


# ---- anything at all -------------------------------------------------------------------------------------------------


def survive(raw: bytes) -> None:
    """Only WireError, in bounded time; and whatever the guard lets through does not hang os-ken's parser either."""
    with bounded():
        with contextlib.suppress(WireError):
            decode.decode(raw)
        with contextlib.suppress(WireError):
            switch_side.decode_request(raw)
        try:
            check(raw)
        except WireError:
            return
        # os-ken may refuse what it was given, in whatever way; it must only come back.
        with contextlib.suppress(Exception):
            oracle.parse(raw)


def with_length(raw: bytes) -> bytes:
    return raw[:2] + len(raw).to_bytes(2, "big") + raw[4:] if 8 <= len(raw) <= 0xFFFF else raw


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 30), st.binary(max_size=200))
def test_random_bodies(kind: int, body: bytes) -> None:
    survive(whole(kind, body))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(FROM_SWITCH)), st.data())
def test_mutated_messages(name: str, data: st.DataObject) -> None:
    raw = bytearray(FROM_SWITCH[name])
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.sampled_from([0, 1, 2, 4, 7, 8, 15, 16, 0x7F, 0x80, 0xFF]))
    survive(with_length(bytes(raw)))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(FROM_SWITCH)), st.integers(0, 80), st.binary(max_size=20))
def test_spliced_messages(name: str, at: int, extra: bytes) -> None:
    raw = FROM_SWITCH[name]
    survive(with_length(raw[:at] + extra + raw[at:]))


def test_the_samples_cover_port() -> None:
    assert decode.decode(FROM_SWITCH["port_desc"]) == decode.PortDescReply(1, False, (PORT,))
