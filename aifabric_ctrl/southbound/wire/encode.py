"""What we say to a switch: OpenFlow 1.3 bytes from model values.

Every function returns one whole message; the caller owns transaction ids and joins messages into batches.  Plain
``struct``: message objects cost hundreds of microseconds each (DESIGN 5).
"""

from __future__ import annotations

import struct

from aifabric_ctrl.model.errors import ContractError
from aifabric_ctrl.model.ids import GROUP_ANY, PORT_ANY, PortNo
from aifabric_ctrl.model.rules import Action, Flow, Group, Meter
from aifabric_ctrl.southbound.wire import constants as ofp
from aifabric_ctrl.southbound.wire.actions import GROUP_TYPES, encode_actions, encode_buckets, encode_instructions
from aifabric_ctrl.southbound.wire.oxm import encode_match

BUNDLE_OPEN, BUNDLE_CLOSE = ofp.BCT_OPEN_REQUEST, ofp.BCT_CLOSE_REQUEST
BUNDLE_COMMIT, BUNDLE_DISCARD = ofp.BCT_COMMIT_REQUEST, ofp.BCT_DISCARD_REQUEST

_HEADER = struct.Struct("!BBHI")
_FLOW_MOD = struct.Struct("!BBHIQQBBHHHIIIH2x")
_GROUP_MOD = struct.Struct("!BBHIHBxI")
_METER_MOD = struct.Struct("!BBHIHHI")
_DROP_BAND = struct.Struct("!HHII4x")
_PACKET_OUT = struct.Struct("!BBHIIIH6x")
_MULTIPART = struct.Struct("!BBHIHH4x")
_FLOW_FILTER = struct.Struct("!B3xII4xQQ")
_ROLE = struct.Struct("!I4xQ")
_BUNDLE_CONTROL = struct.Struct("!BBHIIIIHH")
_BUNDLE_ADD = struct.Struct("!BBHIIII2xH")
_HELLO = _HEADER.pack(ofp.VERSION, ofp.HELLO, 16, 0)[:4], struct.pack("!HHI", ofp.HELLO_VERSION_BITMAP, 8, 1 << ofp.VERSION)
_ALL_ONES = (1 << 64) - 1
_ANY_MATCH = struct.pack("!HH4x", ofp.MATCH_OXM, 4)


def _message(kind: int, xid: int, body: bytes = b"") -> bytes:
    length = ofp.HEADER_SIZE + len(body)
    if length > ofp.MAX_MESSAGE:
        raise ContractError(f"a message of {length} bytes does not fit OpenFlow's 16-bit length")
    return _HEADER.pack(ofp.VERSION, kind, length, xid) + body


def hello(xid: int) -> bytes:
    """HELLO with a version bitmap that offers 1.3 and nothing else."""
    return _HELLO[0] + struct.pack("!I", xid) + _HELLO[1]


def echo_request(xid: int, data: bytes = b"") -> bytes:
    return _message(ofp.ECHO_REQUEST, xid, data)


def echo_reply(xid: int, data: bytes = b"") -> bytes:
    return _message(ofp.ECHO_REPLY, xid, data)


def features_request(xid: int) -> bytes:
    return _message(ofp.FEATURES_REQUEST, xid)


def set_config(xid: int, flags: int, miss_send_len: int) -> bytes:
    """``miss_send_len`` 0xffff asks for whole packets, unbuffered."""
    return _message(ofp.SET_CONFIG, xid, struct.pack("!HH", flags, miss_send_len))


def barrier_request(xid: int) -> bytes:
    return _message(ofp.BARRIER_REQUEST, xid)


def error(xid: int, error_type: int, code: int, data: bytes = b"") -> bytes:
    """An ERROR message; for HELLO_FAILED ``data`` is ASCII text, otherwise the offending message's start."""
    return _message(ofp.ERROR, xid, struct.pack("!HH", error_type, code) + data)


def role_request(xid: int, role: int, generation_id: int = 0) -> bytes:
    return _message(ofp.ROLE_REQUEST, xid, _ROLE.pack(role, generation_id))


def _flow_mod(xid: int, flow: Flow, command: int, cookie_mask: int, instructions: bytes) -> bytes:
    match = encode_match(flow.match)
    length = 48 + len(match) + len(instructions)
    if length > ofp.MAX_MESSAGE:
        raise ContractError(f"flow {flow.match} needs {length} bytes, more than one message holds")
    head = _FLOW_MOD.pack(
        ofp.VERSION,
        ofp.FLOW_MOD,
        length,
        xid,
        flow.cookie,
        cookie_mask,
        flow.table,
        command,
        0,
        0,
        flow.priority,
        ofp.NO_BUFFER,
        PORT_ANY,
        GROUP_ANY,
        0,
    )
    return head + match + instructions


def flow_put(xid: int, flow: Flow) -> bytes:
    """Add or replace a flow.

    ADD, because MODIFY keeps the old cookie (DESIGN invariant 6); it replaces an equal entry and OVS keeps the counters.
    """
    return _flow_mod(xid, flow, ofp.FC_ADD, 0, encode_instructions(flow.meter, flow.actions, flow.metadata, flow.goto))


def flow_delete_strict(xid: int, flow: Flow) -> bytes:
    """Delete exactly this flow, and only while it still carries our cookie."""
    return _flow_mod(xid, flow, ofp.FC_DELETE_STRICT, _ALL_ONES, b"")


