"""A real Open vSwitch bridge of the test's own, spoken to over its management socket: OpenFlow without a controller."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from types import TracebackType

from aifabric_ctrl.southbound.guard import Framer, check
from aifabric_ctrl.southbound.wire import constants as ofp
from aifabric_ctrl.southbound.wire import decode, encode

BOUND_S = 10.0
RUN_DIR = "/var/run/openvswitch"
FENCE = 0xFFFF0001


def missing() -> str:
    """What keeps this machine from running these tests, and what to do; empty when nothing does."""
    if os.geteuid() != 0:
        return "root is needed to make an Open vSwitch bridge: sudo make test"
    if not shutil.which("ovs-vsctl"):
        return "Open vSwitch is not installed: sudo make setup"
    if subprocess.run(["ovs-vsctl", "--timeout=5", "show"], capture_output=True, check=False).returncode:
        return "Open vSwitch does not run: sudo make setup"
    return ""


class Bridge:
    """Context manager: the bridge exists inside."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> Bridge:
        vsctl("--if-exists", "del-br", self.name)
        vsctl("add-br", self.name, "--", "set", "bridge", self.name, "datapath_type=netdev", "fail_mode=secure")
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        vsctl("--if-exists", "del-br", self.name)

    def clear(self) -> None:
        for command in ("del-flows", "del-groups", "del-meters"):
            subprocess.run(["ovs-ofctl", "-O", "OpenFlow13", command, self.name], check=True, timeout=BOUND_S)

    def talk(self, *messages: bytes, until: int | None = None, meanwhile: Callable[[], None] = lambda: None) -> list[bytes]:
        """Send messages and a barrier; everything that came back before the barrier's reply, without HELLO.

        With ``until``, everything up to the first message of that type, which may come after the barrier's reply;
        ``meanwhile`` is called once that reply is there.

        Each message passes the guard, so that the guard is known to accept what Open vSwitch says.
        """
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(BOUND_S)
            sock.connect(f"{RUN_DIR}/{self.name}.mgmt")
            sock.sendall(b"".join((encode.hello(1), *messages, encode.barrier_request(FENCE))))
            framer, replies = Framer(), []
            while data := sock.recv(1 << 16):
                for message in framer.feed(data):
                    check(message)
                    fence = message[1] == ofp.BARRIER_REPLY and decode.header(message).xid == FENCE
                    if message[1] != ofp.HELLO and not fence:
                        replies.append(message)
                    if fence:
                        meanwhile()
                    if message[1] == until or (fence and until is None):
                        return replies
        raise ConnectionError("the switch closed the connection")

    def ask(
        self, *messages: bytes, until: int | None = None, meanwhile: Callable[[], None] = lambda: None
    ) -> list[decode.Message]:
        return [decode.decode(message) for message in self.talk(*messages, until=until, meanwhile=meanwhile)]


def vsctl(*words: str) -> str:
    return subprocess.run(["ovs-vsctl", "--timeout=10", *words], check=True, capture_output=True, text=True, timeout=20).stdout
