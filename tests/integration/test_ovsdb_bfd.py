"""BFD through OVSDB against real Open vSwitch: two userspace bridges joined by a cable, and databases of our own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from aifabric_ctrl.model.effects import WantBfd
from aifabric_ctrl.model.events import BfdReport, OddFrame
from aifabric_ctrl.model.ids import PortNo, PortRef
from aifabric_ctrl.southbound.ovsdb import DEFAULT_REMOTE, OvsdbWorker, Report

pytestmark = pytest.mark.integration

A, B = PortRef(0xBFD0_0001, 5), PortRef(0xBFD0_0002, 6)
SPARE = PortRef(0xBFD0_0001, 7)
PORT_A, PORT_B, PORT_SPARE = "bfdtestA", "bfdtestB", "bfdtestC"
FAST_RELEASE = ("--release-after", "1")
SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout.strip()


def vsctl(*arguments: str) -> str:
    return run("ovs-vsctl", "--timeout=10", *arguments)


class Listener:
    """A worker, and what it said."""

    def __init__(self, remotes: Sequence[str] = (DEFAULT_REMOTE,), options: Sequence[str] = FAST_RELEASE) -> None:
        self.worker = OvsdbWorker(remotes, options)
        self.heard: list[Report] = []
        self.slowest_s = 0.0
        self.worker.start()

    def want(self, *links: tuple[PortRef, PortRef], interval_ms: int = 30) -> None:
        self.worker.want(WantBfd(links, interval_ms, links))

    def poll(self) -> None:
        before = time.monotonic()
        self.heard += self.worker.events()
        self.slowest_s = max(self.slowest_s, time.monotonic() - before)

    def until(self, what: Callable[[], bool], seconds: float = 30.0) -> float:
        """Listen until something holds; returns how long it took."""
        start = time.monotonic()
        while not what():
            assert time.monotonic() < start + seconds, f"it did not happen; heard {self.heard[-6:]}"
            time.sleep(0.02)
            self.poll()
        return time.monotonic() - start

    def listen(self, seconds: float) -> None:
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            time.sleep(0.02)
            self.poll()

    def last(self, dpid: int) -> BfdReport | None:
        return next((e for e in reversed(self.heard) if isinstance(e, BfdReport) and e.dpid == dpid), None)

    def states(self) -> Mapping[PortRef, str]:
        found: dict[PortRef, str] = {}
        for dpid in (A.dpid, B.dpid):
            report = self.last(dpid)
            found.update({PortRef(dpid, n): state for n, state in (report.states if report else {}).items()})
        return found

    def both(self, state: str) -> Callable[[], bool]:
        return lambda: [self.states().get(end) for end in (A, B)] == [state, state]

    def said(self, kind: str, text: str = "") -> bool:
        return any(isinstance(e, OddFrame) and e.kind == kind and text in e.text for e in self.heard)


@pytest.fixture
def listening() -> Iterator[Callable[..., Listener]]:
    made: list[Listener] = []

    def make(*arguments: Sequence[str]) -> Listener:
        made.append(Listener(*arguments))
        return made[-1]

    yield make
    for listener in made:
        listener.worker.stop()


@pytest.fixture
def bridges(machine: None) -> Iterator[None]:
    """Two userspace bridges joined by a veth pair, and a port that goes nowhere."""
    run("ip", "link", "add", PORT_A, "type", "veth", "peer", "name", PORT_B)
    try:
        run("ip", "link", "set", PORT_A, "up")
        run("ip", "link", "set", PORT_B, "up")
        for bridge, end, port, fail_mode in (("bfdtest1", A, PORT_A, "secure"), ("bfdtest2", B, PORT_B, "standalone")):
            vsctl("add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev", f"fail_mode={fail_mode}",
                  f"other-config:datapath-id={end.dpid:016x}")  # fmt: skip
            vsctl("add-port", bridge, port, "--", "set", "interface", port, f"ofport_request={end.port}")
        vsctl("add-port", "bfdtest1", PORT_SPARE, "--", "set", "interface", PORT_SPARE, "type=internal",
              f"ofport_request={SPARE.port}")  # fmt: skip
        yield
    finally:
        with contextlib.suppress(subprocess.SubprocessError):
            vsctl("--if-exists", "del-br", "bfdtest1", "--", "--if-exists", "del-br", "bfdtest2")
        run("ip", "link", "del", PORT_A)


@contextlib.contextmanager
def changes(remote: str = DEFAULT_REMOTE) -> Iterator[Callable[[], list[str]]]:
    """Every change of Interface.bfd and external_ids as ovsdb-client sees it, from now on."""
    command = ["ovsdb-client", "-f", "csv", "--no-headings", "monitor", remote, "Open_vSwitch", "Interface", "!initial,name,bfd"]
    with subprocess.Popen([*command, "external_ids"], stdout=subprocess.PIPE, text=True) as monitor:
        assert monitor.stdout is not None
        os.set_blocking(monitor.stdout.fileno(), False)
        seen: list[str] = []

        def look() -> list[str]:
            assert monitor.stdout is not None
            seen.extend(line for line in monitor.stdout if "bfdtest" in line)
            return seen

        try:
            # The monitor is registered once it reports a change of our own making.
            for n in range(100):
                vsctl("set", "interface", PORT_SPARE, f"external_ids:probe={n}")
                if look():
                    break
                time.sleep(0.05)
            assert seen
            time.sleep(0.2)
            look()
            seen.clear()
            yield look
        finally:
            monitor.kill()


def bfd(port: str) -> str:
    return vsctl("get", "interface", port, "bfd")


def test_bfd_comes_up_at_both_ends_and_goes_when_unwanted(bridges: None, listening: Callable[..., Listener]) -> None:
    vsctl("set", "interface", PORT_SPARE, "bfd:enable=true", "bfd:min_tx=500", "external_ids:theirs=1")
    vsctl("set", "interface", PORT_A, "external_ids:theirs=2")
    listener = listening()
    listener.want((A, B))
    took_s = listener.until(listener.both("up"))
    print(f"worker started, link found and BFD up at both ends after {took_s:.2f} s")
    first, second = listener.last(A.dpid), listener.last(B.dpid)
    assert first is not None and second is not None
    assert (first.fail_mode, second.fail_mode) == ("secure", "standalone")
    assert first.error == second.error == ""
    for port in (PORT_A, PORT_B):
        listener.until(lambda port=port: "proved" in vsctl("get", "interface", port, "external_ids"))  # type: ignore[misc]
        assert bfd(port) == '{enable="true", min_rx="30", min_tx="30", mult="3"}'

    listener.want((A, B), interval_ms=100)
    listener.until(lambda: 'min_tx="100"' in bfd(PORT_A) and 'min_tx="100"' in bfd(PORT_B))
    listener.listen(2.0)
    # Changed in place: a session that had gone down for it would have flapped again.
    assert listener.both("up")() and vsctl("get", "interface", PORT_A, "bfd_status:flap_count") == '"1"'

    listener.want()
    listener.until(lambda: bfd(PORT_A) == bfd(PORT_B) == "{}")
    assert vsctl("get", "interface", PORT_A, "external_ids") == '{theirs="2"}'
    assert bfd(PORT_SPARE) == '{enable="true", min_tx="500"}'
    assert vsctl("get", "interface", PORT_SPARE, "external_ids") == '{theirs="1"}'


def test_foreign_bfd_on_a_wanted_link_stays_and_is_reported(bridges: None, listening: Callable[..., Listener]) -> None:
    vsctl("set", "interface", PORT_B, "bfd:enable=false")
    listener = listening()
    with changes() as seen:
        listener.want((A, B))
        listener.until(lambda: "not ours" in getattr(listener.last(B.dpid), "error", ""))
        listener.listen(2.0)
        assert seen() == []
    vsctl("clear", "interface", PORT_B, "bfd")
    listener.until(listener.both("up"))


def test_restarts_write_nothing(bridges: None, listening: Callable[..., Listener]) -> None:
    """Of the controller (a new worker that is told late what is wanted) and of the worker alone (kill -9)."""
    listener = listening()
    listener.want((A, B))
    listener.until(listener.both("up"))
    listener.until(lambda: "proved" in vsctl("get", "interface", PORT_B, "external_ids"))
    listener.worker.stop()
    assert "true" in bfd(PORT_A)
    with changes() as seen:
        again = listening()
        again.listen(3.0)
        again.want((A, B))
        again.until(again.both("up"))
        again.listen(2.0)
        pid = again.worker.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        again.until(lambda: again.said("ovsdb_worker_ended"))
        again.heard.clear()
        again.until(again.both("up"))
        again.listen(2.0)
        assert seen() == []


def test_a_broken_cable_is_reported_and_keeps_its_bfd(bridges: None, listening: Callable[..., Listener]) -> None:
    listener = listening()
    listener.want((A, B))
    listener.until(listener.both("up"))
    listener.until(lambda: "proved" in vsctl("get", "interface", PORT_B, "external_ids"))
    run("ip", "link", "set", PORT_A, "down")
    listener.until(listener.both("down"))
    listener.listen(12.0)
    assert "true" in bfd(PORT_A) and "true" in bfd(PORT_B)
    run("ip", "link", "set", PORT_A, "up")
    listener.until(listener.both("up"))


def test_a_link_whose_other_end_nobody_knows_is_not_touched(bridges: None, listening: Callable[..., Listener]) -> None:
    listener = listening()
    listener.want((A, PortRef(0xBFD0_0099, 1)))
    listener.until(lambda: "not in any reachable OVSDB" in getattr(listener.last(A.dpid), "error", ""))
    listener.listen(1.0)
    assert bfd(PORT_A) == "{}"


def test_bfd_with_nobody_at_the_other_end_is_taken_back(bridges: None, listening: Callable[..., Listener]) -> None:
    """B is cut off before BFD ever came up: left on, both ports would count as dead for ever."""
    run("ip", "link", "set", PORT_A, "down")
    listener = listening()
    listener.want((A, B))
    listener.until(lambda: "true" in bfd(PORT_A))
    listener.until(lambda: bfd(PORT_A) == bfd(PORT_B) == "{}")
    listener.until(lambda: "did not come up" in getattr(listener.last(A.dpid), "error", ""))


class Database:
    """An OVSDB server of our own, without a vswitchd: bridges are rows, BFD sessions are what we write."""

    def __init__(self, directory: Path, name: str) -> None:
        self.socket = directory / f"{name}.sock"
        self.remote = f"unix:{self.socket}"
        self._file = directory / f"{name}.db"
        self._directory = directory
        self.process: subprocess.Popen[bytes] | None = None
        run("ovsdb-tool", "create", str(self._file), str(SCHEMA))

    def start(self) -> None:
        control = self._directory / f"{self.socket.stem}.ctl"
        command = ["ovsdb-server", str(self._file), f"--remote=p{self.remote}", f"--unixctl={control}", "--no-chdir"]
        self.process = subprocess.Popen([*command, "-vconsole:off"], stderr=subprocess.DEVNULL)
        limit = time.monotonic() + 10
        while not self.socket.exists():
            assert time.monotonic() < limit
            time.sleep(0.02)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def vsctl(self, *arguments: str) -> str:
        return vsctl(f"--db={self.remote}", "--no-wait", *arguments)

    def add(self, bridge: str, end: PortRef, port: str) -> None:
        self.vsctl("--may-exist", "add-br", bridge, "--", "set", "bridge", bridge, f'datapath_id="{end.dpid:016x}"')
        self.vsctl("add-port", bridge, port, "--", "set", "interface", port, f"ofport={end.port}")

    def bfd(self, port: str) -> str:
        return self.vsctl("get", "interface", port, "bfd")


@pytest.fixture
def databases(machine: None, tmp_path: Path) -> Iterator[list[Database]]:
    made = [Database(tmp_path, name) for name in ("one", "two")]
    yield made
    for database in made:
        database.stop()


def test_a_database_that_comes_late_is_waited_for(databases: list[Database], listening: Callable[..., Listener]) -> None:
    late, other = databases
    other.start()
    ends: list[tuple[PortNo, str]] = [(A.port, "one"), (SPARE.port, "two")]
    for number, name in ends:
        other.add("br", PortRef(A.dpid, number), name)
    other.add("br2", B, "three")
    listener = listening([late.remote, other.remote])
    listener.want((A, B))
    listener.until(lambda: listener.said("ovsdb_unavailable", "does not exist"))
    listener.until(lambda: "true" in other.bfd("one") and "true" in other.bfd("three"))
    late.start()
    late.add("br3", PortRef(0xBFD0_0077, 1), "four")
    listener.until(lambda: listener.last(0xBFD0_0077) is not None)
    assert listener.slowest_s < 1.0


def test_a_link_between_two_databases(databases: list[Database], listening: Callable[..., Listener]) -> None:
    """Both ends or none; a server that hangs delays nobody else; what never came up goes again."""
    here, there = databases
    for database in databases:
        database.start()
    here.add("br", A, "here1")
    here.add("br", PortRef(A.dpid, 8), "here2")
    here.add("br2", PortRef(0xBFD0_0077, 8), "here3")
    there.add("br", B, "there1")
    assert there.process is not None
    there.process.send_signal(signal.SIGSTOP)
    listener = listening([here.remote, there.remote])
    listener.want((A, B), (PortRef(A.dpid, 8), PortRef(0xBFD0_0077, 8)))
    listener.until(lambda: "true" in here.bfd("here2") and "true" in here.bfd("here3"))
    listener.until(lambda: listener.said("ovsdb_unavailable"))
    for port in ("here2", "here3"):
        here.vsctl("set", "interface", port, "bfd_status:state=up")
    listener.until(lambda: "proved" in here.vsctl("get", "interface", "here3", "external_ids"))
    listener.listen(1.0)
    assert here.bfd("here1") == "{}"

    there.process.send_signal(signal.SIGCONT)
    listener.until(lambda: "true" in here.bfd("here1") and "true" in there.bfd("there1"))
    there.process.send_signal(signal.SIGSTOP)
    listener.until(lambda: here.bfd("here1") == "{}", 40.0)
    there.process.send_signal(signal.SIGCONT)
    listener.until(lambda: there.bfd("there1") == "{}", 40.0)
    assert listener.slowest_s < 1.0
