"""Rows of the report: the table people read and the JSON that programs read. Judges only by what a row was given."""

import json
import math
import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

COLUMNS = (("phase", 44), ("sent", 8), ("lost", 6), ("gap ms", 7), ("target", 32), ("measured", 38), ("verdict", 7))


@dataclass
class Row:
    """One line. `passed` None: a figure that is only reported, or (with `error`) a row that could not be measured."""

    phase: str
    title: str
    target: str
    measured: str
    passed: bool | None
    sent: int | None = None
    lost: int | None = None
    gap_ms: float | None = None
    details: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def verdict(self) -> str:
        if self.error:
            return "NOT RUN"
        return "-" if self.passed is None else "ok" if self.passed else "FAIL"


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else math.nan


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: always a value that was measured."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else math.nan


def table(rows: Sequence[Row]) -> str:
    lines = ["  ".join(name.ljust(width) for name, width in COLUMNS), "  ".join("-" * width for _name, width in COLUMNS)]
    for row in rows:
        gap = "" if row.gap_ms is None else f"{row.gap_ms:.0f}"
        cells = [row.title, _number(row.sent), _number(row.lost), gap, row.target, row.error or row.measured, row.verdict]
        wrapped = [textwrap.wrap(cell, width) or [""] for cell, (_name, width) in zip(cells, COLUMNS, strict=True)]
        for i in range(max(map(len, wrapped))):
            parts = [
                (cell[i] if i < len(cell) else "").ljust(width) for cell, (_name, width) in zip(wrapped, COLUMNS, strict=True)
            ]
            lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def write_json(path: Path, rows: Sequence[Row], about: dict[str, Any]) -> None:
    document = {"about": about, "rows": [asdict(row) | {"verdict": row.verdict} for row in rows]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
