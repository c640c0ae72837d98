"""aifabric_ctrl: controller for the Ethernet fabric under AI training clusters.

``ryu-manager aifabric_ctrl`` finds the application class here.  Importing the package as a library starts nothing and
imports no framework: the class appears only once a framework's application manager is loaded.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from aifabric_ctrl.app import AIFabric as AIFabric

_APP = "AIFabric"


def _framework_loaded() -> bool:
    return any(f"{name}.base.app_manager" in sys.modules for name in ("os_ken", "ryu"))


def __getattr__(name: str) -> Any:
    if name == _APP and _framework_loaded():
        from aifabric_ctrl.app import AIFabric

        return AIFabric
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    # The framework lists a module's members to find the application; a library user's dir() stays clean.
    return sorted({*globals(), *([_APP] if _framework_loaded() else [])})
