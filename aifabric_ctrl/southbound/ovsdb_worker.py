"""The process that talks to OVSDB: ``python -m aifabric_ctrl.southbound.ovsdb_worker REMOTE...``

Reads wishes and writes reports, one JSON object a line (see `ovsdb`), and ends when its standard input does, so that a
killed controller leaves no orphan.  BFD stays configured on the switches then: they go on watching their links.
One thread; nothing in it waits for one server while another has something to say.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ovs import poller, stream

from aifabric_ctrl.model.ids import Dpid, PortRef, dpid_text, parse_dpid
from aifabric_ctrl.southbound.ovsdb_idl import SwitchDatabase
from aifabric_ctrl.southbound.ovsdb_plan import RELEASE_AFTER_S, BfdPlanner, BridgeRow, PortWrite, merge, port_states

BUSY_TICK_MS = 250
QUIET_TICK_MS = 2_000
UNAVAILABLE_AFTER_S = 2.0  # a normal connection takes milliseconds; a restart of ovsdb-server about a second
_OUT_BYTES = 64 * 1024
_IN_BYTES = 4 * 1024 * 1024


class Outbox:
    """Lines for the parent, which may be slow: of each subject only the newest line waits, so memory is bounded."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._buffer = bytearray()
        self._waiting: dict[str, dict[str, Any]] = {}
        self._said: dict[str, dict[str, Any]] = {}

    def say(self, subject: str, line: dict[str, Any]) -> None:
        """Report a subject's state unless it is what was reported last."""
        if self._said.get(subject) != line:
            self._said[subject] = line
            self._waiting[subject] = line

    def turn(self) -> None:
        for subject in list(self._waiting):
            if len(self._buffer) > _OUT_BYTES:
                break
            self._buffer += json.dumps(self._waiting.pop(subject)).encode("ascii") + b"\n"
        while self._buffer:
            try:
                written = os.write(self._fd, self._buffer)
            except BlockingIOError:
                return
            del self._buffer[:written]

    def wait_on(self, wakeup: poller.Poller) -> None:
        if self._buffer or self._waiting:
            wakeup.fd_wait(self._fd, select.POLLOUT)


