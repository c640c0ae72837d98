"""The lab leaves the machine as it found it: after a good run, twice, after Ctrl-C, and after a kill that let it do nothing."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.machine import leftovers, output

pytestmark = pytest.mark.integration

SMALL = ["--leaves", "2", "--spines", "1", "--hosts", "1", "--only", "start,quiet"]


def start(command: list[str], tmp_path: Path) -> subprocess.Popen[bytes]:
    places = ["--json", str(tmp_path / "report.json"), "--state-dir", str(tmp_path / "state")]
    with (tmp_path / "lab.log").open("ab") as log:
        return subprocess.Popen([*command, *SMALL, *places], stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def finish(process: subprocess.Popen[bytes], tmp_path: Path) -> int:
    try:
        return process.wait(timeout=150)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"the lab did not end: {(tmp_path / 'lab.log').read_text()}") from None


def wait_for_bridges(process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while "l2" not in output("ovs-vsctl", "list-br").split():
        assert process.poll() is None and time.monotonic() < end, "the lab built no bridges"
        time.sleep(0.05)


def test_two_runs_leave_nothing(lab_command: list[str], tmp_path: Path) -> None:
    for _ in range(2):
        code = finish(start(lab_command, tmp_path), tmp_path)
        assert code == 0, (tmp_path / "lab.log").read_text()
        assert leftovers(tmp_path) == []


def test_an_interrupted_run_leaves_nothing(lab_command: list[str], tmp_path: Path) -> None:
    process = start(lab_command, tmp_path)
    wait_for_bridges(process)
    process.send_signal(signal.SIGINT)
    assert finish(process, tmp_path) == 2
    assert leftovers(tmp_path) == []


def test_the_next_run_cleans_up_after_a_killed_one(lab_command: list[str], tmp_path: Path) -> None:
    process = start(lab_command, tmp_path)
    wait_for_bridges(process)
    process.kill()
    process.wait(timeout=10)
    assert finish(start(lab_command, tmp_path), tmp_path) == 0, (tmp_path / "lab.log").read_text()
    assert leftovers(tmp_path) == []
