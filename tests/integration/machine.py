"""What the integration tests do to the machine outside the lab: an `mn` session, and a look at what was left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

READY_BOUND_S = 60
PROBER = Path(__file__).resolve().parents[2] / "topologies" / "labkit" / "prober.py"
TOPOLOGY = "leafspine,4,2,2"
BRIDGES = re.compile(r"^[ls]\d+$")
INTERFACES = re.compile(r"^[ls]\d+(-eth\d+)?(@.*)?$")


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


def leftovers(directory: Path) -> list[str]:
    """Bridges, interfaces and hosts that only a lab or an `mn` session makes, and processes whose store is under `directory`."""
    found = [f"bridge {name}" for name in output("ovs-vsctl", "list-br").split() if BRIDGES.match(name)]
    links = [line.split(":")[1].strip() for line in output("ip", "-o", "link").splitlines()]
    found += [f"interface {name}" for name in links if INTERFACES.match(name)]
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_text(errors="replace").replace("\0", " ").strip()
            mine = f"AIFABRIC_STATE_DIR={directory}" in (entry / "environ").read_text(errors="replace")
            if mine or "mininet:" in words or str(PROBER) in words:
                found.append(f"process {entry.name} {words}")
    return found


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class MnSession:
    """`mn --custom topologies/leaf_spine.py` with its prompt on a pipe, beside a controller of its own."""

    def __init__(self, manager: Path, root: Path, directory: Path) -> None:
        self.manager, self.root, self.directory = manager, root, directory
        self.openflow_port, self.api = free_port(), f"127.0.0.1:{free_port()}"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        environment = dict(os.environ, AIFABRIC_STATE_DIR=str(self.directory / "state"), AIFABRIC_API=self.api)
        command = [str(self.manager), "--ofp-tcp-listen-port", str(self.openflow_port), "aifabric_ctrl"]
        with (self.directory / "controller.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            )
        self._until(lambda: bool(self.get("health")), "the controller answers", 20)
        mininet = ["mn", "--custom", str(self.root / "topologies" / "leaf_spine.py"), "--topo", TOPOLOGY,
                   "--controller", f"remote,ip=127.0.0.1,port={self.openflow_port}",
                   "--switch", "ovs,datapath=user,protocols=OpenFlow13"]  # fmt: skip
        plain = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": os.environ.get("HOME", "/"), "TERM": "dumb"}
        self._processes.append(
            subprocess.Popen(
                mininet, env=plain, cwd=self.directory, start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
        )  # fmt: skip
        self._until(
            lambda: self.get("health")["switches"]["connected"] == 6 and self.get("health")["ready"], "ready", READY_BOUND_S
        )

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.api}/api/v1/{path}", timeout=5) as answer:
            return json.load(answer)

    def _until(self, condition: Any, what: str, bound_s: float) -> None:
        end, last = time.monotonic() + bound_s, ""
        while time.monotonic() < end:
            try:
                if condition():
                    return
            except (OSError, ValueError, KeyError) as error:
                last = f" ({error})"
            for process in self._processes:
                if process.poll() is not None:
                    raise AssertionError(f"{process.args} ended with {process.returncode}: {self.log()}")
            time.sleep(0.1)
        raise AssertionError(f"not {what} within {bound_s:g} s{last}: {self.log()}")

    def log(self) -> str:
        return (self.directory / "controller.log").read_text(errors="replace")[-2000:]

    def say(self, command: str, until: str, bound_s: float) -> str:
        """Types a command at the prompt; what it printed, up to a line that matches `until`."""
        stdin, stdout = self._processes[1].stdin, self._processes[1].stdout
        assert stdin is not None and stdout is not None
        stdin.write(command.encode() + b"\n")
        stdin.flush()
        text, end = "", time.monotonic() + bound_s
        while not re.search(until, text):
            left = end - time.monotonic()
            assert left > 0 and select.select([stdout], [], [], left)[0], (
                f"no {until!r} within {bound_s:g} s after {command!r}: {text}"
            )
            data = os.read(stdout.fileno(), 65536)
            assert data, f"mn ended after {command!r}: {text}"
            text += data.decode(errors="replace")
        return text

    def close(self) -> None:
        for process, polite in zip(reversed(self._processes), (b"exit\n", None), strict=False):
            with contextlib.suppress(OSError):
                if polite and process.stdin:
                    process.stdin.write(polite)
                    process.stdin.close()
                else:
                    process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(timeout=10)
        for name in output("ovs-vsctl", "list-br").split():
            if BRIDGES.match(name):  # only after an mn that had to be killed
                subprocess.run(["ovs-vsctl", "--if-exists", "del-br", name], check=False, timeout=30)
        for line in output("ip", "-o", "link").splitlines():
            if found := re.match(r"\d+: ([ls]\d+-eth\d+)@", line):
                subprocess.run(["ip", "link", "del", found[1]], check=False, timeout=30, capture_output=True)
