"""An answer of the API that is not 200."""

from __future__ import annotations

from collections.abc import Mapping

from aifabric_ctrl.model.errors import FabricError


class ApiError(FabricError):
    """What is wrong, what to do, where; with an HTTP status."""

    def __init__(self, status: int, what: str, do: str, where: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(what, do, where)
        self.status = status
        self.headers = dict(headers or {})
