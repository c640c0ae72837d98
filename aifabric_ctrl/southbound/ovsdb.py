"""The controller's side of BFD through OVSDB: a child process that it tells what it wants and hears from.

Never waits: writes go out as far as the socket takes them and the rest later; of several wishes only the newest counts.
No thread and no framework: sockets instead of pipes, because a non-blocking socket stays one under eventlet's patched
standard library, where reading a pipe would suspend the caller.

Lines, one JSON object each.  To the worker, always the whole set:
``{"links": [[dpid_a, port_a, dpid_b, port_b], ...], "interval_ms": n, "start": [...]}``.  From it, whenever something changed:
``{"kind": "bridge", "dpid", "ports": {"1": "up"}, "fail_mode", "error"}``, ``{"kind": "available", "remote"}``,
``{"kind": "unavailable", "remote", "why"}`` and ``{"kind": "refused", "remote", "why"}``.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from aifabric_ctrl.model.effects import WantBfd
from aifabric_ctrl.model.errors import InvalidValue
from aifabric_ctrl.model.events import BfdReport, OddFrame
from aifabric_ctrl.model.ids import PortRef, dpid_text, parse_dpid

DEFAULT_REMOTE = "unix:/var/run/openvswitch/db.sock"
BACKOFF_S, BACKOFF_MAX_S = 0.5, 30.0
LASTED_S = 30.0  # a worker that ran this long starts the backoff anew
STOP_S = 2.0
_LINE_BYTES = 4 * 1024 * 1024

Report = BfdReport | OddFrame


class Child(Protocol):
    """What is used of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def kill(self) -> None: ...


Spawn = Callable[[Sequence[str], socket.socket, socket.socket], Child]


def spawn_worker(arguments: Sequence[str], stdin: socket.socket, stdout: socket.socket) -> Child:
    """Start the worker with this interpreter.

    Raises:
        OSError: it could not be started.
    """
    # The OVSDB library imports eventlet to see whether it is in use, and eventlet says at length that it is old.
    command = [sys.executable, "-W", "ignore::Warning:ovs.poller", "-m", "aifabric_ctrl.southbound.ovsdb_worker", *arguments]
    return subprocess.Popen(command, stdin=stdin.fileno(), stdout=stdout.fileno())


def check_remote(remote: str) -> str:
    """A connection method the worker can use.

    Raises:
        InvalidValue: for anything but unix:PATH, tcp:HOST:PORT and ssl:HOST:PORT.
    """
    kind, _, rest = remote.partition(":")
    host, _, port = rest.rpartition(":")
    if (kind == "unix" and rest) or (kind in ("tcp", "ssl") and host and port.isdecimal() and 0 < int(port) < 65536):
        return remote
    raise InvalidValue(f"{remote!r} is no OVSDB connection", "write unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT")


