"""Rows of the lab about a healthy fabric. Counts are exact; times may be twice the lab's own target on a noisy machine."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.rows("start", "quiet", "baseline", "roce", "roce4", "ecmp", "route_entries")]

Rows = dict[str, list[dict[str, Any]]]


def only(rows: Rows, phase: str) -> dict[str, Any]:
    (row,) = rows[phase]
    assert not row["error"], row["error"]
    return row


def test_every_pair_pings_soon_after_the_last_switch_connected(lab_rows: Rows) -> None:
    assert only(lab_rows, "start")["details"]["seconds"] <= 10


def test_no_host_hears_what_it_was_not_asked(lab_rows: Rows) -> None:
    details = only(lab_rows, "quiet")["details"]
    assert details["missing"] == []
    assert details["copies"] == 0, details["samples"]


def test_nothing_is_lost_while_nothing_fails(lab_rows: Rows) -> None:
    row = only(lab_rows, "baseline")
    assert row["sent"] > 10_000
    assert row["lost"] == 0


def test_ecmp_01_no_uplink_is_idle_and_none_carries_all(lab_rows: Rows) -> None:
    """ECMP-01: 256 TCP flows over four uplinks, each within 30 % of its share.

    TCP ports count towards the choice of path. ICMP between one pair has nothing that differs and takes one path, by design.
    """
    details = only(lab_rows, "ecmp")["details"]
    assert details["select_groups"]
    for buckets in details["select_groups"]:
        first = Counter(bucket["port"] for bucket in buckets)
        assert len(first) == 4 and len(set(first.values())) == 1, "every live spine is the first choice of equally many buckets"
        assert min(bucket["weight"] for bucket in buckets) >= 1
    assert sum(details["tcp_flows"].values()) == 256
    assert all(64 * 0.7 <= flows <= 64 * 1.3 for flows in details["tcp_flows"].values()), details["tcp_flows"]
    assert details["restless"] == 0
    paths = details["paths_by_field"]
    assert paths["TCP source port"] == paths["TCP destination port"] == 4
    assert paths["nothing (one TCP five-tuple)"] == paths["ICMP identifier"] == 1


@pytest.mark.parametrize("phase", ["roce", "roce4"])
def test_queue_pairs_spread_over_the_uplinks(lab_rows: Rows, phase: str) -> None:
    details = only(lab_rows, phase)["details"]
    assert details["sequential_most"] <= 1.05
    assert details["derived_p90"] <= (1.2 if phase == "roce" else 1.4)  # over four uplinks: docs/lab.md says why
    assert details["shards_per_uplink"] >= 4


def test_routes_do_not_grow_with_the_fabric(lab_rows: Rows) -> None:
    details = only(lab_rows, "route_entries")["details"]
    assert details["small"] == details["big"]
    assert len(details["small"]) == 1
