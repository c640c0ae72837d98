"""Our bytes against a real Open vSwitch: what was sent is read back as exactly the same value."""

from __future__ import annotations

import subprocess

import pytest

from aifabric_ctrl.model.fabric import PortRole
from aifabric_ctrl.model.ids import PORT_CONTROLLER, PORT_LOCAL
from aifabric_ctrl.model.rules import Bucket, Flow, Group, Match, Meter, Output, SetField, ToGroup
from aifabric_ctrl.southbound.wire import constants as ofp
from aifabric_ctrl.southbound.wire import decode, encode
from tests.wire.ovs import Bridge, vsctl
from tests.wire.samples import COOKIE, FLOWS, GROUPS, METERS, flow

pytestmark = pytest.mark.integration


def read_flows(bridge: Bridge, cookie: int = 0, mask: int = 0) -> list[Flow | decode.Unrepresentable]:
    found: list[Flow | decode.Unrepresentable] = []
    for reply in bridge.ask(encode.flow_stats_request(7, cookie, mask)):
        assert isinstance(reply, decode.FlowStatsReply)
        assert reply.xid == 7
        found += [entry.flow for entry in reply.entries]
    return found


def read_groups(bridge: Bridge) -> list[Group | decode.Unrepresentable]:
    return [g for r in bridge.ask(encode.group_desc_request(7)) if isinstance(r, decode.GroupDescReply) for g in r.groups]


def read_meters(bridge: Bridge) -> list[Meter | decode.Unrepresentable]:
    return [m for r in bridge.ask(encode.meter_config_request(7)) if isinstance(r, decode.MeterConfigReply) for m in r.meters]


def put_all(bridge: Bridge) -> None:
    messages = [encode.meter_put(10 + i, meter, False) for i, meter in enumerate(METERS)]
    messages += [encode.group_put(20 + i, group, False) for i, group in enumerate(GROUPS)]
    messages += [encode.flow_put(1000 + i, entry) for i, entry in enumerate(FLOWS)]
    assert bridge.ask(*messages) == []


def test_everything_reads_back_equal(bridge: Bridge) -> None:
    put_all(bridge)
    back = read_flows(bridge)
    assert not [str(entry) for entry in back if isinstance(entry, decode.Unrepresentable)]
    by_key = {entry.key: entry for entry in back if isinstance(entry, Flow)}
    for sent in FLOWS:
        assert by_key.pop(sent.key) == sent
    assert not by_key
    assert sorted(read_groups(bridge), key=lambda g: g.group_id if isinstance(g, Group) else 0) == list(GROUPS)
    assert sorted(read_meters(bridge), key=lambda m: m.meter_id if isinstance(m, Meter) else 0) == list(METERS)


def test_group_and_meter_modify_and_delete(bridge: Bridge) -> None:
    put_all(bridge)
    group = Group(GROUPS[1].group_id, "select", (Bucket((Output(7),), 2, 7),))
    meter = Meter(METERS[0].meter_id, 7, 3)
    assert bridge.ask(encode.group_put(1, group, True), encode.meter_put(2, meter, True)) == []
    assert group in read_groups(bridge)
    assert meter in read_meters(bridge)
    assert bridge.ask(encode.group_delete(3, group.group_id), encode.meter_delete(4, meter.meter_id)) == []
    assert group.group_id not in {g.group_id for g in read_groups(bridge) if isinstance(g, Group)}
    assert [m.meter_id for m in read_meters(bridge) if isinstance(m, Meter)] == [METERS[1].meter_id]


def test_put_replaces_with_the_new_cookie(bridge: Bridge) -> None:
    match = Match.of(in_port=1)
    old, new = flow(match, Output(1), cookie=COOKIE), flow(match, Output(2), cookie=COOKIE + 1)
    assert bridge.ask(encode.flow_put(1, old), encode.flow_put(2, new)) == []
    assert read_flows(bridge) == [new]


