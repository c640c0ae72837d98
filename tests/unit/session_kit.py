"""The switch's side of a session as bytes, and a peer that answers a handshake: for tests of the session and server."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from aifabric_ctrl.model.events import Event, SwitchConnected
from aifabric_ctrl.model.fabric import Port
from aifabric_ctrl.model.ids import PORT_LOCAL
from aifabric_ctrl.southbound.session import Limits, SwitchSession
from aifabric_ctrl.southbound.wire import constants as ofp
from aifabric_ctrl.southbound.wire.port import encode_port

PORTS = (
    Port(1, "s1-eth1", 0x020000000001, live=True, ever_live=True, speed_bps=10_000_000_000),
    Port(2, "s1-eth2", 0x020000000002, link_down=True, live=False),
    Port(PORT_LOCAL, "s1", 0x020000000003),
)


def message(kind: int, xid: int, body: bytes = b"", version: int = 4) -> bytes:
    return struct.pack("!BBHI", version, kind, 8 + len(body), xid) + body


def hello(version: int = 4, bitmap: Iterable[int] | None = (4,), xid: int = 1) -> bytes:
    if bitmap is None:
        return message(ofp.HELLO, xid, version=version)
    word = sum(1 << v for v in bitmap)
    return message(ofp.HELLO, xid, struct.pack("!HHI", 1, 8, word), version)


def features_reply(xid: int, dpid: int = 1, auxiliary: int = 0) -> bytes:
    return message(ofp.FEATURES_REPLY, xid, struct.pack("!QIBBxxII", dpid, 0, 254, auxiliary, 0x4F, 0))


def multipart(xid: int, kind: int, body: bytes, more: bool = False) -> bytes:
    return message(ofp.MULTIPART_REPLY, xid, struct.pack("!HH4x", kind, int(more)) + body)


def desc(xid: int, manufacturer: str = "Nicira, Inc.", hardware: str = "Open vSwitch", datapath: str = "None") -> bytes:
    texts = (manufacturer, hardware, "3.1.0", "None", datapath)
    return multipart(xid, ofp.MP_DESC, struct.pack("!256s256s256s32s256s", *(t.encode() for t in texts)))


def port_desc(xid: int, ports: Iterable[Port] = PORTS, more: bool = False) -> bytes:
    return multipart(xid, ofp.MP_PORT_DESC, b"".join(encode_port(p) for p in ports), more)


def port_status(reason: int, port: Port) -> bytes:
    return message(ofp.PORT_STATUS, 0, struct.pack("!B7x", reason) + encode_port(port))


def error(xid: int, kind: int, code: int, data: bytes = b"") -> bytes:
    return message(ofp.ERROR, xid, struct.pack("!HH", kind, code) + data)


def packet_in(port: int, data: bytes, table: int = 0) -> bytes:
    match = struct.pack("!HHIIxxxx", 1, 12, 0x80000004, port)
    return message(ofp.PACKET_IN, 0, struct.pack("!IHBBQ", ofp.NO_BUFFER, len(data), 0, table, 0) + match + b"\0\0" + data)


def bundle_reply(xid: int, bundle: int, control: int) -> bytes:
    body = struct.pack("!IIIHH", ofp.ONF_EXPERIMENTER, ofp.ONF_BUNDLE_CONTROL, bundle, control, 3)
    return message(ofp.EXPERIMENTER, xid, body)


def split(data: bytes) -> list[tuple[int, int, bytes]]:
    """(type, xid, whole message) of everything in ``data``."""
    found, at = [], 0
    while at < len(data):
        _, kind, length, xid = struct.unpack_from("!BBHI", data, at)
        found.append((kind, xid, data[at : at + length]))
        at += length
    return found


def multipart_kind(raw: bytes) -> int:
    return int(struct.unpack_from("!H", raw, 8)[0])


def bundle_control_of(raw: bytes) -> tuple[int, int]:
    """(bundle id, control) of a bundle control message; control -1 for a bundle add."""
    subtype, bundle, control = struct.unpack_from("!IIH", raw, 12)
    return bundle, control if subtype == ofp.ONF_BUNDLE_CONTROL else -1


Answer = Callable[[int, int, bytes], bytes]


def ovs_like(dpid: int = 1, ports: Iterable[Port] = PORTS, bundles: bool = True, meters: int = 262_144) -> Answer:
    """Answers the questions of a handshake as Open vSwitch 3.1 does."""

    def answer(kind: int, xid: int, raw: bytes) -> bytes:
        if kind == ofp.HELLO:
            return hello(xid=xid)
        if kind == ofp.FEATURES_REQUEST:
            return features_reply(xid, dpid)
        if kind == ofp.BARRIER_REQUEST:
            return message(ofp.BARRIER_REPLY, xid)
        if kind == ofp.ECHO_REQUEST:
            return message(ofp.ECHO_REPLY, xid, raw[8:])
        if kind == ofp.EXPERIMENTER:
            bundle, control = bundle_control_of(raw)
            if not bundles:
                return error(xid, ofp.ET_BAD_REQUEST, 3, raw[:64])
            return bundle_reply(xid, bundle, control + 1) if control >= 0 else b""
        if kind == ofp.MULTIPART_REQUEST:
            return _answer_multipart(xid, multipart_kind(raw), ports, meters)
        return b""

    return answer


def _answer_multipart(xid: int, kind: int, ports: Iterable[Port], meters: int) -> bytes:
    if kind == ofp.MP_DESC:
        return desc(xid)
    if kind == ofp.MP_PORT_DESC:
        return port_desc(xid, ports)
    if kind == ofp.MP_GROUP_FEATURES:
        return multipart(xid, kind, struct.pack("!II4I4I", 15, 7, *[0xFFFFFF00] * 4, *[0] * 4))
    if kind == ofp.MP_METER_FEATURES:
        return multipart(xid, kind, struct.pack("!IIIBBxx", meters, 2, 15, 8, 0))
    if kind == ofp.MP_AGGREGATE:
        return multipart(xid, kind, struct.pack("!QQI4x", 0, 0, 0))
    return multipart(xid, kind, b"")


def converse(session: SwitchSession, answer: Answer, now: float = 0.0, turns: int = 20) -> list[Event]:
    """Let the peer answer until the session says nothing more."""
    events: list[Event] = []
    for _ in range(turns):
        output = session.take_output()
        session.wrote(len(output))
        if not output:
            break
        replies = b"".join(answer(*one) for one in split(output))
        events += take(session, replies, now) if replies else []
    return events


def take(session: SwitchSession, data: bytes, now: float) -> list[Event]:
    """All that these bytes mean."""
    events = session.feed(data, now)
    while session.backlog:
        events += session.feed(b"", now)
    return events


def connected(
    answer: Answer | None = None, limits: Limits | None = None, now: float = 0.0
) -> tuple[SwitchSession, SwitchConnected]:
    """A session after its handshake, with nothing left to write."""
    session = SwitchSession(7, "192.0.2.1:40000", limits or Limits(), now)
    events = converse(session, answer or ovs_like(), now)
    [event] = events
    if not isinstance(event, SwitchConnected):
        raise TypeError(f"expected a connected switch, got {event}")
    return session, event
