"""What the API lets be done, and by whom: cases API-01 (other sites, no token) and API-02 (bad bodies)."""

from __future__ import annotations

import io
import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from werkzeug.test import Client

from aifabric_ctrl.model.effects import Answer
from aifabric_ctrl.model.errors import InvalidValue
from aifabric_ctrl.northbound import token as tokens
from aifabric_ctrl.northbound.api import MAX_ASKING, make_app
from aifabric_ctrl.northbound.cli import cli
from aifabric_ctrl.northbound.requests import MAX_BODY_BYTES
from aifabric_ctrl.settings import load_settings
from tests.unit.view_builder import view

TOKEN = "a-token-of-the-tests-0123456789"
GOOD = {"Host": "127.0.0.1:8080", "Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}


class World:
    def __init__(self, answer: Answer | None = None) -> None:
        self.asked: list[tuple[str, str, str, str, bool]] = []
        self.answer: Answer | None = answer or Answer(1, True, "spine1 is drained", {"changed": True})
        self.client = Client(make_app(view, load_settings({"HOME": "/h"}), ask=self.ask, token=TOKEN))

    def ask(self, *request: Any) -> Answer | None:
        self.asked.append(request)
        return self.answer

    def post(self, body: object = None, path: str = "drain", **headers: str | None) -> Any:
        given = {k: v for k, v in {**GOOD, **{k.replace("_", "-"): v for k, v in headers.items()}}.items() if v is not None}
        raw = body if isinstance(body, bytes) else json.dumps({"target": "spine1"} if body is None else body).encode()
        return self.client.post(f"/api/v1/{path}", data=raw, headers=given)


@pytest.fixture
def world() -> World:
    return World()


def test_a_good_request_is_put_to_the_engine_once(world: World) -> None:
    answer = world.post({"target": "spine1", "reason": "fan", "who": "ann", "force": True})
    assert (answer.status_code, answer.json) == (200, {"ok": True, "text": "spine1 is drained", "changed": True})
    assert world.asked == [("drain", "spine1", "ann", "fan", True)]
    assert world.post(path="undrain").status_code == 200
    assert world.asked[1][:2] == ("undrain", "spine1")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": None}, 401),
        ({"Authorization": "Bearer " + TOKEN[:-1]}, 401),
        ({"Authorization": "Bearer " + TOKEN + "x"}, 401),
        ({"Authorization": "Basic " + TOKEN}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": "Bearer \xff\xfe"}, 401),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content_Type": "application/json; charset=utf-8"}, 415),
        ({"Content_Type": None}, 415),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example:8080"}, 403),
        ({"Transfer_Encoding": "chunked"}, 413),
    ],
)
def test_who_may_not_write(world: World, headers: dict[str, str | None], status: int) -> None:
    answer = world.post(**headers)
    assert answer.status_code == status, answer.data
    assert answer.json["error"]["what"] and answer.json["error"]["do"]
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert TOKEN not in answer.text
    assert world.asked == []


def test_our_own_origin_may() -> None:
    assert World().post(Origin="http://127.0.0.1:8080").status_code == 200


def test_a_token_in_the_query_is_none(world: World) -> None:
    assert world.post(path=f"drain?token={TOKEN}", Authorization=None).status_code == 401
    assert world.post(path="drain?target=spine1").status_code == 400
    assert world.asked == []


DEEP = b"[" * 2000 + b"]" * 2000


