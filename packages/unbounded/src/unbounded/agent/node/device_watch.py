"""Watch for devices that appear on the host or leave it, so that the machine's /dev follows at once."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from unbounded.api.failures import Failure
from unbounded.kube.logs import Log

log = Log("agent")

SETTLE_S: Final = 0.2  # a disk appears together with its partitions, and udev then makes its links
POLL_S: Final = 60.0  # for device nodes without an event, such as those of nvidia-modprobe
_UEVENT: Final = 15  # NETLINK_KOBJECT_UEVENT
_GROUPS: Final = 1 | 2  # events of the kernel, and those of udev, sent after it has made the links
_LARGEST: Final = 1 << 16
_SUBSYSTEMS: Final = tuple(
    f"SUBSYSTEM={name}\0".encode() for name in ("block", "vfio", "vfio-dev", "misc", "drm", "infiniband", "nvidia")
)


def concerns_devices(event: bytes) -> bool:
    """Return whether a kernel event concerns a device that machines may get."""
    return any(one in event for one in _SUBSYSTEMS)


class DeviceWatch:
    """Runs `sync` whenever devices of the host change.

    Args:
        sync: updates the /dev of the running machine.
    """

    def __init__(self, sync: Callable[[], Awaitable[None]]) -> None:
        self._sync = sync

    async def run(self) -> None:
        """Run until cancelled."""
        with _events() as events:
            while True:
                try:
                    await self._sync()
                except (Failure, OSError) as error:
                    log.warning("cannot pass devices to the machine", error=error)
                await _change(events)


@contextlib.contextmanager
def _events() -> Iterator[socket.socket | None]:
    """Open the socket of kernel events; None where it is not available, so that only the poll remains."""
    try:
        events = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, _UEVENT)
        events.bind((0, _GROUPS))
    except OSError as error:
        log.warning("cannot watch for new devices; checking once a minute", error=error)
        yield None
        return
    with events:
        yield events


async def _change(events: socket.socket | None) -> None:
    """Return when devices may have changed."""
    if events is None:
        await asyncio.sleep(POLL_S)
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(POLL_S):
            while not concerns_devices(await _received(events)):
                pass
    await asyncio.sleep(SETTLE_S)
    with contextlib.suppress(BlockingIOError):
        while True:
            _drained(events)


async def _received(events: socket.socket) -> bytes:
    try:
        return await asyncio.get_running_loop().sock_recv(events, _LARGEST)
    except OSError as error:
        if error.errno != errno.ENOBUFS:
            raise
        return _SUBSYSTEMS[0]  # the buffer overflowed: any device may have changed


def _drained(events: socket.socket) -> None:
    try:
        events.recv(_LARGEST)
    except OSError as error:
        if error.errno != errno.ENOBUFS:
            raise
