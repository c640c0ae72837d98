"""What a setting's value may be: one Kind each, checked by pydantic, described in words for people.

Nothing here knows the settings' names or reads files; ``table.py`` names them, ``load.py`` reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, PlainValidator, TypeAdapter
from pydantic_core import PydanticCustomError

from aifabric_ctrl.model.errors import InvalidValue
from aifabric_ctrl.model.ids import is_host_mac, mac_text, parse_mac
from aifabric_ctrl.model.intent import Network
from aifabric_ctrl.yamlfile import show

MAX_ITEMS = 1024
MAX_TEXT = 4096


class HostPort(NamedTuple):
    """An address to listen on."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Kind:
    """One type of value.

    Attributes:
        words: completes "write ..." in an error and the table's "value" column.
        adapter: strict check of a plain value; a PydanticCustomError of ours carries ``what`` and ``do``.
        many: a list; in the environment its items are separated by commas, and ``none`` is the empty list.
        switch: true or false; the environment may also say on, off, yes or no.
        text: the environment's text is the value, whatever it looks like.
    """

    words: str
    adapter: TypeAdapter[Any]
    many: bool = False
    switch: bool = False
    text: bool = False


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    """Annotations are built at run time here, which a static type checker does not follow."""
    return TypeAdapter(annotation)


def refused(what: str, do: str) -> PydanticCustomError:
    """An error of ours, in the two halves every message of this product has."""
    return PydanticCustomError("refused", "{what}; {do}", {"what": what, "do": do})


def whole(low: int, high: int) -> Kind:
    """A whole number; 3.0 and "3" are refused."""
    return Kind(f"a whole number from {low} to {high}", _adapter(Annotated[int, Field(strict=True, ge=low, le=high)]))


def seconds(low: float, high: float) -> Kind:
    """A number of seconds."""
    number = Annotated[float, Field(strict=True, ge=low, le=high, allow_inf_nan=False)]
    return Kind(f"a number from {low:g} to {high:g}", _adapter(number))


def choice(*names: str) -> Kind:
    """One of a few words."""
    return Kind("one of " + ", ".join(names), _adapter(Literal[names]), text=True)


def _texts(check: Callable[[str], object], words: str) -> Callable[[object], object]:
    def run(value: object) -> object:
        if not isinstance(value, str) or not value or len(value) > MAX_TEXT or not value.isprintable():
            raise refused(f"{show(value)} is not {words}", f"write {words}")
        return check(value)

    return run


def _mac(text: str) -> int:
    try:
        mac = parse_mac(text)
    except InvalidValue as error:
        raise refused(f"MAC address {show(text)} is not six pairs of hex digits", error.do) from None
    if not is_host_mac(mac):
        raise refused(f"MAC address {mac_text(mac)} is not unicast", "make the first byte even, and not all bytes zero")
    return mac


def _address(text: str) -> IPv4Address | IPv6Address:
    if "/" in text:
        raise refused(f"{show(text)} is a prefix, not an address", "write the address without its length")
    try:
        address = ip_address(text)
    except ValueError:
        raise refused(f"{show(text)} is not an IP address", "write it like 10.0.1.254 or 2001:db8::1") from None
    if isinstance(address, IPv6Address) and address.scope_id:
        raise refused(f"{show(text)} has a zone", "write the address without %zone")
    if address.is_multicast or address.is_unspecified or address.is_loopback or address.is_link_local or address.is_reserved:
        raise refused(f"{address} cannot be a host's address", "use a unicast address that is not link-local or loopback")
    return address


def _prefix(text: str) -> Network:
    if "/" not in text:
        raise refused(f"{show(text)} has no prefix length", "write it like 10.0.0.0/8")
    try:
        loose = ip_network(text, strict=False)
    except ValueError:
        raise refused(f"{show(text)} is not a prefix", "write it like 10.0.0.0/8 or 2001:db8::/32") from None
    if "." in text.split("/")[1]:
        raise refused(f"{show(text)} has a netmask", f"write it like {loose}")
    if ip_address(text.split("/")[0]) != loose.network_address:
        raise refused(f"prefix {show(text)} has bits set beyond its length", f"write {loose}")
    if loose.prefixlen and (loose.is_multicast or loose.is_link_local or loose.is_loopback or loose.is_reserved):
        raise refused(f"prefix {loose} cannot hold hosts", "use unicast addresses that are not link-local or loopback")
    return loose


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise refused(f"{show(text)} names a user who has no home directory", "write the whole name, from / on") from None


def _listen(text: str) -> HostPort:
    bare = text.removeprefix("http://").rstrip("/")
    host, colon, port = bare.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or len(port) > 5 or not 1 <= int(port) <= 65535:
        raise refused(f"{show(text)} is not an address with a port", "write it like 127.0.0.1:8080")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        address = ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise refused(f"{show(host)} is not an IP address", "write it like 127.0.0.1:8080 or [::1]:8080") from None
    if not address.is_loopback:
        raise refused(
            f"{address} is not a loopback address, and the API has neither TLS nor a login yet",
            f"use 127.0.0.1:{port} and reach it from elsewhere through ssh -L",
        )
    return HostPort(str(address), int(port))


def _remote(text: str) -> str:
    method, _, rest = text.partition(":")
    if method == "unix" and rest.startswith("/"):
        return text
    host, colon, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if method in ("tcp", "ssl") and colon and port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535:
        try:
            ip_address(host)
        except ValueError:
            pass
        else:
            return text
    raise refused(f"{show(text)} is not an OVSDB remote", "write unix:/path/db.sock, tcp:IP:6640 or ssl:IP:6640")


def _ovsdb(value: object) -> str | tuple[str, ...]:
    """ "auto", "off", one remote or a list of remotes."""
    if isinstance(value, str) and value in ("auto", "off"):
        return value
    check = _texts(_remote, "an OVSDB remote")
    if isinstance(value, str):
        return (str(check(value)),)
    if not isinstance(value, list) or not 0 < len(value) <= MAX_ITEMS:
        raise refused(
            f"{show(value)} is not an OVSDB remote", "write auto, off, unix:/path/db.sock, tcp:IP:6640 or a list of those"
        )
    return tuple(str(check(item)) for item in value)


def _listed(item: Any) -> TypeAdapter[Any]:
    return _adapter(Annotated[list[item], Field(strict=True, max_length=MAX_ITEMS)])


def _plain(check: Callable[[str], object], words: str) -> Any:
    return Annotated[object, PlainValidator(_texts(check, words))]


SWITCH = Kind("true or false", _adapter(Annotated[bool, Field(strict=True)]), switch=True)
MAC = Kind("a unicast MAC address like 02:fa:00:00:00:01", _adapter(_plain(_mac, "a MAC address")), text=True)
ADDRESSES = Kind("a list of IP addresses", _listed(_plain(_address, "an IP address")), many=True)
PREFIXES = Kind("a list of prefixes like 10.0.0.0/8", _listed(_plain(_prefix, "a prefix")), many=True)
DIRECTORY = Kind("the name of a directory", _adapter(_plain(_path, "a directory name")), text=True)
FILE = Kind("the name of a file", _adapter(_plain(_path, "a file name")), text=True)
LISTEN = Kind(
    "a loopback address with a port like 127.0.0.1:8080", _adapter(_plain(_listen, "an address with a port")), text=True
)
OVSDB = Kind(
    "auto, off, or a list of remotes like unix:/path/db.sock or tcp:10.9.0.1:6640",
    _adapter(Annotated[object, BeforeValidator(_ovsdb)]),
    many=True,
)
