"""The ``ryu-manager`` command: Ryu's flags, any Ryu-style application, ours by default.

Starts and stops things and decides nothing about the network.  A wrong flag or setting is one line on standard error
and exit status 2 with nothing started; SIGTERM and SIGINT end with status 0, and the switches keep forwarding.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aifabric_ctrl
from aifabric_ctrl.model.errors import FabricError, InvalidValue

PROG = "ryu-manager"
DEFAULT_APP = "aifabric_ctrl"
SYSTEM_CONFIG = "/usr/local/etc/ryu/ryu.conf"  # where Ryu itself looks
EXIT_USAGE = 2
LOG = logging.getLogger("aifabric_ctrl")


def main(args: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run until told to stop; returns the exit status."""
    arguments = list(sys.argv[1:] if args is None else args)
    try:
        return _run(arguments, prog)
    except FabricError as error:
        return _refuse(prog, str(error))
    except ImportError as error:
        return _refuse(prog, f"an application does not load: {error}")
    except OSError as error:
        return _refuse(prog, _os_error_text(error))
    except KeyboardInterrupt:
        return 0


def _refuse(prog: str, text: str) -> int:
    print(f"{prog}: {' '.join(text.split())}", file=sys.stderr)
    return EXIT_USAGE


def _os_error_text(error: OSError) -> str:
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{error.strerror or error}"


def _run(arguments: list[str], prog: str) -> int:
    from aifabric_ctrl import framework  # here, so that a broken installation is one line as well

    if "--enable-debugger" not in arguments:
        framework.hub.patch(thread=False)  # before anything else makes a socket
    _run_user_flags(arguments)
    _parse(framework, arguments, prog)
    conf = framework.CONF
    _start_log(framework)
    framework.accept_ryu_imports()
    names = [*conf.app_lists, *conf.app] or [DEFAULT_APP]
    with _pid_file(conf.pid_file):
        return _serve(framework, names)


def _run_user_flags(arguments: list[str]) -> None:
    """Ryu's ``--user-flags FILE``: a Python file that registers more flags before they are parsed."""
    for index, argument in enumerate(arguments):
        if argument == "--user-flags":
            name = arguments[index + 1] if index + 1 < len(arguments) else ""
        elif argument.startswith("--user-flags="):
            name = argument.partition("=")[2]
        else:
            continue
        if not Path(name).is_file():
            raise InvalidValue(f"--user-flags: there is no file {name!r}")
        runpy.run_path(name)


def _parse(framework: Any, arguments: list[str], prog: str) -> None:
    """Ryu's flags by Ryu's own means (oslo.config), which also reads ``--config-file``.

    Raises:
        InvalidValue: with the parser's last line, because its usage text would be twenty.
        SystemExit: for --help and --version.
    """
    cfg, conf = framework.cfg, framework.CONF
    framework.register_openflow_flags()
    conf.register_cli_opts(
        [
            cfg.ListOpt("app-lists", default=[], help="applications to run, separated by commas"),
            cfg.MultiStrOpt("app", positional=True, default=[], help=f"applications to run (default: {DEFAULT_APP})"),
            cfg.StrOpt("pid-file", default=None, help="file to write the process id to"),
            cfg.StrOpt("user-flags", default=None, help="Python file that registers more flags"),
            cfg.BoolOpt("enable-debugger", default=False, help="leave the standard library unpatched"),
        ]
    )
    given = any(a == "--config-file" or a.startswith(("--config-file=", "--config-dir")) for a in arguments)
    files = [SYSTEM_CONFIG] if not given and Path(SYSTEM_CONFIG).is_file() else []
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            conf(
                args=arguments,
                prog=prog,
                project="ryu",
                version=f"{prog} {aifabric_ctrl.__version__} (aifabric_ctrl on {framework.version()})",
                default_config_files=files,
            )
    except SystemExit as end:
        if not end.code:
            raise
        lines = said.getvalue().strip().splitlines() or ["wrong flags"]
        raise InvalidValue(lines[-1].removeprefix(f"{prog}: error: "), f"see {prog} --help") from None
    except (cfg.ConfigFilesNotFoundError, framework.config_error) as error:
        raise InvalidValue(str(error), f"see {prog} --help") from None
    for flag, port in (("--ofp-tcp-listen-port", conf.ofp_tcp_listen_port), ("--ofp-ssl-listen-port", conf.ofp_ssl_listen_port)):
        if port is not None and not 0 < port < 65536:
            raise InvalidValue(f"{flag} {port} is not a port number", "give 1 to 65535")


class _Formatter(logging.Formatter):
    """``12:03:44.120 warning text``; the logger's name only for others' lines."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = f"{self.formatTime(record, '%H:%M:%S')}.{int(record.msecs):03d}"
        source = "" if record.name.startswith(DEFAULT_APP) else f"{record.name}: "
        text = f"{stamp} {record.levelname.lower():7} {source}{record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _start_log(framework: Any) -> None:
    framework.log.init_log()
    if framework.CONF.log_config_file:
        return
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_Formatter())
    if not framework.CONF.verbose:
        logging.getLogger(framework.NAME).setLevel(logging.WARNING)


@contextlib.contextmanager
def _pid_file(name: str | None) -> Any:
    """Write the process id, and take the file away at the end if it is still ours."""
    if not name:
        yield
        return
    path, text = Path(name), f"{os.getpid()}\n"
    path.write_text(text)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if path.read_text() == text:
                path.unlink()


def _serve(framework: Any, names: Sequence[str]) -> int:
    hub = framework.hub
    stop = hub.Event()
    with _signals(hub, stop):
        manager, services = framework.start_apps(names)
        if services:  # an application without a main greenlet runs until it is told to stop
            hub.spawn(_when_all_ended, hub, services, stop)
        stop.wait()
        LOG.info("stopping; the switches keep forwarding")
        manager.close()
    logging.shutdown()
    return 0


def _when_all_ended(hub: Any, services: list[Any], stop: Any) -> None:
    hub.joinall(services)
    stop.set()


@contextlib.contextmanager
def _signals(hub: Any, stop: Any) -> Any:
    """Turn SIGTERM and SIGINT into ``stop``.

    A handler that raised would hit whichever greenlet happens to run; so the signal only writes a byte to a socket (the
    interpreter does that), which also wakes the hub, and a greenlet of ours reads it.
    """
    green: Any = _green_socket()
    reader, writer = green.socketpair()
    writer.setblocking(False)

    def wait() -> None:
        with contextlib.suppress(OSError):
            if reader.recv(1):
                stop.set()

    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    hub.spawn(wait)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        with contextlib.suppress(OSError):
            writer.close()


def _green_socket() -> Any:
    """The hub's socket module, whether or not the standard one is patched."""
    from eventlet.green import socket as green

    return green


if __name__ == "__main__":
    sys.exit(main())
