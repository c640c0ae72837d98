"""Group, set and meter numbers: by content, inside our ranges, the same everywhere, also when hashes collide."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aifabric_ctrl.compile import compile_fabric, meters, verify_contract
from aifabric_ctrl.compile import groups as groups_module
from aifabric_ctrl.compile.groups import Back, Chain, Select, assign, build, closure, probe
from aifabric_ctrl.compile.spread import HopSet, number
from aifabric_ctrl.model.fabric import Features
from aifabric_ctrl.model.ids import GROUP_MAX, PORT_IN_PORT
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.model.ownership import GROUP_BASE, GROUP_SPAN, METER_BASE, METER_SPAN, group_is_ours, meter_is_ours
from aifabric_ctrl.model.rules import FAST_FAILOVER, INDIRECT, SELECT, Output, Tables
from tests.unit.test_compile_support import OVS, leaf_dpid, leaf_spine, spine_dpid


def test_closure_lists_what_is_referred_to_first() -> None:
    one, two = Chain((1, 2), back=True), Chain((2, 1))
    assert closure([Select((one, two, one))]) == [Back(), one, two, Select((one, two, one))]


def test_entries() -> None:
    contents = closure([Select((Chain((1,), back=True), Chain((2,))))])
    ids = assign(contents)
    back, one, two, select = (build(c, ids) for c in contents)
    assert (back.type, one.type, two.type, select.type) == (INDIRECT, FAST_FAILOVER, FAST_FAILOVER, SELECT)
    assert back.buckets[0].actions == (Output(PORT_IN_PORT),)
    assert [b.watch_port for b in one.buckets[:1]] == [1] and one.buckets[1].watch_group == back.group_id
    assert [(b.weight, b.watch_group) for b in select.buckets] == [(1, one.group_id), (1, two.group_id)]
    assert select.references() == tuple(sorted((one.group_id, two.group_id)))


def test_numbers_do_not_depend_on_the_order_and_stay_in_range() -> None:
    chains = [Chain((a, b)) for a in range(1, 30) for b in range(1, 30) if a != b]
    ids = assign(chains)
    assert ids == assign(reversed(chains))
    assert len(set(ids.values())) == len(chains)
    assert all(group_is_ours(i) and i < GROUP_MAX for i in ids.values())


def test_collisions_are_resolved_the_same_way_whatever_the_order() -> None:
    texts = [f"x{n}" for n in range(200)]
    placed = probe(texts, 8, 1000, 256)
    assert placed == probe(reversed(texts), 8, 1000, 256)
    assert len(set(placed.values())) == 200 and set(placed.values()) <= set(range(1000, 1256))
    with pytest.raises(OverflowError):
        probe([f"x{n}" for n in range(257)], 8, 0, 256)


def test_hash_at_the_end_of_the_range_wraps_inside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_module, "_home", lambda text: (1 << 64) - 1)
    ids = assign([Chain((1,)), Chain((2,)), Chain((3,))])
    assert sorted(ids.values()) == [GROUP_BASE, GROUP_BASE + 1, GROUP_BASE + GROUP_SPAN - 1]


def test_colliding_groups_still_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_module, "_home", lambda text: 5 << 40)
    for tables in compile_fabric(leaf_spine(3, 3), Intent()).tables.values():
        verify_contract(tables)


def test_groups_are_shared_by_content() -> None:
    for leaves in (2, 6):
        desired = compile_fabric(leaf_spine(leaves, 2, hosts=3), Intent())
        leaf = desired.tables[leaf_dpid(1)].groups
        assert sorted(g.type for g in leaf.values()) == [FAST_FAILOVER] * 4 + [SELECT]
        assert len(desired.tables[spine_dpid(1)].groups) == leaves + 1
        contents = [(g.type, g.buckets) for g in leaf.values()]
        assert len(contents) == len(set(contents))


def test_same_content_has_the_same_id_on_every_switch_and_after_every_change() -> None:
    ids = {i for leaves in (2, 3, 5) for i in compile_fabric(leaf_spine(leaves, 2), Intent()).tables[leaf_dpid(1)].groups}
    assert len(ids) == 5


def test_set_numbers() -> None:
    one, other, wide, back = HopSet((7,), (7,), True), HopSet((2046,), (2046,)), HopSet((3, 4), (3, 4)), HopSet((), (), True)
    numbers = number([one, other, wide, back])
    assert (numbers[one], numbers[other], numbers[back]) == (7, 2046, 2047)
    assert 2048 <= numbers[wide] < 4096
    many = [HopSet((a, b), (a, b)) for a in range(1, 40) for b in range(a + 1, 40)]
    assert len(set(number(many).values())) == len(many)
    high = HopSet((2047,), (2047,))
    assert number([high, back])[high] >= 2048


def test_meter_numbers_follow_the_port_and_stay_ours() -> None:
    ports = (1, 2, 0x6FFF, 0x7000, 0xFF000000, 0xFFFFFF00)
    plan = meters.plan(True, ports, ports)
    ids = [*plan.unknown_host.values(), *plan.repair.values(), plan.lldp, plan.unknown_destination]
    assert len(set(ids)) == len(ids) and all(i is not None and meter_is_ours(i) for i in ids)
    assert plan.unknown_host[2] - plan.unknown_host[1] == 1
    fewer = meters.plan(True, ports[:1], ports[:1])
    assert fewer.unknown_host[1] == plan.unknown_host[1]


@pytest.mark.parametrize(
    ("available", "expected"), [(0, False), (512, False), (METER_BASE + METER_SPAN - 1, True), (1 << 18, True)]
)
def test_meters_need_a_switch_whose_numbers_reach_ours(available: int, expected: bool) -> None:
    features = Features(max_meters=available, nicira=True)
    tables: Tables = compile_fabric(leaf_spine(2, 2, features=features), Intent()).tables[leaf_dpid(1)]
    assert bool(tables.meters) == expected
    verify_contract(tables)


def test_shards_need_masked_source_ports() -> None:
    plain = compile_fabric(leaf_spine(2, 2, features=replace(OVS, nicira=False)), Intent()).tables[leaf_dpid(1)]
    assert not any(f.match.get("udp_src") for f in plain.flows.values())
    verify_contract(plain)
