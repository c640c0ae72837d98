"""Read the settings: defaults, then one YAML file, then the environment; every fault at once.

This is the only place that knows how a setting's text becomes a value.  It opens the settings file and nothing else,
and starts nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from aifabric_ctrl.model.errors import SettingsError
from aifabric_ctrl.model.ids import mac_text
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.settings.kinds import HostPort, Kind
from aifabric_ctrl.settings.table import BY_NAME, INTENT_NAMES, TABLE, Setting
from aifabric_ctrl.yamlfile import Document, Fault, Node, Plain, YamlFault, closest, locate, plain, plain_scalar, read_yaml, show

PREFIX = "AIFABRIC_"
CONFIG_VARIABLE = "AIFABRIC_CONFIG"
OVSDB_SOCKET = Path("/var/run/openvswitch/db.sock")

# Kubernetes puts SERVICE and PORT variables of every service into every pod; a service may well be called "aifabric".
_FOREIGN = re.compile(r"AIFABRIC_(SERVICE_(HOST|PORT)|PORT(_|$)|LAB_|TEST_|TOKEN$)")
_SWITCH_WORDS = {"on": True, "yes": True, "off": False, "no": False}


class BadSettings(SettingsError):
    """The settings cannot be used.  ``faults`` has one entry each; as text, one line each."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = faults


@dataclass(frozen=True)
class Settings:
    """Everything that can be set, checked.  ``sources`` maps each name to "default", "environment NAME" or "FILE:LINE"."""

    intent: Intent
    state_dir: Path
    api: HostPort
    api_token_file: Path | None
    api_enabled: bool
    api_waiters: int
    ovsdb: str | tuple[str, ...]
    log_level: str
    handshake_timeout_s: float
    echo_interval_s: float
    echo_lost: int
    sources: Mapping[str, str]

    def ovsdb_remotes(self, socket: Path = OVSDB_SOCKET) -> tuple[str, ...]:
        """The OVSDB servers to use; "auto" is resolved now, by whether ``socket`` exists."""
        if self.ovsdb == "auto":
            return (f"unix:{socket}",) if socket.exists() else ()
        return () if isinstance(self.ovsdb, str) else self.ovsdb

    def value(self, name: str) -> object:
        """The value of one setting by its name in the table."""
        return getattr(self.intent if name in INTENT_NAMES else self, name)


def load_settings(environ: Mapping[str, str]) -> Settings:
    """Read settings as the process environment ``environ`` says.

    Raises:
        BadSettings: (a SettingsError) with every fault found.
    """
    faults: list[Fault] = []
    values: dict[str, object] = {row.name: row.default for row in TABLE}
    values["state_dir"] = default_state_dir(environ)
    sources = {row.name: "default" for row in TABLE}
    places = dict(sources)
    config = environ.get(CONFIG_VARIABLE, "")
    if config:
        try:
            _use_file(read_yaml(config), values, sources, places, faults)
        except YamlFault as error:
            fault = error.fault
            missing_name = fault.where == config  # the file as a whole: say where its name came from
            faults.append(fault._replace(do=f"{fault.do} (named by {CONFIG_VARIABLE})") if missing_name else fault)
    _use_environment(environ, values, sources, places, faults)
    _check_together(values, places, faults)
    if faults:
        raise BadSettings(tuple(faults))
    intent = Intent(**{name: _as_tuple(values.pop(name)) for name in INTENT_NAMES})  # type: ignore[arg-type]
    return Settings(intent=intent, sources=sources, **values)  # type: ignore[arg-type]


def default_state_dir(environ: Mapping[str, str]) -> Path | None:
    """/var/lib/aifabric for root; else by the XDG base directory specification, which ignores relative names.

    None when neither says where: a guess below /tmp would be anybody's to fill.
    """
    if os.geteuid() == 0:
        return Path("/var/lib/aifabric")
    xdg = environ.get("XDG_STATE_HOME", "")
    if xdg.startswith("/"):
        return Path(xdg) / "aifabric"
    home = environ.get("HOME", "")
    return Path(home) / ".local/state/aifabric" if home.startswith("/") else None


