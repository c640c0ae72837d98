"""Reading is the inverse of writing, os-ken agrees about what was written, and cut-short messages are refused."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from os_ken.ofproto import ofproto_v1_3 as ofproto

from aifabric_ctrl.model.errors import WireError
from aifabric_ctrl.model.fabric import Port, PortRole
from aifabric_ctrl.model.ids import PORT_LOCAL
from aifabric_ctrl.model.rules import Bucket, Flow, Group, Match, Meter, Output
from aifabric_ctrl.southbound.wire import constants as ofp
from aifabric_ctrl.southbound.wire import decode, encode, switch_side
from aifabric_ctrl.southbound.wire import messages as m
from aifabric_ctrl.southbound.wire import requests as r
from aifabric_ctrl.southbound.wire.errors import error_code, error_name
from aifabric_ctrl.southbound.wire.oxm import Unmodelled
from tests.wire import oracle
from tests.wire.samples import FLOWS, GROUPS, METERS
from tests.wire.strategies import FROM_SWITCH, PORT, actions, flows, groups, meters, ports


def whole(kind: int, body: bytes, version: int = 4) -> bytes:
    return struct.pack("!BBHI", version, kind, 8 + len(body), 1) + body


# ---- both directions are inverse -------------------------------------------------------------------------------------


@given(flows)
def test_flow_mod_round_trip(flow: Flow) -> None:
    read = switch_side.decode_request(encode.flow_put(9, flow))
    assert read == r.FlowMod(9, ofp.FC_ADD, flow, 0, 0xFFFFFFFF, 0xFFFFFFFF, 0, ofp.NO_BUFFER)


@given(st.lists(flows, max_size=6))
def test_flow_stats_round_trip(entries: list[Flow]) -> None:
    sent = [m.FlowStats(flow, i, 2 * i, float(i)) for i, flow in enumerate(entries)]
    parts = [decode.decode(part) for part in switch_side.flow_stats_replies(9, sent, part_bytes=300)]
    assert all(isinstance(part, m.FlowStatsReply) for part in parts)
    assert [e for p in parts if isinstance(p, m.FlowStatsReply) for e in p.entries] == sent
    assert [p.more for p in parts if isinstance(p, m.FlowStatsReply)] == [True] * (len(parts) - 1) + [False]


@given(groups(), st.booleans())
def test_group_round_trip(group: Group, exists: bool) -> None:
    read = switch_side.decode_request(encode.group_put(9, group, exists))
    assert read == r.GroupMod(9, int(exists), group.group_id, group)
    (reply,) = switch_side.group_desc_replies(9, [group])
    assert decode.decode(reply) == m.GroupDescReply(9, False, (group,))


@given(meters, st.booleans())
def test_meter_round_trip(meter: Meter, exists: bool) -> None:
    assert switch_side.decode_request(encode.meter_put(9, meter, exists)) == r.MeterMod(9, int(exists), meter.meter_id, meter)
    (reply,) = switch_side.meter_config_replies(9, [meter])
    assert decode.decode(reply) == m.MeterConfigReply(9, False, (meter,))


@given(st.lists(ports(), max_size=4), st.sampled_from(["add", "delete", "modify"]))
def test_port_round_trip(given_ports: list[Port], reason: str) -> None:
    (reply,) = switch_side.port_desc_replies(9, given_ports)
    assert decode.decode(reply) == m.PortDescReply(9, False, tuple(given_ports))
    for port in given_ports:
        assert decode.decode(switch_side.port_status(3, reason, port)) == m.PortStatus(3, reason, port)


@given(st.lists(actions, max_size=5).map(tuple), st.binary(max_size=100), st.integers(0, 0xFFFFFFFF))
def test_packet_out_round_trip(acts: Any, data: bytes, in_port: int) -> None:
    assert switch_side.decode_request(encode.packet_out(9, in_port, acts, data)) == r.PacketOut(
        9, in_port, acts, data, ofp.NO_BUFFER
    )


def test_other_requests_round_trip() -> None:
    read = switch_side.decode_request
    assert read(encode.hello(1)) == m.Hello(1, 4, frozenset({4}))
    assert read(encode.features_request(1)) == r.FeaturesRequest(1)
    assert read(encode.barrier_request(1)) == r.BarrierRequest(1)
    assert read(encode.set_config(1, 0, 0xFFFF)) == r.SetConfig(1, 0, 0xFFFF)
    assert read(encode.echo_request(1, b"x")) == m.EchoRequest(1, b"x")
    assert read(encode.echo_reply(1, b"x")) == m.EchoReply(1, b"x")
    assert read(encode.role_request(1, 2, 3)) == r.RoleRequest(1, 2, 3)
    assert read(encode.group_delete(1, 7)) == r.GroupMod(1, ofp.GC_DELETE, 7, Group(7, "all", ()))
    assert read(encode.meter_delete(1, 7)) == r.MeterMod(1, ofp.MC_DELETE, 7, None)
    assert read(encode.bundle_control(1, 5, encode.BUNDLE_OPEN)) == r.BundleControl(1, 5, ofp.BCT_OPEN_REQUEST, 3)
    assert read(encode.desc_request(1)) == r.MultipartRequest(1, ofp.MP_DESC, False)
    assert read(encode.port_stats_request(1, 5)) == r.MultipartRequest(1, ofp.MP_PORT_STATS, False, 5)
    assert read(encode.queue_stats_request(1, 5, 6)) == r.MultipartRequest(1, ofp.MP_QUEUE, False, 5, 6)
    flows_asked = read(encode.flow_stats_request(1, 5, 6))
    assert isinstance(flows_asked, r.MultipartRequest)
    assert (flows_asked.table, flows_asked.cookie, flows_asked.cookie_mask, flows_asked.match) == (255, 5, 6, Match())


def test_bundled_message_is_read_with_its_outer_transaction() -> None:
    added = switch_side.decode_request(encode.bundle_add(77, 5, encode.flow_put(1, FLOWS[3])))
    assert isinstance(added, r.BundleAdd)
    inner = switch_side.decode_request(added.message)
    assert isinstance(inner, r.FlowMod)
    assert (inner.xid, inner.flow) == (77, FLOWS[3])


def test_replies_that_carry_numbers() -> None:
    assert decode.decode(FROM_SWITCH["features_reply"]) == m.FeaturesReply(1, 0x00AABBCCDDEEFF01, 0, 254, 0, 0x4F)
    assert decode.decode(FROM_SWITCH["aggregate"]) == m.AggregateReply(1, False, 2, 3, 4)
    assert decode.decode(FROM_SWITCH["role_reply"]) == m.RoleReply(1, 2, 3)
    assert decode.decode(FROM_SWITCH["bundle_reply"]) == m.BundleReply(1, 5, ofp.BCT_COMMIT_REPLY, 0)
    assert decode.decode(FROM_SWITCH["packet_in"]) == m.PacketIn(0, 7, 20, 1, 5, bytes(range(60)))
    assert decode.decode(FROM_SWITCH["desc"]) == m.DescReply(1, False, "Nicira, Inc.", "Open vSwitch", "3.1.0", "None", "leaf1")
    stats = decode.decode(FROM_SWITCH["port_stats"])
    assert isinstance(stats, m.PortStatsReply)
    assert stats.entries == tuple(m.PortStats(i, *range(14)) for i in (1, 2))
    queues = decode.decode(FROM_SWITCH["queue_stats"])
    assert isinstance(queues, m.QueueStatsReply)
    assert queues.entries[1] == m.QueueStats(1, 1, 5, 6, 7, 8, 9)
    counters = decode.decode(FROM_SWITCH["group_stats"])
    assert isinstance(counters, m.GroupStatsReply)
    assert counters.entries == (m.GroupStats(7, 1, 2, 3, 0.5, ((1, 2), (3, 4))),) * 2


# ---- os-ken reads what we wrote, and we read what it wrote --------------------------------------------------------


@pytest.mark.parametrize("flow", [f for f in FLOWS if oracle.knows(f)], ids=str)
def test_we_read_os_kens_flow_mod(flow: Flow) -> None:
    read = switch_side.decode_request(oracle.serialise(oracle.flow_mod(flow, ofproto.OFPFC_ADD), 9))
    assert isinstance(read, r.FlowMod)
    assert read.flow == flow


@pytest.mark.parametrize("flow", [f for f in FLOWS if oracle.knows(f)], ids=str)
def test_os_ken_reads_our_flow_stats(flow: Flow) -> None:
    (reply,) = switch_side.flow_stats_replies(9, [m.FlowStats(flow, 5, 600, 2.5)])
    (entry,) = oracle.parse(reply).body
    assert (entry.table_id, entry.priority, entry.cookie) == (flow.table, flow.priority, flow.cookie)
    assert (entry.packet_count, entry.byte_count, entry.duration_sec, entry.duration_nsec) == (5, 600, 2, 500_000_000)
    assert dict(entry.match.items()) == dict(oracle.match(flow.match).items())
    assert [type(i).__name__ for i in entry.instructions] == [type(i).__name__ for i in oracle.instructions(flow)]


def test_os_ken_reads_our_other_replies() -> None:
    groups_read = oracle.parse(FROM_SWITCH["group_desc"]).body
    assert [(g.group_id, len(g.buckets)) for g in groups_read] == [(g.group_id, len(g.buckets)) for g in GROUPS]
    assert [b.weight for b in groups_read[2].buckets] == [3, 1, 16]
    assert [(c.meter_id, c.bands[0].rate, c.bands[0].burst_size) for c in oracle.parse(FROM_SWITCH["meter_config"]).body] == [
        (meter.meter_id, meter.rate, meter.burst) for meter in METERS
    ]
    (port,) = oracle.parse(FROM_SWITCH["port_desc"]).body
    assert (port.port_no, port.name, port.hw_addr, port.state) == (3, b"s1-eth3", "02:00:00:00:00:03", ofp.PS_LIVE)
    features = oracle.parse(FROM_SWITCH["features_reply"])
    assert (features.datapath_id, features.n_tables) == (0x00AABBCCDDEEFF01, 254)
    frame = oracle.parse(FROM_SWITCH["packet_in"])
    assert (frame.match["in_port"], frame.table_id, frame.cookie, frame.data) == (7, 20, 5, bytes(range(60)))
    assert oracle.parse(FROM_SWITCH["desc"]).body.dp_desc == b"leaf1"
    assert oracle.parse(FROM_SWITCH["aggregate"]).body.flow_count == 4
    assert [s.tx_bytes for s in oracle.parse(FROM_SWITCH["queue_stats"]).body] == [5, 5]
    assert [s.collisions for s in oracle.parse(FROM_SWITCH["port_stats"]).body] == [11, 11]
    assert oracle.parse(FROM_SWITCH["meter_features"]).body[0].max_meter == 1 << 18
    assert oracle.parse(FROM_SWITCH["group_features"]).body.max_groups == [0xFFFFFF00] * 4
    assert oracle.parse(FROM_SWITCH["port_status"]).desc.port_no == 3
    bundle = oracle.parse(FROM_SWITCH["bundle_reply"])
    assert (bundle.bundle_id, bundle.type) == (5, ofproto.ONF_BCT_COMMIT_REPLY)


# ---- meaning ---------------------------------------------------------------------------------------------------------


def test_hello_versions() -> None:
    def versions(raw: bytes) -> frozenset[int]:
        hello = decode.decode(raw)
        assert isinstance(hello, m.Hello)
        return hello.versions

    assert versions(whole(ofp.HELLO, b"", version=1)) == {1}
    assert versions(whole(ofp.HELLO, b"", version=6)) == {1, 2, 3, 4, 5, 6}
    assert versions(whole(ofp.HELLO, struct.pack("!HHI", 1, 8, 1 << 1), version=1)) == {1}
    assert versions(whole(ofp.HELLO, struct.pack("!HHI", 1, 8, 1 << 4 | 1 << 1), version=6)) == {1, 4}
    assert versions(FROM_SWITCH["hello_two_elements"]) == {1, 4}


def test_errors_have_names_and_say_what_they_quote() -> None:
    error = decode.decode(FROM_SWITCH["error"])
    assert isinstance(error, m.ErrorMessage)
    assert (error.xid, error.name, error.quoted_type, error.quoted_xid) == (9, "BAD_ACTION/BAD_OUT_PORT", ofp.FLOW_MOD, 9)
    bundle = decode.decode(FROM_SWITCH["error_bundle"])
    assert isinstance(bundle, m.ErrorMessage)
    assert bundle.name == "BUNDLE/MSG_FAILED"
    hello_failed = decode.decode(encode.error(3, 0, 0, b"only OpenFlow 1.3 here"))
    assert hello_failed == m.ErrorMessage(3, 0, 0, "HELLO_FAILED/INCOMPATIBLE", b"only OpenFlow 1.3 here")
    assert error_name(99, 5) == "99/5"
    assert error_name(2, 99) == "BAD_ACTION/99"
    assert error_name(0xFFFF, 7, 0x123) == "EXPERIMENTER_0x123/7"
    assert error_code("GROUP_MOD_FAILED/UNKNOWN_GROUP") == (6, 8, 0)
    assert error_code("BUNDLE/MSG_FAILED") == (0xFFFF, 2313, ofp.ONF_EXPERIMENTER)


@pytest.mark.parametrize(
    ("kind", "prefix"),
    [
        (ofproto.OFPET_BAD_REQUEST, "OFPBRC_"),
        (ofproto.OFPET_BAD_ACTION, "OFPBAC_"),
        (ofproto.OFPET_BAD_INSTRUCTION, "OFPBIC_"),
        (ofproto.OFPET_BAD_MATCH, "OFPBMC_"),
        (ofproto.OFPET_FLOW_MOD_FAILED, "OFPFMFC_"),
        (ofproto.OFPET_GROUP_MOD_FAILED, "OFPGMFC_"),
        (ofproto.OFPET_PORT_MOD_FAILED, "OFPPMFC_"),
        (ofproto.OFPET_TABLE_MOD_FAILED, "OFPTMFC_"),
        (ofproto.OFPET_QUEUE_OP_FAILED, "OFPQOFC_"),
        (ofproto.OFPET_SWITCH_CONFIG_FAILED, "OFPSCFC_"),
        (ofproto.OFPET_ROLE_REQUEST_FAILED, "OFPRRFC_"),
        (ofproto.OFPET_METER_MOD_FAILED, "OFPMMFC_"),
        (ofproto.OFPET_TABLE_FEATURES_FAILED, "OFPTFFC_"),
    ],
)
def test_error_names_are_those_of_the_specification(kind: int, prefix: str) -> None:
    theirs = {value: name.removeprefix(prefix) for name, value in vars(ofproto).items() if name.startswith(prefix)}
    for code, name in theirs.items():
        assert error_name(kind, code).partition("/")[2].replace("_", "") == name.replace("_", "").replace("EPERMS", "EPERM")


def test_port_text_and_state() -> None:
    reply = switch_side.port_desc_replies(1, [Port(PORT_LOCAL, "br0", 5, live=False, role=PortRole.RESERVED)])[0]
    decoded = decode.decode(reply)
    assert isinstance(decoded, m.PortDescReply)
    assert decoded.ports[0].role is PortRole.RESERVED
    odd = FROM_SWITCH["port_status"][:32] + b"\xff\xfe" + FROM_SWITCH["port_status"][34:]
    status = decode.decode(odd)
    assert isinstance(status, m.PortStatus)
    assert "�" in status.port.name
    assert decode.decode(FROM_SWITCH["port_status"][:8] + b"\x09" + FROM_SWITCH["port_status"][9:]) == m.PortStatus(
        0, "modify", PORT
    )


def test_packet_in_without_its_port_is_not_an_error_of_the_session() -> None:
    """Case TOPO-06: in_port missing from the match."""
    raw = whole(ofp.PACKET_IN, struct.pack("!IHBBQ", 0xFFFFFFFF, 4, 0, 0, 0) + struct.pack("!HH4x", 1, 4) + b"\0\0abcd")
    assert decode.decode(raw) == m.PacketIn(1, None, 0, 0, 0, b"abcd")


def test_packet_in_finds_its_port_among_other_fields() -> None:
    oxms = bytes.fromhex("8000040800000000000000050001000400000007ffff50064f4e460000128000000400000009")
    match = (struct.pack("!HH", 1, 4 + len(oxms)) + oxms).ljust((4 + len(oxms) + 7) // 8 * 8, b"\0")
    raw = whole(ofp.PACKET_IN, struct.pack("!IHBBQ", 0xFFFFFFFF, 4, 0, 0, 0) + match + b"\0\0abcd")
    assert decode.decode(raw) == m.PacketIn(1, 9, 0, 0, 0, b"abcd")


def _entry(match: bytes, instructions: bytes = b"", limits: tuple[int, int, int] = (0, 0, 0)) -> bytes:
    padded = (struct.pack("!HH", 1, 4 + len(match)) + match).ljust((4 + len(match) + 7) // 8 * 8, b"\0")
    length = 48 + len(padded) + len(instructions)
    head = struct.pack("!HBxIIHHHH4xQQQ", length, 3, 1, 0, 9, *limits, 0x77, 1, 2)
    return switch_side.multipart(1, ofp.MP_FLOW, head + padded + instructions)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (_entry(bytes.fromhex("80004c080000000000000005")), "field 80004c08"),  # tunnel_id
        (_entry(bytes.fromhex("80000a02080080000a020800")), "twice"),
        (_entry(bytes.fromhex("800016040a000001")), "needs eth_type"),
        (_entry(bytes.fromhex("80000a0208008000100140")), "too wide"),
        (_entry(bytes.fromhex("80000a020800800017080a0000ffff000000")), "ipv4_src"),  # host bits under the mask
        (_entry(b"", bytes.fromhex("00050008" + "00000000")), "instruction type 5"),
        (_entry(b"", bytes.fromhex("00030008" + "00000000")), "instruction type 3"),
        (_entry(b"", bytes.fromhex("00010008" + "05000000") * 2), "goto twice"),
        (_entry(b"", bytes.fromhex("0004001000000000" + "001b000800000000")), "action type 27"),
        (
            _entry(b"", bytes.fromhex("0004002000000000" + "ffff001800002320000700070001000400000000" + "00000005")),
            "0x2320 type 7",
        ),
        (_entry(b"", b"", (10, 0, 0)), "time-outs 10/0"),
        (_entry(b"", b"", (0, 0, 1)), "flags 0x1"),
    ],
)
def test_foreign_flows_keep_their_identity(raw: bytes, text: str) -> None:
    reply = decode.decode(raw)
    assert isinstance(reply, m.FlowStatsReply)
    (entry,) = reply.entries
    assert isinstance(entry.flow, m.Unrepresentable)
    assert (entry.flow.table, entry.flow.priority, entry.flow.cookie) == (3, 9, 0x77)
    assert text in entry.flow.text
    assert text in str(entry.flow)


def test_order_of_fields_and_full_masks_do_not_matter() -> None:
    reply = decode.decode(_entry(bytes.fromhex("80000a020800" + "80001908" + "0a000001ffffffff" + "80000004" + "00000003")))
    assert isinstance(reply, m.FlowStatsReply)
    assert reply.entries[0].flow == Flow(3, 9, Match.of(in_port=3, eth_type=0x0800, ipv4_dst=0x0A000001), cookie=0x77)


def test_foreign_groups_and_meters() -> None:
    group = switch_side.multipart(1, ofp.MP_GROUP_DESC, struct.pack("!HBxI", 8, 9, 55))
    reply = decode.decode(group)
    assert isinstance(reply, m.GroupDescReply)
    assert str(reply.groups[0]) == "group 55: group type 9"
    two_bands = struct.pack("!HHI", 40, 2, 66) + struct.pack("!HHII4x", 1, 16, 5, 5) * 2
    meters_read = decode.decode(switch_side.multipart(1, ofp.MP_METER_CONFIG, two_bands))
    assert isinstance(meters_read, m.MeterConfigReply)
    assert isinstance(meters_read.meters[0], m.Unrepresentable)
    assert meters_read.meters[0].id == 66


def test_weights_outside_select_groups_are_folded() -> None:
    bucket = struct.pack("!HHII4x", 32, 5, 1, 0xFFFFFFFF) + struct.pack("!HHIH6x", 0, 16, 1, 0)
    reply = decode.decode(switch_side.multipart(1, ofp.MP_GROUP_DESC, struct.pack("!HBxI", 40, 3, 7) + bucket))
    assert isinstance(reply, m.GroupDescReply)
    assert reply.groups == (Group(7, "ff", (Bucket((Output(1),), 0, 1),)),)


def test_a_strict_switch_learns_which_error_to_answer() -> None:
    oxm = bytes.fromhex("800016040a000001")
    body = struct.pack("!QQBBHHHIIIHxx", 0, 0, 0, 0, 0, 0, 5, 0xFFFFFFFF, 0, 0, 0) + struct.pack("!HH", 1, 12) + oxm + bytes(4)
    read = switch_side.decode_request(whole(ofp.FLOW_MOD, body))
    assert isinstance(read, r.FlowMod)
    assert isinstance(read.flow, m.Unrepresentable)
    assert error_name(*read.flow.error) == "BAD_MATCH/BAD_PREREQ"
    with pytest.raises(Unmodelled) as caught:
        switch_side.decode_request(whole(ofp.PACKET_OUT, struct.pack("!IIH6x", 0, 0, 8) + struct.pack("!HH4x", 27, 8)))
    assert error_name(*caught.value.error) == "BAD_ACTION/BAD_TYPE"


# ---- cut short -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FROM_SWITCH)
def test_every_truncation_is_refused_or_a_shorter_message(name: str) -> None:
    raw = FROM_SWITCH[name]
    for size in range(len(raw)):
        with pytest.raises(WireError):
            decode.decode(raw[:size])  # the header tells the whole length
        cut = bytearray(raw[:size])
        if size >= 4:
            cut[2:4] = size.to_bytes(2, "big")
        try:
            decode.decode(bytes(cut))
        except WireError:
            continue
        assert size >= 8


REQUESTS = {
    "flow": encode.flow_put(1, FLOWS[-1]),
    "group": encode.group_put(1, GROUPS[2], False),
    "meter": encode.meter_put(1, METERS[0], False),
    "packet_out": encode.packet_out(1, 1, (Output(1),), b"abc"),
    "flow_stats": encode.flow_stats_request(1, 2, 3),
    "bundle_add": encode.bundle_add(1, 2, encode.flow_put(1, FLOWS[-1])),
    "bundle_control": encode.bundle_control(1, 2, 0),
    "role": encode.role_request(1, 2, 3),
    "set_config": encode.set_config(1, 0, 0),
    "hello": encode.hello(1),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_every_truncated_request_is_refused_or_shorter(name: str) -> None:
    raw = REQUESTS[name]
    for size in range(len(raw)):
        cut = bytearray(raw[:size])
        if size >= 4:
            cut[2:4] = size.to_bytes(2, "big")
        try:
            switch_side.decode_request(bytes(cut))
        except WireError:
            continue
        assert size >= 8
