"""The one exception tree.

::

    FabricError
    ├── InvalidValue      a person or a file gave a value we cannot use (says what, where, what to do)
    ├── SettingsError     the settings as a whole cannot be used; nothing was started
    ├── WireError         bytes from a switch or a host that break the protocol; the sender is at fault
    ├── ContractError     a rule of ours breaks the pipeline's own contract; nothing was sent
    ├── StoreError        what must survive a restart could not be read or written
    └── ControllerUnreachable   the CLI could not talk to a controller
"""

from __future__ import annotations


class FabricError(Exception):
    """Base of everything this product raises on purpose.

    Args:
        what: one line, what is wrong.
        do: one line, what to do about it (may be empty).
        where: ``file:line:column``, ``switch:port`` or empty.
    """

    def __init__(self, what: str, do: str = "", where: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.do = do
        self.where = where

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}; {self.do}" if self.do else text


class InvalidValue(FabricError, ValueError):
    """A value from a person or a file cannot be used."""


class SettingsError(FabricError):
    """The settings cannot be used."""


class WireError(FabricError):
    """Bytes that break OpenFlow, Ethernet, ARP or LLDP."""


class ContractError(FabricError):
    """A compiled rule breaks the pipeline's contract."""


class StoreError(FabricError):
    """The store could not be read or written."""


class ControllerUnreachable(FabricError):
    """No controller answers at the API address."""
