"""os-ken's own serialisation and parsing of the same messages: the reference our codec is compared with."""

from __future__ import annotations

from typing import Any

from os_ken.ofproto import ofproto_v1_3 as ofproto
from os_ken.ofproto import ofproto_v1_3_parser as parser
from os_ken.ofproto.ofproto_protocol import ProtocolDesc

from aifabric_ctrl.model.fields import FIELDS
from aifabric_ctrl.model.rules import (
    Action,
    Bucket,
    DecTtl,
    Flow,
    Group,
    Match,
    Meter,
    Move,
    Output,
    PopVlan,
    PushVlan,
    SetField,
    SetQueue,
    ToGroup,
)

DATAPATH = ProtocolDesc(version=ofproto.OFP_VERSION)

_NAMES = {
    "nw_frag": "ip_frag",
    "nd_target": "ipv6_nd_target",
    "nd_sll": "ipv6_nd_sll",
    "nd_tll": "ipv6_nd_tll",
}
UNKNOWN_FIELDS = {"nd_reserved", "nd_options_type"}  # Ericsson's class, which os-ken does not know


def knows(flow: Flow) -> bool:
    """False for fields, and for the one move, that os-ken writes differently from Open vSwitch or not at all."""
    names = {f.name for f in flow.match.fields}
    moves = [a for a in flow.actions if isinstance(a, Move)]
    names |= {a.field for a in flow.actions if isinstance(a, SetField)} | {n for m in moves for n in (m.src, m.dst)}
    # A move has room for a 32-bit header only; os-ken writes TCP flags with the experimenter's 64 bits.
    return not names & UNKNOWN_FIELDS and not any("tcp_flags" in (m.src, m.dst) for m in moves)


def _user(name: str, value: int) -> Any:
    """os-ken takes addresses as text and everything else as integers."""
    if FIELDS[name].kind in ("mac", "ip4", "ip6"):
        return FIELDS[name].text(value, None).partition("=")[2]
    return value


def match(ours: Match) -> Any:
    """In our order of fields; os-ken's own constructor sorts by type."""
    fields = [
        (
            _NAMES.get(f.name, f.name),
            _user(f.name, f.value) if f.mask is None else (_user(f.name, f.value), _user(f.name, f.mask)),
        )
        for f in ours.fields
    ]
    return parser.OFPMatch(_ordered_fields=fields)


def action(ours: Action) -> Any:
    match ours:
        case Output():
            return parser.OFPActionOutput(ours.port, ours.max_len)
        case ToGroup():
            return parser.OFPActionGroup(ours.group_id)
        case SetField():
            return parser.OFPActionSetField(**{_NAMES.get(ours.field, ours.field): _user(ours.field, ours.value)})
        case Move():
            names = _NAMES.get(ours.src, ours.src), _NAMES.get(ours.dst, ours.dst)
            return parser.NXActionRegMove(*names, ours.bits, ours.src_offset, ours.dst_offset)
        case DecTtl():
            return parser.OFPActionDecNwTtl()
        case SetQueue():
            return parser.OFPActionSetQueue(ours.queue_id)
        case PushVlan():
            return parser.OFPActionPushVlan(ours.ethertype)
        case PopVlan():
            return parser.OFPActionPopVlan()


def instructions(ours: Flow) -> list[Any]:
    found = []
    if ours.meter is not None:
        found.append(parser.OFPInstructionMeter(ours.meter))
    if ours.actions:
        found.append(parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, [action(a) for a in ours.actions]))
    if ours.metadata is not None:
        found.append(parser.OFPInstructionWriteMetadata(*ours.metadata))
    if ours.goto is not None:
        found.append(parser.OFPInstructionGotoTable(ours.goto))
    return found


def flow_mod(ours: Flow, command: int, cookie_mask: int = 0) -> Any:
    return parser.OFPFlowMod(
        DATAPATH,
        ours.cookie,
        cookie_mask,
        ours.table,
        command,
        0,
        0,
        ours.priority,
        ofproto.OFP_NO_BUFFER,
        ofproto.OFPP_ANY,
        ofproto.OFPG_ANY,
        0,
        match(ours.match),
        instructions(ours) if command == ofproto.OFPFC_ADD else [],
    )


_GROUP_TYPES = {
    "all": ofproto.OFPGT_ALL,
    "select": ofproto.OFPGT_SELECT,
    "indirect": ofproto.OFPGT_INDIRECT,
    "ff": ofproto.OFPGT_FF,
}


def bucket(ours: Bucket) -> Any:
    return parser.OFPBucket(ours.weight, ours.watch_port, ours.watch_group, [action(a) for a in ours.actions])


def group_mod(ours: Group, command: int) -> Any:
    return parser.OFPGroupMod(DATAPATH, command, _GROUP_TYPES[ours.type], ours.group_id, [bucket(b) for b in ours.buckets])


def meter_mod(ours: Meter, command: int) -> Any:
    flags = ofproto.OFPMF_BURST | (ofproto.OFPMF_PKTPS if ours.pps else ofproto.OFPMF_KBPS)
    return parser.OFPMeterMod(DATAPATH, command, flags, ours.meter_id, [parser.OFPMeterBandDrop(ours.rate, ours.burst)])


def serialise(message: Any, xid: int) -> bytes:
    message.set_xid(xid)
    message.serialize()
    return bytes(message.buf)


def parse(raw: bytes) -> Any:
    """A switch's message as os-ken sees it."""
    return parser.msg_parser(DATAPATH, raw[0], raw[1], len(raw), int.from_bytes(raw[4:8], "big"), raw)
