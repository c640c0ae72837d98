"""Which rows are written so that BFD runs on both ends of every wanted link, beginning where it may."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from aifabric_ctrl.model.ids import PortRef
from aifabric_ctrl.southbound.ovsdb_plan import (
    MARK,
    PROVED,
    RETRY_S,
    TRYING,
    UP_WITHIN_S,
    BfdPlanner,
    BridgeRow,
    LinkEnds,
    PortRow,
    PortWrite,
    merge,
    port_states,
)

OURS = {"enable": "true", "min_tx": "30", "min_rx": "30", "mult": "3"}
HANDSHAKE_S = 1.5


class World:
    """Databases, bridges and BFD sessions: a session is up HANDSHAKE_S after both ends were enabled, if the cable is good."""

    def __init__(self, cables: Iterable[LinkEnds], databases: int = 1) -> None:
        self.cables = list(cables)
        self.rows: dict[PortRef, PortRow] = {}
        self.since: dict[PortRef, float] = {}
        self.broken: set[PortRef] = set()
        self.away: set[str] = set()
        self.now = 0.0
        self.writes: list[PortWrite] = []
        for end in (end for cable in self.cables for end in cable):
            self.rows[end] = PortRow(f"db{end.dpid % databases}", f"uuid-{end}", f"p{end.port}")

    def bridges(self) -> dict[int, BridgeRow]:
        found: dict[int, BridgeRow] = {}
        for end, row in self.rows.items():
            if row.database not in self.away:
                old = found.get(end.dpid)
                ports = {**(old.ports if old else {}), end.port: row}
                found[end.dpid] = BridgeRow(f"bridge-{end.dpid}", f"s{end.dpid}", end.dpid, "secure", ports)
        return found

    def enabled(self, end: PortRef) -> bool:
        return self.rows[end].bfd.get("enable") == "true"

    def step(self, planner: BfdPlanner, seconds: float = 0.25) -> list[PortWrite]:
        self.now += seconds
        writes = planner.step(self.now, self.bridges())
        self.writes += writes
        by_uuid = {row.uuid: end for end, row in self.rows.items()}
        for write in writes:
            end = by_uuid[write.uuid]
            was = self.enabled(end)
            self.rows[end] = dataclasses.replace(self.rows[end], bfd=write.bfd, mark=write.mark)
            if not was and self.enabled(end):
                self.since[end] = self.now
        for a, b in self.cables:
            both = self.enabled(a) and self.enabled(b)
            up = both and not {a, b} & self.broken and self.now >= max(self.since[a], self.since[b]) + HANDSHAKE_S
            for end in (a, b):
                state = ("up" if up else "down") if self.enabled(end) else ""
                self.rows[end] = dataclasses.replace(self.rows[end], state=state)
        return writes

    def in_transition(self) -> list[LinkEnds]:
        return [
            c
            for c in self.cables
            if any(self.rows[e].mark == TRYING or (self.enabled(e) and self.rows[e].state != "up") for e in c)
        ]

    def run(self, planner: BfdPlanner, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.step(planner)


def fabric(leaves: int, spines: int) -> list[LinkEnds]:
    return [(PortRef(leaf, spine), PortRef(100 + spine, leaf)) for leaf in range(1, leaves + 1) for spine in range(1, spines + 1)]


def planner_for(links: Iterable[LinkEnds], interval_ms: int = 30) -> BfdPlanner:
    planner = BfdPlanner()
    planner.want(links, interval_ms)
    return planner


LINK: LinkEnds = (PortRef(1, 1), PortRef(2, 1))
A, B = LINK


def test_both_ends_are_enabled_in_one_step_and_proved_once_up() -> None:
    world, planner = World([LINK]), planner_for([LINK])
    first = world.step(planner)
    assert {(w.uuid, w.mark) for w in first} == {(f"uuid-{A}", TRYING), (f"uuid-{B}", TRYING)}
    assert all(w.bfd == OURS for w in first)
    world.run(planner, 5)
    assert [row.mark for row in world.rows.values()] == [PROVED, PROVED]
    assert len(world.writes) == 4 and not planner.busy and not planner.errors


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
def test_only_links_that_may_begin_do_and_all_end_as_wanted(leaves: int, spines: int, databases: int) -> None:
    cables = fabric(leaves, spines)
    world, planner = World(cables, databases), BfdPlanner()
    for plane in range(1, spines + 1):
        turn = [link for link in cables if link[0].port == plane]
        planner.want(cables, 30, turn)
        until = world.now + 5.0
        while world.now < until:
            world.step(planner)
            assert {end for link in world.in_transition() for end in link} <= {end for link in turn for end in link}
    assert all(row.mark == PROVED for row in world.rows.values())
    planner.want(cables, 100, ())
    world.run(planner, 5.0)
    assert all(row.mark == PROVED and row.bfd["min_tx"] == "100" for row in world.rows.values())


def test_a_new_worker_writes_nothing_on_a_fabric_that_is_as_wanted() -> None:
    cables = fabric(3, 2)
    world = World(cables)
    world.run(planner_for(cables), 40)
    world.broken.add(cables[0][0])  # a broken link keeps its BFD as well
    before = len(world.writes)
    world.run(planner_for(cables), 40)
    assert len(world.writes) == before


def test_nothing_is_enabled_when_the_far_end_cannot_be_reached() -> None:
    world, planner = World([LINK], databases=2), planner_for([LINK])
    world.away.add("db0")
    world.run(planner, 30)
    assert world.writes == []
    assert "not in any reachable OVSDB" in planner.errors[1][0]
    assert "no reachable OVSDB has a bridge" in planner.errors[2][0]
    world.away.clear()
    world.run(planner, 5)
    assert [row.mark for row in world.rows.values()] == [PROVED, PROVED]


def test_what_never_comes_up_is_switched_off_at_both_ends_and_tried_later() -> None:
    world, planner = World([LINK]), planner_for([LINK])
    world.broken.add(A)
    world.run(planner, UP_WITHIN_S + 1)
    assert not world.enabled(A) and not world.enabled(B)
    assert [row.mark for row in world.rows.values()] == ["", ""]
    assert all("did not come up" in planner.errors[dpid][0] for dpid in (1, 2))
    world.run(planner, RETRY_S - 5)
    assert not world.enabled(A)
    world.broken.clear()
    world.run(planner, 20)
    assert [row.mark for row in world.rows.values()] == [PROVED, PROVED] and not planner.errors


def test_retries_become_rare() -> None:
    world, planner = World([LINK]), planner_for([LINK])
    world.broken.add(A)
    world.run(planner, 3600)
    tries = sum(w.mark == TRYING and w.uuid == f"uuid-{A}" for w in world.writes)
    assert 3 <= tries <= 8


def test_a_link_that_was_up_keeps_its_bfd_when_it_breaks() -> None:
    """Switching it off would make the dead link look alive and send traffic into it."""
    world, planner = World([LINK], databases=2), planner_for([LINK])
    world.run(planner, 5)
    before = len(world.writes)
    world.broken.add(B)
    world.run(planner, 60)
    world.away.add("db0")
    world.run(planner, 60)
    assert len(world.writes) == before and world.enabled(A) and world.enabled(B)


def test_one_end_left_enabled_by_a_crash_is_switched_off_when_its_partner_stays_away() -> None:
    world, planner = World([LINK], databases=2), planner_for([LINK])
    world.step(planner)
    world.away.add("db0")  # its transaction never arrived
    world.rows[B] = dataclasses.replace(world.rows[B], bfd={}, mark="", state="")
    world.run(planner_for([LINK]), UP_WITHIN_S + 1)
    assert not world.enabled(A) and world.rows[A].mark == ""


def test_one_end_left_enabled_by_a_crash_gets_its_partner() -> None:
    world = World([LINK])
    world.rows[A] = dataclasses.replace(world.rows[A], bfd=OURS, mark=TRYING, state="down")
    world.since[A] = 0.0
    world.run(planner_for([LINK]), 5)
    assert [row.mark for row in world.rows.values()] == [PROVED, PROVED]


def test_a_link_under_way_from_an_earlier_worker_counts_as_changing() -> None:
    cables = fabric(1, 2)
    world = World(cables)
    for end in cables[1]:
        world.rows[end] = dataclasses.replace(world.rows[end], bfd=OURS, mark=TRYING, state="down")
        world.since[end] = 0.0
    planner = BfdPlanner()
    planner.want(cables, 30, ())
    assert world.step(planner) == []
    world.run(planner, 10)
    assert {world.rows[end].mark for end in cables[1]} == {PROVED}
    assert not world.enabled(cables[0][0])


def test_foreign_settings_are_left_alone_and_reported() -> None:
    world, planner = World([LINK]), planner_for([LINK])
    world.rows[B] = dataclasses.replace(world.rows[B], bfd={"enable": "true", "min_tx": "1000"})
    world.run(planner, 40)
    assert world.writes == []
    assert "not ours" in planner.errors[2][0] and 1 not in planner.errors
    planner.want([], 30)
    world.run(planner, 40)
    assert world.writes == []


def test_what_is_unwanted_is_taken_back_after_a_while_and_not_for_a_moment() -> None:
    world, planner = World([LINK]), planner_for([LINK])
    world.run(planner, 5)
    before = len(world.writes)
    planner.want([], 30)
    world.run(planner, 20)
    planner.want([LINK], 30)
    world.run(planner, 20)
    assert len(world.writes) == before
    planner.want([], 30)
    world.run(planner, 29)
    assert len(world.writes) == before
    world.run(planner, 5)
    assert [(w.bfd, w.mark) for w in world.writes[before:]] == [({}, ""), ({}, "")]
    assert not world.enabled(A) and not world.enabled(B)


def test_nothing_is_taken_back_before_the_controller_has_said_what_it_wants() -> None:
    world = World([LINK])
    world.run(planner_for([LINK]), 5)
    before = len(world.writes)
    world.run(BfdPlanner(), 100)
    assert len(world.writes) == before


def test_a_database_with_a_transaction_under_way_is_left_alone() -> None:
    world, planner = World([LINK]), planner_for([LINK])
    assert planner.step(1.0, world.bridges(), {"db0"}) == []
    assert len(planner.step(1.25, world.bridges(), set())) == 2
    assert planner.step(1.5, world.bridges(), {"db0"}) == []


def test_a_write_that_fails_is_not_repeated_at_once() -> None:
    world, planner = World([LINK]), planner_for([LINK])
    asked = [planner.step(n / 100, world.bridges()) for n in range(100)]
    assert sum(map(bool, asked)) == 1
    planner.want([], 30)
    world.rows[A] = dataclasses.replace(world.rows[A], bfd=OURS, mark=PROVED)
    asked = [planner.step(100 + n / 10, world.bridges()) for n in range(400)]
    assert 1 <= sum(map(bool, asked)) <= 3


def test_a_port_in_two_links_is_an_error_and_not_two_sessions() -> None:
    third = PortRef(3, 1)
    world, planner = World([LINK, (third, PortRef(3, 2))]), planner_for([LINK, (A, third), (A, A)])
    world.run(planner, 10)
    assert world.enabled(A) and world.enabled(B) and not world.enabled(third)
    assert any("two links" in text for text in planner.errors[1])


def test_the_same_bridge_through_two_remotes_is_one_and_twins_are_none() -> None:
    one = BridgeRow("u1", "br1", 1, "secure")
    again, twin = dataclasses.replace(one), dataclasses.replace(one, uuid="u2", name="br2")
    assert merge([[one], [again]]) == ({1: one}, {})
    found, problems = merge([[one], [twin]])
    assert found == {} and "br1 and br2" in problems[1]


def test_states_cover_ports_that_run_bfd_or_should() -> None:
    rows = {
        1: PortRow("d", "1", bfd=OURS, state="up", mark=PROVED),
        2: PortRow("d", "2"),
        3: PortRow("d", "3"),
        4: PortRow("d", "4", bfd={"enable": "true"}, state="admin_down"),
    }
    bridge = BridgeRow("u", "br", 9, "standalone", rows)
    assert port_states(bridge, {PortRef(9, 3)}) == {1: "up", 3: "off", 4: "admin_down"}
    assert MARK == "aifabric-bfd"  # on switches in the field: a new name would orphan what older releases configured
