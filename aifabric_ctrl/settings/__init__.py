"""Settings: one table, one loader.  ``load_settings(os.environ)`` is the way in; see docs/settings.md for the table."""

from __future__ import annotations

from aifabric_ctrl.settings.kinds import HostPort
from aifabric_ctrl.settings.load import BadSettings, Settings, display, display_text, load_settings
from aifabric_ctrl.settings.table import TABLE, Setting

__all__ = ["TABLE", "BadSettings", "HostPort", "Setting", "Settings", "display", "display_text", "load_settings"]
