"""What an operator may call things: hosts by address or MAC, switches by name or datapath id, ports by number or name.

Only reads a view.  Every name that is not known is answered with the closest one that is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

from aifabric_ctrl.engine.view import EngineView
from aifabric_ctrl.model.errors import InvalidValue
from aifabric_ctrl.model.fabric import Address, Host, Switch
from aifabric_ctrl.model.ids import PortRef, dpid_text, mac_text, parse_dpid, parse_mac
from aifabric_ctrl.northbound.words import port_name
from aifabric_ctrl.yamlfile import closest, show

MAX_NAME = 256


@dataclass(frozen=True)
class Endpoint:
    """What a name stands for: hosts (in address order; several when a MAC or port has several addresses), or an address
    that no host is known to have."""

    text: str
    hosts: tuple[Host, ...] = ()
    address: Address | None = None

    def of_version(self, version: int) -> Host | None:
        """The first host whose address has this IP version."""
        return next((h for h in self.hosts if h.ip.version == version), None)


def find_switch(view: EngineView, text: str) -> Switch:
    """A switch by name or datapath id.

    Raises:
        InvalidValue: no such switch, or several of that name.
    """
    _check(text)
    named = [s for s in view.fabric.switches.values() if text and s.name == text]
    if len(named) > 1:
        ids = ", ".join(dpid_text(s.dpid) for s in named)
        raise InvalidValue(f"{len(named)} switches are called {text}", f"use a datapath id: {ids}")
    if named:
        return named[0]
    try:
        switch = view.fabric.switches.get(parse_dpid(text))
    except InvalidValue:
        switch = None
    if switch is None:
        known = [n for s in view.fabric.switches.values() for n in (s.name, dpid_text(s.dpid)) if n]
        raise InvalidValue(f"no switch is called {show(text)}", _suggest(text, known, "aifabric topology"))
    return switch


def find_endpoint(view: EngineView, text: str) -> Endpoint:
    """A host by address or MAC, the hosts at ``switch:port``, or an address nobody has.

    Raises:
        InvalidValue: not an address, and not the name of anything.
    """
    text = text.strip()
    _check(text)
    hosts = view.fabric.hosts
    try:
        address = ip_address(text)
    except ValueError:
        pass
    else:
        host = hosts.get(address)
        return Endpoint(text, (host,) if host is not None else (), address)
    try:
        mac = parse_mac(text)
    except InvalidValue:
        pass
    else:
        found = tuple(sorted((h for h in hosts.values() if h.mac == mac), key=lambda h: (h.ip.version, h.ip)))
        if not found:
            raise InvalidValue(
                f"no host has MAC address {text}", _suggest(text, [mac_text(h.mac) for h in hosts.values()], "aifabric hosts")
            )
        return Endpoint(text, found)
    if ":" in text:
        return _at_port(view, text)
    known = [str(ip) for ip in hosts]
    raise InvalidValue(f"{show(text)} is not the name of a host", _suggest(text, known, "aifabric hosts"))


def _at_port(view: EngineView, text: str) -> Endpoint:
    name, _, port_text = text.rpartition(":")
    switch = find_switch(view, name)
    by_number = {str(n): n for n in switch.ports}
    number = by_number.get(port_text)
    if number is None:
        number = next((n for n, p in switch.ports.items() if p.name == port_text), None)
    if number is None:
        known = [*by_number, *(p.name for p in switch.ports.values() if p.name)]
        raise InvalidValue(f"{switch.text} has no port {show(port_text)}", _suggest(port_text, known, "aifabric topology"))
    at = PortRef(switch.dpid, number)
    found = tuple(sorted((h for h in view.fabric.hosts.values() if h.at == at), key=lambda h: (h.ip.version, h.ip)))
    if not found:
        where = f"{switch.text} port {number} ({port_name(switch, number)})"
        raise InvalidValue(f"no host is known at {where}", "name a port with a host; see 'aifabric hosts'")
    return Endpoint(text, found)


def _check(text: str) -> None:
    if not text or len(text) > MAX_NAME or not text.isprintable():
        raise InvalidValue(f"{show(text)} is not a name", "use an address, a MAC address or switch:port")


def _suggest(text: str, known: Iterable[str], verb: str) -> str:
    near = closest(text, known)
    return f"did you mean {near}?" if near else f"see '{verb}'"
