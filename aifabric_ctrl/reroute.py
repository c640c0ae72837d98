"""Keeps ``bin/ryu-manager`` ours when real Ryu, whose package brings a script of that name, is installed after us.

``aifabric_ctrl.pth`` imports this module at the start of a process called ``ryu-manager`` and of no other.  It answers
``import ryu.cmd.manager`` with our command, which starts any Ryu application; Ryu's own cannot be imported beside a
current eventlet.  It must stay cheap and import nothing of ours before that happens.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType

SCRIPT_IMPORTS = "ryu.cmd.manager"


class _Reroute(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name == SCRIPT_IMPORTS else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None  # the usual kind

    def exec_module(self, module: ModuleType) -> None:
        from aifabric_ctrl.manager import main

        module.__dict__["main"] = main


def install() -> None:
    """Put the finder first, once."""
    if not any(isinstance(finder, _Reroute) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Reroute())
