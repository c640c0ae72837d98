"""Bounded mutation fuzzing of everything that reads bytes from a switch or a host.

``python -m tests.fuzz.run --seconds 60 [--seed N] [--target NAME]``: exits 1 and prints the input, as hex, that raised
something undocumented or ran too long.  ``--replay HEX`` gives one input to every target.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass

from tests.fuzz.targets import TARGETS, Target
from tests.wire.bound import HANG_S, Hang, bounded

INTERESTING = (0, 1, 2, 3, 4, 6, 7, 8, 9, 12, 15, 16, 24, 32, 40, 56, 64, 0x7F, 0x80, 0xFE, 0xFF)
BATCH = 200  # inputs between two looks at the clock


@dataclass(frozen=True)
class Failure:
    target: str
    raw: bytes
    error: str


def mutate(rng: random.Random, corpus: tuple[bytes, ...]) -> bytes:
    """One to six small faults in a known message; most keep the header's length true, or little would get past it."""
    raw = bytearray(rng.choice(corpus))
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(raw)) if raw else 0
        fault = rng.randrange(7)
        if fault == 0:
            raw[at : at + 1] = bytes([rng.choice(INTERESTING)])
        elif fault == 1:
            raw[at : at + 1] = bytes([rng.randrange(256)])
        elif fault == 2:
            raw[at : at + 2] = rng.choice(INTERESTING).to_bytes(2, "big")
        elif fault == 3:
            del raw[at : at + rng.choice((1, 2, 4, 8, 16))]
        elif fault == 4:
            raw[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, 16)))
        elif fault == 5:
            raw[at:at] = raw[at : at + rng.choice((4, 8, 16, 64))]
        else:
            other = rng.choice(corpus)
            raw[at:] = other[min(at, len(other)) :]
    if len(raw) >= 8 and rng.random() < 0.9:
        raw[2:4] = min(len(raw), 0xFFFF).to_bytes(2, "big")
    return bytes(raw)


def attempt(name: str, target: Target, raw: bytes) -> Failure | None:
    try:
        with bounded(HANG_S):
            target(raw)
    except Hang as hang:
        return Failure(name, raw, str(hang))
    except Exception:  # noqa: BLE001  the very thing that is looked for
        return Failure(name, raw, traceback.format_exc())
    return None


def fuzz(seconds: float, seed: int, names: list[str]) -> tuple[Counter[str], Failure | None]:
    """Run until the time is up or something fails; how many inputs each target took."""
    rng, runs, end = random.Random(seed), Counter[str](), time.monotonic() + seconds
    while time.monotonic() < end:
        for name in names:
            target, corpus = TARGETS[name]
            for _ in range(BATCH if name != "session" else BATCH // 10):
                runs[name] += 1
                failure = attempt(name, target, mutate(rng, corpus))
                if failure is not None:
                    return runs, failure
    return runs, None


def main() -> int:
    parser = argparse.ArgumentParser(description="fuzz everything that reads bytes from the network")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="default: the time, printed")
    parser.add_argument("--target", choices=sorted(TARGETS), action="append")
    parser.add_argument("--replay", metavar="HEX")
    options = parser.parse_args()
    names = options.target or list(TARGETS)
    if options.replay is not None:
        raw = bytes.fromhex(options.replay)
        failures = [f for name in names if (f := attempt(name, TARGETS[name][0], raw)) is not None]
        for failure in failures:
            print(f"{failure.target}: {failure.error}")
        return 1 if failures else 0
    seed = time.time_ns() & 0xFFFFFFFF if options.seed is None else options.seed
    print(f"fuzzing {', '.join(names)} for {options.seconds:g} s, seed {seed}", flush=True)
    runs, failed = fuzz(options.seconds, seed, names)
    print(", ".join(f"{name} {count}" for name, count in runs.items()))
    if failed is None:
        return 0
    print(f"FAILED: {failed.target}\n{failed.error}\ninput: {failed.raw.hex()}")
    print(f"again: python -m tests.fuzz.run --target {failed.target} --replay {failed.raw.hex()}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
