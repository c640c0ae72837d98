"""The CLI's side of the REST API: one GET or POST, one JSON value, every failure as one of our errors."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from aifabric_ctrl.model.errors import ControllerUnreachable, FabricError, InvalidValue

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 256 << 20
_DO = "start it with 'ryu-manager aifabric_ctrl', or name another address with --api or AIFABRIC_API"


class Refused(FabricError):
    """The controller will not do what was asked; the reason is the answer."""


@dataclass(frozen=True)
class Client:
    """Where the API is."""

    host: str
    port: int

    @classmethod
    def at(cls, text: str) -> Client:
        """Read ``http://host:port``, ``host:port`` or ``host``.

        Raises:
            InvalidValue: it is none of those, or asks for TLS.
        """
        full = text.strip() if "://" in text else f"http://{text.strip()}"
        do = "write it like http://127.0.0.1:8080"
        try:
            parts = urlsplit(full)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise InvalidValue(f"API address {text[:80]!r} cannot be read", do) from None
        if parts.scheme == "https":
            raise InvalidValue("the API has no TLS yet", do)
        if parts.scheme != "http" or not host or parts.path not in ("", "/") or parts.query or "@" in parts.netloc:
            raise InvalidValue(f"API address {text[:80]!r} is not an address", do)
        if not host.isprintable() or " " in host or port == 0:
            raise InvalidValue(f"API address {text[:80]!r} is not an address", do)
        return cls(host, 8080 if port is None else port)

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    def get(self, name: str, arguments: Mapping[str, object] | None = None, extra_s: float = 0.0) -> Any:
        """Ask for ``/api/v1/<name>``; arguments that are None are left out.

        Raises:
            ControllerUnreachable: nobody, or not a controller, answers.
            InvalidValue: the controller refused the question.
        """
        query = urlencode({k: v for k, v in (arguments or {}).items() if v is not None})
        return self._exchange("GET", f"/api/v1/{name}" + (f"?{query}" if query else ""), extra_s)

    def post(self, name: str, fields: Mapping[str, object], token: str, extra_s: float = 60.0) -> Any:
        """Ask the controller to do something.

        Raises:
            ControllerUnreachable: nobody, or not a controller, answers.
            Refused: the controller will not do it, and why.
            InvalidValue: the request was wrong, or the token.
        """
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        return self._exchange("POST", f"/api/v1/{name}", extra_s, json.dumps(fields).encode(), headers)

    def _exchange(
        self, method: str, path: str, extra_s: float, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S + extra_s)
        try:
            connection.request(method, path, body, {"Accept": "application/json", **(headers or {})})
            answer = connection.getresponse()
            said = answer.read(MAX_ANSWER_BYTES)
        except TimeoutError:
            raise ControllerUnreachable(f"no answer from {self.url} in {TIMEOUT_S + extra_s:g} s", _DO) from None
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            text = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ControllerUnreachable(f"no controller answers at {self.url} ({' '.join(text.split())[:100]})", _DO) from None
        finally:
            connection.close()
        return self._value(answer.status, said)

    def _value(self, status: int, body: bytes) -> Any:
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise ControllerUnreachable(f"what answers at {self.url} is not this controller (HTTP status {status})", _DO)
        if status == 200:
            return value
        error = value.get("error")
        if not isinstance(error, dict):
            raise ControllerUnreachable(f"{self.url} answered with HTTP status {status}", "look at the controller's log")
        what, do = str(error.get("what", f"HTTP status {status}")), str(error.get("do", ""))
        if status == 409:
            raise Refused(what, do)
        if status in (400, 401, 403, 413, 415):
            raise InvalidValue(what, do)
        raise ControllerUnreachable(f"{self.url}: {what}", do)
