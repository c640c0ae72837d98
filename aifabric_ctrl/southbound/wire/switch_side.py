"""The wire as a switch sees it, for fake switches and tests: reads our requests, writes a switch's replies.

Nothing in production imports this.  Raises ``WireError`` and nothing else on any bytes; what is well-formed and outside
the model comes back as ``Unrepresentable`` with the error a switch would answer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from aifabric_ctrl.model.errors import WireError
from aifabric_ctrl.model.fabric import Port
from aifabric_ctrl.model.ids import Dpid, PortNo
from aifabric_ctrl.model.rules import Group, Match, Meter
from aifabric_ctrl.southbound.wire import constants as ofp
from aifabric_ctrl.southbound.wire.actions import GROUP_TYPES, decode_actions, encode_buckets, encode_instructions
from aifabric_ctrl.southbound.wire.decode import decode, header
from aifabric_ctrl.southbound.wire.messages import (
    EchoReply,
    EchoRequest,
    ErrorMessage,
    FlowStats,
    GroupStats,
    Hello,
    PortStats,
    QueueStats,
    Unrepresentable,
)
from aifabric_ctrl.southbound.wire.multipart import decode_group, decode_meter, flow_value
from aifabric_ctrl.southbound.wire.oxm import decode_oxms, encode_match, match_bounds
from aifabric_ctrl.southbound.wire.port import encode_port
from aifabric_ctrl.southbound.wire.requests import (
    BarrierRequest,
    BundleAdd,
    BundleControl,
    FeaturesRequest,
    FlowMod,
    GroupMod,
    MeterMod,
    MultipartRequest,
    PacketOut,
    Request,
    RoleRequest,
    SetConfig,
    UnknownRequest,
)

_HEADER = struct.Struct("!BBHI")
_FLOW_MOD = struct.Struct("!QQBBHHHIIIH2x")
_GROUP_MOD = struct.Struct("!HBxI")
_METER_MOD = struct.Struct("!HHI")
_PACKET_OUT = struct.Struct("!IIH6x")
_FLOW_FILTER = struct.Struct("!B3xII4xQQ")
_FLOW_STATS = struct.Struct("!HBxIIHHHH4xQQQ")
_PART_BYTES = 60_000  # OVS starts a new part at about this size


# ---- requests --------------------------------------------------------------------------------------------------------


def _least(raw: bytes, size: int) -> None:
    if len(raw) < size:
        raise WireError(f"message type {raw[1]} of {len(raw)} bytes, at least {size} needed")


def _flow_mod(raw: bytes, xid: int) -> FlowMod:
    _least(raw, 56)
    cookie, mask, table, command, idle_s, hard_s, priority, buffer_id, out_port, out_group, flags = _FLOW_MOD.unpack_from(raw, 8)
    flow = flow_value(raw, 48, len(raw), (table, priority, cookie), (idle_s, hard_s, 0))
    return FlowMod(xid, command, flow, mask, out_port, out_group, flags, buffer_id)


def _group_mod(raw: bytes, xid: int) -> GroupMod:
    _least(raw, 16)
    command, kind, group_id = _GROUP_MOD.unpack_from(raw, 8)
    return GroupMod(xid, command, group_id, decode_group(kind, group_id, raw[16:]))


def _meter_mod(raw: bytes, xid: int) -> MeterMod:
    _least(raw, 16)
    command, flags, meter_id = _METER_MOD.unpack_from(raw, 8)
    return MeterMod(xid, command, meter_id, None if command == ofp.MC_DELETE else decode_meter(flags, meter_id, raw[16:]))


def _packet_out(raw: bytes, xid: int) -> PacketOut:
    _least(raw, 24)
    buffer_id, in_port, size = _PACKET_OUT.unpack_from(raw, 8)
    if 24 + size > len(raw):
        raise WireError(f"PACKET_OUT with {size} bytes of actions does not fit")
    return PacketOut(xid, in_port, decode_actions(raw[24 : 24 + size]), raw[24 + size :], buffer_id)


def _multipart(raw: bytes, xid: int) -> MultipartRequest:
    _least(raw, 16)
    kind, flags = struct.unpack_from("!HH", raw, 8)
    more = bool(flags & ofp.MPF_MORE)
    if kind in (ofp.MP_FLOW, ofp.MP_AGGREGATE):
        _least(raw, 56)
        table, out_port, out_group, cookie, mask = _FLOW_FILTER.unpack_from(raw, 16)
        oxm_end, _ = match_bounds(raw, 48, len(raw))
        match = decode_oxms(raw[52:oxm_end])
        return MultipartRequest(xid, kind, more, 0, 0, table, out_port, out_group, cookie, mask, match)
    if kind in (ofp.MP_PORT_STATS, ofp.MP_QUEUE, ofp.MP_GROUP, ofp.MP_METER, ofp.MP_METER_CONFIG):
        _least(raw, 24)
        number, queue_id = struct.unpack_from("!II", raw, 16)
        return MultipartRequest(xid, kind, more, number, queue_id)
    return MultipartRequest(xid, kind, more)


def _experimenter(raw: bytes, xid: int) -> BundleControl | BundleAdd | UnknownRequest:
    _least(raw, 16)
    experimenter, kind = struct.unpack_from("!II", raw, 8)
    if experimenter != ofp.ONF_EXPERIMENTER or kind not in (ofp.ONF_BUNDLE_CONTROL, ofp.ONF_BUNDLE_ADD):
        return UnknownRequest(xid, ofp.EXPERIMENTER)
    _least(raw, 24)
    bundle_id, first, flags = struct.unpack_from("!IHH", raw, 16)
    if kind == ofp.ONF_BUNDLE_CONTROL:
        return BundleControl(xid, bundle_id, first, flags)
    _least(raw, 32)
    inner = header(raw[24:32])
    if not ofp.HEADER_SIZE <= inner.length <= len(raw) - 24:
        raise WireError(f"bundled message of {inner.length} bytes does not fit")
    if inner.xid != xid:
        raise WireError("bundled message with another transaction id")
    return BundleAdd(xid, bundle_id, flags, raw[24 : 24 + inner.length])


def _set_config(raw: bytes, xid: int) -> SetConfig:
    _least(raw, 12)
    return SetConfig(xid, *struct.unpack_from("!HH", raw, 8))


def _role(raw: bytes, xid: int) -> RoleRequest:
    _least(raw, 24)
    return RoleRequest(xid, *struct.unpack_from("!I4xQ", raw, 8))


_READERS: dict[int, Callable[[bytes, int], Request]] = {
    ofp.FEATURES_REQUEST: lambda raw, xid: FeaturesRequest(xid),
    ofp.BARRIER_REQUEST: lambda raw, xid: BarrierRequest(xid),
    ofp.SET_CONFIG: _set_config,
    ofp.FLOW_MOD: _flow_mod,
    ofp.GROUP_MOD: _group_mod,
    ofp.METER_MOD: _meter_mod,
    ofp.PACKET_OUT: _packet_out,
    ofp.MULTIPART_REQUEST: _multipart,
    ofp.ROLE_REQUEST: _role,
    ofp.EXPERIMENTER: _experimenter,
}


def decode_request(message: bytes) -> Request:
    """One whole message from a controller.

    Raises:
        WireError: malformed; ``Unmodelled``, with the error to answer, for packet-out actions and filters we cannot hold.
    """
    version, kind, length, xid = header(message)
    if length != len(message):
        raise WireError(f"header says {length} bytes, there are {len(message)}")
    reader = _READERS.get(kind)
    if reader is not None and version == ofp.VERSION:
        return reader(message, xid)
    if kind in (ofp.HELLO, ofp.ERROR, ofp.ECHO_REQUEST, ofp.ECHO_REPLY):
        symmetric = decode(message)
        if isinstance(symmetric, Hello | ErrorMessage | EchoRequest | EchoReply):
            return symmetric
    return UnknownRequest(xid, kind)


# ---- replies ---------------------------------------------------------------------------------------------------------


def _message(kind: int, xid: int, body: bytes = b"") -> bytes:
    return _HEADER.pack(ofp.VERSION, kind, ofp.HEADER_SIZE + len(body), xid) + body


def error(xid: int, error_type: int, code: int, data: bytes, experimenter: int | None = None) -> bytes:
    """An ERROR that quotes (the first 64 bytes of) the offending message, as OVS does."""
    who = b"" if experimenter is None else struct.pack("!I", experimenter)
    return _message(ofp.ERROR, xid, struct.pack("!HH", error_type, code) + who + data[:64])


def features_reply(xid: int, dpid: Dpid, n_tables: int = 254, n_buffers: int = 0, auxiliary_id: int = 0) -> bytes:
    body = struct.pack("!QIBB2xII", dpid, n_buffers, n_tables, auxiliary_id, 0x4F, 0)
    return _message(ofp.FEATURES_REPLY, xid, body)


def barrier_reply(xid: int) -> bytes:
    return _message(ofp.BARRIER_REPLY, xid)


def role_reply(xid: int, role: int, generation_id: int) -> bytes:
    return _message(ofp.ROLE_REPLY, xid, struct.pack("!I4xQ", role, generation_id))


def port_status(xid: int, reason: str, port: Port) -> bytes:
    return _message(ofp.PORT_STATUS, xid, bytes([ofp.PORT_REASONS.index(reason)]) + bytes(7) + encode_port(port))


def packet_in(xid: int, in_port: PortNo, data: bytes, table: int = 0, reason: int = 1, cookie: int = 0) -> bytes:
    head = struct.pack("!IHBBQ", ofp.NO_BUFFER, min(len(data), 0xFFFF), reason, table, cookie)
    return _message(ofp.PACKET_IN, xid, head + encode_match(Match.of(in_port=in_port)) + bytes(2) + data)


def bundle_control_reply(xid: int, bundle_id: int, control: int, flags: int = 0) -> bytes:
    body = struct.pack("!IIIHH", ofp.ONF_EXPERIMENTER, ofp.ONF_BUNDLE_CONTROL, bundle_id, control, flags)
    return _message(ofp.EXPERIMENTER, xid, body)


def multipart(xid: int, kind: int, body: bytes = b"", more: bool = False) -> bytes:
    """One part of a multipart reply."""
    return _message(ofp.MULTIPART_REPLY, xid, struct.pack("!HH4x", kind, int(more)) + body)


def multipart_parts(xid: int, kind: int, entries: Iterable[bytes], part_bytes: int = _PART_BYTES) -> list[bytes]:
    """Entries as one reply in as many parts as needed; the last says that no more follow."""
    bodies: list[list[bytes]] = [[]]
    size = 0
    for entry in entries:
        if size and size + len(entry) > part_bytes:
            bodies.append([])
            size = 0
        bodies[-1].append(entry)
        size += len(entry)
    return [multipart(xid, kind, b"".join(body), more=i < len(bodies) - 1) for i, body in enumerate(bodies)]


def flow_entry(stats: FlowStats) -> bytes:
    """One ofp_flow_stats.

    Raises:
        WireError: the entry holds an ``Unrepresentable``.
    """
    flow = stats.flow
    if isinstance(flow, Unrepresentable):
        raise WireError("cannot write what cannot be represented")
    tail = encode_match(flow.match) + encode_instructions(flow.meter, flow.actions, flow.metadata, flow.goto)
    sec = int(stats.duration_s)
    nsec = int((stats.duration_s - sec) * 1e9)
    head = _FLOW_STATS.pack(
        48 + len(tail), flow.table, sec, nsec, flow.priority, 0, 0, 0, flow.cookie, stats.packet_count, stats.byte_count
    )
    return head + tail


def group_entry(group: Group) -> bytes:
    buckets = encode_buckets(group.buckets)
    return struct.pack("!HBxI", 8 + len(buckets), GROUP_TYPES[group.type], group.group_id) + buckets


def meter_entry(meter: Meter) -> bytes:
    flags = (ofp.MF_PKTPS if meter.pps else ofp.MF_KBPS) | ofp.MF_BURST
    return struct.pack("!HHIHHII4x", 24, flags, meter.meter_id, ofp.MBT_DROP, 16, meter.rate, meter.burst)


def group_stats_entry(stats: GroupStats) -> bytes:
    buckets = b"".join(struct.pack("!QQ", *bucket) for bucket in stats.buckets)
    sec = int(stats.duration_s)
    nsec = int((stats.duration_s - sec) * 1e9)
    head = (40 + len(buckets), stats.group_id, stats.ref_count, stats.packet_count, stats.byte_count, sec, nsec)
    return struct.pack("!H2xII4xQQII", *head) + buckets


def flow_stats_replies(xid: int, entries: Iterable[FlowStats], part_bytes: int = _PART_BYTES) -> list[bytes]:
    return multipart_parts(xid, ofp.MP_FLOW, map(flow_entry, entries), part_bytes)


def group_desc_replies(xid: int, groups: Iterable[Group], part_bytes: int = _PART_BYTES) -> list[bytes]:
    return multipart_parts(xid, ofp.MP_GROUP_DESC, map(group_entry, groups), part_bytes)


def group_stats_replies(xid: int, entries: Iterable[GroupStats], part_bytes: int = _PART_BYTES) -> list[bytes]:
    return multipart_parts(xid, ofp.MP_GROUP, map(group_stats_entry, entries), part_bytes)


def meter_config_replies(xid: int, meters: Iterable[Meter], part_bytes: int = _PART_BYTES) -> list[bytes]:
    return multipart_parts(xid, ofp.MP_METER_CONFIG, map(meter_entry, meters), part_bytes)


def port_desc_replies(xid: int, ports: Iterable[Port], part_bytes: int = _PART_BYTES) -> list[bytes]:
    return multipart_parts(xid, ofp.MP_PORT_DESC, map(encode_port, ports), part_bytes)


def port_stats_replies(xid: int, entries: Iterable[PortStats], part_bytes: int = _PART_BYTES) -> list[bytes]:
    return multipart_parts(xid, ofp.MP_PORT_STATS, (struct.pack("!I4x12QII", *e) for e in entries), part_bytes)


def queue_stats_replies(xid: int, entries: Iterable[QueueStats], part_bytes: int = _PART_BYTES) -> list[bytes]:
    return multipart_parts(xid, ofp.MP_QUEUE, (struct.pack("!IIQQQII", *e) for e in entries), part_bytes)


def aggregate_reply(xid: int, packet_count: int, byte_count: int, flow_count: int) -> bytes:
    return multipart(xid, ofp.MP_AGGREGATE, struct.pack("!QQI4x", packet_count, byte_count, flow_count))


def desc_reply(
    xid: int, manufacturer: str = "", hardware: str = "", software: str = "", serial: str = "", datapath: str = ""
) -> bytes:
    texts = (text.encode() for text in (manufacturer, hardware, software, serial, datapath))
    return multipart(xid, ofp.MP_DESC, struct.pack("!256s256s256s32s256s", *texts))


def group_features_reply(xid: int, max_groups: int = 0xFFFFFF00, types: int = 0xF, capabilities: int = 0x7) -> bytes:
    body = struct.pack("!II4I4I", types, capabilities, *[max_groups] * 4, *[0xFFFFFFFF] * 4)
    return multipart(xid, ofp.MP_GROUP_FEATURES, body)


def meter_features_reply(xid: int, max_meters: int, max_bands: int = 8) -> bytes:
    body = struct.pack("!IIIBB2x", max_meters, 1 << ofp.MBT_DROP, 0xF, max_bands, 0)
    return multipart(xid, ofp.MP_METER_FEATURES, body)