def display(name: str, value: object) -> object:
    """A setting's value for JSON and for people: texts, numbers, booleans, lists of texts or None."""
    if name == "gateway_mac" and isinstance(value, int):
        return mac_text(value)
    if isinstance(value, (tuple, list)) and not isinstance(value, HostPort):
        return [str(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def _use_file(
    document: Document, values: dict[str, object], sources: dict[str, str], places: dict[str, str], faults: list[Fault]
) -> None:
    faults.extend(document.faults)
    root = document.root
    if root is None or root.value is None:
        return
    if not isinstance(root.value, dict):
        what = "a list" if isinstance(root.value, list) else f"{show(root.value)}"
        faults.append(Fault(document.where(root.at), f"the file holds {what}, not settings", "write lines like 'bfd: true'"))
        return
    base = Path(document.name).absolute().parent
    for name, node in root.value.items():
        at = root.keys[name]
        row = BY_NAME.get(name)
        if row is None:
            faults.append(Fault(document.where(at), f"unknown setting {show(name)}", _suggest(name, BY_NAME)))
            continue
        if node.value is None and row.default is not None:
            faults.append(Fault(document.where(at), f"{name} has no value", f"write {row.kind.words}, or remove the line"))
            continue
        sources[name] = f"{document.name}:{at.line}"
        places[name] = document.where(node.at)
        if node.value is None:
            continue
        found = _check(row, plain(node), document.name, node, faults)
        values[name] = base / found if isinstance(found, Path) else found


def _use_environment(
    environ: Mapping[str, str], values: dict[str, object], sources: dict[str, str], places: dict[str, str], faults: list[Fault]
) -> None:
    variables = {row.variable: row for row in TABLE}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable == CONFIG_VARIABLE or _FOREIGN.match(variable):
            continue
        row = variables.get(variable)
        text = environ[variable].strip()
        if row is None:
            faults.append(
                Fault("environment", f"unknown variable {show(variable)}", _suggest(variable, [*variables, CONFIG_VARIABLE]))
            )
        elif text:  # set but empty is how compose files say "not set"
            places[row.name] = sources[row.name] = f"environment {variable}"
            found = _check(row, _from_text(row.kind, text), sources[row.name], None, faults)
            values[row.name] = Path.cwd() / found if isinstance(found, Path) else found


def _from_text(kind: Kind, text: str) -> Plain:
    """The plain value that a variable's text stands for."""
    if kind.text or (kind.many and text in ("auto", "off")):
        return text
    if kind.many:
        return [] if text == "none" else [part.strip() for part in text.split(",")]
    if kind.switch and text.lower() in _SWITCH_WORDS:
        return _SWITCH_WORDS[text.lower()]
    return plain_scalar(text)


def _check(row: Setting, value: Plain, name: str, node: Node | None, faults: list[Fault]) -> Any:
    """The checked value, or the default after adding a fault for each thing wrong with ``value``."""
    try:
        return row.kind.adapter.validate_python(value)
    except ValidationError as error:
        for detail in error.errors(include_url=False)[:10]:
            at = locate(node, detail["loc"]) if node is not None else None
            where = f"{name}:{at.line}:{at.column}" if at else name
            context = detail.get("ctx", {})
            if detail["type"] == "refused":
                faults.append(Fault(where, f"{row.name}: {context['what']}", str(context["do"])))
            else:
                default = "" if row.default in (None, ()) else f" (default {display_text(row.name, row.default)})"
                faults.append(Fault(where, f"{row.name} is {show(value)}", f"write {row.kind.words}{default}"))
        return row.default


def display_text(name: str, value: object) -> str:
    """A setting's value as one line of text."""
    shown = display(name, value)
    if isinstance(shown, list):
        return ", ".join(shown) or "none"
    if shown is None:
        return "none"
    return str(shown).lower() if isinstance(shown, bool) else str(shown)


def _check_together(values: dict[str, object], places: dict[str, str], faults: list[Fault]) -> None:
    """Faults that only show in two settings at once; checked even after others, on what could be read."""
    if values["state_dir"] is None and places["state_dir"] == "default":
        faults.append(Fault("environment", "state_dir has no default, because HOME is not set", "set AIFABRIC_STATE_DIR"))
    short, long = values["hold_down_s"], values["hold_down_max_s"]
    if isinstance(short, (int, float)) and isinstance(long, (int, float)) and short > long:
        name = "hold_down_s" if places["hold_down_s"] != "default" else "hold_down_max_s"
        faults.append(
            Fault(
                places[name],
                f"hold_down_s ({short:g} s) is above hold_down_max_s ({long:g} s)",
                "raise the one or lower the other",
            )
        )
    prefixes: Any = values["prefixes"]
    gateways: Any = values["gateways"]
    for gateway in gateways or ():
        if prefixes and isinstance(gateway, (IPv4Address, IPv6Address)) and not any(gateway in p for p in prefixes):
            faults.append(
                Fault(places["gateways"], f"gateway {gateway} is in none of the prefixes", "add its prefix, or correct it")
            )
    for name in ("gateways", "prefixes"):
        items: Any = values[name] or ()
        repeated = sorted({str(item) for item in items if list(items).count(item) > 1})
        faults.extend(Fault(places[name], f"{name} has {item} twice", "remove one of the two") for item in repeated)


def _suggest(name: str, known: Any) -> str:
    near = closest(name if not name.startswith(PREFIX) else name.upper(), known)
    return f"did you mean {near}?" if near else "see 'aifabric settings' for all names"


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
