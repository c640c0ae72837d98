"""Compiling twice gives the same; compiling after a change rebuilds only what follows from it."""

from __future__ import annotations

from dataclasses import replace

from aifabric_ctrl.compile import Cache, compile_fabric
from aifabric_ctrl.model.fabric import Fabric, Host, LinkState, Reach
from aifabric_ctrl.model.ids import PortRef
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.model.rules import Desired
from tests.unit.test_compile_support import host_ip, host_mac, leaf_dpid, leaf_spine, spine_dpid, with_links, with_reach


def shuffled(fabric: Fabric) -> Fabric:
    """Equal content, everything in another order."""
    return Fabric(
        dict(reversed(list(fabric.switches.items()))),
        tuple(reversed(fabric.links)),
        dict(reversed(list(fabric.hosts.items()))),
        frozenset(reversed(list(fabric.tombstones))),
    )


def text(desired: Desired) -> str:
    return repr(desired)


def test_two_compiles_are_identical_whatever_the_order_of_the_inputs() -> None:
    fabric = replace(
        leaf_spine(3, 2, hosts=3, parallel=2), tombstones=frozenset({(leaf_dpid(1), host_ip(9, n)) for n in range(5)})
    )
    first = text(compile_fabric(fabric, Intent()))
    assert text(compile_fabric(shuffled(fabric), Intent())) == first
    assert text(compile_fabric(shuffled(fabric), Intent(), Cache())) == first


def test_cache_changes_nothing_but_the_work() -> None:
    cache, fabric = Cache(), leaf_spine(3, 2, hosts=2)
    states = [fabric, with_links(fabric, LinkState.DOWN, fabric.links[0]), with_reach(fabric, host_ip(1, 1), Reach.LOCAL), fabric]
    for state in states:
        assert text(compile_fabric(state, Intent(), cache)) == text(compile_fabric(state, Intent()))


def test_unchanged_switches_are_the_identical_object() -> None:
    cache, fabric = Cache(), leaf_spine(4, 2, hosts=2)
    before = compile_fabric(fabric, Intent(), cache).tables
    again = compile_fabric(shuffled(fabric), Intent(), cache).tables
    assert all(again[d] is before[d] for d in before)
    down = next(k for k in fabric.links if k.a.dpid == leaf_dpid(1) and k.b.dpid == spine_dpid(1))
    after = compile_fabric(with_links(fabric, LinkState.DOWN, down), Intent(), cache).tables
    assert {d for d in after if after[d] is not before[d]} == {*(leaf_dpid(n) for n in range(1, 5)), spine_dpid(1)}
    assert after[spine_dpid(2)] is before[spine_dpid(2)]


def test_unchanged_rules_of_a_changed_switch_are_the_identical_objects() -> None:
    cache, fabric = Cache(), leaf_spine(4, 2, hosts=2)
    before = compile_fabric(fabric, Intent(), cache).tables[leaf_dpid(2)]
    after = compile_fabric(with_links(fabric, LinkState.DOWN, fabric.links[0]), Intent(), cache).tables[leaf_dpid(2)]
    kept = [key for key in after.flows if key in before.flows]
    assert len(kept) == len(before.flows) and all(after.flows[k] is before.flows[k] for k in kept)


def test_what_a_host_does_every_second_changes_nothing() -> None:
    cache, fabric = Cache(), leaf_spine(2, 2)
    before = compile_fabric(fabric, Intent(), cache).tables
    seen = {ip: replace(h, seen_s=h.seen_s + 5, since_s=1.0) for ip, h in fabric.hosts.items()}
    after = compile_fabric(replace(fabric, hosts=seen), Intent(), cache).tables
    assert all(after[d] is before[d] for d in before)


def test_new_intent_is_not_answered_from_the_cache() -> None:
    cache, fabric = Cache(), leaf_spine(2, 2)
    compile_fabric(fabric, Intent(), cache)
    other = Intent(unknown_host_pps=7)
    assert text(compile_fabric(fabric, other, cache)) == text(compile_fabric(fabric, other))


def test_cache_forgets() -> None:
    cache, fabric = Cache(), leaf_spine(2, 2)
    compile_fabric(fabric, Intent(), cache)
    size = cache.size
    for n in range(30):
        newcomer = Host(host_ip(1, 50 + n), host_mac(1, 50 + n), PortRef(leaf_dpid(1), 1))
        compile_fabric(replace(fabric, hosts={**fabric.hosts, newcomer.ip: newcomer}), Intent(), cache)
    assert cache.size <= 5 * size


def test_cookies_of_others_stay_when_a_host_comes() -> None:
    fabric = leaf_spine(2, 2, hosts=3)
    newcomer = Host(host_ip(1, 9), host_mac(1, 9), PortRef(leaf_dpid(1), 3))
    before = compile_fabric(fabric, Intent()).tables
    after = compile_fabric(replace(fabric, hosts={**fabric.hosts, newcomer.ip: newcomer}), Intent()).tables
    for dpid, tables in before.items():
        kept = [k for k in tables.flows if k in after[dpid].flows]
        assert len(kept) >= len(tables.flows) - 1
        assert all(after[dpid].flows[k].cookie == tables.flows[k].cookie for k in kept)
        assert tables.groups.keys() == after[dpid].groups.keys()


def test_flapping_link_finds_its_old_groups() -> None:
    cache, fabric = Cache(), leaf_spine(3, 3)
    before = compile_fabric(fabric, Intent(), cache)
    compile_fabric(with_links(fabric, LinkState.DOWN, fabric.links[0]), Intent(), cache)
    after = compile_fabric(fabric, Intent(), cache)
    assert all(after.tables[d] is before.tables[d] for d in before.tables)


def test_reason_of_every_rule_and_group_is_a_sentence() -> None:
    for tables in compile_fabric(leaf_spine(3, 3, hosts=2, parallel=2), Intent()).tables.values():
        assert tables.why.keys() == tables.flows.keys() and tables.group_why.keys() == tables.groups.keys()
        assert all(len(w.reason.split()) > 3 and w.owner for w in [*tables.why.values(), *tables.group_why.values()])
