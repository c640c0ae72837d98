"""Settings: defaults, file, environment, and every fault with its message."""

from __future__ import annotations

import dataclasses
import os
import re
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aifabric_ctrl.model.errors import SettingsError
from aifabric_ctrl.model.intent import Intent
from aifabric_ctrl.settings import TABLE, BadSettings, Settings, display, load_settings
from aifabric_ctrl.settings import load as load_module
from aifabric_ctrl.settings.__main__ import page
from aifabric_ctrl.settings.table import BY_NAME, INTENT_NAMES

HOME = {"HOME": "/home/op"}


def from_text(tmp_path: Path, text: str, **environ: str) -> Settings:
    file = tmp_path / "f.yaml"
    file.write_text(text)
    return load_settings({**HOME, "AIFABRIC_CONFIG": str(file), **environ})


def faults(tmp_path: Path, text: str, **environ: str) -> list[str]:
    """The messages, with the directory taken off the file's name."""
    with pytest.raises(BadSettings) as caught:
        from_text(tmp_path, text, **environ)
    return str(caught.value).replace(f"{tmp_path}/", "").splitlines()


def test_no_settings_at_all_work() -> None:
    settings = load_settings(HOME)
    assert settings.intent == Intent()
    assert str(settings.api) == "127.0.0.1:8080"
    assert set(settings.sources) == set(BY_NAME)
    assert set(settings.sources.values()) == {"default"}


def test_the_table_names_every_field_once() -> None:
    names = [row.name for row in TABLE]
    own = {f.name for f in dataclasses.fields(Settings)} - {"intent", "sources"}
    assert len(names) == len(set(names))
    assert set(names) == own | {f.name for f in dataclasses.fields(Intent)}
    assert all(row.reason and row.used for row in TABLE)
    assert all(row.unit for row in TABLE if row.name.endswith(("_s", "_ms", "_pps")))


@pytest.mark.parametrize("row", [r for r in TABLE if r.default is not None], ids=lambda r: r.name)
def test_every_default_is_one_the_file_may_say(tmp_path: Path, row) -> None:  # type: ignore[no-untyped-def]
    value = display(row.name, row.default)
    text = {True: "true", False: "false"}.get(value, value) if isinstance(value, bool) else value
    settings = from_text(tmp_path, f"{row.name}: {text}\n")
    assert settings.value(row.name) == row.default
    assert settings.sources[row.name].endswith("f.yaml:1")


def test_environment_wins_over_the_file_and_sources_say_so(tmp_path: Path) -> None:
    text = "# comment\nprobes_lost: 5\nbfd: true\nhost_age_s: 60\n"
    environ = {"AIFABRIC_BFD": "off", "AIFABRIC_GATEWAYS": "10.0.1.254,10.0.2.254", "AIFABRIC_PROBES_LOST": ""}
    settings = from_text(tmp_path, text, **environ)
    assert settings.intent.bfd is False
    assert settings.intent.probes_lost == 5  # an empty variable is no setting
    assert settings.intent.host_age_s == 60.0
    assert settings.intent.gateways == (ip_address("10.0.1.254"), ip_address("10.0.2.254"))
    assert settings.sources["bfd"] == "environment AIFABRIC_BFD"
    assert settings.sources["probes_lost"] == f"{tmp_path}/f.yaml:2"
    assert settings.sources["hold_s"] == "default"


def test_none_in_the_environment_empties_a_list_of_the_file(tmp_path: Path) -> None:
    text = "prefixes: [10.0.0.0/8, 2001:db8::/32]\n"
    assert from_text(tmp_path, text).intent.prefixes == (ip_network("10.0.0.0/8"), ip_network("2001:db8::/32"))
    assert from_text(tmp_path, text, AIFABRIC_PREFIXES="none").intent.prefixes == ()


def test_yaml_1_1_surprises_stay_what_they_look_like(tmp_path: Path) -> None:
    settings = from_text(tmp_path, "gateway_mac: 52:54:00:12:34:56\nstate_dir: no\nlog_level: info\n")
    assert settings.intent.gateway_mac == 0x525400123456
    assert settings.state_dir == tmp_path / "no"


