"""The contract checker refuses what it must, compiled tables pass it, and docs/pipeline.md says what the code does."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from aifabric_ctrl.compile import Cache, compile_fabric, contract, verify_contract
from aifabric_ctrl.compile.contract import overlapping
from aifabric_ctrl.compile.tables import (
    DEST,
    DEST_TENANT,
    METADATA,
    NEXT_HOP_SET,
    PORT,
    ROUTE,
    SOURCE_TENANT,
    SPREAD,
    TABLES,
    Priority,
)
from aifabric_ctrl.model.errors import ContractError
from aifabric_ctrl.model.fabric import LinkState
from aifabric_ctrl.model.ids import GROUP_ANY, PORT_ANY, PORT_CONTROLLER, PORT_FLOOD
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.model.ownership import GROUP_BASE, METER_BASE, cookie_for
from aifabric_ctrl.model.rules import (
    FAST_FAILOVER,
    SELECT,
    Bucket,
    DecTtl,
    Flow,
    Group,
    Match,
    Meter,
    Output,
    SetField,
    Tables,
    ToGroup,
    Why,
)
from tests.unit.test_compile_support import HARDWARE, leaf_dpid, leaf_spine, with_links

DOC = Path(__file__).resolve().parents[2] / "docs" / "pipeline.md"
ARP = Match.of(eth_type=0x0806)
IP = Match.of(eth_type=0x0800)


@functools.cache  # the objects themselves are shared, as they are between two compiles
def good() -> Tables:
    return compile_fabric(leaf_spine(2, 2), Intent()).tables[leaf_dpid(1)]


def with_flow(flow: Flow) -> Tables:
    tables = good()
    flow = replace(flow, cookie=flow.cookie or cookie_for("test", flow.key))
    return replace(tables, flows={**tables.flows, flow.key: flow}, why={**tables.why, flow.key: Why("test", "a test")})


def with_group(kind: str, *buckets: Bucket, group_id: int = GROUP_BASE + 1) -> Tables:
    tables = good()
    return replace(
        tables,
        groups={**tables.groups, group_id: Group(group_id, kind, buckets)},
        group_why={**tables.group_why, group_id: Why("test", "a test")},
    )


def without_why() -> Tables:
    tables = good()
    return replace(tables, why=dict(list(tables.why.items())[1:]))


def without_default() -> Tables:
    tables = good()
    return replace(tables, flows={k: f for k, f in tables.flows.items() if (k.table, k.priority) != (DEST, 0)})


WRONG: dict[str, tuple[str, Callable[[], Tables]]] = {
    "unknown table": ("no such table", lambda: with_flow(Flow(7, 0, Match()))),
    "priority of no row": ("no rules of that priority", lambda: with_flow(Flow(PORT, 7, ARP))),
    "foreign field": ("matches ipv4_dst", lambda: with_flow(Flow(PORT, 100, Match.of(eth_type=0x0800, ipv4_dst=1)))),
    "foreign action": ("does output", lambda: with_flow(Flow(SPREAD, 100, IP, actions=(Output(1),)))),
    "flood": ("reserved port", lambda: with_flow(Flow(ROUTE, Priority.ROUTE_HOST, IP, actions=(Output(PORT_FLOOD),)))),
    "wrong field set": ("does set:eth_dst", lambda: with_flow(Flow(PORT, 100, ARP, actions=(SetField("eth_dst", 1),)))),
    "foreign cookie": ("not ours", lambda: with_flow(Flow(PORT, 100, ARP, cookie=1))),
    "goto backwards": (
        "goes to table 0",
        lambda: with_flow(Flow(ROUTE, Priority.ROUTE_EXCEPTION, Match.of(eth_type=0x86DD), goto=PORT)),
    ),
    "goto elsewhere": ("goes to table 50", lambda: with_flow(Flow(PORT, 100, ARP, goto=SPREAD))),
    "metadata of another table": (
        "writes metadata",
        lambda: with_flow(Flow(PORT, 100, ARP, metadata=DEST_TENANT.of(1), goto=10)),
    ),
    "metadata for nobody": ("nobody reads", lambda: with_flow(Flow(PORT, 100, ARP, metadata=SOURCE_TENANT.of(1)))),
    "no next-hop set": (
        "without a next-hop set",
        lambda: with_flow(
            Flow(ROUTE, Priority.ROUTE_EXCEPTION, Match.of(eth_type=0x86DD), metadata=NEXT_HOP_SET.of(0), goto=SPREAD)
        ),
    ),
    "half a metadata field": ("a part of a metadata field", lambda: with_flow(Flow(ROUTE, 4000, Match.of(metadata=(0, 0xFF))))),
    "more after sending": (
        "then does more",
        lambda: with_flow(Flow(ROUTE, Priority.ROUTE_HOST, IP, actions=(Output(1), DecTtl()))),
    ),
    "unmetered packet-in": ("without a meter", lambda: with_flow(Flow(PORT, 100, ARP, actions=(Output(PORT_CONTROLLER),)))),
    "missing meter": ("meter 0x1 does not exist", lambda: with_flow(Flow(PORT, 100, ARP, meter=1))),
    "missing group": ("group 0x5 does not exist", lambda: with_flow(Flow(SPREAD, 100, IP, actions=(ToGroup(5),)))),
    "no why": ("nobody says why", without_why),
    "no counted drop": ("no counted drop", without_default),
    "group id outside": ("outside our range", lambda: with_group(SELECT, Bucket((Output(1),), 1, 1), group_id=0xFFFFFF00)),
    "empty group": ("0 buckets", lambda: with_group(SELECT)),
    "bucket watches nothing": ("must watch one thing", lambda: with_group(FAST_FAILOVER, Bucket((Output(1),)))),
    "bucket watches two": (
        "must watch one thing",
        lambda: with_group(FAST_FAILOVER, Bucket((Output(1),), 0, 1, min(good().groups))),
    ),
    "select without weight": ("weight 0", lambda: with_group(SELECT, Bucket((Output(1),), 0, 1))),
    "failover with weight": ("weight 1", lambda: with_group(FAST_FAILOVER, Bucket((Output(1),), 1, 1))),
    "watches another port": ("without watching it", lambda: with_group(FAST_FAILOVER, Bucket((Output(2),), 0, 1))),
    "dangling watch": ("does not exist", lambda: with_group(FAST_FAILOVER, Bucket((ToGroup(9),), 0, PORT_ANY, 9))),
    "group in a circle": (
        "refers to itself",
        lambda: with_group(FAST_FAILOVER, Bucket((ToGroup(GROUP_BASE + 1),), 0, PORT_ANY, GROUP_BASE + 1)),
    ),
    "bucket that does nothing": ("empty bucket", lambda: with_group(FAST_FAILOVER, Bucket((), 0, 1, GROUP_ANY))),
}


@pytest.mark.parametrize("name", WRONG)
def test_refuses(name: str) -> None:
    message, make = WRONG[name]
    with pytest.raises(ContractError, match=re.escape(message)):
        verify_contract(make())


@pytest.mark.parametrize("name", WRONG)
def test_refuses_the_same_beside_verified_tables(name: str) -> None:
    message, make = WRONG[name]
    with pytest.raises(ContractError, match=re.escape(message)):
        verify_contract(make(), good())


def verdict(tables: Tables, verified: Tables | None = None) -> str:
    try:
        verify_contract(tables, verified)
    except ContractError as problem:
        return problem.what
    return ""


def without_one(tables: Tables) -> dict[str, Tables]:
    """The tables without one object or reason, for each of them."""
    return {
        f"{part} {key}": replace(tables, **{part: {k: v for k, v in getattr(tables, part).items() if k != key}})
        for part in ("flows", "groups", "meters", "why", "group_why")
        for key in getattr(tables, part)
    }


def test_what_disappears_is_missed_by_those_who_stayed() -> None:
    verdicts = {what: (verdict(tables), verdict(tables, good())) for what, tables in without_one(good()).items()}
    assert [what for what, (whole, partly) in verdicts.items() if bool(whole) != bool(partly)] == []
    missed = {what.split()[0] for what, (_, partly) in verdicts.items() if partly}
    assert missed == {"flows", "groups", "meters", "why", "group_why"}


def test_a_group_below_a_group_is_missed() -> None:
    below = next(g for group in good().groups.values() for g in group.references())
    tables = replace(good(), groups={k: g for k, g in good().groups.items() if k != below})
    tables = replace(tables, flows={k: f for k, f in tables.flows.items() if ToGroup(below) not in f.actions})
    assert f"refers to group {below:#x}, which does not exist" in verdict(tables, good())


def test_packets_to_the_controller_need_a_meter_once_there_are_any() -> None:
    plain = compile_fabric(leaf_spine(2, 2, features=replace(HARDWARE, max_meters=0)), Intent()).tables[leaf_dpid(1)]
    assert not plain.meters
    tables = replace(plain, meters=good().meters)
    assert "without a meter" in verdict(tables)
    assert "without a meter" in verdict(tables, plain)


def test_a_foreign_meter_is_refused_where_there_are_no_groups() -> None:
    alone = compile_fabric(leaf_spine(1, 1), Intent()).tables[leaf_dpid(1)]
    assert not alone.groups
    foreign = Meter(METER_BASE - 1, 1, 1)
    assert "outside our range" in verdict(replace(alone, meters={**alone.meters, foreign.meter_id: foreign}))


def test_a_circle_through_one_changed_group_is_found() -> None:
    lower, upper = GROUP_BASE + 1, GROUP_BASE + 2

    def pair(of_lower: Bucket) -> Tables:
        tables = with_group(FAST_FAILOVER, of_lower, group_id=lower)
        why = {**tables.group_why, upper: Why("test", "a test")}
        return replace(tables, groups={**tables.groups, upper: above}, group_why=why)

    above = Group(upper, FAST_FAILOVER, (Bucket((ToGroup(lower),), 0, PORT_ANY, lower),))
    before = pair(Bucket((Output(1),), 0, 1))
    assert verdict(before) == ""
    assert "refers to itself" in verdict(pair(Bucket((ToGroup(upper),), 0, PORT_ANY, upper)), before)


def test_what_is_the_same_object_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []

    def look(item: object, _: object) -> str:
        looked.append(item)
        return ""

    monkeypatch.setattr(contract, "_flow_problem", look)
    monkeypatch.setattr(contract, "_group_problem", look)
    verify_contract(good(), good())
    assert looked == []
    changed = with_flow(Flow(PORT, 210, ARP))
    verify_contract(changed, good())
    assert looked == [changed.flows[Flow(PORT, 210, ARP).key]]
    verify_contract(changed)
    assert len(looked) == 1 + len(changed.flows) + len(changed.groups)


def test_tables_after_a_failure_pass_beside_those_before_it() -> None:
    healthy, cache = leaf_spine(4, 3, hosts=2), Cache()
    before = compile_fabric(healthy, Intent(), cache).tables
    after = compile_fabric(with_links(healthy, LinkState.DOWN, healthy.links[0]), Intent(), cache).tables
    for dpid in after:
        verify_contract(after[dpid], before[dpid])
        verify_contract(before[dpid], after[dpid])


def test_compiled_tables_pass_and_leave_nothing_undefined() -> None:
    healthy = leaf_spine(3, 2, hosts=2, parallel=2)
    for fabric in (healthy, with_links(healthy, LinkState.DOWN, *healthy.links[:3]), leaf_spine(2, 2, features=HARDWARE)):
        for tables in compile_fabric(fabric, Intent()).tables.values():
            verify_contract(tables)
            assert overlapping(tables.flows.values()) is None


def test_overlap_is_found() -> None:
    one = Flow(ROUTE, Priority.ROUTE_EXCEPTION, Match.of(eth_type=0x0800, ipv4_dst=(0x0A000000, 0xFFFFFF00)))
    two = Flow(ROUTE, Priority.ROUTE_EXCEPTION, Match.of(eth_type=0x0800, ipv4_dst=0x0A000001))
    assert overlapping([one, two]) == (one, two)
    assert overlapping([one, replace(two, priority=300)]) is None
    assert overlapping([one, replace(two, match=Match.of(eth_type=0x0800, ipv4_dst=0x0B000001))]) is None


def test_metadata_fields_fill_64_bits_without_overlap() -> None:
    assert sum(f.mask for f in METADATA) == (1 << 64) - 1
    assert sum(f.bits for f in METADATA) == 64


def section(text: str, title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert found, f"docs/pipeline.md has no section {title!r}"
    return found.group(1)


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_document_lists_the_metadata_bits() -> None:
    expected = [[f"{f.shift}-{f.shift + f.bits - 1}" if f.bits > 1 else str(f.shift), f.name] for f in METADATA]
    assert [row[:2] for row in rows(section(DOC.read_text(), "Metadata"))] == expected


@pytest.mark.parametrize("spec", TABLES, ids=lambda s: s.name)
def test_document_lists_every_rule_of_every_table(spec: object) -> None:
    table = next(t for t in TABLES if t is spec)
    text = section(DOC.read_text(), f"{table.number} {table.name}: {table.does}")
    assert rows(text) == [[r.text, r.matches, r.does] for r in table.rows]
    after = ", ".join(str(n) for n in table.next) or "none"
    assert f"Next tables: {after}." in text and f"On: {table.on}." in text
    writes = ", ".join(f.name for f in table.writes) or "none"
    assert f"Writes metadata: {writes}." in text
