"""What should be: fabric and intent to flows, groups and meters, each with the reason it exists.

Pure: no clock, socket, random number, YAML or framework; two controllers with equal inputs compile equal tables.
"""

from __future__ import annotations

from aifabric_ctrl.compile.base import base_tables
from aifabric_ctrl.compile.compile import Cache, compile_fabric
from aifabric_ctrl.compile.contract import verify_contract
from aifabric_ctrl.compile.route import hosts_in

__all__ = ["Cache", "base_tables", "compile_fabric", "hosts_in", "verify_contract"]