ONE_FAULT = {
    "probes_lost: 0": "f.yaml:1:14: probes_lost is 0; write a whole number from 1 to 20 (default 3)",
    "probes_lost: 3.0": "f.yaml:1:14: probes_lost is 3.0; write a whole number from 1 to 20 (default 3)",
    "probes_lost: '3'": "f.yaml:1:14: probes_lost is '3'; write a whole number from 1 to 20 (default 3)",
    "probes_lost: true": "f.yaml:1:14: probes_lost is true; write a whole number from 1 to 20 (default 3)",
    "probes_lost: [3]": "f.yaml:1:14: probes_lost is [3]; write a whole number from 1 to 20 (default 3)",
    "probes_lost: 12:30": "f.yaml:1:14: probes_lost is '12:30'; write a whole number from 1 to 20 (default 3)",
    "probes_lost: 0100": "f.yaml:1:14: probes_lost is '0100'; write a whole number from 1 to 20 (default 3)",
    "probes_lost:": "f.yaml:1:1: probes_lost has no value; write a whole number from 1 to 20, or remove the line",
    "hold_s: .inf": "f.yaml:1:9: hold_s is '.inf'; write a number from 0.1 to 60 (default 3.0)",
    "hold_s: 1e999": "f.yaml:1:9: hold_s is inf; write a number from 0.1 to 60 (default 3.0)",
    "bfd: off": "f.yaml:1:6: bfd is 'off'; write true or false (default true)",
    "bfd: 1": "f.yaml:1:6: bfd is 1; write true or false (default true)",
    "log_level: loud": "f.yaml:1:12: log_level is 'loud'; write one of debug, info, warning, error (default info)",
    "apii: 3": "f.yaml:1:1: unknown setting 'apii'; did you mean api?",
    "zzz: 3": "f.yaml:1:1: unknown setting 'zzz'; see 'aifabric settings' for all names",
    "gateway_mac: 01:00:5e:00:00:01": (
        "f.yaml:1:14: gateway_mac: MAC address 01:00:5e:00:00:01 is not unicast; make the first byte even, and not all bytes zero"
    ),
    "gateway_mac: 02:fa": (
        "f.yaml:1:14: gateway_mac: MAC address '02:fa' is not six pairs of hex digits; write it like 02:00:00:00:00:01"
    ),
    "gateways: [10.0.1.254, 10.0.2.300]": (
        "f.yaml:1:24: gateways: '10.0.2.300' is not an IP address; write it like 10.0.1.254 or 2001:db8::1"
    ),
    "gateways: [010.0.1.254]": (
        "f.yaml:1:12: gateways: '010.0.1.254' is not an IP address; write it like 10.0.1.254 or 2001:db8::1"
    ),
    "gateways: [10.0.1.254/24]": (
        "f.yaml:1:12: gateways: '10.0.1.254/24' is a prefix, not an address; write the address without its length"
    ),
    "gateways: [224.0.0.5]": (
        "f.yaml:1:12: gateways: 224.0.0.5 cannot be a host's address; use a unicast address that is not link-local or loopback"
    ),
    "gateways: [10.1]": "f.yaml:1:12: gateways: 10.1 is not an IP address; write an IP address",
    "gateways: 10.0.1.254": "f.yaml:1:11: gateways is '10.0.1.254'; write a list of IP addresses",
    "gateways: [10.0.1.1, 10.0.1.1]": "f.yaml:1:11: gateways has 10.0.1.1 twice; remove one of the two",
    "prefixes: [10.0.0.5/8]": "f.yaml:1:12: prefixes: prefix '10.0.0.5/8' has bits set beyond its length; write 10.0.0.0/8",
    "prefixes: [10.0.0.0]": "f.yaml:1:12: prefixes: '10.0.0.0' has no prefix length; write it like 10.0.0.0/8",
    "prefixes: [10.0.0.0/33]": "f.yaml:1:12: prefixes: '10.0.0.0/33' is not a prefix; write it like 10.0.0.0/8 or 2001:db8::/32",
    "prefixes: [10.0.0.0/255.0.0.0]": "f.yaml:1:12: prefixes: '10.0.0.0/255.0.0.0' has a netmask; write it like 10.0.0.0/8",
    "prefixes: [fe80::/10]": (
        "f.yaml:1:12: prefixes: prefix fe80::/10 cannot hold hosts; use unicast addresses that are not link-local or loopback"
    ),
    "api: 0.0.0.0:8080": (
        "f.yaml:1:6: api: 0.0.0.0 is not a loopback address, and the API has neither TLS nor a login yet; "
        "use 127.0.0.1:8080 and reach it from elsewhere through ssh -L"
    ),
    "api: 127.0.0.1": "f.yaml:1:6: api: '127.0.0.1' is not an address with a port; write it like 127.0.0.1:8080",
    "api: 127.0.0.1:99999": "f.yaml:1:6: api: '127.0.0.1:99999' is not an address with a port; write it like 127.0.0.1:8080",
    "ovsdb: [unix:/a, x]": (
        "f.yaml:1:8: ovsdb: 'x' is not an OVSDB remote; write unix:/path/db.sock, tcp:IP:6640 or ssl:IP:6640"
    ),
    'state_dir: "a\\0b"': "f.yaml:1:12: a text holds a character that is not Unicode text; remove the \\u or \\0 escape",
    "hold_down_s: 60": ("f.yaml:1:14: hold_down_s (60 s) is above hold_down_max_s (30 s); raise the one or lower the other"),
    "gateways: [10.1.0.1]\nprefixes: [10.0.0.0/16]": (
        "f.yaml:1:11: gateway 10.1.0.1 is in none of the prefixes; add its prefix, or correct it"
    ),
    "- bfd: true": "f.yaml:1:1: the file holds a list, not settings; write lines like 'bfd: true'",
    "hello": "f.yaml:1:1: the file holds 'hello', not settings; write lines like 'bfd: true'",
    "bfd: true\nbfd: false": "f.yaml:2:1: 'bfd' is set twice, first in line 1; remove one of the two",
    "bfd: true\n---\nbfd: false": (
        "f.yaml:2:1: a second YAML document starts here; keep one document a file: remove the '---' line"
    ),
    "bfd: &x true\napi_enabled: *x": "f.yaml:2:14: alias *x is not allowed; write the value out",
    "bfd: !!bool true": "f.yaml:1:6: tag 'tag:yaml.org,2002:bool' is not allowed; remove it: plain and quoted values are enough",
    "%YAML 1.1\n---\nbfd: no": "f.yaml:1:1: the file asks for another YAML version; remove the %YAML line: files are YAML 1.2",
    "? [a]\n: 1": "f.yaml:1:3: a list or mapping cannot be a key; use a name as the key",
    "\tbfd: true": (
        "f.yaml:1:1: not YAML: while scanning for the next token, found character '\\t' that cannot start any token; "
        "indent with spaces, not tabs"
    ),
}