def test_delete_takes_only_that_flow_and_only_with_our_cookie(bridge: Bridge) -> None:
    """Case CONN-06: 50 tenant flows go, 5 infrastructure flows stay; a foreign flow with our key survives a delete."""
    tenant = [flow(Match.of(in_port=1, eth_src=0x020000000000 + i), Output(1), cookie=COOKIE) for i in range(50)]
    infrastructure = [flow(Match.of(in_port=1), Output(2), priority=i, cookie=COOKIE + 1) for i in range(5)]
    assert bridge.ask(*(encode.flow_put(i, f) for i, f in enumerate([*tenant, *infrastructure]))) == []
    assert bridge.ask(*(encode.flow_delete_strict(i, f) for i, f in enumerate(tenant))) == []
    assert sorted(read_flows(bridge), key=lambda f: f.priority) == infrastructure
    other = Flow(1, 0, Match.of(in_port=1), cookie=COOKIE)  # same key as an infrastructure flow, another cookie
    assert bridge.ask(encode.flow_delete_strict(1, other)) == []
    assert len(read_flows(bridge)) == 5


def test_flows_are_paged_by_cookie(bridge: Bridge) -> None:
    flows = [flow(Match.of(in_port=1 + i), Output(1), cookie=i << 36 | 1) for i in range(8)]
    assert bridge.ask(*(encode.flow_put(i, f) for i, f in enumerate(flows))) == []
    assert read_flows(bridge, 3 << 36, 0xFFF << 36) == [flows[3]]
    replies = bridge.ask(
        encode.aggregate_request(1), encode.aggregate_request(2, 0, 1 << 36), encode.aggregate_request(3, 99, 99)
    )
    assert [r.flow_count for r in replies if isinstance(r, decode.AggregateReply)] == [8, 4, 0]


def test_a_large_table_comes_in_parts(bridge: Bridge) -> None:
    flows = [flow(Match.of(in_port=1, eth_src=0x020000000000 + i), Output(1)) for i in range(1500)]
    assert bridge.ask(*(encode.flow_put(i, f) for i, f in enumerate(flows))) == []
    replies = bridge.ask(encode.flow_stats_request(9))
    assert len(replies) > 1
    assert [r.more for r in replies if isinstance(r, decode.FlowStatsReply)] == [True] * (len(replies) - 1) + [False]
    assert {f.key for f in read_flows(bridge) if isinstance(f, Flow)} == {f.key for f in flows}


def test_what_a_switch_says_about_itself(bridge: Bridge) -> None:
    features, desc, groups, meters, ports, role = bridge.ask(
        encode.features_request(1),
        encode.desc_request(2),
        encode.group_features_request(3),
        encode.meter_features_request(4),
        encode.port_desc_request(5),
        encode.role_request(6, ofp.CR_EQUAL),
    )
    assert isinstance(features, decode.FeaturesReply)
    assert (features.xid, features.n_tables, features.auxiliary_id) == (1, 254, 0)
    assert isinstance(desc, decode.DescReply)
    assert (desc.manufacturer, desc.hardware, desc.more) == ("Nicira, Inc.", "Open vSwitch", False)
    assert isinstance(groups, decode.GroupFeaturesReply)
    assert (groups.types, groups.max_groups) == (0xF, (0xFFFFFF00,) * 4)
    assert isinstance(meters, decode.MeterFeaturesReply)
    assert (meters.max_meters, meters.band_types) == (1 << 18, 1 << ofp.MBT_DROP)
    assert isinstance(ports, decode.PortDescReply)
    (local,) = ports.ports
    assert (local.number, local.name, local.role) == (PORT_LOCAL, bridge.name, PortRole.RESERVED)
    assert role == decode.RoleReply(6, ofp.CR_EQUAL, 0xFFFFFFFFFFFFFFFF)


def test_statistics(bridge: Bridge) -> None:
    put_all(bridge)
    ports, queues, groups = bridge.ask(encode.port_stats_request(1), encode.queue_stats_request(2), encode.group_stats_request(3))
    assert isinstance(ports, decode.PortStatsReply)
    assert [entry.port for entry in ports.entries] == [PORT_LOCAL]
    assert isinstance(queues, decode.QueueStatsReply)
    assert queues.entries == ()
    assert isinstance(groups, decode.GroupStatsReply)
    assert {entry.group_id: len(entry.buckets) for entry in groups.entries} == {g.group_id: len(g.buckets) for g in GROUPS}
    assert {entry.group_id: entry.ref_count for entry in groups.entries}[0x0A000001] >= 1


