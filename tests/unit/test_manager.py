"""Our ``ryu-manager``: flags, exit statuses, signals, and whose applications it runs."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import venv
from pathlib import Path

import pytest

from tests.unit import manager_kit as kit


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return kit.environment(tmp_path / "state")


def refused(done: object, *words: str) -> None:
    """Exit status 2, one line on standard error, nothing else."""
    assert getattr(done, "returncode", None) == 2, done
    lines = str(getattr(done, "stderr", "")).strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("ryu-manager: ")
    for word in words:
        assert word in lines[0], lines[0]


def test_version_and_help(env: dict[str, str]) -> None:
    version = kit.run(["--version"], env)
    assert version.returncode == 0
    assert version.stdout.startswith("ryu-manager 0.1.0")
    assert version.stderr == ""
    shown = kit.run(["--help"], env)
    assert shown.returncode == 0
    for flag in (
        *("--ofp-listen-host", "--ofp-tcp-listen-port", "--ofp-ssl-listen-port", "--ctl-privkey", "--ctl-cert", "--ca-certs"),
        *("--config-file", "--verbose", "--default-log-level", "--log-file", "--use-stderr", "--pid-file", "--user-flags"),
        *("--enable-debugger", "--app-lists"),
    ):
        assert flag in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--no-such-flag"], ["--no-such-flag"]),
        (["--ofp-tcp-listen-port", "notaport"], ["notaport"]),
        (["--ofp-tcp-listen-port", "70000"], ["--ofp-tcp-listen-port", "70000"]),
        (["--ofp-tcp-listen-port", "0"], ["--ofp-tcp-listen-port"]),
        (["--config-file", "/nonexistent/ryu.conf"], ["/nonexistent/ryu.conf"]),
        (["--user-flags", "/nonexistent/flags.py"], ["/nonexistent/flags.py"]),
        (["no_such_app_anywhere"], ["no_such_app_anywhere"]),
        (["./no_such_file.py"], ["no_such_file.py"]),
        (["aifabric_ctrl.model"], ["aifabric_ctrl.model"]),  # a module without an application
        (["--ofp-ssl-listen-port", "16653"], ["--ctl-cert"]),
        (["--ctl-cert", "/nonexistent/cert.pem"], ["--ctl-privkey"]),
        (["--ctl-cert", "/nonexistent/cert.pem", "--ctl-privkey", "/nonexistent/key.pem"], ["/nonexistent/cert.pem"]),
        (["--ofp-listen-host", "203.0.113.77", "--ofp-tcp-listen-port", "16653"], ["203.0.113.77", "16653"]),
        (["--log-file", "/nonexistent/dir/log"], ["/nonexistent/dir/log"]),
        (["--pid-file", "/nonexistent/dir/pid"], ["/nonexistent/dir/pid"]),
    ],
)
def test_bad_flags_are_one_line_and_nothing_starts(
    arguments: list[str], words: list[str], env: dict[str, str], tmp_path: Path
) -> None:
    refused(kit.run(arguments, env), *words)
    assert not (tmp_path / "state" / "state.sqlite3").exists() or "--ofp-listen-host" in arguments


def test_bad_settings_are_named_and_nothing_starts(env: dict[str, str], tmp_path: Path) -> None:
    bad = tmp_path / "fabric.yaml"
    bad.write_text("hold_down_s: soon\n")
    refused(kit.run([], {**env, "AIFABRIC_CONFIG": str(bad)}), f"{bad}:1", "hold_down_s")
    refused(kit.run([], {**env, "AIFABRIC_HOLD_DOWN": "3"}), "AIFABRIC_HOLD_DOWN")
    assert not (tmp_path / "state").exists()


def test_a_taken_port_is_named(env: dict[str, str]) -> None:
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        port = other.getsockname()[1]
        refused(kit.run(["--ofp-tcp-listen-port", str(port)], env), str(port))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_cleanly(number: int, env: dict[str, str], tmp_path: Path) -> None:
    port, log, pid = kit.free_port(), tmp_path / "log", tmp_path / "pid"
    arguments = ["--ofp-tcp-listen-port", str(port), "--pid-file", str(pid), "aifabric_ctrl"]
    with kit.running(arguments, env, port, log) as process:
        assert pid.read_text() == f"{process.pid}\n"
        with socket.create_connection(("127.0.0.1", port)) as switch:
            assert switch.recv(16)[:2] == b"\x04\x00"  # its HELLO
            assert kit.stop(process, number) == 0
    assert "Traceback" not in log.read_text()
    assert not pid.exists()


def test_it_runs_inside_a_clone_and_serves_the_api(env: dict[str, str], tmp_path: Path) -> None:
    """In a clone the directory is called like the package, and the framework takes any existing path for a file."""
    assert (kit.ROOT / "aifabric_ctrl").is_dir()
    port, log = kit.free_port(), tmp_path / "log"
    with kit.running(["--ofp-tcp-listen-port", str(port), "aifabric_ctrl"], env, port, log) as process:
        host, _, api = env["AIFABRIC_API"].rpartition(":")
        limit = time.monotonic() + kit.PATIENCE_S
        while not kit.listens(int(api)) and time.monotonic() < limit:
            time.sleep(0.05)
        with urllib.request.urlopen(f"http://{host}:{api}/api/v1/health", timeout=10) as answer:
            health = json.load(answer)
        assert health["switches"]["connected"] == 0
        assert kit.stop(process) == 0


def test_without_its_api_port_it_runs_on_and_says_so(env: dict[str, str], tmp_path: Path) -> None:
    port, log = kit.free_port(), tmp_path / "log"
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        blocked = {**env, "AIFABRIC_API": f"127.0.0.1:{taken}"}
        with kit.running(["--ofp-tcp-listen-port", str(port)], blocked, port, log) as process:
            limit = time.monotonic() + kit.PATIENCE_S
            while "api_unavailable" not in log.read_text() and time.monotonic() < limit:
                time.sleep(0.05)
            assert str(taken) in log.read_text()
            assert kit.stop(process) == 0


def test_a_second_controller_on_one_state_directory_is_refused(env: dict[str, str], tmp_path: Path) -> None:
    port, log = kit.free_port(), tmp_path / "log"
    with kit.running(["--ofp-tcp-listen-port", str(port)], env, port, log):
        refused(kit.run(["--ofp-tcp-listen-port", str(kit.free_port())], env), str(tmp_path / "state"))


RYU_APP = """
from ryu.base import app_manager
from ryu.lib import hub

