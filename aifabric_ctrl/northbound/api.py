"""The REST API as a WSGI application: JSON, loopback only, every answer from one view of the engine.

It serves inside the controller's process, so a request must be cheap: answers about the whole fabric are rendered once
a view, long ones in parts with ``wait(0)`` between them, and the number of waiting readers is bounded.  It changes
nothing but by what ``requests`` checked and the engine accepted, and must not answer
a page from elsewhere that got a browser to ask (DNS rebinding).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from werkzeug.exceptions import HTTPException, MethodNotAllowed
from werkzeug.routing import Map, Rule
from werkzeug.wrappers import Request, Response

from aifabric_ctrl import __version__
from aifabric_ctrl.engine.view import EngineView
from aifabric_ctrl.model.errors import InvalidValue
from aifabric_ctrl.northbound import explain, requests, views
from aifabric_ctrl.northbound.names import MAX_NAME, find_switch
from aifabric_ctrl.northbound.problem import ApiError
from aifabric_ctrl.northbound.views import Json
from aifabric_ctrl.settings import Settings
from aifabric_ctrl.yamlfile import closest, show

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

MAX_QUERY_BYTES = 2048
MAX_PATH_BYTES = 512
MAX_WAIT_S = 60
MAX_ASKING = 8  # writes under way at once
VIEW_KEPT_S = 0.05  # making a view costs a pass over hosts and journal; many readers share one
PART = 16  # items written between two pauses: a switch with its ports takes about 0.1 ms
POLL_S = 0.2  # between looks at the journal by a waiting reader
_WHOLE_FABRIC = ("topology", "hosts", "groups", "status", "convergence")  # the same for everybody: kept a view long


# endpoint: (query parameters, what it answers)
ENDPOINTS: dict[str, tuple[tuple[str, ...], str]] = {
    "health": ((), "ready or not, and why not"),
    "status": ((), "a summary: switches, links, hosts, problems, the last alarms"),
    "topology": ((), "switches with ports, links, hosts"),
    "hosts": ((), "every host address, where it is and how far it is spread"),
    "groups": (("switch",), "groups and their buckets, of all switches or one"),
    "paths": (("from", "to"), "every way a flow may take, and the shortest ways over the cables"),
    "why": (("from", "to", "protocol", "source_port", "destination_port"), "each rule on the way and why it exists"),
    "events": (("since", "limit", "wait"), "the journal after an id; waits up to that many seconds for news"),
    "drains": ((), "what operators keep traffic off: who, when, why"),
    "convergence": ((), "times from a change to the last barrier of its repair"),
    "counters": ((), "counters that only rise"),
    "settings": ((), "every setting: value, default, unit, where it came from"),
    "version": ((), "the controller's version"),
}
_REQUIRED = {"paths": ("from", "to"), "why": ("from", "to")}


def make_app(
    view_source: Callable[[], EngineView],
    settings: Settings,
    wait: Callable[[float], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    wall_offset_s: Callable[[], float] = lambda: time.time() - time.monotonic(),
    ask: requests.Ask | None = None,
    token: str = "",
) -> WsgiApp:
    """Build the application.

    Args:
        view_source: the engine's newest view; asked at most once every VIEW_KEPT_S.
        wait: lets others run for at most that many seconds (the hub's sleep in the controller); 0 only yields.  Without
            it ``time.sleep``, looked up now, so that a framework that patched it is honoured.
        clock: monotonic seconds, for how long a reader has waited.
        ask: puts a request to the engine and waits for its answer; None: nothing can be asked for.
        token: what writes must show; empty: no write is accepted.
        wall_offset_s: what to add to the engine's seconds to get seconds since 1970.
    """
    return _Api(view_source, settings, wait if wait is not None else time.sleep, clock, wall_offset_s, ask, token)


class _Api:
    def __init__(
        self,
        view_source: Callable[[], EngineView],
        settings: Settings,
        wait: Callable[[float], None],
        clock: Callable[[], float],
        wall_offset_s: Callable[[], float],
        ask: requests.Ask | None,
        token: str,
    ) -> None:
        self._view_source = view_source
        self._settings = settings
        self._wait = wait
        self._clock = clock
        self._wall_offset_s = wall_offset_s
        self._ask, self._token = ask, token
        self._asking = 0
        self._waiters = 0
        self._newest: tuple[float, EngineView] | None = None
        self._kept_view: EngineView | None = None
        self._kept: dict[str, bytes] = {}
        rules = [Rule(f"/api/v1/{name}", endpoint=name, methods=["GET"]) for name in ENDPOINTS]
        rules += [Rule(f"/api/v1/{name}", endpoint=f"write {name}", methods=["POST"]) for name in requests.WRITES]
        rules += [Rule(path, endpoint="listing", methods=["GET"]) for path in ("/api/v1", "/api/v1/")]
        # Without redirects: one would repeat the client's Host header back to it.
        self._urls = Map(rules, strict_slashes=True, merge_slashes=False, redirect_defaults=False)
        port = settings.api.port
        self._names = {f"{name}{end}" for name in ("127.0.0.1", "localhost", "[::1]") for end in ("", f":{port}")}
        self._names |= {str(settings.api), str(settings.api).rpartition(":")[0]}

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        request = Request(environ)
        try:
            response = self._answer(request)
        except ApiError as error:
            body = {"error": {"what": error.what, "do": error.do, "where": error.where}}
            response = _response(json.dumps(body).encode(), error.status)
            response.headers.update(error.headers)
        return response(environ, start_response)

    def _answer(self, request: Request) -> Response:
        self._check_request(request)
        name = self._route(request)
        verb = name.removeprefix("write ")
        if verb != name:
            return self._write(request, verb)
        self._check_no_body(request)
        if name == "listing":
            _arguments(request, ())
            return _response(json.dumps(_listing()).encode())
        arguments = _arguments(request, ENDPOINTS[name][0])
        for needed in _REQUIRED.get(name, ()):
            if not arguments.get(needed):
                raise ApiError(
                    400, f"parameter {needed} is missing", f"add ?{'&'.join(f'{p}=...' for p in _REQUIRED[name])}", needed
                )
        try:
            return _response(self._body(name, arguments))
        except InvalidValue as error:
            raise ApiError(400, error.what, error.do, error.where) from None

    def _check_request(self, request: Request) -> None:
        host = request.environ.get("HTTP_HOST", "")
        if host.lower() not in self._names:
            raise ApiError(
                403, f"host name {show(host)} is not this API's", f"ask for http://{self._settings.api}/", "Host header"
            )
        if (
            len(request.environ.get("QUERY_STRING", "")) > MAX_QUERY_BYTES
            or len(request.environ.get("PATH_INFO", "")) > MAX_PATH_BYTES
        ):
            raise ApiError(400, "the address is too long", "shorten it", "address")

    def _write(self, request: Request, name: str) -> Response:
        """One write at a time and a few waiting; the engine says what became of it."""
        origins = frozenset(f"http://{n}" for n in self._names)
        command = requests.read(request, name, self._token, origins)
        if self._ask is None:
            raise ApiError(503, "nothing can be asked of this controller", "see its log")
        if self._asking >= MAX_ASKING:
            raise ApiError(503, "too many requests are under way", "try again", "", {"Retry-After": "1"})
        self._asking += 1
        try:
            answer = self._ask(command.verb, command.target, command.who, command.reason, command.force)
        finally:
            self._asking -= 1
        return _response(json.dumps(requests.answered(answer), default=str).encode())

    @staticmethod
    def _check_no_body(request: Request) -> None:
        if request.environ.get("CONTENT_LENGTH", "") not in ("", "0") or "HTTP_TRANSFER_ENCODING" in request.environ:
            raise ApiError(413, "this API takes no request body", "send none", "body", {"Connection": "close"})

    def _route(self, request: Request) -> str:
        adapter = self._urls.bind("localhost", path_info=request.path, default_method=request.method)
        try:
            endpoint, _ = adapter.match(method=request.method)
        except MethodNotAllowed as error:
            allowed = ", ".join(sorted(m for m in error.valid_methods or ()))
            raise ApiError(
                405, f"{request.method[:20]} is not possible here", f"use {allowed}", "method", {"Allow": allowed}
            ) from None
        except HTTPException:
            near = closest(request.path, [f"/api/v1/{name}" for name in (*ENDPOINTS, *requests.WRITES)])
            do = f"did you mean {near}?" if near else "see /api/v1/ for what there is"
            raise ApiError(404, f"there is nothing at {show(request.path)}", do, "address") from None
        return str(endpoint)

    def _body(self, name: str, arguments: Mapping[str, str]) -> bytes:
        view = self._view()
        if name in _WHOLE_FABRIC and not arguments:
            return self._kept_body(name, view)
        return _encode(self._value(name, view, arguments), self._pause)

    def _kept_body(self, name: str, view: EngineView) -> bytes:
        if view is not self._kept_view:
            self._kept_view, self._kept = view, {}
        body = self._kept.get(name)
        if body is None:
            body = _encode(self._value(name, view, {}), self._pause)
            if view is self._kept_view:  # another request may have moved on while this one paused
                self._kept[name] = body
        return body

    def _value(self, name: str, view: EngineView, arguments: Mapping[str, str]) -> Json:
        match name:
            case "events":
                return self._events(view, arguments)
            case "topology":
                return views.topology_parts(view)
            case "hosts":
                return views.hosts_parts(view)
            case "groups":
                dpid = find_switch(view, arguments["switch"]).dpid if "switch" in arguments else None
                return views.groups_parts(view, dpid)
            case "paths":
                return explain.paths(view, arguments["from"], arguments["to"], self._pause)
            case "why":
                return self._why(view, arguments)
            case "status":
                return views.status(view, self._wall_offset_s())
            case "settings":
                return views.settings(self._settings)
            case "version":
                return {"version": __version__}
        simple: dict[str, Callable[[EngineView], Json]] = {
            "health": views.health,
            "drains": views.drains,
            "convergence": views.convergence,
            "counters": views.counters,
        }
        return simple[name](view)

    def _why(self, view: EngineView, arguments: Mapping[str, str]) -> Json:
        ports = {n: _number(arguments, n, 0, 65_535) if n in arguments else None for n in ("source_port", "destination_port")}
        protocol = arguments.get("protocol", "icmp").lower()
        return explain.why(view, arguments["from"], arguments["to"], protocol, pause=self._pause, **ports)

    def _events(self, view: EngineView, arguments: Mapping[str, str]) -> Json:
        since = _number(arguments, "since", 0, 2**63 - 1, 0)
        limit = _number(arguments, "limit", 1, views.MAX_EVENTS, views.MAX_EVENTS)
        seconds = _number(arguments, "wait", 0, MAX_WAIT_S, 0)
        if seconds and not _news(view, since):
            view = self._wait_for_news(since, seconds)
        return views.events(view, since, limit, self._wall_offset_s())

    def _wait_for_news(self, since: int, seconds: int) -> EngineView:
        if self._waiters >= self._settings.api_waiters:
            raise ApiError(
                503, "too many readers are waiting for events", "try again, or raise api_waiters", "wait", {"Retry-After": "1"}
            )
        self._waiters += 1
        try:
            deadline = self._clock() + seconds
            while True:
                view, left = self._view(), deadline - self._clock()
                if left <= 0 or _news(view, since):
                    return view
                self._wait(min(POLL_S, left))
        finally:
            self._waiters -= 1

    def _view(self) -> EngineView:
        now = self._clock()
        if self._newest is None or now - self._newest[0] >= VIEW_KEPT_S:
            self._newest = (now, self._view_source())
        return self._newest[1]

    def _pause(self) -> None:
        self._wait(0)


def _news(view: EngineView, since: int) -> bool:
    """Is there a line after ``since``, or did the ids start again?"""
    last = view.journal[-1].id if view.journal else 0
    return last != since


def _arguments(request: Request, allowed: Iterable[str]) -> dict[str, str]:
    """The query parameters, each known, given once and of sane length."""
    names = tuple(allowed)
    found: dict[str, str] = {}
    for name, value in request.args.items(multi=True):
        if name not in names:
            near = closest(name, names)
            do = f"did you mean {near}?" if near else f"it takes {', '.join(names)}" if names else "it takes none"
            raise ApiError(400, f"parameter {show(name)} is not known here", do, name[:60])
        if name in found:
            raise ApiError(400, f"parameter {name} is given twice", "give it once", name)
        if len(value) > MAX_NAME:
            raise ApiError(400, f"parameter {name} is too long", "shorten it", name)
        found[name] = value
    return found


def _number(arguments: Mapping[str, str], name: str, low: int, high: int, default: int = 0) -> int:
    text = arguments.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 19 or not low <= int(text) <= high:
        raise ApiError(400, f"parameter {name} is {show(text)}", f"give a whole number from {low} to {high}", name)
    return int(text)


def _encode(value: Json, pause: Callable[[], None]) -> bytes:
    """JSON in parts, so that a list of thousands of switches does not hold up the loop while it is made and written.

    An iterator's items are forgotten as soon as they are written: tens of thousands of them alive at once would also
    make the garbage collector stop everybody for 100 ms (measured, 200 switches and 8,000 hosts).
    """
    parts: list[str] = []
    for key, item in value.items():
        if isinstance(item, (list, Iterator)):
            items, slices = iter(item), []
            while some := list(islice(items, PART)):
                slices.append(json.dumps(some, allow_nan=False)[1:-1])
                pause()
            text = f"[{', '.join(slices)}]"
        else:
            text = json.dumps(item, allow_nan=False)
        parts.append(f"{json.dumps(key)}: {text}")
    return ("{" + ", ".join(parts) + "}\n").encode()


def _response(body: bytes, status: int = 200) -> Response:
    response = Response(body, status=status, content_type="application/json")
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


def _listing() -> Json:
    return {
        "version": __version__,
        "endpoints": [
            {
                "path": f"/api/v1/{name}",
                "method": "GET",
                "parameters": list(parameters),
                "required": list(_REQUIRED.get(name, ())),
                "answers": text,
            }
            for name, (parameters, text) in ENDPOINTS.items()
        ]
        + [
            {"path": f"/api/v1/{name}", "method": "POST", "fields": list(fields), "answers": text}
            for name, (fields, text) in requests.WRITES.items()
        ],
    }
