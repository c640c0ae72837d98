"""The one module that names ryu or os_ken: the application base class, its manager, its flags and its hub.

The framework that is already loaded wins, then os-ken, then Ryu; so one code base runs under our own command and under
real Ryu's.  What is taken from the framework is small on purpose: applications, flags, logging flags and the eventlet
hub.  OpenFlow itself is ours, because the framework's parsers can be made to loop by sixteen bytes (DESIGN 5).
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from aifabric_ctrl.model.errors import FabricError, InvalidValue

NAMES = ("os_ken", "ryu")


def _choose() -> str:
    for name in NAMES:
        if f"{name}.base.app_manager" in sys.modules:
            return name
    for name in NAMES:
        if importlib.util.find_spec(name) is not None:
            return name
    raise FabricError("neither os-ken nor Ryu is installed", "pip install os-ken")


def _mend_eventlet() -> None:
    """Ryu 4.34 imports a marker that eventlet dropped in 0.30.3; nothing of ours uses it."""
    wsgi: Any = importlib.import_module("eventlet.wsgi")
    if not hasattr(wsgi, "ALREADY_HANDLED"):
        wsgi.ALREADY_HANDLED = object()


NAME = _choose()
# os-ken's own default, native threads, loses timed waits and departures and is 3 times slower (DESIGN 5, measured).
os.environ.setdefault("OSKEN_HUB_TYPE", "eventlet")
os.environ.setdefault("RYU_HUB_TYPE", "eventlet")
# Said on every import; that eventlet is in maintenance only is a decision of ours, not news to an operator.
warnings.filterwarnings("ignore", message=r"\s*Eventlet is deprecated")
_mend_eventlet()


def _module(name: str) -> Any:
    return importlib.import_module(f"{NAME}.{name}")


hub: Any = _module("lib.hub")
app_manager: Any = _module("base.app_manager")
cfg: Any = _module("cfg")
log: Any = _module("log")
CONF: Any = cfg.CONF
config_error: Any = importlib.import_module("oslo_config.cfg").Error
App: Any = app_manager.OSKenApp if NAME == "os_ken" else app_manager.RyuApp

if getattr(hub, "HUB_TYPE", "") != "eventlet":
    raise FabricError(
        f"{NAME} was started with the {getattr(hub, 'HUB_TYPE', 'unknown')} hub, which loses timers and departures",
        "set OSKEN_HUB_TYPE=eventlet before it starts, or use our ryu-manager",
    )


def version() -> str:
    """Framework name and version, for people."""
    return f"{NAME} {getattr(importlib.import_module(NAME), '__version__', None) or _installed_version()}"


def _installed_version() -> str:
    metadata = importlib.import_module("importlib.metadata")
    try:
        return str(metadata.version("os-ken" if NAME == "os_ken" else "ryu"))
    except metadata.PackageNotFoundError:
        return "of unknown version"


def register_openflow_flags() -> None:
    """Ryu's ``--ofp-*`` and certificate flags; they are registered by the module that would otherwise listen."""
    _module("controller.controller")


class _Alias(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers ``import ryu.x`` with ``os_ken.x`` where Ryu itself is not installed, so that Ryu applications load."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != "ryu" and not name.startswith("ryu."):
            return None
        real = "os_ken" + name[len("ryu") :]
        # A parent that cannot be imported means the name does not exist there either.
        if importlib.util.find_spec(real) is None:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module("os_ken" + spec.name[len("ryu") :])
        # A separate object: the import system writes the alias's own name and spec into what it is handed.
        alias = ModuleType(spec.name)
        alias.__dict__.update({k: v for k, v in module.__dict__.items() if not k.startswith("__")})
        alias.__path__ = []  # the real one would have the files below it loaded a second time
        return alias

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: the attributes are already there."""


def accept_ryu_imports() -> None:
    """Let applications written for Ryu run on os-ken; does nothing when Ryu is installed or in use."""
    if NAME == "os_ken" and importlib.util.find_spec("ryu") is None:
        app_manager.RyuApp = App
        sys.meta_path.append(_Alias())


class Manager(app_manager.AppManager):  # type: ignore[misc]
    """The framework's application manager, told apart by what it makes of a name.

    The framework opens any existing path as a source file, so inside a clone the directory ``aifabric_ctrl`` would be
    taken for the application and fail.
    """

    asked_for: Sequence[str] = ()

    def load_app(self, name: str) -> Any:
        """The application class called ``name`` (a module, or a path to a file).

        Raises:
            InvalidValue: there is no such module or file, or no application in it.
        """
        path = Path(name)
        if path.suffix == ".py" or (os.sep in name and not path.is_dir()):
            if not path.is_file():
                raise InvalidValue(f"there is no application file {name!r}", "give the path of a .py file or a module's name")
            found = super().load_app(str(path))
        else:
            found = self._from_module(name.rstrip(os.sep).replace(os.sep, ".").lstrip("."))
        if found is None and name in self.asked_for:
            raise InvalidValue(f"{name!r} holds no {App.__name__} application", "name a module with a subclass of it")
        return found  # what an application depends on need not be one

    def _from_module(self, name: str) -> Any:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as missing:
            if missing.name and (name == missing.name or name.startswith(missing.name + ".")):
                raise InvalidValue(
                    f"there is no application {name!r}", "give a module's name or the path of a .py file"
                ) from None
            raise
        for attribute in dir(module):
            value = getattr(module, attribute)
            if isinstance(value, type) and issubclass(value, App) and value.__module__ == module.__name__:
                return value
        return None


def start_apps(names: Sequence[str]) -> tuple[Any, list[Any]]:
    """Load and start applications; returns the manager (with ``close()``) and their greenlets.

    Raises:
        FabricError: an application is not there, or one of ours cannot start.
    """
    manager = Manager()
    manager.asked_for = names
    app_manager.AppManager._instance = manager  # applications find each other through the singleton
    manager.load_apps(list(names))
    contexts = manager.create_contexts()
    return manager, list(manager.instantiate_apps(**contexts))