@pytest.mark.parametrize(
    ("body", "status", "where"),
    [
        ({}, 400, "target"),
        ([], 400, "body"),
        (b"", 400, "body"),
        (b"{", 400, "body"),
        (b"\xff", 400, "body"),
        (DEEP, 400, "body"),
        (b"x" * (MAX_BODY_BYTES + 1), 413, "body"),
        (b'{"target": "a", "target": "b"}', 400, "target"),
        (b'{"target": "a", "force": NaN}', 400, "body"),
        ({"target": 1}, 400, "target"),
        ({"target": None}, 400, "target"),
        ({"target": " "}, 200, ""),
        ({"target": ""}, 400, "target"),
        ({"target": "x" * 257}, 400, "target"),
        ({"target": "a\nb"}, 400, "target"),
        ({"target": "a", "force": 1}, 400, "force"),
        ({"target": "a", "force": "yes"}, 400, "force"),
        ({"target": "a", "reson": "x"}, 400, "reson"),
        ({"target": "a", "reason": ["x"]}, 400, "reason"),
    ],
    ids=lambda v: str(v)[:30],
)
def test_bad_bodies_name_the_field(world: World, body: object, status: int, where: str) -> None:
    answer = world.post(body)
    assert answer.status_code == status, answer.data
    if status != 200:
        assert answer.json["error"]["where"] == where
        assert world.asked == []
    assert "Traceback" not in answer.text


def test_a_body_that_lies_about_its_length_is_read_no_further(world: World) -> None:
    environ = {"CONTENT_LENGTH": "12", "wsgi.input": io.BytesIO(b'{"target":1}' + b"x" * 100)}
    answer = world.client.post("/api/v1/drain", headers=GOOD, environ_overrides=environ)
    assert answer.json["error"]["where"] == "target"
    for length in ("-1", "1e3", "99999999999", ""):
        assert world.client.post("/api/v1/drain", headers=GOOD, environ_overrides={"CONTENT_LENGTH": length}).status_code in (
            400,
            413,
        )


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_only_post_writes(world: World, method: str) -> None:
    answer = world.client.open("/api/v1/drain", method=method, headers=GOOD)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")


def test_a_refusal_and_a_silence_say_what_to_do() -> None:
    refused = World(Answer(1, False, "leaf1 is not drained: 10.0.1.1 on leaf1 would be cut off; insist with --force"))
    answer = refused.post()
    assert answer.status_code == 409
    assert answer.json["error"]["do"] == "insist with --force"
    silent = World()
    silent.answer = None
    assert silent.post().status_code == 503


def test_requests_under_way_are_bounded(world: World) -> None:
    depth = 0

    def nested(*_: Any) -> Answer:
        nonlocal depth
        depth += 1
        inner = world.post()
        return Answer(1, inner.status_code == 200, f"{inner.status_code}")

    world.ask = nested  # type: ignore[method-assign]
    world.client = Client(make_app(view, load_settings({"HOME": "/h"}), ask=nested, token=TOKEN))
    world.post()
    assert depth == MAX_ASKING


def test_without_a_token_nobody_writes() -> None:
    client = Client(make_app(view, load_settings({"HOME": "/h"}), ask=lambda *_: None, token=""))
    for given in ("", "x", TOKEN):
        headers = {**GOOD, "Authorization": f"Bearer {given}"}
        assert client.post("/api/v1/drain", data=b'{"target": "a"}', headers=headers).status_code == 401


def test_the_token_is_not_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        world.post()
        world.post(Authorization=f"Bearer {TOKEN}x")
    assert TOKEN not in caplog.text


def test_the_token_file_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "api-token"
    before = os.umask(0)
    try:
        made = tokens.make_token(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(made) >= 40 and tokens.make_token(path) == made
    path.chmod(0o640)
    with pytest.raises(InvalidValue, match="others may read"):
        tokens.read_token(path)
    path.chmod(0o600)
    path.write_text("short\n")
    with pytest.raises(InvalidValue, match="no API token"):
        tokens.make_token(path)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidValue):
        tokens.make_token(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()


def test_the_cli_says_how_to_get_a_token(tmp_path: Path) -> None:
    env = {"AIFABRIC_STATE_DIR": str(tmp_path), "AIFABRIC_TOKEN": None}
    result = CliRunner().invoke(cli, ["drain", "spine1"], env=env)
    assert result.exit_code == 2
    assert "api-token" in result.output and "--token-file" in result.output and "AIFABRIC_TOKEN" in result.output
    settings = load_settings({"AIFABRIC_STATE_DIR": str(tmp_path)})
    assert tokens.token_path(settings) == tmp_path / "api-token"
    assert tokens.token_path(replace(settings, api_token_file=tmp_path / "x")) == tmp_path / "x"