@pytest.mark.parametrize("text", ONE_FAULT, ids=lambda t: t.replace("\n", "|")[:40])
def test_each_fault_has_one_line(tmp_path: Path, text: str) -> None:
    assert faults(tmp_path, text + "\n") == [ONE_FAULT[text]]


def test_every_fault_is_reported_at_once(tmp_path: Path) -> None:
    found = faults(
        tmp_path, "probes_lost: 0\napii: 1\nbfd: on\n", AIFABRIC_LLDP_PPS="many", AIFABRIC_BFDD="1", AIFABRIC_HOLD_S="1e"
    )
    assert len(found) == 6
    assert "environment AIFABRIC_LLDP_PPS: lldp_pps is 'many'; write a whole number from 10 to 1000000 (default 1000)" in found
    assert "environment: unknown variable 'AIFABRIC_BFDD'; did you mean AIFABRIC_BFD?" in found


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"bfd: true\n\x00", "f.yaml:2:1: NUL byte; this is not a text file: name a YAML file"),
        (b"bfd: true\n# \xff", "f.yaml:2:3: byte 0xff is not UTF-8; save it as UTF-8"),
        (b"\xff\xfeb\0", "f.yaml:1:1: UTF-16 text; save it as UTF-8"),
        (b"bfd: \x07", "f.yaml:1:6: character U+0007 may not stand in YAML; remove it"),
        (b"#" * ((1 << 20) + 1), "f.yaml: larger than 1 MiB; split it, or name another file (named by AIFABRIC_CONFIG)"),
        (b"[" * 3000, "f.yaml:1:33: values are nested more than 32 deep; flatten them or close a bracket"),
        (b"a: " + b"{b: " * 3000, "f.yaml:1:128: values are nested more than 32 deep; flatten them or close a bracket"),
        (b"a: [" + b"1," * 60_000 + b"1]", "f.yaml:1:99999: more than 50000 values in one file; split the file"),
        (b'a: "\\U0011ffff"', "f.yaml: not YAML: chr() arg not in range(0x110000); check the quoting (named by AIFABRIC_CONFIG)"),
        ("bfd:\u00a0true".encode(), "f.yaml:1:1: the file holds 'bfd:\\xa0true', not settings; write lines like 'bfd: true'"),
    ],
    ids=["nul", "latin1", "utf16", "control", "large", "brackets", "braces", "many", "escape", "nbsp"],
)
def test_files_that_are_not_ours(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(content)
    with pytest.raises(BadSettings) as caught:
        load_settings({**HOME, "AIFABRIC_CONFIG": str(file)})
    assert str(caught.value).replace(f"{tmp_path}/", "") == message


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"---\n", b"\xef\xbb\xbfbfd: true\n", b"bfd: true\r\n"])
def test_files_that_are_fine(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(content)
    assert load_settings({**HOME, "AIFABRIC_CONFIG": str(file)}).intent == Intent()


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    def message(name: str) -> str:
        with pytest.raises(SettingsError) as caught:
            load_settings({**HOME, "AIFABRIC_CONFIG": name})
        return str(caught.value)

    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    assert message(f"{tmp_path}/no") == f"{tmp_path}/no: no such file; create it, or correct the name (named by AIFABRIC_CONFIG)"
    assert "a directory, not a file" in message(str(tmp_path))
    assert "not a plain file" in message(f"{tmp_path}/pipe")
    assert "go round in a circle" in message(f"{tmp_path}/loop")
    assert "not a file name" in message("a\0b")
    assert "too long" in message("x" * 5000)


@pytest.mark.parametrize("name", ["AIFABRIC_SERVICE_HOST", "AIFABRIC_PORT", "AIFABRIC_PORT_6653_TCP_ADDR", "AIFABRIC_LAB_TRIALS"])
def test_variables_of_others_are_let_be(name: str) -> None:
    assert load_settings({**HOME, name: "10.96.0.7"}).intent == Intent()


def test_state_dir_follows_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module.os, "geteuid", lambda: 0)
    assert load_settings({}).state_dir == Path("/var/lib/aifabric")
    monkeypatch.setattr(load_module.os, "geteuid", lambda: 1000)
    assert load_settings(HOME).state_dir == Path("/home/op/.local/state/aifabric")
    assert load_settings({**HOME, "XDG_STATE_HOME": "/s"}).state_dir == Path("/s/aifabric")
    assert load_settings({**HOME, "XDG_STATE_HOME": "relative"}).state_dir == Path("/home/op/.local/state/aifabric")
    assert load_settings({"AIFABRIC_STATE_DIR": "/x"}).state_dir == Path("/x")
    with pytest.raises(SettingsError, match="state_dir has no default, because HOME is not set; set AIFABRIC_STATE_DIR"):
        load_settings({})


