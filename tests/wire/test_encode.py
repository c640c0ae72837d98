"""Every message we send is, byte for byte, what os-ken serialises for the same thing."""

from __future__ import annotations

from typing import Any

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofproto
from os_ken.ofproto import ofproto_v1_3_parser as parser

from aifabric_ctrl.model.errors import ContractError
from aifabric_ctrl.model.ids import PORT_ANY, PORT_CONTROLLER, PORT_IN_PORT
from aifabric_ctrl.model.rules import Bucket, Flow, Group, Match, Move, Output, SetField
from aifabric_ctrl.southbound.wire import constants as ofp
from aifabric_ctrl.southbound.wire import encode
from tests.wire import oracle
from tests.wire.oracle import DATAPATH, serialise
from tests.wire.samples import COOKIE, FLOWS, GROUPS, METERS

XID = 0x01020304
ALL_ONES = (1 << 64) - 1
COMPARED = [f for f in FLOWS if oracle.knows(f)]


@pytest.mark.parametrize("flow", COMPARED, ids=str)
def test_flow_put(flow: Flow) -> None:
    assert encode.flow_put(XID, flow) == serialise(oracle.flow_mod(flow, ofproto.OFPFC_ADD), XID)


@pytest.mark.parametrize("flow", COMPARED, ids=str)
def test_flow_delete_strict(flow: Flow) -> None:
    expected = serialise(oracle.flow_mod(flow, ofproto.OFPFC_DELETE_STRICT, ALL_ONES), XID)
    assert encode.flow_delete_strict(XID, flow) == expected


def test_nearly_every_sample_is_compared() -> None:
    assert len(COMPARED) >= len(FLOWS) - 5


def test_what_os_ken_does_not_know_is_what_ovs_writes() -> None:
    """Headers as ``ovs-ofctl -O OpenFlow13`` 3.1 made them and ``dump-flows`` returned them."""
    match = Match.of(eth_type=0x86DD, ip_proto=58, icmpv6_type=135, nd_reserved=1, nd_options_type=2)
    assert encode.flow_put(1, Flow(0, 0, match))[48:].hex() == (
        "0001002180000a0286dd800014013a80003a01871000020400000001100004010200000000000000"
    )
    match = Match.of(eth_type=0x86DD, ip_proto=58, icmpv6_type=135)
    actions = (SetField("nd_reserved", 0xE0000000), SetField("nd_options_type", 2))
    assert encode.flow_put(1, Flow(0, 0, match, actions=actions))[48:].hex() == (
        "0001001480000a0286dd800014013a80003a018700000000"
        "00040028000000000019001010000204e00000000000000000190010100004010200000000000000"
    )
    match = Match.of(eth_type=0x0800, ip_proto=6)
    move = Move("tcp_flags", "reg1", 12)
    assert encode.flow_put(1, Flow(0, 0, match, actions=(move,)))[48:].hex() == (
        "0001000f80000a02080080001401060000040020000000" + "00ffff0018000023200006000c000000000001440200010204"
    )


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.type)
def test_group_put(group: Group, exists: bool) -> None:
    command = ofproto.OFPGC_MODIFY if exists else ofproto.OFPGC_ADD
    assert encode.group_put(XID, group, exists) == serialise(oracle.group_mod(group, command), XID)


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("meter", METERS, ids=str)
def test_meter_put(meter: Any, exists: bool) -> None:
    command = ofproto.OFPMC_MODIFY if exists else ofproto.OFPMC_ADD
    assert encode.meter_put(XID, meter, exists) == serialise(oracle.meter_mod(meter, command), XID)


def _multipart_filter(kind: Any) -> Any:
    return kind(DATAPATH, 0, ofproto.OFPTT_ALL, ofproto.OFPP_ANY, ofproto.OFPG_ANY, COOKIE, 0xFFF << 36, parser.OFPMatch())


