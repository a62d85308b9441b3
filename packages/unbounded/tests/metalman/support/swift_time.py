"""An asyncio event loop with real sockets whose clock advances only while no work is pending.

The code under test keeps its production limits: half an hour of polls, graces and stalls passes in a second, over
real TLS. Time (almost) stops during computation: a loaded machine makes a run slower, and nothing else. All parties of
a conversation have to live in this loop: the answer of another process would come too late.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import selectors
import socket
import termios
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from selectors import SelectorKey
from typing import Any, Final, TypeVar

T = TypeVar("T")

EPOCH: Final = datetime(2030, 1, 1, tzinfo=UTC)  # the value of `swift_now()` with the dial at 0
QUIET_S: Final = 0.001  # real seconds that something which was sent has to arrive: loopback is faster than that
LOOKS: Final = 3  # quiet observations in a row while bytes are in flight
FAR_S: Final = 10.0  # a jump that needs one more observation: no poll is so long, and most limits are longer
SYN_SENT: Final = 2  # of TCP's states, in the first byte of TCP_INFO
NOTHING: Final = bytes(4)
YES: Final = ctypes.c_int(1)
LIBC: Final = ctypes.CDLL(None)
TURN_S: Final = 1e-6  # the time of a turn of the loop, so that a wait for a rounding error does not spin


class NotDoneError(AssertionError):
    """The virtual time limit of a run was reached."""


class _SwiftSelector(selectors.BaseSelector):
    """Waits for sockets as its real one does; when these are silent and all that was sent has arrived, it turns the
    dial to the next timer.
    """

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.dial = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        self.dial += TURN_S
        if timeout is None:  # no timer at all: only a socket can bring something
            return self._real.select(None)
        if events := self._real.select(0):
            return events
        if timeout > 0:
            for _ in range(LOOKS):
                if not self._is_under_way():
                    break
                if events := self._real.select(QUIET_S):
                    return events
            if events := self._real.select(QUIET_S if timeout > FAR_S else 0):  # no queue shows a FIN
                return events
        self.dial += max(timeout, 0.0)
        return []

    def _is_under_way(self) -> bool:
        """Return whether sent bytes have not arrived yet."""
        descriptors = [key.fd for key in self._real.get_map().values()]
        for descriptor in descriptors:
            _confirm(descriptor)
        return any(_is_unconfirmed(descriptor) for descriptor in descriptors)

    def register(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, SelectorKey]:
        return self._real.get_map()

    def get_key(self, fileobj: Any) -> SelectorKey:
        return self._real.get_key(fileobj)

    def close(self) -> None:
        self._real.close()


def _confirm(descriptor: int) -> None:
    """Let the kernel acknowledge received bytes now, as it would some milliseconds later by itself."""
    LIBC.setsockopt(descriptor, socket.IPPROTO_TCP, socket.TCP_QUICKACK, ctypes.byref(YES), ctypes.sizeof(YES))


def _is_unconfirmed(descriptor: int) -> bool:
    """Return whether sent bytes have not reached the other side, or a SYN, which no queue shows."""
    state, size = ctypes.c_ubyte(), ctypes.c_uint(1)
    LIBC.getsockopt(descriptor, socket.IPPROTO_TCP, socket.TCP_INFO, ctypes.byref(state), ctypes.byref(size))
    if state.value == SYN_SENT:
        return True
    try:
        return fcntl.ioctl(descriptor, termios.TIOCOUTQ, NOTHING) != NOTHING
    except OSError:  # it listens
        return False


class SwiftLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._dial = _SwiftSelector()
        super().__init__(self._dial)

    def time(self) -> float:
        return self._dial.dial

    def run_in_executor(  # type: ignore[override]  # typed for our use: the base class takes TypeVarTuples
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run it here and now: the clock does not see that a thread has something to do."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # handed to who awaits it
            future.set_exception(error)
        return future

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        return socket.getaddrinfo(host, port, **options)


def run_swiftly(main: Coroutine[Any, Any, T], *, limit_s: float = 7200.0) -> T:
    """Run a coroutine to its end.

    Args:
        limit_s: virtual seconds after which NotDoneError is raised.
    """

    async def bounded() -> T:
        deadline = asyncio.timeout(limit_s)
        try:
            async with deadline:
                return await main
        except TimeoutError as error:
            if deadline.expired():
                raise NotDoneError(f"not done after {limit_s:g} virtual seconds") from error
            raise

    with asyncio.Runner(loop_factory=SwiftLoop) as runner:
        return runner.run(bounded())


def swift_now() -> datetime:
    """The wall clock that belongs to the running loop: EPOCH plus the time on its dial."""
    return EPOCH + timedelta(seconds=asyncio.get_running_loop().time())
