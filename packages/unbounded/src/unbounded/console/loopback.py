"""The console on loopback, for one user: a one-time URL opens a session with the rights of a kubeconfig."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from unbounded.console.app import build
from unbounded.console.guard import COOKIE, ConsoleOrigin
from unbounded.console.login import OneTimeLogin
from unbounded.console.models.failures import FailingRollouts
from unbounded.console.models.fleet import FleetIndex
from unbounded.console.server import listen, serving
from unbounded.console.sessions import BrowserSession, BrowserSessions, OneTimeUrls, identity_of
from unbounded.intents.operations import user_name
from unbounded.kube.client import HttpApi
from unbounded.kube.settings import Address

HOST: Final = "127.0.0.1"
IDLE_S: Final = 12 * 3600.0
ABSOLUTE_S: Final = 7 * 24 * 3600.0
HINT: Final = "Open the last address that the program has printed: it prints another one once that is used."


@asynccontextmanager
async def serving_loopback(
    api: HttpApi, *, port: int, issued: Callable[[str], None], allow_operations: bool = False
) -> AsyncIterator[None]:
    """Serve the console inside of the context.

    Args:
        api: with the rights of the user; it stays open until the context ends.
        port: 0 for a free one.
        issued: called with the first URL, and with another one after each use.
        allow_operations: pages offer actions.

    Raises:
        ApiError: the API server does not know the user.
        OSError: the port is not free.
    """
    name = await user_name(api)
    with listen(Address(HOST, port)) as listener:
        port = listener.getsockname()[1]
        sessions = BrowserSessions(idle_s=IDLE_S, absolute_s=ABSOLUTE_S, now=asyncio.get_running_loop().time)
        urls = OneTimeUrls(lambda secret: issued(f"http://{HOST}:{port}/start/{secret}"))

        identity = identity_of("kubeconfig")

        def redeem(secret: str) -> BrowserSession | None:
            return sessions.begin(identity, name, api) if urls.redeem(secret) else None

        own = ConsoleOrigin(frozenset({f"{HOST}:{port}", f"localhost:{port}"}), cookie=f"{COOKIE}-{port}")
        login = OneTimeLogin(redeem, HINT, own)
        app = build(sessions=sessions, own=own, login=login, allow_operations=allow_operations)
        async with serving(app, listener):
            ending = asyncio.create_task(sessions.end_when_due(), name="ends of sessions")
            live = sessions.prepare(identity, name, api).live
            for derived in (FleetIndex, FailingRollouts):  # before the user opens the address
                live.derived(derived)
            urls.issue()
            try:
                yield
            finally:
                ending.cancel()
