"""The controller's side of the OVSDB worker: never waits, understands what it hears, and keeps one worker running."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from aifabric_ctrl.model.effects import WantBfd
from aifabric_ctrl.model.errors import InvalidValue
from aifabric_ctrl.model.events import BfdReport, OddFrame
from aifabric_ctrl.model.ids import PortRef
from aifabric_ctrl.southbound.ovsdb import BACKOFF_MAX_S, LASTED_S, OvsdbWorker, Report, check_remote

LINK = (PortRef(1, 1), PortRef(2, 7))


class FakeChild:
    """Holds the worker's ends of the sockets, as a process would."""

    def __init__(self, stdin: socket.socket, stdout: socket.socket) -> None:
        self.stdin, self.stdout = stdin.dup(), stdout.dup()
        self.stdin.settimeout(5.0)
        self.pid = 1
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.code = -9

    def end(self, code: int) -> None:
        self.code = code
        self.stdin.close()
        self.stdout.close()


class Rig:
    """A worker with fake children and a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.children: list[FakeChild] = []
        self.refuse = False
        self.worker = OvsdbWorker(["unix:/nowhere"], spawn=self._spawn, clock=lambda: self.now)

    def _spawn(self, arguments: Sequence[str], stdin: socket.socket, stdout: socket.socket) -> FakeChild:
        if self.refuse:
            raise OSError("no more processes")
        self.children.append(FakeChild(stdin, stdout))
        return self.children[-1]

    def say(self, *lines: object) -> list[Report]:
        self.children[-1].stdout.sendall(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        return self.worker.events()


@pytest.fixture
def rig() -> Iterator[Rig]:
    found = Rig()
    found.worker.start()
    assert found.worker.events() == []
    yield found
    for child in found.children:
        child.end(0)
    found.worker.stop()


def test_a_report_becomes_an_event(rig: Rig) -> None:
    rig.now = 7.0
    line = {"kind": "bridge", "dpid": "00000000000000ff", "ports": {"1": "up", "2": "off"}, "fail_mode": "secure", "error": "e"}
    assert rig.say(line, {"kind": "available", "remote": "r"}) == [BfdReport(7.0, 0xFF, {1: "up", 2: "off"}, "secure", "e")]
    odd = rig.say({"kind": "unavailable", "remote": "r", "why": "w"}, {"kind": "refused", "remote": "r", "why": "w"})
    assert [event.kind for event in odd if isinstance(event, OddFrame)] == ["ovsdb_unavailable", "ovsdb_refused"]


def test_a_line_may_come_in_pieces(rig: Rig) -> None:
    line = json.dumps({"kind": "bridge", "dpid": "0" * 16, "ports": {}, "fail_mode": "", "error": ""}).encode() + b"\n"
    rig.children[0].stdout.sendall(line[:9])
    assert rig.worker.events() == []
    rig.children[0].stdout.sendall(line[9:] + line[:3])
    assert len(rig.worker.events()) == 1


@pytest.mark.parametrize(
    "line", [3, {}, {"kind": "bridge"}, {"kind": "bridge", "dpid": "5", "ports": [], "fail_mode": "", "error": ""}]
)
def test_nonsense_is_reported_and_what_follows_is_read(rig: Rig, line: object) -> None:
    good = {"kind": "bridge", "dpid": "0" * 16, "ports": {}, "fail_mode": "", "error": ""}
    odd, report = rig.say(line, good)
    assert isinstance(odd, OddFrame) and odd.kind == "ovsdb_worker_garbled" and isinstance(report, BfdReport)


def test_the_wish_is_sent_and_sent_again_to_a_new_worker(rig: Rig) -> None:
    rig.worker.want(WantBfd((LINK,), 30, (LINK,)))
    pair = ["0000000000000001", 1, "0000000000000002", 7]
    expected = {"links": [pair], "interval_ms": 30, "start": [pair]}
    assert json.loads(rig.children[0].stdin.recv(65536)) == expected
    rig.children[0].end(1)
    assert [event.kind for event in rig.worker.events() if isinstance(event, OddFrame)] == ["ovsdb_worker_ended"]
    rig.now = 100.0
    assert rig.worker.events() == [] and rig.worker.events() == []
    assert json.loads(rig.children[1].stdin.recv(65536)) == expected


def test_a_worker_that_does_not_read_holds_up_nobody_and_gets_the_newest_wish(rig: Rig) -> None:
    for interval_ms in range(1, 200):
        rig.worker.want(WantBfd((LINK,) * 500, interval_ms))  # some 4 MB in all, more than any socket holds
    heard = b""
    while not heard.endswith(b"\n") or json.loads(heard.splitlines()[-1])["interval_ms"] != 199:
        heard += rig.children[0].stdin.recv(65536)
        assert rig.worker.events() == []
    assert len(heard.splitlines()) < 199


def test_a_worker_that_keeps_dying_is_started_ever_more_rarely(rig: Rig) -> None:
    starts = [0.0]
    while rig.now < 600:
        if len(rig.children) == len(starts) and rig.children[-1].code is None:
            rig.children[-1].end(1)
        rig.now += 0.25
        rig.worker.events()
        if len(rig.children) > len(starts):
            starts.append(rig.now)
    gaps = [b - a for a, b in pairwise(starts)]
    assert gaps[0] < 2 and gaps == sorted(gaps) and BACKOFF_MAX_S <= gaps[-1] < BACKOFF_MAX_S + 1
    rig.now += BACKOFF_MAX_S
    rig.worker.events()
    rig.now += LASTED_S
    rig.children[-1].end(1)
    rig.worker.events()
    rig.now += 1.0
    before = len(rig.children)
    rig.worker.events()
    assert len(rig.children) == before + 1


def test_a_worker_that_cannot_be_started_is_reported_and_tried_again() -> None:
    rig = Rig()
    rig.refuse = True
    rig.worker.start()
    (odd,) = rig.worker.events()
    assert isinstance(odd, OddFrame) and odd.kind == "ovsdb_worker_failed"
    assert rig.worker.events() == []
    rig.refuse, rig.now = False, 10.0
    rig.worker.events()
    assert len(rig.children) == 1
    rig.children[0].end(0)
    rig.worker.stop()
    assert rig.worker.events() == []


def test_a_line_without_end_ends_the_worker(rig: Rig) -> None:
    rig.children[0].stdout.setblocking(False)
    found: list[Report] = []
    for _ in range(10_000):
        with contextlib.suppress(OSError):
            rig.children[0].stdout.send(b"x" * 65536)
        rig.children[0].code = 0  # it will end at once when its sockets are closed
        found = rig.worker.events()
        if found:
            break
    assert isinstance(found[-1], OddFrame) and found[-1].kind == "ovsdb_worker_ended"


def test_only_active_connections_are_taken() -> None:
    for good in ("unix:/run/db.sock", "tcp:10.0.0.1:6640", "ssl:[2001:db8::1]:6640"):
        assert check_remote(good) == good
    for bad in ("", "unix:", "ptcp:6640", "tcp:10.0.0.1", "tcp:10.0.0.1:0", "tcp:h:70000", "/run/db.sock"):
        with pytest.raises(InvalidValue, match="OVSDB"):
            OvsdbWorker([bad])


def wait_for(what: Callable[[], bool], seconds: float = 20.0) -> None:
    limit = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False


def test_a_real_worker_reports_what_it_cannot_reach_and_ends_with_its_parent(tmp_path: Path) -> None:
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(str(tmp_path / "silent"))
    silent.listen()
    worker = OvsdbWorker([f"unix:{tmp_path}/none", f"unix:{tmp_path}/silent"])
    worker.start()
    worker.want(WantBfd((LINK,), 30))
    found: list[Report] = []

    def heard(*texts: str) -> bool:
        found.extend(worker.events())
        said = [event.text if isinstance(event, OddFrame) else event.error for event in found]
        return all(any(text in line for line in said) for text in texts)

    wait_for(lambda: heard("does not exist", "does not answer", "no reachable OVSDB has a bridge"))
    pid = worker.pid
    assert pid is not None and alive(pid)
    worker.stop()
    assert not alive(pid)
    silent.close()


_CONTROLLER = """
import sys, time
from aifabric_ctrl.southbound.ovsdb import OvsdbWorker
worker = OvsdbWorker(["unix:/nonexistent/db.sock"])
worker.start()
while not worker.events():
    time.sleep(0.02)