class OvsdbWorker:
    """Keeps one worker process running.

    Args:
        remotes: OVSDB connection methods; a switch is looked for in all of them.
        options: further arguments of the worker (``--private-key`` and so on).
        spawn: starts the process.
        clock: CLOCK_MONOTONIC in seconds.

    Raises:
        InvalidValue: a remote is not one.
    """

    def __init__(
        self,
        remotes: Sequence[str] = (DEFAULT_REMOTE,),
        options: Sequence[str] = (),
        spawn: Spawn = spawn_worker,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._arguments = [*options, *(check_remote(remote) for remote in remotes)]
        self._spawn = spawn
        self._clock = clock
        self._child: Child | None = None
        self._from: socket.socket | None = None
        self._to: socket.socket | None = None
        self._buffer = bytearray()
        self._out = bytearray()  # a line that is partly sent
        self._wish: bytes | None = None  # the newest; kept, because a restarted worker needs it too
        self._wish_sent = True
        self._running = False
        self._started_s = 0.0
        self._retry_s = 0.0
        self._backoff_s = BACKOFF_S

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def start(self) -> None:
        """The next `events` starts the worker, and starts it again whenever it ends."""
        self._running = True
        self._retry_s = self._clock()

    def stop(self) -> None:
        """Close the worker's input and see it end, killing it after ``STOP_S``.  BFD stays on the switches."""
        self._running = False
        self._close()

    def want(self, wish: WantBfd) -> None:
        """The whole set of links with BFD from now on, and those that may begin."""
        line = {"links": _pairs(wish.links), "interval_ms": wish.interval_ms, "start": _pairs(wish.start)}
        self._wish = json.dumps(line).encode("ascii") + b"\n"
        self._wish_sent = False
        self._send()

    def events(self) -> list[Report]:
        """What was reported since the last call, without waiting.  Call it some times a second: it also sends what is
        left to send and starts the worker again when it died."""
        if not self._running:
            return []
        if self._child is None:
            return self._launch() if self._clock() >= self._retry_s else []
        self._send()
        alive = self._receive()
        found = self._lines()
        return found if alive else [*found, self._died()]

    def _receive(self) -> bool:
        """Take in what there is, up to a bound; False when the worker is gone or says more than it may."""
        while self._from is not None and len(self._buffer) <= _LINE_BYTES:
            try:
                data = self._from.recv(65536)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            self._buffer += data
        return False

    def _lines(self) -> list[Report]:
        *complete, rest = bytes(self._buffer).split(b"\n")
        self._buffer[:] = rest
        found: list[Report] = []
        for line in complete:
            try:
                found += self._understand(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                found.append(self._odd("ovsdb_worker_garbled", f"the OVSDB worker said something odd: {error!r}"))
        return found

    def _understand(self, line: Any) -> list[Report]:
        kind = line["kind"]
        if kind == "bridge":
            states = {int(port): str(state) for port, state in line["ports"].items()}
            return [BfdReport(self._clock(), parse_dpid(line["dpid"]), states, str(line["fail_mode"]), str(line["error"]))]
        remote, why = str(line["remote"]), str(line.get("why", ""))
        if kind == "unavailable":
            text = f"OVSDB {remote} cannot be used: {why}; silent link failures are not detected there, all else works"
            return [self._odd("ovsdb_unavailable", text)]
        if kind == "refused":
            return [self._odd("ovsdb_refused", f"OVSDB {remote} refused a change: {why}")]
        return []

    def _odd(self, kind: str, text: str) -> OddFrame:
        return OddFrame(self._clock(), 0, kind, text)

    def _send(self) -> None:
        """Send as much as goes without waiting; a line that was begun is finished before a newer one."""
        while self._to is not None and (self._out or not self._wish_sent):
            if not self._out:
                self._out += self._wish or b""
                self._wish_sent = True
            try:
                del self._out[: self._to.send(self._out)]
            except OSError:
                return  # full (later more), or the worker is gone (the reader notices)

    def _launch(self) -> list[Report]:
        to_child, stdin = socket.socketpair()
        from_child, stdout = socket.socketpair()
        for end in (to_child, from_child):
            end.setblocking(False)
        try:
            self._child = self._spawn(self._arguments, stdin, stdout)
        except OSError as error:
            to_child.close()
            from_child.close()
            wait_s = self._back_off()
            text = f"the OVSDB worker could not be started ({error}); next try in {wait_s:.1f} s"
            return [self._odd("ovsdb_worker_failed", text)]
        finally:
            stdin.close()
            stdout.close()
        self._to, self._from = to_child, from_child
        self._started_s = self._clock()
        self._buffer.clear()
        self._out.clear()
        self._wish_sent = self._wish is None
        return []

    def _died(self) -> OddFrame:
        if self._clock() >= self._started_s + LASTED_S:
            self._backoff_s = BACKOFF_S
        code = self._close()
        wait_s = self._back_off()
        return self._odd(
            "ovsdb_worker_ended", f"the OVSDB worker ended (exit code {code}); it is started again in {wait_s:.1f} s"
        )

    def _back_off(self) -> float:
        wait_s = self._backoff_s
        self._retry_s = self._clock() + wait_s
        self._backoff_s = min(wait_s * 2, BACKOFF_MAX_S)
        return wait_s

    def _close(self) -> int | None:
        for end in (self._to, self._from):
            if end is not None:
                end.close()
        self._to = self._from = None
        child, self._child = self._child, None
        if child is None:
            return None
        # Not Popen.wait: it would hold up the whole event loop.
        limit_s = time.monotonic() + STOP_S
        while child.poll() is None and time.monotonic() < limit_s:
            time.sleep(0.01)
        if child.poll() is None:
            child.kill()
            while child.poll() is None:
                time.sleep(0.01)
        return child.poll()


def _pairs(links: tuple[tuple[PortRef, PortRef], ...]) -> list[list[str | int]]:
    return [[dpid_text(a.dpid), a.port, dpid_text(b.dpid), b.port] for a, b in links]
