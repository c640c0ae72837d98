"""``aifabric``: what is the fabric doing, and why; drains and audits.  Every verb takes --json.

Exit status: 0 all well; 1 the answer is bad news (not ready, no way from A to B, refused); 2 wrong usage or input; 3 no
controller answers; 130 interrupted.
"""

from __future__ import annotations

import getpass
import inspect
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from aifabric_ctrl import __version__
from aifabric_ctrl.model.errors import ControllerUnreachable, FabricError, InvalidValue
from aifabric_ctrl.northbound import render
from aifabric_ctrl.northbound.client import Client, Refused
from aifabric_ctrl.northbound.render import Json, Page

BAD_NEWS, BAD_INPUT, UNREACHABLE, INTERRUPTED = 1, 2, 3, 130
_DO_TOKEN = (
    "run this as the controller's user, with its AIFABRIC_STATE_DIR or AIFABRIC_CONFIG;"
    " or give --token-file FILE, or the token in AIFABRIC_TOKEN"
)
SLOW_S = 2.0
FOLLOW_WAIT_S = 25
RETRY_S = 1.0

F = TypeVar("F", bound=Callable[..., Any])


class _BadInput(click.ClickException):
    """An error of ours as click shows it: one line a fault, no traceback."""

    exit_code = BAD_INPUT

    def __init__(self, error: FabricError) -> None:
        super().__init__("\n".join(render.clean(line) for line in str(error).splitlines()))


class _Unreachable(_BadInput):
    exit_code = UNREACHABLE


class _Refused(_BadInput):
    exit_code = BAD_NEWS


class _Group(click.Group):
    """Turns our errors and Ctrl-C into exit statuses, whichever verb they come from."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ControllerUnreachable as error:
            raise _Unreachable(error) from None
        except Refused as error:
            raise _Refused(error) from None
        except FabricError as error:
            raise _BadInput(error) from None
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)


def _examples(*lines: str) -> str:
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def _verb(*examples: str) -> Callable[[F], F]:
    """A verb: its docstring is the help, ``examples`` end it, and it takes --json."""

    def wrap(function: F) -> F:
        option = click.option("--json", "as_json", is_flag=True, help="Print the API's JSON.")
        text = f"{inspect.getdoc(function) or ''}\n\n{_examples(*examples)}"
        name = function.__name__.removesuffix("_verb")
        return cli.command(name, help=text)(option(function))  # type: ignore[return-value]

    return wrap


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--api", metavar="URL", help="Where the controller's API is [default: AIFABRIC_API, else 127.0.0.1:8080].")
@click.version_option(__version__, prog_name="aifabric")
@click.pass_context
def cli(ctx: click.Context, api: str | None) -> None:
    """Look at a fabric that aifabric_ctrl runs.

    Exit status: 0 all well, 1 bad news (not ready, no way), 2 wrong input, 3 no controller answers.

    \b
    Examples:
      aifabric status
      aifabric why 10.0.1.1 10.0.3.2
      aifabric --api http://127.0.0.1:9000 events --follow
    """
    ctx.obj = api


def main() -> None:
    """The console command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # names of switches may not fit the terminal's encoding
    cli.main(prog_name="aifabric")


def _client(api: str | None) -> Client:
    """The address of --api, else AIFABRIC_API, else the settings file, else the default."""
    text = api or os.environ.get("AIFABRIC_API", "")
    if text:
        return Client.at(text)
    if os.environ.get("AIFABRIC_CONFIG"):
        from aifabric_ctrl.settings import load_settings  # here, as below: it takes longer to import than most verbs to run

        host, port = load_settings(os.environ).api
        return Client(host, port)
    return Client("127.0.0.1", 8080)


def _show(answer: Json, as_json: bool, page_of: Callable[[Page, Json], None]) -> None:
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    terminal = sys.stdout.isatty()
    page = Page(terminal and "NO_COLOR" not in os.environ, shutil.get_terminal_size().columns)
    page_of(page, answer)
    click.echo(page.text, nl=False)


@_verb("aifabric status", "aifabric status --json | jq .reasons")
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
    """Is the fabric well, and if not, why.

    Switches, links, hosts, what switches refused, the last alarms.  Exit status 1 when not ready.
    """
    answer = _client(ctx.obj).get("status")
    _show(answer, as_json, render.status)
    ctx.exit(0 if answer["ready"] else BAD_NEWS)


@_verb("aifabric health", "until aifabric health; do sleep 1; done")
@click.pass_context
def health(ctx: click.Context, as_json: bool) -> None:
    """Ready or not, in one line; exit status 0 or 1."""
    answer = _client(ctx.obj).get("health")
    _show(answer, as_json, render.health)
    ctx.exit(0 if answer["ready"] else BAD_NEWS)