def group_put(xid: int, group: Group, exists: bool) -> bytes:
    """Add a group, or MODIFY it when it ``exists`` (which may move healthy flows, DESIGN 5)."""
    buckets = encode_buckets(group.buckets)
    if len(buckets) > ofp.MAX_MESSAGE - 16:
        raise ContractError(f"group {group.group_id} needs {len(buckets)} bytes, more than one message holds")
    command = ofp.GC_MODIFY if exists else ofp.GC_ADD
    return (
        _GROUP_MOD.pack(ofp.VERSION, ofp.GROUP_MOD, 16 + len(buckets), xid, command, GROUP_TYPES[group.type], group.group_id)
        + buckets
    )


def group_delete(xid: int, group_id: int) -> bytes:
    return _GROUP_MOD.pack(ofp.VERSION, ofp.GROUP_MOD, 16, xid, ofp.GC_DELETE, ofp.GT_ALL, group_id)


def meter_put(xid: int, meter: Meter, exists: bool) -> bytes:
    """Add or modify a meter with one drop band."""
    flags = (ofp.MF_PKTPS if meter.pps else ofp.MF_KBPS) | ofp.MF_BURST
    command = ofp.MC_MODIFY if exists else ofp.MC_ADD
    head = _METER_MOD.pack(ofp.VERSION, ofp.METER_MOD, 32, xid, command, flags, meter.meter_id)
    return head + _DROP_BAND.pack(ofp.MBT_DROP, 16, meter.rate, meter.burst)


def meter_delete(xid: int, meter_id: int) -> bytes:
    return _METER_MOD.pack(ofp.VERSION, ofp.METER_MOD, 16, xid, ofp.MC_DELETE, 0, meter_id)


def packet_out(xid: int, in_port: PortNo, actions: tuple[Action, ...], data: bytes) -> bytes:
    raw = encode_actions(actions)
    length = 24 + len(raw) + len(data)
    if length > ofp.MAX_MESSAGE:
        raise ContractError(f"a packet-out of {length} bytes does not fit one message")
    return _PACKET_OUT.pack(ofp.VERSION, ofp.PACKET_OUT, length, xid, ofp.NO_BUFFER, in_port, len(raw)) + raw + data


# ---- multipart requests ----------------------------------------------------------------------------------------------


def _multipart(xid: int, kind: int, body: bytes = b"") -> bytes:
    return _MULTIPART.pack(ofp.VERSION, ofp.MULTIPART_REQUEST, 16 + len(body), xid, kind, 0) + body


def desc_request(xid: int) -> bytes:
    return _multipart(xid, ofp.MP_DESC)


def _flow_filter(cookie: int, cookie_mask: int) -> bytes:
    return _FLOW_FILTER.pack(ofp.OFPTT_ALL, PORT_ANY, GROUP_ANY, cookie, cookie_mask) + _ANY_MATCH


def flow_stats_request(xid: int, cookie: int = 0, cookie_mask: int = 0) -> bytes:
    """Flows of all tables whose cookie agrees with ``cookie`` under the mask: one page of a read-back."""
    return _multipart(xid, ofp.MP_FLOW, _flow_filter(cookie, cookie_mask))


def aggregate_request(xid: int, cookie: int = 0, cookie_mask: int = 0) -> bytes:
    """How many flows ``flow_stats_request`` with the same filter would return."""
    return _multipart(xid, ofp.MP_AGGREGATE, _flow_filter(cookie, cookie_mask))


def group_desc_request(xid: int) -> bytes:
    return _multipart(xid, ofp.MP_GROUP_DESC)


def group_features_request(xid: int) -> bytes:
    return _multipart(xid, ofp.MP_GROUP_FEATURES)


def group_stats_request(xid: int, group_id: int = ofp.GROUP_ALL) -> bytes:
    return _multipart(xid, ofp.MP_GROUP, struct.pack("!I4x", group_id))


def meter_config_request(xid: int, meter_id: int = ofp.METER_ALL) -> bytes:
    return _multipart(xid, ofp.MP_METER_CONFIG, struct.pack("!I4x", meter_id))


def meter_features_request(xid: int) -> bytes:
    return _multipart(xid, ofp.MP_METER_FEATURES)


def port_desc_request(xid: int) -> bytes:
    return _multipart(xid, ofp.MP_PORT_DESC)


def port_stats_request(xid: int, port: PortNo = PORT_ANY) -> bytes:
    return _multipart(xid, ofp.MP_PORT_STATS, struct.pack("!I4x", port))


def queue_stats_request(xid: int, port: PortNo = PORT_ANY, queue_id: int = ofp.QUEUE_ALL) -> bytes:
    return _multipart(xid, ofp.MP_QUEUE, struct.pack("!II", port, queue_id))


# ---- ONF bundles (extension 230) ------------------------------------------------------------------------------------


def bundle_control(xid: int, bundle_id: int, control: int, flags: int = ofp.BF_ATOMIC | ofp.BF_ORDERED) -> bytes:
    """Open, close, commit or discard (``control`` is a BCT_* request)."""
    return _BUNDLE_CONTROL.pack(
        ofp.VERSION, ofp.EXPERIMENTER, 24, xid, ofp.ONF_EXPERIMENTER, ofp.ONF_BUNDLE_CONTROL, bundle_id, control, flags
    )


def bundle_add(xid: int, bundle_id: int, message: bytes, flags: int = ofp.BF_ATOMIC | ofp.BF_ORDERED) -> bytes:
    """Put one message into a bundle.  Inner and outer transaction id must be equal (ext. 230), so ours is written in."""
    length = 24 + len(message)
    if length > ofp.MAX_MESSAGE:
        raise ContractError(f"a message of {len(message)} bytes does not fit a bundle-add")
    head = _BUNDLE_ADD.pack(
        ofp.VERSION, ofp.EXPERIMENTER, length, xid, ofp.ONF_EXPERIMENTER, ofp.ONF_BUNDLE_ADD, bundle_id, flags
    )
    return head + message[:4] + head[4:8] + message[8:]
