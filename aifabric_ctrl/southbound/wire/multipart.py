"""Bodies of multipart replies.  Bulk entries are read with one ``struct`` call and cached matches and action lists."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache

from aifabric_ctrl.model.errors import WireError
from aifabric_ctrl.model.rules import Flow, Group, Meter
from aifabric_ctrl.southbound.wire import constants as ofp
from aifabric_ctrl.southbound.wire import messages as m
from aifabric_ctrl.southbound.wire.actions import GROUP_TYPE_NAMES, decode_buckets, decode_instructions
from aifabric_ctrl.southbound.wire.oxm import Unmodelled, decode_oxms, match_bounds
from aifabric_ctrl.southbound.wire.port import PORT_SIZE, decode_port, text_of

BODY = 16  # where a multipart body starts
_FLOW = struct.Struct("!H2xII20xQQ")  # what changes; the rest of the 48 bytes:
_LASTING = struct.Struct("!BxHHHH4xQ")  # table, priority, time-outs, flags, cookie
_DESC = struct.Struct("!256s256s256s32s256s")
_AGGREGATE = struct.Struct("!QQI4x")
_PORT_STATS = struct.Struct("!I4x12QII")
_QUEUE_STATS = struct.Struct("!IIQQQII")
_GROUP_STATS = struct.Struct("!H2xII4xQQII")
_BUCKET_COUNTER = struct.Struct("!QQ")
_GROUP_DESC = struct.Struct("!HBxI")
_GROUP_FEATURES = struct.Struct("!II4I4I")
_METER = struct.Struct("!HHI")
_BAND = struct.Struct("!HHII4x")
_METER_FEATURES = struct.Struct("!IIIBB2x")
_NO_LIMITS = (0, 0, 0)
_METER_FLAGS = ofp.MF_KBPS | ofp.MF_PKTPS


def _fixed(raw: bytes, layout: struct.Struct) -> tuple[int, ...]:
    if len(raw) != BODY + layout.size:
        raise WireError(f"multipart body of {len(raw) - BODY} bytes instead of {layout.size}")
    return layout.unpack_from(raw, BODY)


def _whole(raw: bytes, size: int) -> memoryview:
    if (len(raw) - BODY) % size:
        raise WireError(f"multipart body of {len(raw) - BODY} bytes is not a multiple of {size}")
    return memoryview(raw)[BODY:]


def _desc(raw: bytes, xid: int, more: bool) -> m.DescReply:
    if len(raw) != BODY + _DESC.size:
        raise WireError("description of the wrong size")
    return m.DescReply(xid, more, *[text_of(part) for part in _DESC.unpack_from(raw, BODY)])


def flow_value(
    raw: bytes, position: int, end: int, entry: tuple[int, int, int], limits: tuple[int, int, int]
) -> Flow | m.Unrepresentable:
    """The flow whose match starts at ``position`` and whose instructions end at ``end``.

    Args:
        entry: table, priority, cookie.
        limits: idle time-out (s), hard time-out (s), flags; ours are all 0.

    Raises:
        WireError: something inside does not fit.
    """
    oxm_end, instructions = match_bounds(raw, position, end)
    table, priority, cookie = entry
    try:
        if limits != _NO_LIMITS:
            raise Unmodelled(f"time-outs {limits[0]}/{limits[1]} s, flags {limits[2]:#x}", (ofp.ET_FLOW_MOD_FAILED, 0))
        match = decode_oxms(raw[position + 4 : oxm_end])
        meter, actions, metadata, goto = decode_instructions(raw[instructions:end])
    except Unmodelled as error:
        return m.Unrepresentable("flow", error.what, error.error, table, priority, cookie)
    return Flow(table, priority, match, meter, actions, metadata, goto, cookie)


@lru_cache(maxsize=1 << 15)
def _known_flow(lasting: bytes) -> Flow | m.Unrepresentable:
    """A flow from the bytes of its entry that do not count anything: two reads of an unchanged flow give one object."""
    table, priority, idle_s, hard_s, flags, cookie = _LASTING.unpack_from(lasting)
    return flow_value(lasting, _LASTING.size, len(lasting), (table, priority, cookie), (idle_s, hard_s, flags))


def _flows(raw: bytes, xid: int, more: bool) -> m.FlowStatsReply:
    entries: list[m.FlowStats] = []
    position, total = BODY, len(raw)
    while position < total:
        if total - position < 56:
            raise WireError("flow entry cut short")
        length, sec, nsec, packets, size = _FLOW.unpack_from(raw, position)
        end = position + length
        if length < 56 or end > total:
            raise WireError(f"flow entry length {length} does not fit")
        flow = _known_flow(raw[position + 2 : position + 4] + raw[position + 12 : position + 32] + raw[position + 48 : end])
        entries.append(m.FlowStats(flow, packets, size, sec + nsec / 1e9))
        position = end
    return m.FlowStatsReply(xid, more, tuple(entries))


def _aggregate(raw: bytes, xid: int, more: bool) -> m.AggregateReply:
    return m.AggregateReply(xid, more, *_fixed(raw, _AGGREGATE))


def _port_stats(raw: bytes, xid: int, more: bool) -> m.PortStatsReply:
    body = _whole(raw, _PORT_STATS.size)
    return m.PortStatsReply(xid, more, tuple(map(m.PortStats._make, _PORT_STATS.iter_unpack(body))))


def _queue_stats(raw: bytes, xid: int, more: bool) -> m.QueueStatsReply:
    body = _whole(raw, _QUEUE_STATS.size)
    return m.QueueStatsReply(xid, more, tuple(map(m.QueueStats._make, _QUEUE_STATS.iter_unpack(body))))


def _group_stats(raw: bytes, xid: int, more: bool) -> m.GroupStatsReply:
    entries: list[m.GroupStats] = []
    position, total = BODY, len(raw)
    while position < total:
        if total - position < 40:
            raise WireError("group statistics cut short")
        length, group_id, refs, packets, size, sec, nsec = _GROUP_STATS.unpack_from(raw, position)
        if length < 40 or length & 7 or position + length > total or (length - 40) % _BUCKET_COUNTER.size:
            raise WireError(f"group statistics length {length} does not fit")
        counters = tuple(_BUCKET_COUNTER.iter_unpack(raw[position + 40 : position + length]))
        entries.append(m.GroupStats(group_id, refs, packets, size, sec + nsec / 1e9, counters))
        position += length
    return m.GroupStatsReply(xid, more, tuple(entries))


def decode_group(kind: int, group_id: int, buckets: bytes) -> Group | m.Unrepresentable:
    """A group from its type and bucket bytes.

    Raises:
        WireError: malformed buckets.
    """
    name = GROUP_TYPE_NAMES.get(kind)
    try:
        if name is None:
            raise Unmodelled(f"group type {kind}", (ofp.ET_GROUP_MOD_FAILED, ofp.GMFC_INVALID_GROUP))
        return Group(group_id, name, decode_buckets(buckets, kind == ofp.GT_SELECT))
    except Unmodelled as error:
        return m.Unrepresentable("group", error.what, error.error, id=group_id)


def _group_desc(raw: bytes, xid: int, more: bool) -> m.GroupDescReply:
    groups: list[Group | m.Unrepresentable] = []
    position, total = BODY, len(raw)
    while position < total:
        if total - position < 8:
            raise WireError("group description cut short")
        length, kind, group_id = _GROUP_DESC.unpack_from(raw, position)
        if length < 8 or position + length > total:
            raise WireError(f"group description length {length} does not fit")
        groups.append(decode_group(kind, group_id, raw[position + 8 : position + length]))
        position += length
    return m.GroupDescReply(xid, more, tuple(groups))


def _group_features(raw: bytes, xid: int, more: bool) -> m.GroupFeaturesReply:
    types, capabilities, *rest = _fixed(raw, _GROUP_FEATURES)
    return m.GroupFeaturesReply(xid, more, types, capabilities, tuple(rest[:4]), tuple(rest[4:]))


def decode_meter(flags: int, meter_id: int, raw: bytes) -> Meter | m.Unrepresentable:
    """A meter from its flags and band bytes.

    Raises:
        WireError: malformed bands.
    """
    bands: list[tuple[int, int, int]] = []
    position, end = 0, len(raw)
    while position < end:
        if end - position < 16:
            raise WireError("meter band cut short")
        kind, length, rate, burst = _BAND.unpack_from(raw, position)
        if length < 16 or position + length > end:
            raise WireError(f"meter band length {length} does not fit")
        bands.append((kind, rate, burst))
        position += length
    if len(bands) != 1 or bands[0][0] != ofp.MBT_DROP or flags & _METER_FLAGS not in (ofp.MF_KBPS, ofp.MF_PKTPS):
        text = f"bands of types {[kind for kind, _, _ in bands]}, flags {flags:#x}"
        return m.Unrepresentable("meter", text, (ofp.ET_METER_MOD_FAILED, ofp.MMFC_BAD_BAND), id=meter_id)
    _, rate, burst = bands[0]
    return Meter(meter_id, rate, burst, pps=bool(flags & ofp.MF_PKTPS))


def _meter_config(raw: bytes, xid: int, more: bool) -> m.MeterConfigReply:
    meters: list[Meter | m.Unrepresentable] = []
    position, total = BODY, len(raw)
    while position < total:
        if total - position < 8:
            raise WireError("meter configuration cut short")
        length, flags, meter_id = _METER.unpack_from(raw, position)
        if length < 8 or position + length > total:
            raise WireError(f"meter configuration length {length} does not fit")
        meters.append(decode_meter(flags, meter_id, raw[position + 8 : position + length]))
        position += length
    return m.MeterConfigReply(xid, more, tuple(meters))


def _meter_features(raw: bytes, xid: int, more: bool) -> m.MeterFeaturesReply:
    return m.MeterFeaturesReply(xid, more, *_fixed(raw, _METER_FEATURES))


def _port_desc(raw: bytes, xid: int, more: bool) -> m.PortDescReply:
    _whole(raw, PORT_SIZE)
    return m.PortDescReply(xid, more, tuple([decode_port(raw, at) for at in range(BODY, len(raw), PORT_SIZE)]))


MULTIPART: dict[int, Callable[[bytes, int, bool], m.MultipartReply]] = {
    ofp.MP_DESC: _desc,
    ofp.MP_FLOW: _flows,
    ofp.MP_AGGREGATE: _aggregate,
    ofp.MP_PORT_STATS: _port_stats,
    ofp.MP_QUEUE: _queue_stats,
    ofp.MP_GROUP: _group_stats,
    ofp.MP_GROUP_DESC: _group_desc,
    ofp.MP_GROUP_FEATURES: _group_features,
    ofp.MP_METER_CONFIG: _meter_config,
    ofp.MP_METER_FEATURES: _meter_features,
    ofp.MP_PORT_DESC: _port_desc,
}
