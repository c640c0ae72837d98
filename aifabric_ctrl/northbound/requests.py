"""What may be asked of the controller to do: strict JSON bodies, a bearer token, nothing a web page could send.

Knows no engine: a checked request becomes arguments, and an answer of the engine becomes JSON.  The order of refusals
is the order in which they cost least and tell least: origin, token, type, size, content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from werkzeug.wrappers import Request

from aifabric_ctrl.model.effects import Answer
from aifabric_ctrl.northbound.problem import ApiError
from aifabric_ctrl.northbound.token import matches
from aifabric_ctrl.yamlfile import closest, show

Ask = Callable[[str, str, str, str, bool], Answer | None]  # verb, target, who, reason, force

MAX_BODY_BYTES = 4096
MAX_TEXT = 256
WRITES: dict[str, tuple[tuple[str, ...], str]] = {
    "drain": (("target", "reason", "who", "force"), "keeps traffic off a switch, cable or host port"),
    "undrain": (("target", "reason", "who"), "uses it again"),
    "audit": (("target", "repair", "who"), "compares what switches hold with what they should"),
}
_REQUIRED = {"drain": "target", "undrain": "target"}
_FLAGS = ("force", "repair")
_DO_TOKEN = "send 'Authorization: Bearer TOKEN'; the token is in the file that api_token_file names"


@dataclass(frozen=True)
class Command:
    """A checked request."""

    verb: str
    target: str = ""
    who: str = ""
    reason: str = ""
    force: bool = False


def read(request: Request, name: str, token: str, own_origins: frozenset[str]) -> Command:
    """Check a write and take it apart.

    Raises:
        ApiError: 400, 401, 403, 413 or 415, with the field that is wrong.
    """
    origin = request.environ.get("HTTP_ORIGIN")
    if origin is not None and origin.lower() not in own_origins:
        raise ApiError(403, f"origin {show(origin)} may not write", "use the command line", "Origin header")
    _authorised(request, token)
    if request.environ.get("QUERY_STRING"):
        raise ApiError(400, "a write takes no query", "put everything into the JSON body", "address")
    if request.environ.get("CONTENT_TYPE", "").strip().lower() != "application/json":
        raise ApiError(415, "the body must be JSON", "send 'Content-Type: application/json', without parameters", "Content-Type")
    return _command(name, _body(request))


def _authorised(request: Request, token: str) -> None:
    scheme, _, given = request.environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    headers = {"WWW-Authenticate": "Bearer", "Connection": "close"}
    if scheme.lower() != "bearer" or not given.strip():
        raise ApiError(401, "a write needs a token", _DO_TOKEN, "Authorization header", headers)
    if not token or not matches(given.strip(), token):
        raise ApiError(401, "this is not the token", _DO_TOKEN, "Authorization header", headers)


def _body(request: Request) -> Mapping[str, Any]:
    if "HTTP_TRANSFER_ENCODING" in request.environ:
        raise ApiError(413, "a chunked body is not taken", "send Content-Length", "body", {"Connection": "close"})
    length = request.environ.get("CONTENT_LENGTH", "")
    if not (length.isascii() and length.isdigit()) or len(length) > 9:
        raise ApiError(400, "the body's length is not given", "send Content-Length", "body", {"Connection": "close"})
    if int(length) > MAX_BODY_BYTES:
        raise ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes", "shorten it", "body", {"Connection": "close"})
    raw = request.environ["wsgi.input"].read(int(length))
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ApiError(400, "the body is not JSON", "send one JSON object", "body") from None
    if not isinstance(value, dict):
        raise ApiError(400, "the body is not a JSON object", 'send something like {"target": "spine1"}', "body")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ApiError(400, f"field {show(name)} is given twice", "give it once", name[:60])
        found[name] = value
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(text)


def _command(name: str, body: Mapping[str, Any]) -> Command:
    fields = WRITES[name][0]
    for field, value in body.items():
        if field not in fields:
            near = closest(field, fields)
            do = f"did you mean {near}?" if near else f"it takes {', '.join(fields)}"
            raise ApiError(400, f"field {show(field)} is not known here", do, field[:60])
        _check(field, value)
    needed = _REQUIRED.get(name)
    if needed is not None and not body.get(needed):
        raise ApiError(400, f"field {needed} is missing", 'name a switch or a port, like {"target": "spine1"}', needed)
    verb = "repair" if body.get("repair") else name
    texts = {k: str(body.get(k, "")).strip() for k in ("target", "who", "reason")}
    return Command(verb, **texts, force=bool(body.get("force", False)))


def _check(field: str, value: object) -> None:
    if field in _FLAGS:
        if not isinstance(value, bool):
            raise ApiError(400, f"field {field} is {show(json.dumps(value)[:60])}", "give true or false", field)
        return
    if not isinstance(value, str):
        raise ApiError(400, f"field {field} is {show(json.dumps(value)[:60])}", "give a text", field)
    if len(value) > MAX_TEXT or not value.isprintable():
        raise ApiError(400, f"field {field} is not one line of at most {MAX_TEXT} characters", "shorten it", field)


def answered(answer: Answer | None) -> dict[str, Any]:
    """The engine's answer as JSON.

    Raises:
        ApiError: 503 when it did not answer, 409 when it refused.
    """
    if answer is None:
        raise ApiError(503, "the controller did not answer in time; it may still do what was asked", "see 'aifabric status'")
    if not answer.ok:
        what, _, do = answer.text.rpartition("; ") if "; " in answer.text else (answer.text, "", "")
        raise ApiError(409, what, do, "target")
    return {"ok": True, "text": answer.text, **answer.data}
