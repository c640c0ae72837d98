"""A few seconds of fuzzing in every test run; ``python -m tests.fuzz.run`` does as much as one likes."""

from __future__ import annotations

import os

import pytest

from tests.fuzz.run import attempt, fuzz
from tests.fuzz.targets import TARGETS

SECONDS = float(os.environ.get("AIFABRIC_FUZZ_SECONDS", "5"))
SEED = int(os.environ.get("AIFABRIC_FUZZ_SEED", "1"))


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_itself(name: str) -> None:
    target, corpus = TARGETS[name]
    assert [f for raw in corpus if (f := attempt(name, target, raw)) is not None] == []


def test_mutations() -> None:
    runs, failure = fuzz(SECONDS, SEED, list(TARGETS))
    assert failure is None, f"{failure.target}: {failure.error}\ninput: {failure.raw.hex()}"
    assert set(runs) == set(TARGETS)


def test_a_failing_target_is_noticed() -> None:
    def broken(raw: bytes) -> None:
        raise IndexError("out of range")

    failure = attempt("broken", broken, b"")
    assert failure is not None
    assert "IndexError" in failure.error
