"""The lab's side of the traffic process: starts it, asks it, turns its answers into losses and gaps. Judges nothing."""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.errors import PhaseError

PROBER = Path(__file__).with_name("prober.py")
PROBE_PORT = 9999
IN_FLIGHT_S = 0.3


@dataclass(frozen=True)
class Endpoint:
    """`ip` is the address traffic goes to: one of the other two."""

    name: str
    pid: int
    ip: str
    interface: str
    leaf: int
    ip4: str
    ip6: str


@dataclass(frozen=True)
class Flow:
    source: Endpoint
    destination: Endpoint
    protocol: str = "udp"
    source_port: int = PROBE_PORT
    destination_port: int = PROBE_PORT

    def spec(self) -> dict[str, Any]:
        return {
            "source_pid": self.source.pid,
            "destination_pid": self.destination.pid,
            "destination": self.destination.ip,
            "protocol": self.protocol,
            "source_port": self.source_port,
            "destination_port": self.destination_port,
        }


@dataclass(frozen=True)
class FlowSet:
    """Flows that take turns at `rate` packets/s in all, `count` packets in all (endless when None)."""

    rate: float
    flows: Sequence[Flow]
    count: int | None = None


@dataclass
class FlowResult:
    """Times are seconds since the epoch, gaps and stalls (start, seconds)."""

    sent: int
    received: int
    lost_at: list[float]
    gaps: list[list[float]]
    stalls: list[list[float]]
    errors: int
    duplicates: int
    last_arrival: float | None

    def lost_between(self, start: float, end: float) -> int:
        return sum(start <= at < end for at in self.lost_at)

    def longest_gap_ms(self, start: float = 0, end: float = float("inf")) -> float:
        return 1000 * max((length for at, length in self.gaps if start - length <= at < end), default=0.0)

    def longest_stall_ms(self, start: float = 0, end: float = float("inf")) -> float:
        return 1000 * max((length for at, length in self.stalls if start - length <= at < end), default=0.0)


@dataclass(frozen=True)
class Mark:
    """When a window of a run began (epoch seconds) and how much each flow had sent by then."""

    at: float
    sent: list[int]


@dataclass
class RunResult:
    flows: list[FlowResult]
    seen: dict[str, list[tuple[str, str, int, int]]] = field(default_factory=dict)  # window: (interface, direction, flow, frames)
    unasked: dict[str, dict[str, int]] = field(default_factory=dict)  # window: kind: frames
    samples: list[str] = field(default_factory=list)

    @property
    def sent(self) -> int:
        return sum(flow.sent for flow in self.flows)

    @property
    def lost(self) -> int:
        return sum(len(flow.lost_at) for flow in self.flows)

    def uplinks_of(self, window: str, direction: str = "out", among: Iterable[str] | None = None) -> dict[int, set[str]]:
        """Flow number -> interfaces it was seen on in the window."""
        allowed, found = None if among is None else set(among), {}  # type: ignore[var-annotated]
        for interface, way, flow, _count in self.seen.get(window, []):
            if way == direction and (allowed is None or interface in allowed):
                found.setdefault(flow, set()).add(interface)
        return found

    def frames_by_interface(self, window: str, direction: str = "out") -> dict[str, int]:
        total: dict[str, int] = {}
        for interface, way, _flow, count in self.seen.get(window, []):
            if way == direction:
                total[interface] = total.get(interface, 0) + count
        return total


class Traffic:
    """The traffic process. One run of probes and one ping round at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-B", str(PROBER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._buffer = b""

    def _send(self, command: dict[str, Any]) -> None:
        stdin = self._process.stdin
        if stdin is None or self._process.poll() is not None:
            raise PhaseError("the traffic process ended unexpectedly")
        stdin.write(json.dumps(command).encode() + b"\n")
        stdin.flush()

    def _answer(self, bound_s: float) -> dict[str, Any]:
        end, stdout = time.monotonic() + bound_s, self._process.stdout
        if stdout is None:
            raise PhaseError("the traffic process has no output")
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([stdout], [], [], left)[0]:
                raise PhaseError(f"the traffic process did not answer within {bound_s:g} s")
            data = os.read(stdout.fileno(), 1 << 20)
            if not data:
                raise PhaseError("the traffic process ended unexpectedly")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PhaseError(f"traffic process: {answer['error']}")
        return answer

    def start(self, sets: Sequence[FlowSet], sniff: Iterable[str] = (), sniff_hosts: Iterable[Endpoint] = ()) -> None:
        hosts = [{"pid": h.pid, "interface": h.interface, "ip": h.ip4, "ip6": h.ip6} for h in sniff_hosts]
        wanted = [{"rate": s.rate, "count": s.count, "flows": [flow.spec() for flow in s.flows]} for s in sets]
        self._send({"do": "start", "sets": wanted, "sniff": list(sniff), "sniff_hosts": hosts})
        self._answer(10)

    def mark(self, name: str) -> Mark:
        """Later sightings count under `name`."""
        self._send({"do": "mark", "name": name})
        answer = self._answer(5)
        return Mark(answer["at"], answer["sent"])

    def stop(self) -> RunResult:
        self._send({"do": "quiet"})
        self._answer(5)
        time.sleep(IN_FLIGHT_S)
        self._send({"do": "stop"})
        answer = self._answer(30)
        return RunResult(
            [FlowResult(**flow) for flow in answer["flows"]],
            {window: [(i, d, f, c) for i, d, f, c in rows] for window, rows in answer["seen"].items()},
            answer["unasked"],
            answer["samples"],
        )

    def run(self, sets: Sequence[FlowSet], duration_s: float, sniff: Iterable[str] = ()) -> RunResult:
        self.start(sets, sniff)
        time.sleep(duration_s)
        return self.stop()

    def begin_ping(self, hosts: Sequence[Endpoint], timeout_s: float, every_s: float = 0.2) -> None:
        listed = [{"name": host.name, "pid": host.pid, "ip": host.ip} for host in hosts]
        self._send({"do": "ping", "hosts": listed, "timeout_s": timeout_s, "every_s": every_s})

    def end_ping(self, bound_s: float) -> dict[str, Any]:
        """{"pairs", "answered", "missing": [[a, b]], "requests", "last_at"}"""
        return self._answer(bound_s)

    def ping_all(self, hosts: Sequence[Endpoint], timeout_s: float, every_s: float = 0.2) -> dict[str, Any]:
        self.begin_ping(hosts, timeout_s, every_s)
        return self.end_ping(timeout_s + 5)

    def reset(self) -> None:
        """After a row that failed half-way: a fresh process, nothing of the old run left in a pipe."""
        self.close()
        self.__init__()  # type: ignore[misc]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=5)
        if self._process.stdout:
            self._process.stdout.close()
