"""Notifications to systemd: the daemon is ready, and its event loop is alive."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from typing import Final

from unbounded.kube.logs import Log

_TIMES: Final = 3  # watchdog messages in each interval of systemd

log = Log("agent")


class SystemdNotifier:
    """Sender of sd_notify(3) messages. Without a socket it sends nothing.

    Args:
        address: $NOTIFY_SOCKET: a path, or an abstract name that begins with @.
        watchdog_s: systemd's watchdog interval; None for no watchdog.
    """

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._every_s = watchdog_s / _TIMES if watchdog_s else None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> SystemdNotifier:
        watchdog_usec = environ.get("WATCHDOG_USEC", "")
        return cls(environ.get("NOTIFY_SOCKET", ""), int(watchdog_usec) / 1e6 if watchdog_usec.isdigit() else None)

    def send(self, *states: str) -> None:
        """Send states such as READY=1; an error is only logged, as there is no remedy."""
        if not self._address:
            return
        try:
            with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)) as line:
                line.setblocking(False)
                line.sendto("\n".join(states).encode(), self._address)
        except OSError as error:
            log.warning("cannot notify systemd", error=error, states=list(states))

    async def keep_alive(self) -> None:
        """Report readiness at once, and then from the event loop that it is alive. A hanging loop sends nothing; an API
        server that does not answer is no reason to stop.
        """
        self.send("READY=1", "WATCHDOG=1")
        while self._every_s is not None:
            await asyncio.sleep(self._every_s)
            self.send("WATCHDOG=1")
