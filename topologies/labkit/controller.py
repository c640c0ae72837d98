"""The controller as a process of its own, and its REST interface. Believes nothing: every wait has a bound."""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from labkit.errors import LabError, PhaseError
from labkit.shell import wait_until

HTTP_TIMEOUT_S = 5
START_BOUND_S = 20
PR_SET_PDEATHSIG = 1
LOG_TAIL_LINES = 25


def free_port(wanted: int) -> int:
    """`wanted` when nobody listens there, else one the kernel picks."""
    for port in (wanted, 0):
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("0.0.0.0", port))
            return int(sock.getsockname()[1])
    raise LabError("no free TCP port")


def tail(log: Path) -> str:
    """The end of a log, indented."""
    try:
        return "\n".join("  | " + line for line in log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
    except OSError:
        return "  (no log)"


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Controller:
    """`ryu-manager aifabric_ctrl` with its own store, log and ports."""

    def __init__(self, manager: Path, state_dir: Path, openflow_port: int, api_port: int) -> None:
        self.manager, self.state_dir = manager, state_dir
        self.openflow_port, self.api = openflow_port, f"127.0.0.1:{api_port}"
        self.log = state_dir / "controller.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Starts it and waits until it listens. Returns the seconds that took."""
        if not self.manager.exists():
            raise LabError(f"{self.manager} is missing: run `make setup`")
        self.state_dir.mkdir(parents=True, exist_ok=True)
        environment = dict(os.environ, AIFABRIC_STATE_DIR=str(self.state_dir), AIFABRIC_API=self.api)
        command = [str(self.manager), "--ofp-tcp-listen-port", str(self.openflow_port), "aifabric_ctrl"]
        begin = time.monotonic()
        with self.log.open("ab" if self.process else "wb") as log:  # a restart in the same session appends
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        if not wait_until(lambda: self._listens() or not self.alive(), START_BOUND_S) or not self.alive():
            what = "did not listen in time" if self.alive() else f"ended with code {self.process.poll()}"
            raise LabError(f"`{' '.join(command)}` {what}; its log ({self.log}) ends:\n{tail(self.log)}")
        return time.monotonic() - begin

    def _listens(self) -> bool:
        wanted = f":{self.openflow_port:04X}"
        lines = [line for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
        return any(fields[1].endswith(wanted) and fields[3] == "0A" for fields in map(str.split, lines))

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        if self.process is not None and self.alive():
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        """SIGKILL, as a crash or the kernel's memory killer would; helpers it started go by themselves."""
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait(timeout=10)

    def stop(self) -> None:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        if self.process is not None:
            try:
                self.process.wait(timeout=8)
            except subprocess.TimeoutExpired:
                self.kill()
        self._end_session()

    def _end_session(self) -> None:
        """Helper processes of the controller share its session; the lab leaves none of them."""
        if self.process is None:
            return
        session = self.process.pid
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, IndexError):
                if int(Path(entry, "stat").read_text().rsplit(")", 1)[1].split()[3]) == session:
                    os.kill(int(entry.name), signal.SIGKILL)

    def get(self, path: str, timeout_s: float = HTTP_TIMEOUT_S) -> Any:
        """Decoded JSON of GET /api/v1/PATH. Raises PhaseError when there is no good answer."""
        try:
            with urllib.request.urlopen(f"http://{self.api}/api/v1/{path}", timeout=timeout_s) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise PhaseError(f"GET /api/v1/{path}: {error.code} {error.read(300).decode(errors='replace')}") from None
        except (OSError, ValueError) as error:
            raise PhaseError(f"GET /api/v1/{path}: {error}") from None

    def wait_ready(self, switches: int, bound_s: float) -> float:
        """Waits until health says ready with all switches in sync. Returns the seconds that took."""
        begin, last = time.monotonic(), "no answer yet"

        def ready() -> bool:
            nonlocal last
            try:
                health = self.get("health")
            except PhaseError as error:
                last = str(error)
                return False
            counts = health.get("switches", {})
            last = f"{counts}, ready {health.get('ready')}, reasons {health.get('reasons')}"
            return bool(health.get("ready")) and counts.get("connected") == switches and counts.get("in_sync") == switches

        if not wait_until(ready, bound_s, 0.1):
            state = "" if self.alive() else " (the controller has ended)"
            raise PhaseError(f"controller not ready after {bound_s:g} s{state}: {last}")
        return time.monotonic() - begin

    def links_not_up(self, wanted: int, bfd: bool) -> list[str]:
        """What keeps the fabric from having `wanted` links up, with BFD running at both ends if asked for."""
        links = self.get("topology").get("links", [])
        wrong = [f"{_ends(link)} {link.get('state')}" for link in links if link.get("state") != "up"]
        if bfd:
            wrong += [
                f"{_ends(link)} bfd {link.get('bfd')}"
                for link in links
                if link.get("state") == "up" and any(str(link.get("bfd", {}).get(end, "")).lower() != "up" for end in "ab")
            ]
        return wrong + ([f"{len(links)} of {wanted} links known"] if len(links) < wanted else [])


def _ends(link: dict[str, Any]) -> str:
    return "-".join(str(link.get(end, {}).get("name") or link.get(end)) for end in "ab")