class Other(app_manager.RyuApp):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        open({marker!r}, "w").write(type(self).__mro__[1].__module__)
        self.thread = hub.spawn(self.work)

    def work(self):
        while True:
            hub.sleep(0.1)
"""


def test_it_runs_applications_written_for_ryu(env: dict[str, str], tmp_path: Path) -> None:
    marker, app = tmp_path / "marker", tmp_path / "other_app.py"
    app.write_text(RYU_APP.format(marker=str(marker)))
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(kit.command("./other_app.py"), env=env, cwd=tmp_path, stdout=out, stderr=out)
    try:
        limit = time.monotonic() + kit.PATIENCE_S
        while not marker.exists() and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.05)
        assert marker.exists(), log.read_text()
        assert kit.stop(process) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(kit.PATIENCE_S)
    assert "app_manager" in marker.read_text()


def test_more_flags_of_a_user(env: dict[str, str], tmp_path: Path) -> None:
    flags = tmp_path / "flags.py"
    flags.write_text("from os_ken import cfg\ncfg.CONF.register_cli_opts([cfg.StrOpt('colour', default='red')])\n")
    shown = kit.run(["--user-flags", str(flags), "--help"], env)
    assert shown.returncode == 0
    assert "--colour" in shown.stdout


def test_a_config_file_gives_flags(env: dict[str, str], tmp_path: Path) -> None:
    port, log, conf = kit.free_port(), tmp_path / "log", tmp_path / "ryu.conf"
    conf.write_text(f"[DEFAULT]\nofp_tcp_listen_port = {port}\nofp_listen_host = 127.0.0.1\n")
    with kit.running(["--config-file", str(conf)], env, port, log) as process:
        assert kit.stop(process) == 0


SCRIPT = """#!{python}
import re
import sys
from {module} import main
if __name__ == "__main__":
    sys.argv[0] = re.sub(r"(-script\\.pyw|\\.exe)?$", "", sys.argv[0])
    sys.exit(main())
"""


@pytest.mark.parametrize("last", ["ryu", "ours"])
def test_the_script_is_ours_whoever_was_installed_last(last: str, env: dict[str, str], tmp_path: Path) -> None:
    """Both packages bring bin/ryu-manager; the later one wins the file, ours wins the process."""
    venv.create(tmp_path / "venv", with_pip=False, system_site_packages=False)
    python = tmp_path / "venv" / "bin" / "python"
    site = next((tmp_path / "venv" / "lib").glob("python3*/site-packages"))
    ryu = site / "ryu" / "cmd"
    ryu.mkdir(parents=True)
    (site / "ryu" / "__init__.py").touch()
    (ryu / "__init__.py").touch()
    (ryu / "manager.py").write_text("raise ImportError('cannot import ALREADY_HANDLED from eventlet.wsgi')\n")
    (site / "__editable__.aifabric_ctrl.pth").write_text(f"{kit.ROOT}\n")
    (site / "aifabric_ctrl.pth").write_text((kit.ROOT / "aifabric_ctrl" / "aifabric_ctrl.pth").read_text())
    libraries = [p for p in sys.path if p.endswith("site-packages")]
    (site / "zz-libraries.pth").write_text("\n".join(libraries) + "\n")
    script = tmp_path / "venv" / "bin" / "ryu-manager"
    module = "ryu.cmd.manager" if last == "ryu" else "aifabric_ctrl.manager"
    script.write_text(SCRIPT.format(python=python, module=module))
    script.chmod(0o755)
    clean = {k: v for k, v in env.items() if k != "PYTHONPATH"}
    done = subprocess.run([str(script), "--version"], env=clean, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "aifabric_ctrl on " in done.stdout
    probe = "import sys; print([m for m in sys.modules if 'aifabric' in m], [f for f in sys.meta_path if 'eroute' in repr(f)])"
    other = subprocess.run([str(python), "-c", probe], env=clean, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert other.stdout.strip() == "[] []", other.stderr  # harmless in every other process


def test_a_failing_engine_ends_the_process_with_70(env: dict[str, str], tmp_path: Path) -> None:
    """Crash policy: logged with its traceback, kept in the journal, status 70."""
    program = tmp_path / "crash.py"
    program.write_text(
        "import aifabric_ctrl.framework\n"
        "from aifabric_ctrl.engine.engine import Engine\n"
        "def fail(self, event): raise KeyError('a bug')\n"
        "Engine.step = fail\n"
        "from aifabric_ctrl.manager import main\n"
        f"raise SystemExit(main(['--ofp-tcp-listen-port', '{kit.free_port()}']))\n"
    )
    done = subprocess.run([sys.executable, str(program)], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 70, done.stderr
    assert "KeyError: 'a bug'" in done.stderr
    assert "keep forwarding" in done.stderr
    assert (tmp_path / "state" / "state.sqlite3").exists()
