"""Views: the shapes other programs rely on, and that every view is JSON whatever is in it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aifabric_ctrl.engine.view import Convergence, EngineView, FailedObject, JournalEntry, SwitchStatus
from aifabric_ctrl.model.fabric import Fabric, LinkState, Reach
from aifabric_ctrl.model.ids import PortRef
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.model.rules import FAST_FAILOVER, Bucket, Desired, Group, Output, Tables
from aifabric_ctrl.northbound import views
from aifabric_ctrl.settings import load_settings
from tests.unit.view_builder import fabric, journal, view

VIEWS = (views.health, views.topology, views.hosts, views.status, views.groups, views.events, views.convergence, views.counters)


def empty_view() -> EngineView:
    return EngineView(0.0, False, ("no switch is connected",), Fabric(), Intent(), Desired({}), {})


def test_health_counts_and_reasons() -> None:
    made = view()
    away = replace(made, ready=False, not_ready=("leaf1 is reading",), switches={**made.switches, 1: SwitchStatus("reading")})
    assert views.health(made) == {"ready": True, "switches": {"total": 6, "connected": 6, "in_sync": 6}, "reasons": []}
    assert views.health(away) == {
        "ready": False,
        "switches": {"total": 6, "connected": 6, "in_sync": 5},
        "reasons": ["leaf1 is reading"],
    }


def test_topology_has_the_promised_shape() -> None:
    made = view()
    answer = views.topology(made)
    leaf = answer["switches"][0]
    assert [s["role"] for s in answer["switches"]] == ["leaf"] * 4 + ["spine"] * 2
    assert (leaf["dpid"], leaf["name"], leaf["connected"], leaf["sync"]) == ("0000000000000001", "leaf1", True, "in_sync")
    assert leaf["ports"][2] == {
        "port": 101,
        "name": "leaf1-up1",
        "role": "fabric",
        "up": True,
        "live": True,
        "drained": False,
        "speed_bps": 10**10,
        "bfd": "up",
    }
    assert answer["links"][0]["a"] == {"dpid": "0000000000000001", "switch": "leaf1", "port": 101, "name": "leaf1-up1"}
    assert answer["links"][0]["bfd"] == {"a": "up", "b": "up"}
    assert answer["hosts"][0] == {
        "ip": "10.0.1.1",
        "mac": "02:00:00:00:01:01",
        "dpid": "0000000000000001",
        "port": 1,
        "switch": "leaf1",
        "port_name": "leaf1-eth1",
        "tenant": 1,
        "reach": "reachable",
        "verified": True,
        "seen_s_ago": 5.0,
    }
    assert answer["cabling"] == "unverified"


def test_a_held_link_says_how_long() -> None:
    made = fabric()
    held = replace(made, links=(replace(made.links[0], state=LinkState.HELD), *made.links[1:]))
    answer = views.topology(view(held, held_until_s={made.links[0].b: 102.5, made.links[1].a: 101.0}))
    assert [link["held_for_s"] for link in answer["links"][:2]] == [2.5, 0.0]


def test_a_dead_port_is_neither_up_nor_live() -> None:
    answer = views.topology(view(fabric(down=((1, 1),))))
    port = next(p for p in answer["switches"][0]["ports"] if p["port"] == 101)
    assert (port["up"], port["live"]) == (False, False)
    assert answer["links"][0]["state"] == "down"


@pytest.mark.parametrize(
    ("since", "limit", "ids", "last"),
    [
        (0, 1000, [4, 5, 6, 7], 7),
        (0, 2, [6, 7], 7),  # no place named: the newest
        (4, 2, [5, 6], 6),  # a reader who follows misses none
        (6, 2, [7], 7),
        (7, 2, [], 7),
        (2, 9, [4, 5, 6, 7], 7),
    ],
)
def test_events_after_an_id(since: int, limit: int, ids: list[int], last: int) -> None:
    answer = views.events(view(journal=journal(4, first=4)), since, limit)
    assert [e["id"] for e in answer["events"]] == ids
    assert answer["last"] == last


def test_a_reader_from_before_a_restart_gets_everything() -> None:
    answer = views.events(view(journal=journal(3)), since=900)
    assert [e["id"] for e in answer["events"]] == [1, 2, 3]
    assert answer["restarted"] is True


def test_event_times_are_utc() -> None:
    entry = JournalEntry(1, 12.5, "info", "link_up", "text", {})
    assert views.event_json(entry, 1_700_000_000.0)["time"] == "2023-11-14T22:13:32.500Z"


def test_status_names_problems() -> None:
    made = view()
    failed = FailedObject("flow table 40", "BAD_ACTION/BAD_OUT_PORT", "10.0.1.1 lives here", 2, 103.0)
    bad = SwitchStatus("failed", failed=(failed,), foreign=("flow table 0",), fail_mode="standalone")
    problems = views.status(replace(made, switches={**made.switches, 1: bad}))["problems"]
    assert [p["kind"] for p in problems] == ["refused", "foreign", "fail_mode"]
    assert problems[0]["why"] == "10.0.1.1 lives here"
    assert problems[0]["retry_in_s"] == 3.0
    assert all(p["switch"] == "leaf1" for p in problems)


def test_convergence_summary_is_median_and_p99() -> None:
    samples = tuple(Convergence("x", float(n), 0.5, float(n), 1, 1) for n in range(1, 201))
    summary = views.status(view(convergence=samples))["convergence"]
    assert summary == {"samples": 200, "median_ms": 100.5, "p99_ms": 198.0}


def test_groups_of_one_switch_and_their_buckets() -> None:
    answer = views.groups(view(fabric(down=((1, 1),))), 1)["groups"]
    assert {g["switch"] for g in answer} == {"leaf1"}
    buckets = [b for g in answer for b in g["buckets"] if b["watch_port"] == 101]
    assert all(not b["live"] for b in buckets)
    select = [g for g in views.groups(view(), 1)["groups"] if g["type"] == "select"]
    assert len(select) == 1
    assert math.isclose(sum(b["share"] for b in select[0]["buckets"]), 1.0)
    assert select[0]["used_by"] == 2  # IPv4's and IPv6's rule
    assert select[0]["reason"]


def test_groups_that_watch_each_other_are_not_live() -> None:
    ring = {n: Group(n, FAST_FAILOVER, (Bucket((Output(101),), watch_group=1 - n),)) for n in (0, 1)}
    answer = views.groups(view(desired=Desired({1: Tables(groups=ring)})))
    assert [b["live"] for g in answer["groups"] for b in g["buckets"]] == [False, False]


def test_counters_others_rely_on_are_always_there() -> None:
    assert views.counters(empty_view())["flow_mods_sent"] == 0
    assert views.counters(view())["packet_ins"] == 7


def test_settings_rows_say_where_from() -> None:
    rows = {r["name"]: r for r in views.settings(load_settings({"HOME": "/h", "AIFABRIC_BFD": "off"}))["settings"]}
    assert rows["bfd"]["value"] is False
    assert rows["bfd"]["source"] == "environment AIFABRIC_BFD"
    assert rows["gateway_mac"]["value"] == "02:fa:00:00:00:01"
    assert rows["api"]["text"] == "127.0.0.1:8080"
    json.dumps(list(rows.values()), allow_nan=False)


@pytest.mark.parametrize("of", VIEWS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "made", [view(), empty_view(), view(fabric(1, 0, 1)), view(desired=Desired({}))], ids=["4x2", "empty", "one", "bare"]
)
def test_every_view_is_json(of, made: EngineView) -> None:  # type: ignore[no-untyped-def]
    json.dumps(of(made), allow_nan=False)


odd = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.just(PortRef(1, 2))
    | st.just(Reach.LOCAL),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.frozensets(st.integers() | st.text()),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), odd), st.text(), st.floats())
def test_any_event_is_json(data: dict[str, object], text: str, at_s: float) -> None:
    entry = JournalEntry(1, at_s, "info", "kind", text, data)
    json.dumps(views.events(view(desired=Desired({}), journal=(entry,))), allow_nan=False)


@given(st.floats(), st.floats())
def test_odd_times_are_json(seen_s: float, held_s: float) -> None:
    made = fabric(1, 1, 1)
    host = replace(made.hosts[ip_address("10.0.1.1")], seen_s=seen_s)
    held = replace(made, hosts={host.ip: host}, links=(replace(made.links[0], state=LinkState.HELD),))
    changed = view(
        held,
        desired=Desired({}),
        held_until_s={held.links[0].a: held_s},
        convergence=(Convergence("x", held_s, 0.5, seen_s, 1, 1),),
    )
    for of in VIEWS:
        json.dumps(of(changed), allow_nan=False)
