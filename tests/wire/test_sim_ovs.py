"""Is the fake switch as strict as Open vSwitch, and does the executor forward as it does?  Both are asked the same."""

from __future__ import annotations

import random
import re
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from aifabric_ctrl.engine.engine import Engine
from aifabric_ctrl.model.fields import FIELDS
from aifabric_ctrl.model.ids import PORT_CONTROLLER, PORT_IN_PORT, mac_text
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.model.rules import (
    ALL,
    FAST_FAILOVER,
    INDIRECT,
    SELECT,
    Bucket,
    DecTtl,
    Flow,
    Group,
    Match,
    MatchField,
    Meter,
    Move,
    Output,
    SetField,
    Tables,
    ToGroup,
    flow_table,
)
from aifabric_ctrl.plan.believed import Believed
from aifabric_ctrl.plan.order import difference, stages
from aifabric_ctrl.sim.fakeswitch import FakeSwitch
from aifabric_ctrl.sim.memnet import MemNet
from aifabric_ctrl.sim.protocol import SwitchProtocol
from aifabric_ctrl.sim.topology import leaf_spine, make_port
from aifabric_ctrl.southbound.wire import decode, encode
from aifabric_ctrl.verify.executor import Packet, arp_request, icmp4_echo, run, udp4
from aifabric_ctrl.verify.packet import FRAG_FIRST, FRAG_LATER
from tests.wire.ovs import Bridge, missing, vsctl

pytestmark = pytest.mark.integration

PORTS = (1, 2, 3, 101, 102)
BRIDGE = "aifsimovs"


def interface(port: int) -> str:
    return f"aifsim{port}"


def set_link(port: int, state: str) -> None:
    subprocess.run(["ip", "link", "set", interface(port), state], check=True)


def down_in_ovs(port: int) -> bool:
    said = subprocess.run(["ovs-ofctl", "-O", "OpenFlow13", "show", BRIDGE], check=True, capture_output=True, text=True).stdout
    block = said.split(f" {port}({interface(port)})", 1)[1].split("speed", 1)[0]
    return "LINK_DOWN" in block


@pytest.fixture(scope="module")
def bridge() -> Iterator[Bridge]:
    if missing():
        pytest.fail(missing(), pytrace=False)
    with Bridge(BRIDGE) as one:
        for port in PORTS:
            name = interface(port)
            vsctl("add-port", BRIDGE, name, "--", "set", "interface", name, "type=internal", f"ofport_request={port}")
            set_link(port, "up")
        yield one


# -- refusals ----------------------------------------------------------------------------------------------------------

ONE, TWO = Group(1, SELECT, (Bucket((Output(1),), 1),)), Group(1, SELECT, (Bucket((Output(2),), 1),))
METER = Meter(7, 100, 10)


def put_flow(*actions: object, match: Match | None = None, **rest: object) -> bytes:
    return encode.flow_put(5, Flow(0, 1, match or Match.of(), actions=actions, **rest))  # type: ignore[arg-type]


def put_group(group: Group, exists: bool = False) -> bytes:
    return encode.group_put(5, group, exists)


ALIKE: dict[str, list[bytes]] = {
    "flow to an unknown group": [put_flow(ToGroup(9))],
    "flow through an unknown meter": [put_flow(Output(1), meter=5)],
    "goto backwards": [encode.flow_put(5, Flow(5, 1, Match.of(), goto=3))],
    "group added twice": [put_group(ONE), put_group(TWO)],
    "unknown group modified": [put_group(ONE, True)],
    "unknown group deleted": [encode.group_delete(5, 77)],
    "unknown flow deleted": [encode.flow_delete_strict(5, Flow(0, 1, Match.of(in_port=1)))],
    "meter added twice": [encode.meter_put(5, METER, False), encode.meter_put(6, METER, False)],
    "unknown meter modified": [encode.meter_put(5, METER, True)],
    "unknown meter deleted": [encode.meter_delete(5, 99)],
    "indirect with two buckets": [put_group(Group(1, INDIRECT, (Bucket((Output(1),)), Bucket((Output(2),)))))],
    "ff without anything to watch": [put_group(Group(1, FAST_FAILOVER, (Bucket((Output(1),)),)))],
    "reserved group id": [put_group(Group(0xFFFFFF01, ALL, ()))],
    "set without prerequisite": [put_flow(SetField("udp_dst", 1), match=Match.of(eth_type=0x800))],
    "move without prerequisite": [put_flow(Move("arp_spa", "reg0", 32), match=Match.of(eth_type=0x800))],
    "match without prerequisite": [put_flow(match=Match((MatchField("ipv4_dst", 1, None),)))],
    "meter in a bundle": [encode.bundle_control(5, 1, 0), encode.bundle_add(6, 1, encode.meter_put(6, METER, False))],
    "commit of an unknown bundle": [encode.bundle_control(5, 1, 4)],
    "bundle opened twice": [encode.bundle_control(5, 1, 0), encode.bundle_control(6, 1, 0)],
    "bundle with a bad message": [
        encode.bundle_control(5, 1, 0),
        encode.bundle_add(6, 1, put_flow(ToGroup(9))[:4] + (6).to_bytes(4, "big") + put_flow(ToGroup(9))[8:]),
        encode.bundle_control(7, 1, 4),
    ],
}