@_verb("aifabric topology", "aifabric topology --ports", "aifabric topology --json | jq '.links[] | select(.state != \"up\")'")
@click.option("--ports", is_flag=True, help="List every port too.")
@click.pass_context
def topology(ctx: click.Context, as_json: bool, ports: bool) -> None:
    """Switches and the links between them."""
    _show(_client(ctx.obj).get("topology"), as_json, lambda page, answer: render.topology(page, answer, ports))


@_verb("aifabric hosts", "aifabric hosts | grep leaf1")
@click.pass_context
def hosts(ctx: click.Context, as_json: bool) -> None:
    """Every host and where it is.

    Also how far its address has been spread, and when it was last heard of.
    """
    _show(_client(ctx.obj).get("hosts"), as_json, render.hosts)


@_verb("aifabric groups", "aifabric groups --switch leaf1")
@click.option("--switch", metavar="NAME", help="Only this switch, by name or datapath id.")
@click.pass_context
def groups(ctx: click.Context, as_json: bool, switch: str | None) -> None:
    """Groups and their buckets.

    What each bucket does, its share of the hash and whether it is live.  Equal buckets are one row.
    """
    _show(_client(ctx.obj).get("groups", {"switch": switch}), as_json, render.groups)


@_verb("aifabric paths 10.0.1.1 10.0.3.2", "aifabric paths leaf1:1 leaf4:2")
@click.argument("source", metavar="A")
@click.argument("destination", metavar="B")
@click.pass_context
def paths(ctx: click.Context, as_json: bool, source: str, destination: str) -> None:
    """Every way that flows from A to B take.

    With each way's share of flows, and the shortest ways that are not in use.

    A and B are addresses, MAC addresses or SWITCH:PORT.  Exit status 1 if some flows do not get there.
    """
    answer = _client(ctx.obj).get("paths", {"from": source, "to": destination})
    _show(answer, as_json, render.paths)
    ctx.exit(0 if answer["delivered"] else BAD_NEWS)


@_verb(
    "aifabric why 10.0.1.1 10.0.3.2", "aifabric why 10.0.1.1 10.0.3.2 --protocol udp --source-port 50000 --destination-port 4791"
)
@click.argument("source", metavar="A")
@click.argument("destination", metavar="B")
@click.option("--protocol", type=click.Choice(["icmp", "tcp", "udp"]), default="icmp", show_default=True)
@click.option("--source-port", type=click.IntRange(0, 65535), help="TCP or UDP port [default: 49152].")
@click.option("--destination-port", type=click.IntRange(0, 65535), help="TCP or UDP port [default: 5001 or 4791].")
@click.pass_context
def why(
    ctx: click.Context,
    as_json: bool,
    source: str,
    destination: str,
    protocol: str,
    source_port: int | None,
    destination_port: int | None,
) -> None:
    """Why A reaches B, or why not.

    Each table's rule on the way and the reason it exists; if B is not reached, where and why the packet stops.

    A and B are addresses, MAC addresses or SWITCH:PORT.  Exit status 1 if some flows do not get there
    or answers do not get back.
    """
    ports = {"source_port": source_port, "destination_port": destination_port}
    answer = _client(ctx.obj).get("why", {"from": source, "to": destination, "protocol": protocol, **ports})
    _show(answer, as_json, render.why)
    back = answer.get("back") or {"delivered": True}
    ctx.exit(0 if answer["delivered"] and back["delivered"] else BAD_NEWS)


@_verb("aifabric events", "aifabric events --follow", "aifabric events --since 120 --json")
@click.option("--follow", "-f", is_flag=True, help="Keep printing new ones, through restarts of the controller.")
@click.option("--since", type=click.IntRange(0, 2**63 - 1), default=0, help="Only those after this id.")
@click.option("--limit", type=click.IntRange(1, 1000), default=200, show_default=True, help="At most this many.")
@click.pass_context
def events(ctx: click.Context, as_json: bool, follow: bool, since: int, limit: int) -> None:
    """What happened, oldest first.

    Links, hosts, switches, errors and alarms.  With --follow and --json together, one object a line.
    """
    client = _client(ctx.obj)
    answer = client.get("events", {"since": since, "limit": limit})
    if not follow:
        _show(answer, as_json, render.events)
        return
    while True:
        for event in answer["events"]:
            click.echo(json.dumps(event) if as_json else render.event_line(event))
        answer = _next_events(client, int(answer["last"]))


def _next_events(client: Client, since: int) -> Json:
    """Wait for news; says once that the controller is away and tries on."""
    said = False
    while True:
        try:
            answer: Json = client.get("events", {"since": since, "wait": FOLLOW_WAIT_S}, FOLLOW_WAIT_S)
            return answer
        except ControllerUnreachable as error:
            if not said:
                click.echo(f"{render.clean(error.what)}; trying again until it does", err=True)
            said = True
            time.sleep(RETRY_S)


