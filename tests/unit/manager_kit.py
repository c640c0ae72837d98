"""Start our ``ryu-manager`` as its own process on loopback, and end it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(state: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("AIFABRIC_")}
    quiet = {"AIFABRIC_STATE_DIR": str(state), "AIFABRIC_API": f"127.0.0.1:{free_port()}", "AIFABRIC_OVSDB": "off"}
    return {**kept, "PYTHONPATH": str(ROOT), **quiet, **more}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "aifabric_ctrl.manager", *arguments]


def run(arguments: Sequence[str], env: dict[str, str], cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run to its own end."""
    return subprocess.run(command(*arguments), env=env, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def running(
    arguments: Sequence[str], env: dict[str, str], port: int, log: Path, cwd: Path = ROOT
) -> Iterator[subprocess.Popen[bytes]]:
    """A manager that listens on ``port``; ended by SIGKILL if the test left it running."""
    with log.open("wb") as out:
        process = subprocess.Popen(command(*arguments), env=env, cwd=cwd, stdout=out, stderr=out)
    try:
        limit = time.monotonic() + PATIENCE_S
        while not listens(port):
            if process.poll() is not None or time.monotonic() > limit:
                raise AssertionError(f"not listening on {port}: {log.read_text()}")
            time.sleep(0.05)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE_S)


def stop(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> int:
    process.send_signal(number)
    return process.wait(PATIENCE_S)