# What Open vSwitch lets pass and another switch may not; the fake one refuses it so that we never rely on it.
STRICTER: dict[str, tuple[list[bytes], str]] = {
    "output to a port it has not": ([put_flow(Output(77))], "BAD_ACTION/BAD_OUT_PORT"),
    "watching a port it has not": (
        [put_group(Group(1, FAST_FAILOVER, (Bucket((Output(77),), 0, 77),)))],
        "GROUP_MOD_FAILED/BAD_WATCH",
    ),
    "chain to an unknown group": ([put_group(Group(1, SELECT, (Bucket((ToGroup(9),), 1),)))], "BAD_ACTION/BAD_OUT_GROUP"),
    "select without weight": ([put_group(Group(1, SELECT, (Bucket((Output(1),), 0),)))], "GROUP_MOD_FAILED/INVALID_GROUP"),
}


def fake_errors(messages: list[bytes]) -> list[str]:
    fake = SwitchProtocol(FakeSwitch(1, [make_port(1, n) for n in PORTS]))
    for message in messages:
        fake.feed(message)
    return fake.errors


def ovs_errors(bridge: Bridge, messages: list[bytes]) -> list[str]:
    bridge.clear()
    return [m.name for m in bridge.ask(*messages) if isinstance(m, decode.ErrorMessage)]


@pytest.mark.parametrize("name", ALIKE)
def test_both_refuse_the_same_by_the_same_name(bridge: Bridge, name: str) -> None:
    assert fake_errors(ALIKE[name]) == ovs_errors(bridge, ALIKE[name])


@pytest.mark.parametrize("name", STRICTER)
def test_the_fake_one_is_stricter(bridge: Bridge, name: str) -> None:
    messages, error = STRICTER[name]
    assert (fake_errors(messages), ovs_errors(bridge, messages)) == ([error], [])


# -- forwarding --------------------------------------------------------------------------------------------------------

_TRACE_NAMES = {
    "eth_src": "dl_src",
    "eth_dst": "dl_dst",
    "eth_type": "dl_type",
    "ip_proto": "nw_proto",
    "ipv4_src": "nw_src",
    "ipv4_dst": "nw_dst",
    "icmpv4_type": "icmp_type",
    "icmpv4_code": "icmp_code",
}
_FRAGS = {0: "no", FRAG_FIRST: "first", FRAG_LATER: "later"}

# header and key of a datapath "set" -> our field and how to read the value
_SETS: dict[tuple[str, str], tuple[str, Callable[[str], int]]] = {
    ("eth", "src"): ("eth_src", lambda t: int(t.replace(":", ""), 16)),
    ("eth", "dst"): ("eth_dst", lambda t: int(t.replace(":", ""), 16)),
    ("ipv4", "src"): ("ipv4_src", lambda t: _ip(t)),
    ("ipv4", "dst"): ("ipv4_dst", lambda t: _ip(t)),
    ("ipv4", "ttl"): ("nw_ttl", int),
    ("ipv4", "tos"): ("ip_dscp", lambda t: int(t, 0) >> 2),
    ("icmp", "type"): ("icmpv4_type", int),
    ("icmp", "code"): ("icmpv4_code", int),
    ("udp", "src"): ("udp_src", int),
    ("udp", "dst"): ("udp_dst", int),
    ("arp", "op"): ("arp_op", int),
    ("arp", "sip"): ("arp_spa", lambda t: _ip(t)),
    ("arp", "tip"): ("arp_tpa", lambda t: _ip(t)),
    ("arp", "sha"): ("arp_sha", lambda t: int(t.replace(":", ""), 16)),
    ("arp", "tha"): ("arp_tha", lambda t: int(t.replace(":", ""), 16)),
}


def _ip(text: str) -> int:
    return int.from_bytes(bytes(int(x) for x in text.split(".")), "big")


