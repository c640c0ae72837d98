"""Shared by the integration tests: what the machine must have, one run of the lab for all its rows, one `mn` session.

Nothing here is skipped under CI: a machine that lacks root, Open vSwitch or Mininet fails these tests there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.machine import MnSession, leftovers

ROOT = Path(__file__).resolve().parents[2]
SYSTEM_PYTHON = os.environ.get("SYSTEM_PYTHON", "/usr/bin/python3")
MANAGER = Path(sys.executable).with_name("ryu-manager")
LAB_TRIALS = 6
LAB_BOUND_S = 900


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "rows(*names): phases of the lab this module judges")


def missing() -> str:
    """What keeps this machine from running the lab, and the command that helps; empty when nothing does."""
    if os.geteuid() != 0:
        return "root is needed for network namespaces and Open vSwitch: sudo make test"
    if not shutil.which("ovs-vsctl") or not shutil.which("mnexec"):
        return "Open vSwitch or Mininet is not installed: sudo make setup"
    if subprocess.run(["ovs-vsctl", "--timeout=5", "show"], capture_output=True, check=False).returncode:
        return "Open vSwitch does not run: sudo make setup"
    if subprocess.run([SYSTEM_PYTHON, "-c", "import mininet.net"], capture_output=True, check=False).returncode:
        return f"{SYSTEM_PYTHON} cannot import Mininet: sudo make setup"
    return "" if MANAGER.exists() else f"{MANAGER} is missing: make setup"


@pytest.fixture(scope="session")
def machine() -> None:
    reason = missing()
    if reason and (os.environ.get("CI") or os.environ.get("AIFABRIC_REQUIRE_INTEGRATION")):
        pytest.fail(reason, pytrace=False)
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def lab_command(machine: None) -> list[str]:
    return [SYSTEM_PYTHON, str(ROOT / "topologies" / "lab.py"), "--manager", str(MANAGER)]


@pytest.fixture(scope="session")
def lab_rows(lab_command: list[str], request: pytest.FixtureRequest) -> dict[str, list[dict[str, Any]]]:
    """Phase name -> its rows, of one lab run with the phases that the selected tests ask for."""
    wanted = {name for item in request.session.items for mark in item.iter_markers("rows") for name in mark.args}
    # Not pytest's own directory: a failed run's logs must survive it.
    directory = Path(tempfile.mkdtemp(prefix="aifabric-lab-"))
    report = directory / "report.json"
    command = [*lab_command, "--only", ",".join(sorted(wanted)), "--trials", str(LAB_TRIALS), "--json", str(report)]
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():  # minutes pass: show what the lab does meanwhile
        print("\nthe lab runs once for all rows; its words:", file=sys.stderr, flush=True)
        code = run_lab([*command, "--state-dir", str(directory / "state")])
    if code not in (0, 1) or not report.exists():
        pytest.fail(f"the lab could not run (exit code {code}; logs in {directory})", pytrace=False)
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in json.loads(report.read_text())["rows"]:
        rows.setdefault(row["phase"], []).append(row)
    if code == 0:
        shutil.rmtree(directory)
    return rows


def run_lab(command: list[str]) -> int:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, cwd=ROOT)
    try:
        return process.wait(timeout=LAB_BOUND_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.send_signal(signal.SIGINT)  # it cleans up by itself
        process.wait(timeout=60)
        raise


@pytest.fixture(scope="module")
def mn(machine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MnSession]:
    """The topology through Mininet's own command line, with a controller, ready."""
    session = MnSession(MANAGER, ROOT, tmp_path_factory.mktemp("mn"))
    try:
        session.start()
        yield session
    finally:
        session.close()
    assert leftovers(session.directory) == [], "the mn session left something behind"
