"""What the daemon tells systemd: that it is up, and that its loop still turns."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from typing import Final

from unbounded.kube.logs import Log

_TIMES: Final = 3  # as often as systemd wants to hear of it

log = Log("agent")


class Notifier:
    """sd_notify(3). Where nobody listens, nothing is sent.

    Args:
        address: $NOTIFY_SOCKET: a path, or a name that begins with @.
        watchdog_s: within which systemd wants to hear that the daemon is alive; None where it does not.
    """

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._every_s = watchdog_s / _TIMES if watchdog_s else None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Notifier:
        told = environ.get("WATCHDOG_USEC", "")
        return cls(environ.get("NOTIFY_SOCKET", ""), int(told) / 1e6 if told.isdigit() else None)

    def tell(self, *states: str) -> None:
        """Send states such as READY=1; trouble is logged, as nothing else could be done about it."""
        if not self._address:
            return
        try:
            with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)) as line:
                line.setblocking(False)
                line.sendto("\n".join(states).encode(), self._address)
        except OSError as error:
            log.warning("systemd could not be told", error=error, states=list(states))

    async def keep_alive(self) -> None:
        """Say at once that the daemon is up, and then, from the loop itself, that this turns. A loop that hangs says
        nothing; an API server that is away is no reason for silence."""
        self.tell("READY=1", "WATCHDOG=1")
        while self._every_s is not None:
            await asyncio.sleep(self._every_s)
            self.tell("WATCHDOG=1")
