"""``ofp_port`` on the wire, both ways."""

from __future__ import annotations

import struct

from aifabric_ctrl.model.fabric import Port, PortRole
from aifabric_ctrl.model.ids import is_physical
from aifabric_ctrl.southbound.wire import constants as ofp

PORT_SIZE = 64
_PORT = struct.Struct("!I4x6s2x16s8I")
_NAME_BYTES = 15  # and a closing NUL


def text_of(raw: bytes) -> str:
    """A fixed-width, NUL-padded name; bytes that are not UTF-8 are shown, not refused."""
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")


def decode_port(raw: bytes, position: int) -> Port:
    """The 64 bytes at ``position``, which the caller has made sure of."""
    number, mac, name, config, state, _, _, _, _, speed_kbps, _ = _PORT.unpack_from(raw, position)
    live = bool(state & ofp.PS_LIVE)
    return Port(
        number=number,
        name=text_of(name),
        mac=int.from_bytes(mac, "big"),
        admin_down=bool(config & ofp.PC_PORT_DOWN),
        link_down=bool(state & ofp.PS_LINK_DOWN),
        live=live,
        ever_live=live,
        speed_bps=speed_kbps * 1000,
        role=PortRole.UNKNOWN if is_physical(number) else PortRole.RESERVED,
    )


def encode_port(port: Port) -> bytes:
    """A port as a switch describes it."""
    state = (ofp.PS_LINK_DOWN if port.link_down else 0) | (ofp.PS_LIVE if port.live else 0)
    config = ofp.PC_PORT_DOWN if port.admin_down else 0
    name = port.name.encode()[:_NAME_BYTES]
    speed_kbps = port.speed_bps // 1000
    return _PORT.pack(port.number, port.mac.to_bytes(6, "big"), name, config, state, 0, 0, 0, 0, speed_kbps, speed_kbps)