print(worker.pid, flush=True)
time.sleep(60)
"""


def test_kill_9_of_the_controller_leaves_no_worker() -> None:
    with subprocess.Popen([sys.executable, "-c", _CONTROLLER], stdout=subprocess.PIPE, text=True) as controller:
        assert controller.stdout is not None
        pid = int(controller.stdout.readline())
        assert alive(pid)
        controller.kill()
    wait_for(lambda: not alive(pid))


_UNDER_EVENTLET = """
import eventlet
eventlet.monkey_patch()
import os, signal, time
from aifabric_ctrl.model.effects import WantBfd
from aifabric_ctrl.model.ids import PortRef
from aifabric_ctrl.southbound.ovsdb import OvsdbWorker
worker = OvsdbWorker(["unix:/nonexistent/db.sock"])
worker.start()
heard, worst = [], 0.0
def read():
    while True:
        heard.extend(worker.events())
        eventlet.sleep(0.02)
eventlet.spawn(read)
def measure(rounds):
    global worst
    for n in range(rounds):
        before = time.monotonic()
        eventlet.sleep(0.01)
        worst = max(worst, time.monotonic() - before)
        worker.want(WantBfd(((PortRef(1, 1), PortRef(2, 1)),) * 500, n + 1))
while not heard:
    eventlet.sleep(0.02)
os.kill(worker.pid, signal.SIGSTOP)
measure(100)
os.kill(worker.pid, signal.SIGKILL)
count = len(heard)
while len(heard) == count:
    measure(1)
print(heard[count].kind, worst)
worker.stop()
"""


def test_a_stopped_or_killed_worker_never_holds_up_an_eventlet_loop() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _UNDER_EVENTLET], capture_output=True, text=True, timeout=60, check=True
    )
    kind, worst_s = done.stdout.split()
    assert kind == "ovsdb_worker_ended"
    assert float(worst_s) < 1.0  # a wait for the stopped worker would have no end


def test_ctrl_c_is_the_controllers_business() -> None:
    worker = OvsdbWorker(["unix:/nonexistent/db.sock"])
    worker.start()
    wait_for(lambda: bool(worker.events()))
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGINT)
    for _ in range(10):
        assert worker.events() == []
        time.sleep(0.02)
    assert alive(worker.pid)
    worker.stop()