def test_packet_out_comes_back_as_packet_in(bridge: Bridge) -> None:
    frame = bytes(range(60))
    to_controller = flow(Match.of(in_port=PORT_LOCAL), Output(PORT_CONTROLLER, 0xFFFF))
    message = encode.packet_out(5, PORT_LOCAL, (SetField("eth_src", 0x0A0B0C0D0E0F), Output(PORT_CONTROLLER, 0xFFFF)), frame)
    replies = bridge.ask(encode.flow_put(1, to_controller), encode.set_config(2, 0, 0xFFFF), message, until=ofp.PACKET_IN)
    (packet,) = [r for r in replies if isinstance(r, decode.PacketIn)]
    assert packet.in_port == PORT_LOCAL
    assert packet.data == frame[:6] + bytes.fromhex("0a0b0c0d0e0f") + frame[12:]


def test_port_events_and_queues(bridge: Bridge) -> None:
    port = f"{bridge.name}p5"

    def add() -> None:
        vsctl("add-port", bridge.name, port, "--", "set", "interface", port, "type=internal", "ofport_request=5")

    def remove() -> None:
        vsctl("del-port", bridge.name, port)

    rows: list[str] = []
    try:
        added = bridge.ask(encode.set_config(1, 0, 0xFFFF), until=ofp.PORT_STATUS, meanwhile=add)[-1]
        assert isinstance(added, decode.PortStatus)
        assert (added.reason, added.port.number, added.port.name, added.port.role) == ("add", 5, port, PortRole.UNKNOWN)
        assert added.port.mac
        queue = "--id=@q create queue other-config:max-rate=1000000"
        qos = "--id=@qos create qos type=linux-htb other-config:max-rate=2000000 queues:3=@q"
        rows += vsctl("set", "port", port, "qos=@qos", "--", *qos.split(), "--", *queue.split()).split()
        (stats,) = bridge.ask(encode.queue_stats_request(2))
        assert isinstance(stats, decode.QueueStatsReply)
        assert {(entry.port, entry.queue_id) for entry in stats.entries} == {(5, 0), (5, 3)}  # OVS adds a default queue
        gone = bridge.ask(encode.set_config(1, 0, 0xFFFF), until=ofp.PORT_STATUS, meanwhile=remove)[-1]
        assert isinstance(gone, decode.PortStatus)
        assert (gone.reason, gone.port.number) == ("delete", 5)
    finally:
        vsctl("--if-exists", "del-port", bridge.name, port)
        for table, row in zip(("qos", "queue"), rows, strict=False):
            vsctl("destroy", table, row)


def test_echo_and_errors_name_what_they_are_about(bridge: Bridge) -> None:
    bad_group = encode.flow_put(0x51, flow(Match.of(), ToGroup(0x0A00FFFF)))
    bad_meter = encode.flow_put(0x52, flow(Match.of(), meter=0x1FFFF))
    no_prerequisite = encode.flow_put(0x53, flow(Match.of(), SetField("ipv4_src", 1)))
    echo, *errors = bridge.ask(encode.echo_request(0x50, b"still there?"), bad_group, bad_meter, no_prerequisite)
    assert echo == decode.EchoReply(0x50, b"still there?")
    found = [(e.xid, e.quoted_xid, e.quoted_type, e.name) for e in errors if isinstance(e, decode.ErrorMessage)]
    assert found == [
        (0x51, 0x51, ofp.FLOW_MOD, "BAD_ACTION/BAD_OUT_GROUP"),
        (0x52, 0x52, ofp.FLOW_MOD, "METER_MOD_FAILED/INVALID_METER"),
        (0x53, 0x53, ofp.FLOW_MOD, "BAD_ACTION/MATCH_INCONSISTENT"),
    ]