def _token(file: str | None) -> str:
    """The token of AIFABRIC_TOKEN, else of --token-file, else of the file the settings name."""
    if text := os.environ.get("AIFABRIC_TOKEN", "").strip():
        return text
    from aifabric_ctrl.northbound.token import read_token, token_path
    from aifabric_ctrl.settings import load_settings

    path = Path(file) if file else token_path(load_settings(os.environ))
    try:
        return read_token(path)
    except InvalidValue as error:
        do = error.do or _DO_TOKEN
        raise InvalidValue(error.what, do, error.where) from None


def _who() -> str:
    """The name people will read beside what was done; sudo's caller rather than root."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}"


_TOKEN_FILE = click.option(
    "--token-file", metavar="FILE", help="Where the token is [default: AIFABRIC_TOKEN, else api_token_file]."
)


@_verb("aifabric drain spine1 --reason 'fan'", "aifabric drain leaf1:11", "aifabric drain spine2 --force")
@click.argument("target", metavar="SWITCH|SWITCH:PORT")
@click.option("--reason", default="", help="Why; shown by status and drains.")
@click.option("--force", is_flag=True, help="Even if hosts are cut off or the capacity floor is broken.")
@_TOKEN_FILE
@click.pass_context
def drain(ctx: click.Context, as_json: bool, target: str, reason: str, force: bool, token_file: str | None) -> None:
    """Move traffic off a switch, a cable or a host port, losing none.

    A port of a cable is that cable.  Exit status 1, with the reason, if hosts would be cut off or a leaf would
    keep less than drain_floor_percent of its uplinks.  Stays through restarts until it is undrained.
    """
    fields = {"target": target, "reason": reason, "who": _who(), "force": force}
    _show(_client(ctx.obj).post("drain", fields, _token(token_file)), as_json, lambda page, answer: page.line(answer["text"]))


@_verb("aifabric undrain spine1", "aifabric undrain leaf1:11")
@click.argument("target", metavar="SWITCH|SWITCH:PORT")
@click.option("--reason", default="", help="Why; goes into the events.")
@_TOKEN_FILE
@click.pass_context
def undrain(ctx: click.Context, as_json: bool, target: str, reason: str, token_file: str | None) -> None:
    """Use again what was drained."""
    fields = {"target": target, "reason": reason, "who": _who()}
    _show(_client(ctx.obj).post("undrain", fields, _token(token_file)), as_json, lambda page, answer: page.line(answer["text"]))


@_verb("aifabric audit", "aifabric audit leaf1 --repair")
@click.argument("switch", metavar="[SWITCH]", default="")
@click.option("--repair", is_flag=True, help="Put right what is ours; foreign entries are left.")
@_TOKEN_FILE
@click.pass_context
def audit(ctx: click.Context, as_json: bool, switch: str, repair: bool, token_file: str | None) -> None:
    """Read switches back and compare them with what they should hold.

    Missing, excess and different entries with the reason they should exist; foreign ones are listed and left.
    Waits until every read is back.  Exit status 0 clean, 1 differences or a switch that did not come to rest.
    """
    fields = {"target": switch, "repair": repair, "who": _who()}
    client, token = _client(ctx.obj), _token(token_file)
    timer = threading.Timer(SLOW_S, click.echo, ["reading the switches back ..."], {"err": True})
    timer.daemon = True
    timer.start()
    try:
        answer = client.post("audit", fields, token)
    finally:
        timer.cancel()
    _show(answer, as_json, render.audit)
    ctx.exit(0 if answer["clean"] else BAD_NEWS)


@_verb("aifabric drains")
@click.pass_context
def drains(ctx: click.Context, as_json: bool) -> None:
    """What is drained, by whom, since when and why."""
    _show(_client(ctx.obj).get("drains"), as_json, render.drains)


@_verb("aifabric settings", "AIFABRIC_CONFIG=fabric.yaml aifabric settings")
def settings(as_json: bool) -> None:
    """Every setting and where it came from.

    Reads what this shell's environment and AIFABRIC_CONFIG say, without a controller; what a running one uses is at
    /api/v1/settings.
    """
    from aifabric_ctrl.northbound import views
    from aifabric_ctrl.settings import load_settings

    _show(views.settings(load_settings(os.environ)), as_json, render.settings)


@_verb("aifabric version")
def version(as_json: bool) -> None:
    """This program's version."""
    _show({"version": __version__}, as_json, lambda page, answer: page.line(f"aifabric {answer['version']}"))


if __name__ == "__main__":
    main()
