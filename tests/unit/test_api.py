"""The REST API: what it answers, what it refuses, and that a reader costs little."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from werkzeug.test import Client

from aifabric_ctrl.engine.view import EngineView
from aifabric_ctrl.northbound.api import ENDPOINTS, make_app
from aifabric_ctrl.northbound.requests import WRITES
from aifabric_ctrl.settings import Settings, load_settings
from tests.unit.view_builder import journal, view

HOST = {"Host": "127.0.0.1:8080"}
VIEW = view()
SETTINGS = load_settings({"HOME": "/h"})


class World:
    """A clock that only sleeping moves, a view that can be replaced, and what the application did with both."""

    def __init__(self, of: EngineView = VIEW, settings: Settings = SETTINGS) -> None:
        self.now = 0.0
        self.view = of
        self.asked = 0
        self.on_sleep: Callable[[], None] = lambda: None
        self.app = make_app(self._view, settings, self._sleep, lambda: self.now, lambda: 1_700_000_000.0)
        self.client = Client(self.app)

    def _view(self) -> EngineView:
        self.asked += 1
        return self.view

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        if seconds:
            self.on_sleep()

    def get(self, path: str, **kept: Any) -> Any:
        return self.client.get(path, headers=HOST, **kept)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("name", [n for n in ENDPOINTS if n not in ("paths", "why")])
def test_every_endpoint_answers_json(world: World, name: str) -> None:
    answer = world.get(f"/api/v1/{name}")
    assert answer.status_code == 200
    assert answer.content_type == "application/json"
    assert answer.headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert isinstance(json.loads(answer.data), dict)


def test_the_listing_names_every_endpoint(world: World) -> None:
    for path in ("/api/v1", "/api/v1/"):
        listed = world.get(path).json["endpoints"]
        assert [e["path"] for e in listed] == [f"/api/v1/{name}" for name in (*ENDPOINTS, *WRITES)]


def test_why_paths_and_groups_take_their_parameters(world: World) -> None:
    assert world.get("/api/v1/why?from=10.0.1.1&to=10.0.4.2").json["delivered"] is True
    roce = world.get("/api/v1/why?from=10.0.1.1&to=10.0.4.2&protocol=udp&source_port=50000&destination_port=4791")
    assert roce.json["packet"] == "udp 10.0.1.1:50000 -> 10.0.4.2:4791"
    assert len(world.get("/api/v1/paths?from=leaf1:1&to=10.0.4.2").json["paths"]) == 2
    assert {g["switch"] for g in world.get("/api/v1/groups?switch=leaf2").json["groups"]} == {"leaf2"}


def test_topology_of_many_switches_is_whole(world: World) -> None:
    """Long lists are encoded in parts; the parts must make one list."""
    from tests.unit.view_builder import fabric

    world.view = view(fabric(20, 2, 1))
    answer = world.get("/api/v1/topology").json
    assert [s["name"] for s in answer["switches"]] == [f"leaf{n}" for n in range(1, 21)] + ["spine1", "spine2"]
    assert len(answer["links"]) == 40


REFUSED = {
    "/api/v1/topologi": (404, "there is nothing at '/api/v1/topologi'", "did you mean /api/v1/topology?"),
    "/": (404, "there is nothing at '/'", "see /api/v1/ for what there is"),
    "/api/v1/topology/": (404, "there is nothing at '/api/v1/topology/'", "did you mean /api/v1/topology?"),
    "/api//v1/topology": (404, "there is nothing at '/api//v1/topology'", "did you mean /api/v1/topology?"),
    "/api/v1/events?sinc=1": (400, "parameter 'sinc' is not known here", "did you mean since?"),
    "/api/v1/health?x=1": (400, "parameter 'x' is not known here", "it takes none"),
    "/api/v1/events?since=-1": (400, "parameter since is '-1'", "give a whole number from 0 to 9223372036854775807"),
    "/api/v1/events?since=1e3": (400, "parameter since is '1e3'", "give a whole number from 0 to 9223372036854775807"),
    "/api/v1/events?wait=61": (400, "parameter wait is '61'", "give a whole number from 0 to 60"),
    "/api/v1/events?limit=0": (400, "parameter limit is '0'", "give a whole number from 1 to 1000"),
    "/api/v1/events?limit=\u0663": (400, "parameter limit is '\u0663'", "give a whole number from 1 to 1000"),
    "/api/v1/events?since=1&since=2": (400, "parameter since is given twice", "give it once"),
    "/api/v1/why?from=10.0.1.1": (400, "parameter to is missing", "add ?from=...&to=..."),
    "/api/v1/why?from=a&to=": (400, "parameter to is missing", "add ?from=...&to=..."),
    "/api/v1/why?from=10.0.1.1&to=leaf9:1": (400, "no switch is called 'leaf9'", "did you mean leaf4?"),
    "/api/v1/why?from=10.0.1.1&to=10.0.4.2&protocol=gre": (400, "protocol 'gre' is not known", "use one of icmp, tcp, udp"),
    "/api/v1/groups?switch=leaf": (400, "no switch is called 'leaf'", "did you mean leaf4?"),
    "/api/v1/why?to=b&from=" + "x" * 300: (400, "parameter from is too long", "shorten it"),
    "/api/v1/why?from=" + "x" * 3000: (400, "the address is too long", "shorten it"),
    "/" + "x" * 600: (400, "the address is too long", "shorten it"),
}


@pytest.mark.parametrize("path", REFUSED, ids=lambda p: p[:50])
def test_what_is_refused_is_named(world: World, path: str) -> None:
    status, what, do = REFUSED[path]
    answer = world.get(path)
    assert answer.status_code == status
    assert answer.json["error"]["what"] == what
    assert answer.json["error"]["do"] == do


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_only_reading(world: World, method: str) -> None:
    answer = world.client.open("/api/v1/status", method=method, headers=HOST)
    assert answer.status_code == 405
    assert answer.headers["Allow"] == "GET, HEAD"
    assert world.asked == 0


def test_head_is_get_without_the_body(world: World) -> None:
    answer = world.client.head("/api/v1/health", headers=HOST)
    assert answer.status_code == 200
    assert answer.data == b""


def test_a_body_is_refused(world: World) -> None:
    answer = world.get("/api/v1/health", data=b"x" * 10)
    assert answer.status_code == 413
    assert world.client.get("/api/v1/health", headers={**HOST, "Transfer-Encoding": "chunked"}).status_code == 413


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost:9", "", "10.0.0.1:8080"]
)
def test_a_page_from_elsewhere_gets_no_answer(world: World, host: str) -> None:
    answer = world.client.get("/api/v1/hosts", headers={"Host": host})
    assert answer.status_code == 403
    assert world.asked == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8080", "localhost:8080", "LOCALHOST", "[::1]:8080"])
def test_loopback_names_are_ours(world: World, host: str) -> None:
    assert world.client.get("/api/v1/health", headers={"Host": host}).status_code == 200


def test_the_whole_fabric_is_rendered_once_a_view(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from aifabric_ctrl.northbound import views

    calls = []
    real = views.topology_parts
    monkeypatch.setattr(views, "topology_parts", lambda *args: calls.append(1) or real(*args))
    first = world.get("/api/v1/topology")
    assert world.get("/api/v1/topology").data == first.data
    assert len(calls) == 1
    world.view = replace(VIEW, now_s=200.0)
    world.now += 1.0
    assert world.get("/api/v1/topology").json["hosts"][0]["seen_s_ago"] == 105.0
    assert len(calls) == 2


def test_events_without_news_wait_and_then_answer(world: World) -> None:
    answer = world.get("/api/v1/events?since=3&wait=10")
    assert answer.json == {"events": [], "last": 3}
    assert world.now == pytest.approx(10.0)


def test_events_come_as_soon_as_there_is_news(world: World) -> None:
    def news() -> None:
        if world.now > 2.0:
            world.view = replace(VIEW, journal=journal(4))

    world.on_sleep = news
    answer = world.get("/api/v1/events?since=3&wait=60")
    assert [e["id"] for e in answer.json["events"]] == [4]
    assert answer.json["events"][0]["time"].startswith("2023-11-14T22:13:24")
    assert world.now < 3.0


def test_a_restarted_controller_ends_the_wait_at_once(world: World) -> None:
    assert world.get("/api/v1/events?since=900&wait=60").json["restarted"] is True
    assert world.now == 0.0


def test_waiters_are_bounded_and_let_go(world: World) -> None:
    settings = load_settings({"HOME": "/h", "AIFABRIC_API_WAITERS": "1"})
    world = World(settings=settings)
    inner: list[int] = []

    def second() -> None:
        if not inner:
            inner.append(world.get("/api/v1/events?since=3&wait=1").status_code)

    world.on_sleep = second
    assert world.get("/api/v1/events?since=3&wait=1").status_code == 200
    assert inner == [503]
    world.on_sleep = lambda: None
    assert world.get("/api/v1/events?since=3&wait=1").status_code == 200


def test_many_readers_share_a_view(world: World) -> None:
    for _ in range(50):
        world.get("/api/v1/health")
    assert world.asked == 1


@pytest.fixture(scope="module")
def shared() -> Iterator[World]:
    yield World()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(sorted(ENDPOINTS)),
    st.dictionaries(st.sampled_from(["from", "to", "since", "limit", "switch", "protocol", "x"]), st.text(max_size=40)),
)
def test_any_query_is_answered_or_refused_in_json(shared: World, name: str, query: dict[str, str]) -> None:
    answer = shared.get(f"/api/v1/{name}", query_string=query)
    assert answer.status_code in (200, 400)
    assert isinstance(answer.json, dict)