class Inbox:
    """The parent's wishes.  ``closed`` once it is gone."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._buffer = bytearray()
        self.closed = False

    def newest(self) -> dict[str, Any] | None:
        """The last complete wish that came in; those before it are void."""
        try:
            while data := os.read(self._fd, 65536):
                self._buffer += data
                if len(self._buffer) > _IN_BYTES:
                    break
            else:
                self.closed = True
        except BlockingIOError:
            pass
        complete, newline, rest = bytes(self._buffer).rpartition(b"\n")
        if not newline:
            return None
        self._buffer[:] = rest
        wish = json.loads(complete.rpartition(b"\n")[2])
        return wish if isinstance(wish, dict) else None

    def wait_on(self, wakeup: poller.Poller) -> None:
        wakeup.fd_wait(self._fd, select.POLLIN)


class Worker:
    """The loop.  ``now_s`` is CLOCK_MONOTONIC throughout."""

    def __init__(self, remotes: Sequence[str], inbox: Inbox, outbox: Outbox, release_after_s: float) -> None:
        self._databases = [SwitchDatabase(remote) for remote in remotes]
        self._inbox, self._outbox = inbox, outbox
        self._planner = BfdPlanner(release_after_s)
        self._unusable_since_s = dict.fromkeys(remotes, time.monotonic())
        self._last_seen: dict[Dpid, BridgeRow] = {}

    def run(self) -> None:
        while not self._inbox.closed:
            self._turn(time.monotonic())
            wakeup = poller.Poller()
            self._inbox.wait_on(wakeup)
            self._outbox.wait_on(wakeup)
            for database in self._databases:
                database.wait_on(wakeup)
            soon = self._planner.busy or self._unusable_since_s
            wakeup.timer_wait(BUSY_TICK_MS if soon else QUIET_TICK_MS)
            wakeup.block()

    def _turn(self, now_s: float) -> None:
        wish = self._inbox.newest()
        if wish is not None:
            self._planner.want(_links(wish["links"]), int(wish["interval_ms"]), _links(wish["start"]))
        for database in self._databases:
            database.turn()
            self._say_availability(database, now_s)
        if any(now_s < since_s + UNAVAILABLE_AFTER_S for since_s in self._unusable_since_s.values()):
            self._outbox.turn()
            return  # still connecting: what is missing now proves nothing
        bridges, problems = merge([database.bridges() for database in self._databases if database.usable])
        busy = {database.remote for database in self._databases if database.in_flight}
        self._write(self._planner.step(now_s, bridges, busy))
        self._say_bridges(bridges, problems)
        self._outbox.turn()

    def _write(self, writes: Sequence[PortWrite]) -> None:
        """One transaction a database, so that both ends of a link in the same one change together or not at all."""
        by_remote: dict[str, list[PortWrite]] = defaultdict(list)
        for write in writes:
            by_remote[write.database].append(write)
        for database in self._databases:
            if database.remote in by_remote:
                database.write(by_remote[database.remote])

    def _say_availability(self, database: SwitchDatabase, now_s: float) -> None:
        remote = database.remote
        if database.usable:
            self._unusable_since_s.pop(remote, None)
            self._outbox.say(f"remote {remote}", {"kind": "available", "remote": remote})
        elif now_s >= self._unusable_since_s.setdefault(remote, now_s) + UNAVAILABLE_AFTER_S:
            self._outbox.say(f"remote {remote}", {"kind": "unavailable", "remote": remote, "why": database.why_not})
        if database.refused:
            self._outbox.say(f"refused {remote}", {"kind": "refused", "remote": remote, "why": database.refused})

    def _say_bridges(self, bridges: dict[Dpid, BridgeRow], problems: dict[Dpid, str]) -> None:
        self._last_seen.update(bridges)
        wanted = self._planner.ports
        dpids = bridges.keys() | problems.keys() | {end.dpid for end in wanted}
        for dpid in sorted(dpids):
            # Of a bridge we cannot see now the last states are repeated, and the error says that they are old.
            bridge = self._last_seen.get(dpid)
            errors = [problems[dpid]] if dpid in problems else self._planner.errors.get(dpid, [])
            line = {
                "kind": "bridge",
                "dpid": dpid_text(dpid),
                "ports": {str(port): state for port, state in port_states(bridge, wanted).items()} if bridge else {},
                "fail_mode": bridge.fail_mode if bridge else "",
                "error": "; ".join(errors),
            }
            self._outbox.say(f"bridge {dpid}", line)
        for dpid in self._last_seen.keys() - dpids:
            del self._last_seen[dpid]


def _links(pairs: list[list[Any]]) -> list[tuple[PortRef, PortRef]]:
    return [(PortRef(parse_dpid(a), m), PortRef(parse_dpid(b), n)) for a, m, b, n in pairs]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="ovsdb_worker", description="BFD on fabric links through OVSDB (started by the controller)"
    )
    parser.add_argument("remotes", nargs="+", metavar="unix:PATH|tcp:HOST:PORT|ssl:HOST:PORT")
    parser.add_argument("--private-key", default="")
    parser.add_argument("--certificate", default="")
    parser.add_argument("--ca-cert", default="")
    parser.add_argument("--release-after", type=float, default=RELEASE_AFTER_S, metavar="SECONDS")
    options = parser.parse_args(arguments)
    # Ctrl-C reaches the whole process group; it is the controller's to end us, by closing our input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if options.private_key:
        stream.Stream.ssl_set_private_key_file(options.private_key)
        stream.Stream.ssl_set_certificate_file(options.certificate)
        stream.Stream.ssl_set_ca_cert_file(options.ca_cert)
    worker = Worker(options.remotes, Inbox(sys.stdin.fileno()), Outbox(sys.stdout.fileno()), options.release_after)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the controller is gone
        worker.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
