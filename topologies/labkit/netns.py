"""Opens sockets inside the network namespace of another process, from this one. Needs root.

A socket stays in the namespace it was made in, so one process can send, receive and sniff everywhere, with one clock.
"""

import ctypes
import os
import socket
from collections.abc import Callable
from pathlib import Path

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "setns")


def socket_in(pid: int, make: Callable[[], socket.socket]) -> socket.socket:
    """The socket `make` opens while this thread is in the network namespace of process `pid`."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        there = os.open(Path("/proc") / str(pid) / "ns" / "net", os.O_RDONLY)
        try:
            _enter(there)
            try:
                return make()
            finally:
                _enter(home)
        finally:
            os.close(there)
    finally:
        os.close(home)
