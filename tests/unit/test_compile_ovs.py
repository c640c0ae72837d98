"""A real Open vSwitch takes everything that is compiled, and reads it back unchanged (or each reconnect would rewrite it)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network

import pytest

from aifabric_ctrl.compile import compile_fabric
from aifabric_ctrl.model.fabric import Fabric, LinkState
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.model.rules import Group, Tables
from aifabric_ctrl.southbound.wire import decode, encode
from tests.unit.test_compile_support import host_ip, leaf_dpid, leaf_spine, spine_dpid, with_links
from tests.wire.ovs import Bridge, missing

pytestmark = pytest.mark.integration


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    reason = missing()
    if reason and (os.environ.get("CI") or os.environ.get("AIFABRIC_REQUIRE_INTEGRATION")):
        pytest.fail(reason, pytrace=False)
    if reason:
        pytest.skip(reason)
    with Bridge("cmpovs0") as made:
        yield made


def referred_first(groups: dict[int, Group]) -> list[Group]:
    done: dict[int, Group] = {}

    def visit(group: Group) -> None:
        for below in group.references():
            visit(groups[below])
        done.setdefault(group.group_id, group)

    for group in groups.values():
        visit(group)
    return list(done.values())


def installed(bridge: Bridge, tables: Tables) -> Tables:
    """What the switch holds after being given these tables; errors fail the test."""
    messages = [encode.meter_put(n, meter, False) for n, meter in enumerate(tables.meters.values(), 10)]
    messages += [encode.group_put(n, group, False) for n, group in enumerate(referred_first(dict(tables.groups)), 5000)]
    messages += [encode.flow_put(n, flow) for n, flow in enumerate(tables.flows.values(), 20000)]
    assert bridge.ask(*messages) == []
    replies = bridge.ask(encode.flow_stats_request(1), encode.group_desc_request(2), encode.meter_config_request(3))
    flows = [e.flow for r in replies if isinstance(r, decode.FlowStatsReply) for e in r.entries]
    groups = [g for r in replies if isinstance(r, decode.GroupDescReply) for g in r.groups]
    meters = [m for r in replies if isinstance(r, decode.MeterConfigReply) for m in r.meters]
    odd = [o for o in (*flows, *groups, *meters) if isinstance(o, decode.Unrepresentable)]
    assert not odd
    return Tables(
        {f.key: f for f in flows if not isinstance(f, decode.Unrepresentable)},
        {g.group_id: g for g in groups if not isinstance(g, decode.Unrepresentable)},
        {m.meter_id: m for m in meters if not isinstance(m, decode.Unrepresentable)},
    )


def fabrics() -> dict[str, tuple[Fabric, Intent]]:
    plain = leaf_spine(3, 2, hosts=3)
    wide = leaf_spine(2, 8, hosts=1)
    broken = with_links(leaf_spine(3, 2, parallel=2), LinkState.DOWN, leaf_spine(3, 2, parallel=2).links[-1])
    bounded = Intent(prefixes=(IPv4Network("10.0.0.0/8"),), gateways=(IPv4Address("10.0.0.254"), IPv4Address("192.0.2.1")))
    gone = Fabric(plain.switches, plain.links, plain.hosts, frozenset({(leaf_dpid(1), host_ip(1, 99))}))
    return {"plain": (gone, bounded), "wide": (wide, Intent()), "parallel and broken": (broken, Intent())}


@pytest.mark.parametrize("dpid", [leaf_dpid(1), spine_dpid(1)], ids=["leaf", "spine"])
@pytest.mark.parametrize("name", fabrics())
def test_open_vswitch_holds_what_was_compiled(bridge: Bridge, name: str, dpid: int) -> None:
    fabric, intent = fabrics()[name]
    tables = compile_fabric(fabric, intent).tables[dpid]
    held = installed(bridge, tables)
    assert held.flows == dict(tables.flows)
    assert held.groups == dict(tables.groups)
    assert held.meters == dict(tables.meters)
