"""Field cases about sessions, tables and refusals: CONN-03 to CONN-07, ERR-01, ECMP-04, ECMP-06, ECMP-08, FF-01, FF-03."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aifabric_ctrl.compile import compile_fabric
from aifabric_ctrl.model.ids import GROUP_MAX, PORT_ANY
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.model.ownership import group_is_ours
from aifabric_ctrl.model.rules import FAST_FAILOVER, Flow, Match
from aifabric_ctrl.sim.topology import leaf_spine
from tests.unit.engine_lab import (
    LEAF1,
    LEAF2,
    LEAF3,
    SPINE1,
    SPINE2,
    UPLINK1,
    UPLINK2,
    all_tables,
    engine,
    fabric,
    kinds,
    sent,
    wanted_and_there_agree,
)


@pytest.mark.parametrize("late_s", [0.0, 1.0, 5.0])
def test_conn_03_a_stale_end_of_the_old_session_does_not_remove_the_new_one(late_s: float) -> None:
    net = fabric()
    net.disconnect(LEAF1, late_s=late_s)
    net.connect(LEAF1)
    net.advance(late_s + 0.5)
    net.settle()
    assert net.engine.view().fabric.switches[LEAF1].connected
    net.port_down(SPINE2, 3)
    net.advance(2.5)
    assert wanted_and_there_agree(net)


def test_conn_04_restart_after_a_cut_reads_back_and_sends_only_the_difference() -> None:
    net = fabric()
    net.stop_engine()
    net.port_down(LEAF1, UPLINK1)
    assert net.ping_all() == []
    net.restart_engine(engine())
    net.settle()
    assert net.violations() == []
    assert wanted_and_there_agree(net)
    assert not [g for d in net.switches for g in net.tables(d).groups if not group_is_ours(g)]
    assert net.ping_all() == []


def test_restart_on_an_unchanged_fabric_sends_nothing() -> None:
    net = fabric()
    before = all_tables(net)
    for n in range(3):
        net.restart_engine(engine())
        net.settle()
        net.advance(5.0)
        assert sent(net) == {}, n
    assert all_tables(net) == before
    assert net.ping_all() == []


@pytest.mark.parametrize("seed", range(20))
def test_conn_05_no_rule_before_its_group_whatever_the_order_between_barriers(seed: int) -> None:
    net = fabric(seed=seed, unordered=True)
    net.port_down(LEAF1, UPLINK1)
    net.advance(0.5)
    net.port_up(LEAF1, UPLINK1)
    net.advance(3.0)
    net.settle()
    assert net.violations() == []
    assert net.ping_all() == []


def test_conn_06_only_our_own_flows_are_ever_deleted() -> None:
    net = fabric()
    foreign = Flow(0, 7, Match.of(eth_type=0x0806), goto=10, cookie=0x1234)
    net.switches[LEAF1].tables.flows[foreign.key] = foreign
    net.disconnect(LEAF1)
    net.connect(LEAF1)
    net.advance(0.5)
    net.port_down(LEAF1, UPLINK1)
    net.advance(1.0)
    assert foreign.key in net.tables(LEAF1).flows
    assert "foreign_objects" in kinds(net)


def test_conn_07_large_and_foreign_datapath_ids() -> None:
    dpids = (257, 2**48 - 1, 0x00AABBCCDDEEFF01)
    topology = leaf_spine(3, 2, 2, leaf_dpids=dpids, spine_dpids=(2**64 - 1, 0))
    net = fabric(topology)
    assert net.ping_all() == []
    view = net.engine.view()
    assert sorted(view.fabric.switches) == sorted([*dpids, 0, 2**64 - 1])
    assert set(view.fabric.graph.nodes) == set(view.fabric.switches)


def test_err_01_a_refused_object_is_shown_and_the_others_go_on() -> None:
    net = fabric(learn=False)
    leaf = net.switches[LEAF1]
    in_port_table = sum(1 for key in leaf.tables.flows if key.table == 0)
    leaf.tables.limits = replace(leaf.tables.limits, flows=in_port_table + 3)
    net.ping_all(2.0)
    net.advance(1.0)
    view = net.engine.view()
    status = view.switches[LEAF1]
    assert status.sync == "failed"
    assert status.failed
    assert all("TABLE_FULL" in f.error for f in status.failed)
    assert "object_refused" in kinds(net)
    assert not view.ready
    assert all(view.switches[d].sync == "in_sync" for d in (LEAF2, LEAF3, SPINE1, SPINE2))
    leaf.tables.limits = replace(leaf.tables.limits, flows=10_000)
    net.advance(70.0)
    assert net.engine.view().switches[LEAF1].sync == "in_sync"
    assert net.ping_all(2.0) == []


def test_ecmp_04_a_remote_failure_prunes_the_pair_and_nothing_else() -> None:
    net = fabric()
    before = net.engine.view().desired.tables[LEAF1]
    net.port_down(SPINE2, 3)
    net.advance(1.0)
    after = net.engine.view().desired.tables[LEAF1]
    assert dict(before.flows).items() <= dict(after.flows).items()
    extra = {k for k in after.flows if k not in before.flows}
    routes = [after.flows[k] for k in extra if k.table == 40]
    destinations = {r.match.get("ipv4_dst").value >> 8 & 0xFF for r in routes}  # type: ignore[union-attr]
    assert destinations == {3}
    assert net.ping_all() == []


def test_ecmp_06_recalculation_without_a_change_sends_nothing() -> None:
    net = fabric()
    before = sent(net)
    net.advance(100.0)  # a hundred rounds of LLDP, and ARP by the ageing probes
    net.ping_all()
    assert sent(net) == before
    view = net.engine.view()
    again = compile_fabric(view.fabric, Intent())
    assert {d: list(t.groups.values()) for d, t in again.tables.items()} == {
        d: list(t.groups.values()) for d, t in view.desired.tables.items()
    }


def test_ecmp_08_group_ids_are_in_range_equal_everywhere_and_constant() -> None:
    net = fabric()
    first = {d: set(net.tables(d).groups) for d in net.switches}
    assert all(0 < g < GROUP_MAX and group_is_ours(g) for groups in first.values() for g in groups)
    other = fabric(seed=99)
    assert {d: set(other.tables(d).groups) for d in other.switches} == first
    for _ in range(20):
        net.restart_engine(engine())
        net.settle()
    assert {d: set(net.tables(d).groups) for d in net.switches} == first


def test_ff_01_every_bucket_watches_something_and_a_deleted_port_leaves_the_groups() -> None:
    net = fabric()
    for dpid in net.switches:
        for group in net.tables(dpid).groups.values():
            if group.type == FAST_FAILOVER:
                assert all(b.watch_port != PORT_ANY or b.watch_group != PORT_ANY for b in group.buckets)
    net.port_down(LEAF1, UPLINK1)
    net.advance(2.5)  # unused groups stay for a second
    watched = {b.watch_port for g in net.tables(LEAF1).groups.values() for b in g.buckets} - {PORT_ANY}
    assert watched == {UPLINK2}


def test_ff_03_all_uplinks_down_keeps_local_traffic_and_floods_nothing() -> None:
    net = fabric()
    net.port_down(LEAF1, UPLINK1)
    net.port_down(LEAF1, UPLINK2)
    net.advance(1.0)
    assert net.ping("h1", "h2")
    assert not net.ping("h1", "h3")
    assert net.ping("h3", "h5")
    assert not [h for h in net.hosts.values() if h.foreign]
    net.port_up(LEAF1, UPLINK1)
    net.advance(3.0)
    assert net.ping_all() == []
    net.port_up(LEAF1, UPLINK2)
    net.advance(10.0)
    net.settle()
    assert net.ping_all() == []
    assert wanted_and_there_agree(net)