ACTIONS = (SetField("eth_dst", 1), Output(PORT_CONTROLLER, 128), Output(2))
FRAME = bytes(range(60))
SIMPLE: dict[str, tuple[bytes, Any]] = {
    "echo_request": (encode.echo_request(XID, b"abc"), parser.OFPEchoRequest(DATAPATH, b"abc")),
    "echo_request_empty": (encode.echo_request(XID), parser.OFPEchoRequest(DATAPATH)),
    "echo_reply": (encode.echo_reply(XID, b"abc"), None),
    "features_request": (encode.features_request(XID), parser.OFPFeaturesRequest(DATAPATH)),
    "set_config": (encode.set_config(XID, 0, 0xFFFF), parser.OFPSetConfig(DATAPATH, 0, 0xFFFF)),
    "barrier_request": (encode.barrier_request(XID), parser.OFPBarrierRequest(DATAPATH)),
    "role_request": (encode.role_request(XID, 2, 77), parser.OFPRoleRequest(DATAPATH, 2, 77)),
    "error": (encode.error(XID, 0, 0, b"only 1.3"), parser.OFPErrorMsg(DATAPATH, 0, 0, b"only 1.3")),
    "group_delete": (encode.group_delete(XID, 7), parser.OFPGroupMod(DATAPATH, ofproto.OFPGC_DELETE, 0, 7, [])),
    "meter_delete": (encode.meter_delete(XID, 7), parser.OFPMeterMod(DATAPATH, ofproto.OFPMC_DELETE, 0, 7, [])),
    "packet_out": (
        encode.packet_out(XID, PORT_CONTROLLER, ACTIONS, FRAME),
        parser.OFPPacketOut(DATAPATH, ofproto.OFP_NO_BUFFER, PORT_CONTROLLER, [oracle.action(a) for a in ACTIONS], FRAME),
    ),
    "packet_out_no_actions": (
        encode.packet_out(XID, PORT_IN_PORT, (), b""),
        parser.OFPPacketOut(DATAPATH, ofproto.OFP_NO_BUFFER, PORT_IN_PORT, [], b""),
    ),
    "desc": (encode.desc_request(XID), parser.OFPDescStatsRequest(DATAPATH, 0)),
    "flow_stats": (encode.flow_stats_request(XID, COOKIE, 0xFFF << 36), _multipart_filter(parser.OFPFlowStatsRequest)),
    "aggregate": (encode.aggregate_request(XID, COOKIE, 0xFFF << 36), _multipart_filter(parser.OFPAggregateStatsRequest)),
    "group_desc": (encode.group_desc_request(XID), parser.OFPGroupDescStatsRequest(DATAPATH, 0)),
    "group_features": (encode.group_features_request(XID), parser.OFPGroupFeaturesStatsRequest(DATAPATH, 0)),
    "group_stats": (encode.group_stats_request(XID), parser.OFPGroupStatsRequest(DATAPATH, 0, ofproto.OFPG_ALL)),
    "meter_config": (encode.meter_config_request(XID), parser.OFPMeterConfigStatsRequest(DATAPATH, 0, ofproto.OFPM_ALL)),
    "meter_features": (encode.meter_features_request(XID), parser.OFPMeterFeaturesStatsRequest(DATAPATH, 0)),
    "port_desc": (encode.port_desc_request(XID), parser.OFPPortDescStatsRequest(DATAPATH, 0)),
    "port_stats": (encode.port_stats_request(XID), parser.OFPPortStatsRequest(DATAPATH, 0, PORT_ANY)),
    "queue_stats": (encode.queue_stats_request(XID, 5, 1), parser.OFPQueueStatsRequest(DATAPATH, 0, 5, 1)),
    "bundle_open": (
        encode.bundle_control(XID, 9, encode.BUNDLE_OPEN),
        parser.ONFBundleCtrlMsg(DATAPATH, 9, ofproto.ONF_BCT_OPEN_REQUEST, 3, []),
    ),
    "bundle_commit": (
        encode.bundle_control(XID, 9, encode.BUNDLE_COMMIT, ofp.BF_ATOMIC),
        parser.ONFBundleCtrlMsg(DATAPATH, 9, ofproto.ONF_BCT_COMMIT_REQUEST, 1, []),
    ),
    "bundle_add_flow": (
        encode.bundle_add(XID, 9, encode.flow_put(1, COMPARED[0])),
        parser.ONFBundleAddMsg(DATAPATH, 9, 3, oracle.flow_mod(COMPARED[0], ofproto.OFPFC_ADD), []),
    ),
    "bundle_add_group": (
        encode.bundle_add(XID, 9, encode.group_put(XID, GROUPS[2], False)),
        parser.ONFBundleAddMsg(DATAPATH, 9, 3, oracle.group_mod(GROUPS[2], ofproto.OFPGC_ADD), []),
    ),
}


@pytest.mark.parametrize("name", SIMPLE)
def test_simple_messages(name: str) -> None:
    ours, theirs = SIMPLE[name]
    if theirs is None:  # os-ken's EchoReply insists on data that it then takes from an attribute
        theirs = parser.OFPEchoReply(DATAPATH)
        theirs.data = b"abc"
    assert ours == serialise(theirs, XID)


def test_hello_offers_only_version_1_3() -> None:
    assert encode.hello(XID) == bytes.fromhex("04000010" + f"{XID:08x}" + "00010008" + "00000010")
    parsed = oracle.parse(encode.hello(XID))
    assert [e.versions for e in parsed.elements] == [[4]]


def test_what_does_not_fit_a_message_is_refused() -> None:
    big = Group(1, "all", tuple(Bucket((Output(i),)) for i in range(1, 2100)))
    long = Flow(0, 0, Match.of(), actions=tuple(Output(i) for i in range(1, 4200)))
    for build in (
        lambda: encode.group_put(1, big, False),
        lambda: encode.flow_put(1, long),
        lambda: encode.packet_out(1, PORT_CONTROLLER, (), bytes(65536)),
        lambda: encode.echo_request(1, bytes(65536)),
        lambda: encode.bundle_add(1, 1, bytes(65530)),
    ):
        with pytest.raises(ContractError):
            build()
