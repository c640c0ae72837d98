"""docs/operating.md explains every kind of event that the code can write."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import aifabric_ctrl

PACKAGE = Path(aifabric_ctrl.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "operating.md").read_text()
WRITERS = {"note", "note_quietly", "_note", "Journal", "OddFrame", "_odd", "Refusal", "SessionDead"}
SEVERITIES = {"info", "warning", "alarm"}


def written() -> dict[str, set[str]]:
    """Event kinds by severity ("" where the call does not say): constant words among the arguments of calls that write one."""
    found: dict[str, set[str]] = {}
    for directory in ("engine", "southbound", "store", "."):
        names = WRITERS - {"_note"} if directory == "southbound" else WRITERS  # there it keeps account of messages sent
        for file in sorted((PACKAGE / directory).glob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in names:
                    words = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
                    severity = next((w for w in words if w in SEVERITIES), "")
                    kinds = {w for w in words if re.fullmatch(r"[a-z]+(_[a-z]+)*", w)} - SEVERITIES
                    found.setdefault(severity, set()).update(kinds)
    return found


def test_every_kind_is_explained() -> None:
    kinds = written()
    assert {"duplicate_dpid", "link_quarantined"} <= kinds["alarm"]  # the search finds what it should
    assert {"version_mismatch", "echo_timeout"} <= kinds[""]
    missing = sorted(k for names in kinds.values() for k in names if f"`{k}`" not in PAGE)
    assert missing == []


def test_every_alarm_stands_among_the_alarms() -> None:
    alarms = PAGE.partition("### Alarms")[2].partition("### Warnings")[0]
    assert sorted(k for k in written()["alarm"] if f"| `{k}` |" not in alarms) == []
