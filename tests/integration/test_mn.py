"""The topology through Mininet's own command line, and `aifabric` beside it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.machine import MnSession

pytestmark = pytest.mark.integration

AIFABRIC = Path(sys.executable).with_name("aifabric")


def aifabric(mn: MnSession, *words: str) -> Any:
    environment = dict(os.environ, AIFABRIC_API=mn.api)
    done = subprocess.run([AIFABRIC, *words, "--json"], env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_pingall_passes_the_first_time(mn: MnSession) -> None:
    said = mn.say("pingall", r"\*\*\* Results:.*\n", 90)
    assert "0% dropped (56/56 received)" in said, said


def test_iperf_works_at_the_prompt(mn: MnSession) -> None:
    said = mn.say("iperf h1 h8", r"\*\*\* Results: \[.*\]", 60)
    rate = re.search(r"Results: \['([\d.]+) ([KMG]?)bits/sec", said)
    assert rate, said
    assert float(rate[1]) * {"": 1, "K": 1e3, "M": 1e6, "G": 1e9}[rate[2]] > 1e6, said


def test_the_command_line_knows_the_fabric(mn: MnSession) -> None:
    topology = aifabric(mn, "topology")
    assert sorted(switch["role"] for switch in topology["switches"]) == ["leaf"] * 4 + ["spine"] * 2
    assert len(topology["links"]) == 8
    assert {switch["dpid"] for switch in topology["switches"]} >= {"0000aa0000000101", "0000aa0000000201"}


@pytest.mark.parametrize("verb", [["status"], ["hosts"], ["groups"], ["events"], ["settings"]])
def test_a_verb_prints_json(mn: MnSession, verb: list[str]) -> None:
    assert aifabric(mn, *verb)


def test_paths_and_why_explain_a_pair(mn: MnSession) -> None:
    mn.say("h1 ping -c 1 -W 2 10.0.4.2", r"packet loss", 20)  # by address: mnexec cannot look up names inside a chroot
    assert aifabric(mn, "paths", "10.0.1.1", "10.0.4.2")
    assert aifabric(mn, "why", "10.0.1.1", "10.0.4.2")