def trace_text(packet: Packet, in_port: int) -> str:
    """A packet as ``ofproto/trace`` takes it, prerequisites first."""
    words = [f"in_port={in_port}"]
    for name in sorted(packet, key=lambda n: FIELDS[n].order):
        value = packet[name]
        if name in ("vlan_vid", "tcp_flags") or (name in ("udp_src", "udp_dst") and packet["nw_frag"] == FRAG_LATER):
            continue
        if name == "ip_dscp":
            words.append(f"nw_tos={value << 2}")
        elif name == "nw_frag":
            words.append(f"nw_frag={_FRAGS[value]}")
        elif FIELDS[name].kind == "mac":
            words.append(f"{_TRACE_NAMES.get(name, name)}={mac_text(value)}")
        else:
            words.append(FIELDS[name].text(value, None).replace(name, _TRACE_NAMES.get(name, name), 1))
    return ",".join(words)


Came = tuple[list[tuple[int, dict[str, int]]], int]  # (port, fields) in order, and the number of packet-ins


def ovs_forwards(bridge: Bridge, packet: Packet, in_port: int) -> Came:
    command = ["ovs-appctl", "ofproto/trace", bridge.name, trace_text(packet, in_port)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout
    actions = re.search(r"^Datapath actions: (.*)$", said, re.M)
    assert actions is not None, said
    numbers = subprocess.run(["ovs-appctl", "dpif/show"], check=True, capture_output=True, text=True, timeout=10).stdout
    port_of = {int(dp): int(of) for of, dp in re.findall(r"aifsim\d+ (\d+)/(\d+):", numbers)}
    fields, sent, ups = dict(packet), [], 0
    for action in re.split(r",(?![^()]*(?:\([^()]*\)[^()]*)*\))", actions[1]):
        change = re.fullmatch(r"set\((\w+)\((.*)\)\)", action)
        if change is not None:
            for word in change[2].split(","):
                key, _, text = word.partition("=")
                name, read = _SETS[(change[1], key)]
                fields[name] = read(text.partition("/")[0])
        elif action.isdigit():
            sent.append((port_of[int(action)], dict(fields)))
        elif action.startswith("userspace") and "controller" in action:
            ups += "reason=2" not in action  # an expired TTL is offered to controllers that asked; we never do
        else:
            assert action == "drop" or action.startswith("meter"), said
    return sent, ups


def we_forward(tables: Tables, packet: Packet, in_port: int, down: int | None) -> Came:
    (outcome,) = run(tables, packet, in_port, lambda port: port != down)
    return [(s.port, dict(s.packet)) for s in outcome.outputs], len(outcome.controller)


def install(bridge: Bridge, tables: Tables) -> None:
    bridge.clear()
    messages: list[bytes] = []
    for stage in stages(difference(tables, Believed(), 0.0)):
        for change in stage.changes:
            item, xid = change.object, len(messages) + 1
            if isinstance(item, Flow):
                messages.append(encode.flow_put(xid, item))
            elif isinstance(item, Group):
                messages.append(encode.group_put(xid, item, False))
            else:
                messages.append(encode.meter_put(xid, item, False))
        messages.append(encode.barrier_request(len(messages) + 1))
    errors = [m for m in bridge.ask(*messages) if isinstance(m, decode.ErrorMessage)]
    assert errors == []


def tricky_tables() -> Tables:
    ip = Match.of(eth_type=0x800)
    first = Group(1, FAST_FAILOVER, (Bucket((Output(101),), 0, 101), Bucket((Output(102),), 0, 102)))
    second = Group(2, FAST_FAILOVER, (Bucket((ToGroup(1),), 0, watch_group=1), Bucket((ToGroup(9),), 0, watch_group=9)))
    only = Group(3, FAST_FAILOVER, (Bucket((Output(102),), 0, 102), Bucket((ToGroup(9),), 0, watch_group=9)))
    home = Group(9, INDIRECT, (Bucket((Output(PORT_IN_PORT),)),))
    copies = Group(4, ALL, (Bucket((SetField("ip_dscp", 9), Output(1))), Bucket((DecTtl(), Output(2)), 0)))
    as_set = Group(5, INDIRECT, (Bucket((Output(1), SetField("ip_dscp", 7), DecTtl(), Output(3))),))
    flows = [
        Flow(0, 50, Match.of(eth_type=0x800, ip_proto=17, udp_dst=1), actions=(DecTtl(), ToGroup(2)), goto=1),
        Flow(0, 50, Match.of(eth_type=0x800, ip_proto=17, udp_dst=2), actions=(ToGroup(4), SetField("ip_dscp", 3)), goto=1),
        Flow(0, 50, Match.of(eth_type=0x800, ip_proto=17, udp_dst=3), actions=(ToGroup(5), Output(2))),
        Flow(0, 50, Match.of(eth_type=0x800, ip_proto=17, udp_dst=4), actions=(*[DecTtl()] * 20, ToGroup(3)), goto=1),
        Flow(0, 50, Match.of(eth_type=0x800, ip_proto=17, udp_dst=5), metadata=(0x1200, 0xFF00), goto=1),
        Flow(0, 40, Match.of(eth_type=0x800, ip_proto=17, udp_src=(0, 3)), actions=(Output(1), Output(2), Output(3))),
        Flow(0, 30, Match.of(eth_type=0x800, nw_frag=(2, 2)), actions=(Output(3),)),
        Flow(0, 10, ip, actions=(Output(PORT_IN_PORT), Output(PORT_CONTROLLER, 0xFFFF))),
        Flow(1, 10, Match.of(metadata=(0x1200, 0xFF00), eth_type=0x800), actions=(Move("ipv4_src", "reg0", 16),), goto=2),
        Flow(1, 5, ip, actions=(SetField("eth_dst", 0x020000000099), Output(3))),
        Flow(2, 10, Match.of(reg0=0x0101, eth_type=0x800), actions=(Output(2),)),
        Flow(2, 5, ip, actions=(Output(3),)),
    ]
    return Tables(flow_table(flows), {g.group_id: g for g in (first, second, only, home, copies, as_set)})


def tricky_packets(rng: random.Random) -> list[tuple[Packet, int]]:
    found: list[tuple[Packet, int]] = []
    for dport in range(7):
        for ttl in (1, 2, 20, 21, 64):
            frag = rng.choice([0, 0, 0, FRAG_FIRST, FRAG_LATER])
            ip = rng.choice([0x0A000101, 0x0A000202])
            packet = udp4(0x020000000001, 0x02FA00000001, ip, 0x0A000301, rng.randrange(8), dport, ttl, frag=frag)
            found.append((packet, rng.choice(PORTS[:4])))
    return found


def compiled() -> Iterator[tuple[str, Tables, list[tuple[Packet, int]]]]:
    """A leaf's and a spine's own tables as the controller makes them, and packets of every kind for them."""
    net = MemNet(leaf_spine(3, 2, 2), Engine(Intent(), bytes(32)), 1)
    net.connect_all()
    net.settle()
    net.ping_all()
    net.settle()
    hosts, gateway, rng = [h.host for h in net.hosts.values()], Intent().gateway_mac, random.Random(3)
    packets: list[tuple[Packet, int]] = []
    for _ in range(60):
        a, b = rng.sample(hosts, 2)
        stranger = rng.random() < 0.1
        mac = 0x02DEADBEEF01 if stranger else a.mac
        ttl = rng.choice([64, 64, 20, 1])
        kind = rng.randrange(3)
        if kind == 0:
            packet = arp_request(mac, a.ip, rng.choice([b.ip, a.ip, 0x0A090909]))
        elif kind == 1:
            packet = udp4(mac, gateway, a.ip, b.ip, rng.randrange(1 << 16), 4791, ttl)
        else:
            packet = icmp4_echo(mac, gateway, a.ip, rng.choice([b.ip, 0xE0000001, 0x0A090909]), ttl)
        packets.append((packet, rng.choice([1, 2, 101, 102])))
    yield "leaf", net.tables(0x11), packets
    yield "spine", net.tables(0x21), [(p, rng.choice([1, 2, 3])) for p, _ in packets]


def chooses(tables: Tables, packet: Packet, in_port: int) -> bool:
    """A select group hashes in the datapath, which ``ofproto/trace`` does not follow."""
    return any(c.group.type == SELECT for o in run(tables, packet, in_port, lambda p: True) for s in o.trace for c in s.groups)


@pytest.mark.parametrize("down", [None, 101, 102])
def test_the_executor_forwards_as_open_vswitch_does(bridge: Bridge, down: int | None) -> None:
    cases = [("tricky", tricky_tables(), tricky_packets(random.Random(1))), *compiled()]
    if down is not None:
        set_link(down, "down")
    try:
        for port in PORTS:
            end = time.monotonic() + 10
            while down_in_ovs(port) != (port == down):
                assert time.monotonic() < end, f"Open vSwitch does not see port {port}"
                time.sleep(0.05)
        compared = 0
        for name, tables, packets in cases:
            install(bridge, tables)
            for packet, in_port in packets:
                if in_port != down and not chooses(tables, packet, in_port):
                    ours, theirs = we_forward(tables, packet, in_port, down), ovs_forwards(bridge, packet, in_port)
                    assert ours == theirs, f"{name}: {trace_text(packet, in_port)}"
                    compared += bool(ours[0] or ours[1])
        assert compared > 60, "too few packets went anywhere to prove much"
    finally:
        if down is not None:
            set_link(down, "up")
