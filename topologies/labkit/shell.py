"""Runs commands with a time limit. Knows nothing of the fabric."""

import subprocess
import time
from collections.abc import Callable, Sequence

from labkit.errors import LabError


def run(command: Sequence[str], timeout_s: float = 20, check: bool = True) -> str:
    """Standard output of the command. Raises LabError when it fails, is missing or takes too long."""
    try:
        done = subprocess.run(list(command), capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise LabError(f"{command[0]} is not installed: run `make setup` as root") from None
    except subprocess.TimeoutExpired:
        raise LabError(f"`{' '.join(command)}` did not end within {timeout_s:g} s") from None
    if check and done.returncode:
        raise LabError(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def wait_until(condition: Callable[[], bool], bound_s: float, step_s: float = 0.05) -> bool:
    """Polls until the condition holds; False when the bound passes first."""
    end = time.monotonic() + bound_s
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(step_s)
    return True
