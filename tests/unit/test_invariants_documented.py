"""docs/invariants.md names the test that holds each invariant: each of them must exist, and no invariant be forgotten."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "invariants.md").read_text(encoding="utf-8")


def test_every_test_named_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) > 50
    for file, function in named:
        text = (ROOT / file).read_text(encoding="utf-8") if (ROOT / file).exists() else ""
        assert re.search(rf"^\s*(async )?def {function}\(" if function else ".", text, re.MULTILINE), f"{file}::{function}"


def test_every_invariant_is_held_by_a_test_or_says_that_it_is_not() -> None:
    sections = re.split(r"^### (\d+)\. ", PAGE, flags=re.MULTILINE)[1:]
    assert [int(number) for number in sections[::2]] == list(range(1, 15))
    assert all("`tests/" in text or "**open**" in text for text in sections[1::2])
