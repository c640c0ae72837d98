"""What may import what, and how long things may get: DESIGN 1 and 6, checked on the syntax tree."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "aifabric_ctrl"
FILES = sorted(PACKAGE.rglob("*.py"))

CORE = ("model", "compile", "plan", "engine", "verify")
# Everything that would make the core depend on when, where or under what it runs.
IMPURE = {
    *("time", "datetime", "random", "secrets", "uuid", "socket", "ssl", "select", "selectors", "asyncio", "threading"),
    *("subprocess", "multiprocessing", "os", "pathlib", "sqlite3", "logging", "signal", "http", "urllib"),
    *("yaml", "ruamel", "ryu", "os_ken", "eventlet", "oslo_config", "ovs", "ovsdbapp", "werkzeug", "click", "rich", "pydantic"),
}
FRAMEWORKS = {"ryu", "os_ken", "oslo_config"}
# Package -> packages of ours it may import.  Arrows point one way: shells -> engine -> plan, compile, verify -> model.
MAY_IMPORT = {
    "model": set(),
    "compile": {"model"},
    "plan": {"model", "compile"},
    "verify": {"model", "compile"},
    "engine": {"model", "compile", "plan", "verify"},
    "southbound": {*CORE, "settings", "framework"},
    "northbound": {*CORE, "settings", "store", "yamlfile"},
    "store": {*CORE},
    "settings": {*CORE, "yamlfile"},
    "sim": {*CORE, "southbound"},
}
MAX_FILE, MAX_FUNCTION = 500, 60


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every import, also inside functions; imports for type checkers only count as well."""
    package = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level]) + "." if node.level else ""
            for alias in node.names:  # "from aifabric_ctrl import framework" imports a module as well
                yield node.lineno, f"{base}{node.module or ''}.{alias.name}"


def part(path: Path) -> str:
    """The package of ours a file is in, or its own name at the top."""
    inner = path.relative_to(PACKAGE).parts
    return inner[0] if len(inner) > 1 else path.stem


def ours(module: str) -> str | None:
    """``aifabric_ctrl.compile.tables.X`` -> ``compile``."""
    names = module.split(".")
    if names[0] != "aifabric_ctrl" or len(names) < 2:
        return None
    known = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or p.is_dir()}
    return names[1] if names[1] in known else None


@pytest.mark.parametrize("path", [p for p in FILES if part(p) in CORE], ids=lambda p: str(p.relative_to(PACKAGE)))
def test_core_imports_no_clock_socket_or_framework(path: Path) -> None:
    found = [f"{path}:{line} imports {name}" for line, name in imports(path) if name.split(".")[0] in IMPURE]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", [p for p in FILES if part(p) in MAY_IMPORT], ids=lambda p: str(p.relative_to(PACKAGE)))
def test_arrows_point_one_way(path: Path) -> None:
    allowed = {part(path), *MAY_IMPORT[part(path)]}
    found = []
    for line, name in imports(path):
        target = ours(name)
        if target is not None and target not in allowed:
            found.append(f"{path}:{line} imports {name}; {part(path)} may import {sorted(allowed)}")
    assert not found, "\n".join(found)


def test_only_the_framework_module_names_a_framework() -> None:
    found = []
    for path in FILES:
        if path == PACKAGE / "framework.py":
            continue
        found += [f"{path}:{line} imports {name}" for line, name in imports(path) if name.split(".")[0] in FRAMEWORKS]
    assert not found, "\n".join(found)


def test_no_assert_for_validation_and_no_blanket_except() -> None:
    found = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assert):
                found.append(f"{path}:{node.lineno} assert")
            elif isinstance(node, ast.ExceptHandler) and (node.type is None or getattr(node.type, "id", "") == "Exception"):
                found.append(f"{path}:{node.lineno} catches everything")
    assert not found, "\n".join(found)


def test_files_and_functions_stay_short() -> None:
    found = []
    for path in FILES:
        text = path.read_text()
        if (lines := text.count("\n")) > MAX_FILE:
            found.append(f"{path}: {lines} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None:
                length = node.end_lineno - node.lineno + 1
                if length > MAX_FUNCTION:
                    found.append(f"{path}:{node.lineno} {node.name} has {length} lines")
    assert not found, "\n".join(found)


def test_every_module_says_what_it_is_for() -> None:
    missing = [str(p) for p in FILES if p.read_text().strip() and not ast.get_docstring(ast.parse(p.read_text()))]
    assert not missing, "\n".join(missing)


def test_importing_the_package_starts_no_framework() -> None:
    """A library user, the CLI and the tests of the core must not pull eventlet in."""
    modules = [
        ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for p in FILES
        if part(p) in (*CORE, "__init__", "sim", "store", "settings", "yamlfile")
        or "wire" in p.parts
        or p.stem in ("session", "cli")
    ]
    program = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "import aifabric_ctrl\n"
        "print(dir(aifabric_ctrl).count('AIFabric'), aifabric_ctrl.__version__)\n"
        "bad = sorted({m.split('.')[0] for m in sys.modules} & {'ryu', 'os_ken', 'eventlet', 'oslo_config'})\n"
        "sys.exit(f'imported {bad}' if bad else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "0.1.0"]


def test_the_framework_finds_the_application() -> None:
    """Both ways a framework looks: the list of members, and the class's own module name."""
    program = (
        "import inspect, os\n"
        "os.environ['OSKEN_HUB_TYPE'] = 'eventlet'\n"
        "import aifabric_ctrl.framework as framework\n"
        "import aifabric_ctrl as package\n"
        "found = inspect.getmembers(package, lambda c: inspect.isclass(c) and issubclass(c, framework.App)"
        " and c.__module__ == package.__name__)\n"
        "print([name for name, _ in found])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "['AIFabric']", done.stderr
