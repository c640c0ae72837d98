"""A fake switch on a real TCP connection, on an asyncio loop, with the ways in which real ones misbehave.

Single-threaded: everything runs on the loop the client was started on.  ``fakenet`` owns such a loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from aifabric_ctrl.model.effects import Change
from aifabric_ctrl.model.errors import WireError
from aifabric_ctrl.model.rules import Flow
from aifabric_ctrl.sim.protocol import SwitchProtocol

READ_BYTES = 65_536


@dataclass
class Manners:
    """How a client behaves.

    Attributes:
        reply_delay_s: every message waits this long before it is sent (order is kept).
        reconnect_s: after a closed connection it comes back after this time; None: never.
    """

    reply_delay_s: float = 0.0
    reconnect_s: float | None = None


class FakeSwitchClient:
    """Connects to a controller and speaks through a :class:`SwitchProtocol`; each connection gets a new one.

    Args:
        protocol: makes the protocol of a new connection.
        host, port: where the controller listens.
    """

    def __init__(self, protocol: Callable[[], SwitchProtocol], host: str, port: int, manners: Manners | None = None) -> None:
        self._make = protocol
        self._host, self._port = host, port
        self.manners = manners or Manners()
        self.protocol: SwitchProtocol | None = None
        self.past: list[SwitchProtocol] = []  # earlier connections, for what they were told
        self.ended = ""  # why the last connection ended
        self.connections = 0
        self._task: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._sending: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self.protocol is not None

    def start(self) -> None:
        """Connect, and reconnect as ``manners`` say."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Close and stay away."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def close(self) -> None:
        """Close the connection from this side (a new one may follow)."""
        if self._writer is not None:
            self._writer.close()

    def abandon(self) -> None:
        """Leave the connection open and silent for ever and start a new one, as a rebooted switch behind a NAT does."""
        self._writer = None
        self.protocol = None
        task, self._task = self._task, None
        self._left = task  # keeps the socket, and so the connection, alive
        self.start()

    def send_raw(self, data: bytes) -> None:
        """Any bytes at all."""
        if self._writer is not None:
            self._writer.write(data)

    def flush(self) -> None:
        """Send what the protocol has queued."""
        if self.protocol is None or self._writer is None:
            return
        messages = self.protocol.take_output()
        if not messages:
            return
        writer, data = self._writer, b"".join(messages)
        if self.manners.reply_delay_s:
            asyncio.get_running_loop().call_later(self.manners.reply_delay_s, writer.write, data)
        else:
            writer.write(data)

    async def _run(self) -> None:
        while True:
            try:
                await self._one_connection()
            except OSError as error:
                self.ended = f"{type(error).__name__}: {error}"
            if self.manners.reconnect_s is None:
                return
            await asyncio.sleep(self.manners.reconnect_s)

    async def _one_connection(self) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        mine = self._make()
        self.protocol, self._writer = mine, writer
        self.connections += 1
        self.ended = ""
        try:
            self.flush()
            while data := await reader.read(READ_BYTES):
                if self.protocol is mine:  # an abandoned connection reads and says nothing
                    mine.feed(data)
                    self.flush()
            self.ended = "closed by the controller"
        except WireError as error:
            self.ended = str(error)
        finally:
            if self.protocol is mine:
                self.past.append(mine)
                self.protocol, self._writer = None, None
            writer.close()


def refuse_flows(errors: dict[int, str]) -> Callable[[Change], str | None]:
    """For ``SwitchTables.inject``: the n-th flow put (from 1) is answered with that error, e.g. {3: "BAD_MATCH/BAD_PREREQ"}."""
    seen = 0

    def inject(change: Change) -> str | None:
        nonlocal seen
        if isinstance(change.object, Flow) and change.op == "put":
            seen += 1
            return errors.get(seen)
        return None

    return inject
