"""What a switch says to us: OpenFlow 1.3 bytes to values.

Takes one whole message.  Raises ``WireError`` and nothing else, whatever the bytes, and every loop moves forward by at
least four bytes a turn.  A flow, group or meter that the model cannot hold becomes an ``Unrepresentable``, because it
may be somebody else's and must not end the session.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from aifabric_ctrl.model.errors import WireError
from aifabric_ctrl.southbound.wire import constants as ofp
from aifabric_ctrl.southbound.wire.errors import error_name
from aifabric_ctrl.southbound.wire.messages import (
    AggregateReply,
    BarrierReply,
    BundleReply,
    DescReply,
    EchoReply,
    EchoRequest,
    ErrorMessage,
    FeaturesReply,
    FlowStats,
    FlowStatsReply,
    GroupDescReply,
    GroupFeaturesReply,
    GroupStats,
    GroupStatsReply,
    Hello,
    Message,
    MeterConfigReply,
    MeterFeaturesReply,
    MultipartReply,
    OtherMessage,
    OtherMultipart,
    PacketIn,
    PortDescReply,
    PortStats,
    PortStatsReply,
    PortStatus,
    QueueStats,
    QueueStatsReply,
    RoleReply,
    Unrepresentable,
)
from aifabric_ctrl.southbound.wire.multipart import BODY, MULTIPART
from aifabric_ctrl.southbound.wire.oxm import match_bounds, split_oxm
from aifabric_ctrl.southbound.wire.port import PORT_SIZE, decode_port

__all__ = [
    "AggregateReply",
    "BarrierReply",
    "BundleReply",
    "DescReply",
    "EchoReply",
    "EchoRequest",
    "ErrorMessage",
    "FeaturesReply",
    "FlowStats",
    "FlowStatsReply",
    "GroupDescReply",
    "GroupFeaturesReply",
    "GroupStats",
    "GroupStatsReply",
    "Header",
    "Hello",
    "Message",
    "MeterConfigReply",
    "MeterFeaturesReply",
    "MultipartReply",
    "OtherMessage",
    "OtherMultipart",
    "PacketIn",
    "PortDescReply",
    "PortStats",
    "PortStatsReply",
    "PortStatus",
    "QueueStats",
    "QueueStatsReply",
    "RoleReply",
    "Unrepresentable",
    "decode",
    "header",
]

_HEADER = struct.Struct("!BBHI")
_FEATURES = struct.Struct("!QIBB2xI4x")
_PACKET_IN = struct.Struct("!IHBBQ")
_ROLE = struct.Struct("!I4xQ")
_EXPERIMENTER = struct.Struct("!II")
_BUNDLE_CONTROL = struct.Struct("!IHH")
_IN_PORT = b"\x80\x00\x00\x04"
_OPENFLOW_MAX = 31  # versions in the first bitmap word


class Header(NamedTuple):
    version: int
    type: int
    length: int
    xid: int


def header(message: bytes) -> Header:
    """The eight bytes every message starts with.

    Raises:
        WireError: fewer than eight bytes.
    """
    if len(message) < ofp.HEADER_SIZE:
        raise WireError(f"message of {len(message)} bytes has no whole header")
    return Header(*_HEADER.unpack_from(message))


def _hello(raw: bytes, xid: int) -> Hello:
    position, end = ofp.HEADER_SIZE, len(raw)
    versions: frozenset[int] | None = None
    while end - position >= 4:
        kind, length = struct.unpack_from("!HH", raw, position)
        if length < 4 or position + length > end:
            raise WireError(f"HELLO element length {length} does not fit")
        if kind == ofp.HELLO_VERSION_BITMAP and length >= 8:
            bitmap = int.from_bytes(raw[position + 4 : position + 8], "big")
            versions = frozenset(v for v in range(_OPENFLOW_MAX + 1) if bitmap >> v & 1)
        position += length + 7 & ~7
    # Without a bitmap the header's version stands for itself and everything below (OpenFlow 1.3.5, 6.3.1).
    return Hello(xid, raw[0], frozenset(range(1, min(raw[0], _OPENFLOW_MAX) + 1)) if versions is None else versions)


def _error(raw: bytes, xid: int) -> ErrorMessage:
    if len(raw) < 12:
        raise WireError("ERROR cut short")
    kind, code = struct.unpack_from("!HH", raw, 8)
    experimenter, start = 0, 12
    if kind == ofp.ET_EXPERIMENTER:
        if len(raw) < 16:
            raise WireError("experimenter ERROR cut short")
        experimenter, start = int.from_bytes(raw[12:16], "big"), 16
    data, name = raw[start:], error_name(kind, code, experimenter)
    if kind != ofp.ET_HELLO_FAILED and len(data) >= ofp.HEADER_SIZE:
        quoted = _HEADER.unpack_from(data)
        return ErrorMessage(xid, kind, code, name, data, quoted[1], quoted[3])
    return ErrorMessage(xid, kind, code, name, data)


def _features(raw: bytes, xid: int) -> FeaturesReply:
    if len(raw) != 32:
        raise WireError(f"FEATURES_REPLY of {len(raw)} bytes")
    return FeaturesReply(xid, *_FEATURES.unpack_from(raw, 8))


def _in_port(raw: bytes, position: int, end: int) -> int | None:
    while position < end:
        oxm, start, position = split_oxm(raw, position, end)
        if oxm == _IN_PORT:
            return int.from_bytes(raw[start:position], "big")
    return None


def _packet_in(raw: bytes, xid: int) -> PacketIn:
    if len(raw) < 32:
        raise WireError("PACKET_IN cut short")
    _, _, reason, table, cookie = _PACKET_IN.unpack_from(raw, 8)
    oxm_end, after = match_bounds(raw, 24, len(raw))
    if after + 2 > len(raw):
        raise WireError("PACKET_IN without its padding")
    return PacketIn(xid, _in_port(raw, 28, oxm_end), table, reason, cookie, raw[after + 2 :])


def _port_status(raw: bytes, xid: int) -> PortStatus:
    if len(raw) != 16 + PORT_SIZE:
        raise WireError(f"PORT_STATUS of {len(raw)} bytes")
    reason = ofp.PORT_REASONS[raw[8]] if raw[8] < len(ofp.PORT_REASONS) else "modify"
    return PortStatus(xid, reason, decode_port(raw, 16))


def _role(raw: bytes, xid: int) -> RoleReply:
    if len(raw) != 24:
        raise WireError(f"ROLE_REPLY of {len(raw)} bytes")
    return RoleReply(xid, *_ROLE.unpack_from(raw, 8))


def _experimenter(raw: bytes, xid: int) -> BundleReply | OtherMessage:
    if len(raw) < 16:
        raise WireError("EXPERIMENTER cut short")
    if _EXPERIMENTER.unpack_from(raw, 8) != (ofp.ONF_EXPERIMENTER, ofp.ONF_BUNDLE_CONTROL):
        return OtherMessage(xid, ofp.EXPERIMENTER)
    if len(raw) < 24:
        raise WireError("bundle control cut short")
    return BundleReply(xid, *_BUNDLE_CONTROL.unpack_from(raw, 16))


def _multipart(raw: bytes, xid: int) -> MultipartReply:
    if len(raw) < BODY:
        raise WireError("MULTIPART_REPLY cut short")
    kind, flags = struct.unpack_from("!HH", raw, 8)
    reader = MULTIPART.get(kind)
    more = bool(flags & ofp.MPF_MORE)
    return reader(raw, xid, more) if reader is not None else OtherMultipart(xid, more, kind)


_READERS: dict[int, Callable[[bytes, int], Message]] = {
    ofp.HELLO: _hello,
    ofp.ERROR: _error,
    ofp.ECHO_REQUEST: lambda raw, xid: EchoRequest(xid, raw[8:]),
    ofp.ECHO_REPLY: lambda raw, xid: EchoReply(xid, raw[8:]),
    ofp.EXPERIMENTER: _experimenter,
    ofp.FEATURES_REPLY: _features,
    ofp.PACKET_IN: _packet_in,
    ofp.PORT_STATUS: _port_status,
    ofp.MULTIPART_REPLY: _multipart,
    ofp.BARRIER_REPLY: lambda raw, xid: BarrierReply(xid),
    ofp.ROLE_REPLY: _role,
}


def decode(message: bytes) -> Message:
    """One whole message from a switch.

    Raises:
        WireError: the bytes break OpenFlow 1.3, or are not one whole message.
    """
    version, kind, length, xid = header(message)
    if length != len(message):
        raise WireError(f"header says {length} bytes, there are {len(message)}")
    if version != ofp.VERSION and kind not in (ofp.HELLO, ofp.ERROR):
        raise WireError(f"OpenFlow version {version:#x} after the handshake")
    reader = _READERS.get(kind)
    return reader(message, xid) if reader is not None else OtherMessage(xid, kind)