def test_ovsdb_auto_is_the_local_socket_when_it_is_there(tmp_path: Path) -> None:
    socket = tmp_path / "db.sock"
    settings = load_settings(HOME)
    assert settings.ovsdb_remotes(socket) == ()
    socket.touch()
    assert settings.ovsdb_remotes(socket) == (f"unix:{socket}",)
    assert load_settings({**HOME, "AIFABRIC_OVSDB": "off"}).ovsdb_remotes(socket) == ()
    two = load_settings({**HOME, "AIFABRIC_OVSDB": "tcp:10.0.0.1:6640, tcp:[2001:db8::1]:6640"})
    assert two.ovsdb_remotes(socket) == ("tcp:10.0.0.1:6640", "tcp:[2001:db8::1]:6640")


@given(st.sampled_from(sorted(BY_NAME)), st.text(max_size=40))
def test_no_text_in_a_variable_raises_anything_else(name: str, text: str) -> None:
    try:
        settings = load_settings({**HOME, f"AIFABRIC_{name.upper()}": text})
    except SettingsError as error:
        assert str(error).count("\n") < 3
    else:
        assert isinstance(settings, Settings)


@given(st.binary(max_size=200))
def test_no_bytes_in_a_file_raise_anything_else(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    file.write_bytes(content)
    try:
        load_settings({**HOME, "AIFABRIC_CONFIG": str(file)})
    except SettingsError as error:
        assert all(line.startswith((str(file), "environment")) for line in str(error).splitlines())


def test_intent_names_are_intents() -> None:
    assert {f.name for f in dataclasses.fields(Intent)} == INTENT_NAMES


def test_every_setting_is_read_by_something() -> None:
    package = Path(load_module.__file__).parents[1]
    code = "".join(f.read_text() for f in package.rglob("*.py") if f.parent.name != "settings" and f.name != "intent.py")
    assert [row.name for row in TABLE if not re.search(rf"\.{row.name}\b", code)] == []


def test_the_page_is_the_table() -> None:
    shown = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    assert shown == page(), "write it again: python -m aifabric_ctrl.settings > docs/settings.md"