def test_a_bundle_commits_groups_chains_and_flows_together(bridge: Bridge) -> None:
    groups = [g for g in GROUPS if g.group_id in (0x0A000001, 0x0A000003)]
    user = flow(Match.of(in_port=1), ToGroup(0x0A000003))
    adds = [encode.bundle_add(10 + i, 5, encode.group_put(0, g, False)) for i, g in enumerate(groups)]
    adds.append(encode.bundle_add(20, 5, encode.flow_put(0, user)))
    opened, *rest = bridge.ask(encode.bundle_control(1, 5, encode.BUNDLE_OPEN), *adds)
    assert opened == decode.BundleReply(1, 5, ofp.BCT_OPEN_REPLY, 0)
    assert rest == []
    assert read_flows(bridge) == []  # another connection, and that bundle died with its own
    replies = bridge.ask(
        encode.bundle_control(1, 5, encode.BUNDLE_OPEN), *adds, encode.bundle_control(2, 5, encode.BUNDLE_COMMIT)
    )
    assert [(r.xid, r.control) for r in replies if isinstance(r, decode.BundleReply)] == [
        (1, ofp.BCT_OPEN_REPLY),
        (2, ofp.BCT_COMMIT_REPLY),
    ]
    assert len(replies) == 2
    assert read_flows(bridge) == [user]
    assert read_groups(bridge) == groups


def test_a_bad_bundle_rolls_back_and_says_which_message(bridge: Bridge) -> None:
    kept = flow(Match.of(in_port=9), Output(1))
    assert bridge.ask(encode.flow_put(1, kept)) == []
    replies = bridge.ask(
        encode.bundle_control(1, 6, encode.BUNDLE_OPEN),
        encode.bundle_add(2, 6, encode.flow_delete_strict(0, kept)),
        encode.bundle_add(3, 6, encode.flow_put(0, flow(Match.of(in_port=1), Output(1)))),
        encode.bundle_add(4, 6, encode.group_put(0, GROUPS[0], True)),  # MODIFY of a group that is not there
        encode.bundle_control(5, 6, encode.BUNDLE_COMMIT),
    )
    errors = {r.xid: r.name for r in replies if isinstance(r, decode.ErrorMessage)}
    assert errors == {4: "GROUP_MOD_FAILED/UNKNOWN_GROUP", 5: "BUNDLE/MSG_FAILED"}
    assert ofp.BCT_COMMIT_REPLY not in [r.control for r in replies if isinstance(r, decode.BundleReply)]
    assert read_flows(bridge) == [kept]
    assert read_groups(bridge) == []


def test_foreign_objects_are_text_and_do_not_hide_ours(bridge: Bridge) -> None:
    def ofctl(command: str, text: str) -> None:
        subprocess.run(["ovs-ofctl", "-O", "OpenFlow13", command, bridge.name, text], check=True, timeout=10)

    ours = flow(Match.of(in_port=9), Output(1))
    assert bridge.ask(encode.flow_put(1, ours)) == []
    ofctl("add-flow", "table=3,priority=9,cookie=0x77,tcp,actions=learn(table=4,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[]),output:2")
    ofctl("add-flow", "table=3,priority=8,cookie=0x77,tun_id=5,actions=drop")
    ofctl("add-flow", "table=3,priority=7,cookie=0x77,idle_timeout=100,actions=drop")
    ofctl("add-flow", "table=3,priority=6,cookie=0x77,actions=write_actions(output:1)")
    ofctl("add-flow", "table=3,priority=5,cookie=0x77,actions=load:5->NXM_NX_REG0[0..7],NORMAL")
    ofctl("add-group", "group_id=7,type=all,bucket=actions=resubmit(,3)")
    ofctl("add-meter", "meter=3,kbps,stats,bands=type=drop,rate=5")
    back = read_flows(bridge)
    assert [f for f in back if isinstance(f, Flow)] == [ours]
    foreign = [f for f in back if isinstance(f, decode.Unrepresentable)]
    assert sorted((f.table, f.priority, f.cookie) for f in foreign) == [(3, p, 0x77) for p in (5, 6, 7, 8, 9)]
    assert all(f.text for f in foreign)
    (group,) = read_groups(bridge)
    assert isinstance(group, decode.Unrepresentable)
    assert (group.kind, group.id) == ("group", 7)
    (meter,) = read_meters(bridge)
    assert meter == Meter(3, 5, 5, pps=False)  # OVS fills in a second's worth
