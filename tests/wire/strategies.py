"""Random valid matches, flows, groups and meters, and every kind of message a switch sends."""

from __future__ import annotations

from hypothesis import strategies as st

from aifabric_ctrl.model.fabric import Port, PortRole
from aifabric_ctrl.model.fields import FIELDS
from aifabric_ctrl.model.ids import is_physical
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
from aifabric_ctrl.southbound.wire import constants as ofp
from aifabric_ctrl.southbound.wire import messages as m
from aifabric_ctrl.southbound.wire import switch_side
from tests.wire.samples import FLOWS, GROUPS, METERS

U8, U16, U32, U64 = (st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32, 64))

# Sets of prerequisites that can stand together, and so which fields may follow.
_BASES: tuple[dict[str, int], ...] = (
    {},
    {"eth_type": 0x0806},
    {"eth_type": 0x0800},
    {"eth_type": 0x86DD},
    {"eth_type": 0x0800, "ip_proto": 6},
    {"eth_type": 0x86DD, "ip_proto": 6},
    {"eth_type": 0x0800, "ip_proto": 17},
    {"eth_type": 0x86DD, "ip_proto": 17},
    {"eth_type": 0x0800, "ip_proto": 1},
    {"eth_type": 0x86DD, "ip_proto": 58},
    {"eth_type": 0x86DD, "ip_proto": 58, "icmpv6_type": 135},
    {"eth_type": 0x86DD, "ip_proto": 58, "icmpv6_type": 136},
)


def _allowed(base: dict[str, int]) -> list[str]:
    names = []
    for spec in FIELDS.values():
        needs: dict[str, set[int]] = {}
        for name, values in spec.needs:
            needs.setdefault(name, set()).update(values)
        if spec.name not in base and all(base.get(name) in values for name, values in needs.items()):
            names.append(spec.name)
    return names


@st.composite
def matches(draw: st.DrawFn) -> Match:
    base = draw(st.sampled_from(_BASES))
    fields: dict[str, int | tuple[int, int]] = dict(base)
    for name in draw(st.lists(st.sampled_from(_allowed(base)), unique=True, max_size=6)):
        spec = FIELDS[name]
        value = draw(st.integers(0, (1 << spec.bits) - 1))
        if spec.maskable and draw(st.booleans()):
            mask = draw(st.integers(1, (1 << spec.bits) - 1))
            fields[name] = (value & mask, mask)
        else:
            fields[name] = value
    return Match.of(**fields)


@st.composite
def set_fields(draw: st.DrawFn) -> SetField:
    spec = FIELDS[draw(st.sampled_from(sorted(FIELDS)))]
    return SetField(spec.name, draw(st.integers(0, (1 << spec.bits) - 1)))


@st.composite
def moves(draw: st.DrawFn) -> Move:
    src, dst = (FIELDS[draw(st.sampled_from(sorted(FIELDS)))] for _ in range(2))
    bits = draw(st.integers(1, min(src.bits, dst.bits)))
    return Move(src.name, dst.name, bits, draw(st.integers(0, src.bits - bits)), draw(st.integers(0, dst.bits - bits)))


actions: st.SearchStrategy[Action] = st.one_of(
    st.builds(Output, U32, U16),
    st.builds(ToGroup, U32),
    set_fields(),
    moves(),
    st.just(DecTtl()),
    st.builds(SetQueue, U32),
    st.builds(PushVlan, U16),
    st.just(PopVlan()),
)
action_lists = st.lists(actions, max_size=8).map(tuple)
flows = st.builds(
    Flow,
    table=U8,
    priority=U16,
    match=matches(),
    meter=st.none() | U32,
    actions=action_lists,
    metadata=st.none() | st.tuples(U64, U64),
    goto=st.none() | U8,
    cookie=U64,
)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    kind = draw(st.sampled_from(["select", "ff", "indirect", "all"]))
    weight = st.integers(1, 0xFFFF) if kind == "select" else st.just(0)
    buckets = st.lists(st.builds(Bucket, action_lists, weight, U32, U32), max_size=5).map(tuple)
    return Group(draw(U32), kind, draw(buckets))


meters = st.builds(Meter, U32, U32, U32, st.booleans())


@st.composite
def ports(draw: st.DrawFn) -> Port:
    number, live = draw(U32), draw(st.booleans())
    return Port(
        number,
        draw(st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=15)),
        draw(st.integers(0, (1 << 48) - 1)),
        draw(st.booleans()),
        draw(st.booleans()),
        live,
        live,
        draw(U32) * 1000,
        PortRole.UNKNOWN if is_physical(number) else PortRole.RESERVED,
    )


PORT = Port(3, "s1-eth3", 0x020000000003, speed_bps=10_000_000_000, live=True, ever_live=True)

# One of everything a switch may send, for truncation, mutation and the fuzz corpus.
FROM_SWITCH: dict[str, bytes] = {
    "hello": bytes.fromhex("0400001000000001" + "0001000800000010"),
    "hello_two_elements": bytes.fromhex("0400001800000001" + "0001000800000012" + "0002000601020000"),
    "hello_bare": bytes.fromhex("0400000800000001"),
    "error": switch_side.error(9, ofp.ET_BAD_ACTION, 4, bytes.fromhex("040e005000000009") + bytes(72)),
    "error_bundle": switch_side.error(9, ofp.ET_EXPERIMENTER, 2313, bytes(24), ofp.ONF_EXPERIMENTER),
    "echo_request": bytes.fromhex("0402000c00000001" + "61626364"),
    "echo_reply": bytes.fromhex("0403000c00000001" + "61626364"),
    "features_reply": switch_side.features_reply(1, 0x00AABBCCDDEEFF01),
    "packet_in": switch_side.packet_in(0, 7, bytes(range(60)), table=20, reason=1, cookie=5),
    "port_status": switch_side.port_status(0, "modify", PORT),
    "barrier_reply": switch_side.barrier_reply(1),
    "role_reply": switch_side.role_reply(1, 2, 3),
    "bundle_reply": switch_side.bundle_control_reply(1, 5, ofp.BCT_COMMIT_REPLY),
    "desc": switch_side.desc_reply(1, "Nicira, Inc.", "Open vSwitch", "3.1.0", "None", "leaf1"),
    "flow_stats": switch_side.flow_stats_replies(1, [m.FlowStats(f, 5, 600, 1.5) for f in FLOWS])[0],
    "aggregate": switch_side.aggregate_reply(1, 2, 3, 4),
    "port_stats": switch_side.port_stats_replies(1, [m.PortStats(i, *range(14)) for i in (1, 2)])[0],
    "queue_stats": switch_side.queue_stats_replies(1, [m.QueueStats(1, q, 5, 6, 7, 8, 9) for q in (0, 1)])[0],
    "group_stats": switch_side.group_stats_replies(1, [m.GroupStats(7, 1, 2, 3, 0.5, ((1, 2), (3, 4)))] * 2)[0],
    "group_desc": switch_side.group_desc_replies(1, GROUPS)[0],
    "group_features": switch_side.group_features_reply(1),
    "meter_config": switch_side.meter_config_replies(1, METERS)[0],
    "meter_features": switch_side.meter_features_reply(1, 1 << 18),
    "port_desc": switch_side.port_desc_replies(1, [PORT])[0],
}
