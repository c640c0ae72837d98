"""Rows of the lab about failures. Counts are exact; losses and gaps may be twice the lab's own target on a noisy machine."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.test_lab_forwarding import Rows, only

NOISE = 2.0
UPLINK_ROWS = ("uplink_down", "controller_dead")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.rows(
        "uplink_down", "stable_flows", "spine_link_down", "silent", "restore", "leaf_dies", "spread4", "stable_flows4"
    ),
    pytest.mark.rows("convergence", "controller_kill", "controller_dead", "vswitchd"),
]


@pytest.mark.parametrize("phase", UPLINK_ROWS)
def test_an_uplink_down_costs_few_packets(lab_rows: Rows, phase: str) -> None:
    details = only(lab_rows, phase)["details"]
    assert details["median"] <= 30 * NOISE
    assert details["most"] <= 60 * NOISE
    assert details["elsewhere"] == 0


@pytest.mark.parametrize("phase", ["stable_flows", "stable_flows4"])
def test_healthy_flows_keep_their_uplink(lab_rows: Rows, phase: str) -> None:
    details = only(lab_rows, phase)["details"]
    assert details["on_survivors"] >= 50
    assert details["moved"] == {"failure and repair": 0, "return": 0}
    assert details["restless_before"] == 0


def test_a_remote_link_down_is_repaired_for_every_flow(lab_rows: Rows) -> None:
    details = only(lab_rows, "spine_link_down")["details"]
    assert max(details["gaps_ms"]) <= 60 * NOISE
    assert details["steady"] == 0


def test_a_silent_failure_is_noticed_at_both_ends(lab_rows: Rows) -> None:
    rows = lab_rows["silent"]
    assert [row["error"] for row in rows] == ["", ""]
    outcomes: list[dict[str, Any]] = [outcome for row in rows for outcome in row["details"]["outcomes"]]
    assert max(outcome["gap_ms"] for outcome in outcomes) <= 120 * NOISE
    assert sum(outcome["lost_elsewhere"] for outcome in outcomes) == 0


def test_repair_and_return_lose_nothing(lab_rows: Rows) -> None:
    assert only(lab_rows, "restore")["lost"] == 0


def test_a_dead_leaf_neither_floods_uplinks_nor_hurts_others(lab_rows: Rows) -> None:
    details = only(lab_rows, "leaf_dies")["details"]
    assert details["worst"] <= 4
    assert details["lost_others"] == 0


def test_survivors_share_the_load_of_a_dead_uplink(lab_rows: Rows) -> None:
    assert only(lab_rows, "spread4")["details"]["ratio"] <= 1.5


def test_repair_is_prompt(lab_rows: Rows) -> None:
    details = only(lab_rows, "convergence")["details"]
    assert details["samples_ms"]
    assert details["median_ms"] <= 50 * NOISE


def test_a_controller_killed_and_restarted_changes_and_loses_nothing(lab_rows: Rows) -> None:
    details = only(lab_rows, "controller_kill")["details"]
    assert details["counters"] == {"flow_mods_sent": 0, "group_mods_sent": 0, "meter_mods_sent": 0}
    assert details["touched"] == []
    assert details["lost"] == 0


def test_all_pairs_ping_soon_after_the_daemon_came_back(lab_rows: Rows) -> None:
    assert only(lab_rows, "vswitchd")["details"]["seconds"] <= 5 * NOISE
