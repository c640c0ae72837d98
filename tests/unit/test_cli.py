"""The CLI against a real HTTP server on loopback that serves built views."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from werkzeug.serving import make_server

from aifabric_ctrl import __version__
from aifabric_ctrl.engine.view import EngineView
from aifabric_ctrl.model.errors import InvalidValue
from aifabric_ctrl.northbound import render
from aifabric_ctrl.northbound.api import make_app
from aifabric_ctrl.northbound.cli import cli
from aifabric_ctrl.northbound.client import Client
from aifabric_ctrl.settings import HostPort, load_settings
from tests.unit.view_builder import fabric, journal, view

HEALTHY = view()
VERBS = ("status", "topology", "hosts", "paths", "why", "groups", "events", "settings", "health", "version")


class Controller:
    """An API on a free port; ``view`` may be replaced."""

    def __init__(self) -> None:
        self.view: EngineView = HEALTHY
        self.server = make_server("127.0.0.1", 0, lambda *args: self.app(*args), threaded=True)
        settings = replace(load_settings({"HOME": "/h"}), api=HostPort("127.0.0.1", self.server.server_port))
        self.app = make_app(lambda: self.view, settings, wall_offset_s=lambda: 1_700_000_000.0)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture(scope="module")
def running() -> Iterator[Controller]:
    controller = Controller()
    thread = threading.Thread(target=controller.server.serve_forever, daemon=True)
    thread.start()
    yield controller
    controller.server.shutdown()
    thread.join(10)


@pytest.fixture
def controller(running: Controller) -> Controller:
    running.view = HEALTHY
    running.app = make_app(
        lambda: running.view, replace(load_settings({"HOME": "/h"}), api=HostPort(*running.server.server_address[:2]))
    )
    return running


def run(*arguments: str, env: dict[str, str | None] | None = None) -> Result:
    clean: dict[str, str | None] = {name: None for name in os.environ if name.startswith("AIFABRIC_")}
    return CliRunner().invoke(cli, arguments, env={**clean, "HOME": "/h", **(env or {})}, prog_name="aifabric")


def ask(controller: Controller, *arguments: str) -> Result:
    return run("--api", controller.url, *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("topology", "--ports"),
        ("hosts",),
        ("paths", "10.0.1.1", "10.0.4.2"),
        ("why", "10.0.1.1", "10.0.4.2"),
        ("groups",),
        ("events",),
        ("settings",),
        ("health",),
        ("version",),
    ],
    ids=lambda a: a[0],
)
def test_every_verb_prints_plain_text_and_json(controller: Controller, arguments: tuple[str, ...]) -> None:
    text = ask(controller, *arguments)
    assert (text.exit_code, text.stderr) == (0, "")
    assert text.stdout.isascii()  # no box drawing, no colour
    assert "\x1b" not in text.stdout
    assert not any(line != line.rstrip() for line in text.stdout.splitlines())
    as_json = ask(controller, *arguments, "--json")
    assert as_json.exit_code == 0
    assert isinstance(json.loads(as_json.stdout), dict)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb: str) -> None:
    text = run(verb, "--help").stdout
    assert "Examples:" in text
    assert f"aifabric {verb}" in text
    assert "--json" in text


def test_status_of_a_sick_fabric_is_bad_news(controller: Controller) -> None:
    controller.view = replace(HEALTHY, ready=False, not_ready=("leaf1 is reading",))
    result = ask(controller, "status")
    assert result.exit_code == 1
    assert "not ready\n  because leaf1 is reading\n" in result.stdout
    assert ask(controller, "health").exit_code == 1
    assert ask(controller, "health", "--json").exit_code == 1


def test_why_and_paths_of_a_pair_cut_off_are_bad_news(controller: Controller) -> None:
    controller.view = view(fabric(down=((1, 1), (1, 2))))
    for verb in ("why", "paths"):
        result = ask(controller, verb, "10.0.1.1", "10.0.4.2")
        assert result.exit_code == 1
        assert "10.0.1.1 does not reach 10.0.4.2: leaf1 drops it" in result.stdout


def test_why_reads_as_a_story(controller: Controller) -> None:
    lines = ask(controller, "why", "10.0.1.1", "10.0.4.2").stdout.splitlines()
    assert lines[0] == "10.0.1.1 reaches 10.0.4.2 by 2 ways"
    assert "1. leaf1, in by port 1 (leaf1-eth1)" in lines
    assert "   or, for 50.0% of flows:" in lines
    assert (
        "      why   10.0.1.1 lives on port 1: only its own MAC and address may send, as tenant 1 [host/10.0.1.1/source]" in lines
    )
    assert "      out   port 2 (leaf4-eth2) to 10.0.4.2 at leaf4 port 2 (leaf4-eth2)" in lines


def test_a_name_that_is_not_known_is_wrong_input(controller: Controller) -> None:
    result = ask(controller, "why", "leaf9:1", "10.0.4.2")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "Error: no switch is called 'leaf9'; did you mean leaf4?\n"
    assert ask(controller, "why", "10.0.1.1").exit_code == 2
    assert ask(controller, "statu").exit_code == 2
    assert ask(controller, "why", "a", "b", "--protocol", "gre").exit_code == 2


def test_no_controller_is_one_line_and_3() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = run("--api", url, "status")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == (
        f"Error: no controller answers at {url} (Connection refused); "
        "start it with 'ryu-manager aifabric_ctrl', or name another address with --api or AIFABRIC_API\n"
    )


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.0 200 OK\r\n\r\nhello", b"HTTP/1.0 500 Oops\r\n\r\n[]"])
def test_something_else_that_answers_is_3(answer: bytes) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        result = run("--api", f"127.0.0.1:{server.getsockname()[1]}", "status")
        thread.join(10)
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1


def test_the_address_comes_from_the_environment_or_the_settings_file(controller: Controller, tmp_path: Path) -> None:
    bare = controller.url.removeprefix("http://")
    file = tmp_path / "f.yaml"
    file.write_text(f"api: {bare}\n")
    for env in ({"AIFABRIC_API": controller.url}, {"AIFABRIC_API": bare}, {"AIFABRIC_CONFIG": str(file)}):
        assert run("health", env=dict(env)).exit_code == 0
    file.write_text("api: nowhere\n")
    assert run("health", env={"AIFABRIC_CONFIG": str(file)}).exit_code == 2


@pytest.mark.parametrize(
    "text", ["https://127.0.0.1:8080", "ftp://x", "http://", "http://h:99999", "http://h/path", "http://a b:1", "h:x", "[::1"]
)
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(InvalidValue):
        Client.at(text)


def test_addresses_that_are() -> None:
    assert Client.at("http://127.0.0.1:9/") == Client("127.0.0.1", 9)
    assert Client.at("localhost") == Client("localhost", 8080)
    assert Client.at("[::1]:80").url == "http://[::1]:80"


def test_settings_without_a_controller(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("\nhost_age_s: 60\n")
    result = run("settings", env={"AIFABRIC_CONFIG": str(file), "AIFABRIC_BFD": "off"})
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines()}
    assert rows["host_age_s"] == ["host_age_s", "60.0", "s", "300.0", f"{file}:2"]
    assert rows["bfd"][-2:] == ["environment", "AIFABRIC_BFD"]
    assert "unit" in json.loads(run("settings", "--json").stdout)["settings"][0]


def test_settings_that_are_wrong_are_all_listed(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("bfd: 1\napii: 2\n")
    result = run("settings", env={"AIFABRIC_CONFIG": str(file)})
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        f"Error: {file}:1:6: bfd is 1; write true or false (default true)",
        f"{file}:2:1: unknown setting 'apii'; did you mean api?",
    ]


def test_version() -> None:
    assert run("version").stdout == f"aifabric {__version__}\n"
    assert json.loads(run("version", "--json").stdout) == {"version": __version__}


def test_names_from_the_network_cannot_steer_the_terminal(controller: Controller) -> None:
    made = fabric(1, 1, 1)
    evil = replace(made.switches[1], name="\x1b[2Jleaf[bold]\n:smile:")
    controller.view = view(replace(made, switches={**made.switches, 1: evil}), journal=())
    out = ask(controller, "topology").stdout
    assert "\\x1b[2Jleaf[bold]\\x0a:smile:" in out
    assert "\x1b" not in out


def test_a_terminal_gets_colour_and_its_width() -> None:
    page = render.Page(True, 60)
    page.table(("a", "b"), [("alarm", "word " * 30)])
    assert "\x1b[" in page.text
    assert max(len(line) for line in page.text.splitlines()) < 100


def start(*arguments: str, **kept: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "aifabric_ctrl.northbound.cli", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kept)


def test_follow_prints_news_and_ends_quietly_on_ctrl_c(controller: Controller) -> None:
    process = start("--api", controller.url, "events", "--follow", "--since", "2")
    try:
        assert process.stdout is not None
        assert process.stdout.readline().split()[0] == "3"
        controller.view = replace(HEALTHY, journal=journal(5))
        assert [process.stdout.readline().split()[0] for _ in range(2)] == ["4", "5"]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (130, "")
    finally:
        process.kill()
        process.wait()


def test_a_closed_pipe_is_no_traceback(controller: Controller) -> None:
    process = start("--api", controller.url, "events", "--follow")
    try:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        controller.view = replace(HEALTHY, journal=journal(2000))
        assert process.wait(timeout=30) == 1
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
