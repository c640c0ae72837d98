"""What the operator says the fabric should be: the fabric file, validated, as values.

Nothing here knows YAML or what was found; ``engine`` resolves names to ports and compares the two.  Every part keeps
``where`` (``file:line:column``), so that a finding can point at the line behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from aifabric_ctrl.model.fabric import Network, Role
from aifabric_ctrl.model.ids import Dpid, PortNo

Address = IPv4Address | IPv6Address


class PortSpec(NamedTuple):
    """A port as written: by OpenFlow number, or by interface name, which survives renumbering."""

    dpid: Dpid
    port: PortNo | str


@dataclass(frozen=True, slots=True)
class SwitchSpec:
    """One intended switch; ``role`` None: to be inferred from the cabling."""

    dpid: Dpid
    name: str
    role: Role | None = None
    where: str = ""


@dataclass(frozen=True, slots=True)
class CableSpec:
    """One intended cable; ``speed_bps`` 0 and ``rail`` "" are not checked."""

    a: PortSpec
    b: PortSpec
    speed_bps: int = 0
    rail: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class PortRule:
    """What the file says of one host port beyond who is on it.

    ``vlans`` are the tags hosts may use there (0: untagged); ``speed_bps`` 0 and ``rail`` "" are not checked;
    ``router`` allows router advertisements from it.
    """

    port: PortSpec
    vlans: tuple[int, ...] = (0,)
    speed_bps: int = 0
    rail: str = ""
    router: bool = False
    where: str = ""


@dataclass(frozen=True, slots=True)
class HostSpec:
    """One host of the inventory.  Several ``ports`` mean one address on several leaves, active-active.

    ``mac`` None: any; ``addresses`` empty: only the name and the ports are known; ``rail`` names the rail its cable belongs to.
    """

    name: str
    ports: tuple[PortSpec, ...] = ()
    mac: int | None = None
    addresses: tuple[Address, ...] = ()
    vlan: int = 0
    rail: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class AttachedSpec:
    """Prefixes reached through ``next_hop`` at ``port``.  Where several name one prefix, the earlier in the file is preferred."""

    port: PortSpec
    prefixes: tuple[Network, ...]
    next_hop: Address
    vlan: int = 0
    where: str = ""


@dataclass(frozen=True)
class Blueprint:
    """A whole fabric file.  An empty one declares nothing: everything is discovered.

    ``cables`` non-empty means the cabling is intended: no other link is used (DESIGN 3, "What is a link").
    ``dhcp_servers`` are the addresses that may answer DHCP and that requests are handed to.
    """

    file: str = ""
    switches: Mapping[Dpid, SwitchSpec] = field(default_factory=dict)
    cables: tuple[CableSpec, ...] = ()
    ports: tuple[PortRule, ...] = ()
    hosts: tuple[HostSpec, ...] = ()
    attached: tuple[AttachedSpec, ...] = ()
    dhcp_servers: tuple[Address, ...] = ()
