"""The console of `unbounded up`, in a process of its own: its pages must not slow the API server down."""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from unbounded.cli.child import command, end
from unbounded.cli.screen import Screen
from unbounded.cli.terminal_text import one_line
from unbounded.kube.clock import Backoff

PLUGIN: Final = "unbounded.cli.plugin.main"
AGAIN: Final = Backoff(1.0, 60.0)
STEADY_S: Final = 60.0  # a process that ran this long does not count as failing in a row


@asynccontextmanager
async def running_console(
    kubeconfig: Path,
    port: int | None,
    screen: Screen,
    *,
    allow_operations: bool = False,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[None]:
    """Run the console with the rights of a kubeconfig while entered; its messages go to the screen.

    Args:
        port: 0 for a free one; None for no console.
        allow_operations: it offers actions.
        environment: further variables, with which it reaches a simulated cloud.
    """
    if port is None:
        yield
        return
    flags = ("--allow-operations",) if allow_operations else ()
    arguments = ("console", "--kubeconfig", str(kubeconfig), "--port", str(port), *flags)
    task = asyncio.create_task(_run(arguments, screen, environment or {}), name="console")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _run(arguments: Sequence[str], screen: Screen, environment: Mapping[str, str]) -> None:
    """Run the process again and again until cancelled."""
    loop = asyncio.get_running_loop()
    failures = 0
    while True:
        began = loop.time()
        status = await _run_once(arguments, screen, environment)
        failures = 0 if loop.time() - began >= STEADY_S else failures + 1
        screen.print_message(f"warning: the console has ended with exit status {status}; it is started again")
        await asyncio.sleep(AGAIN.after(max(1, failures)))


async def _run_once(arguments: Sequence[str], screen: Screen, environment: Mapping[str, str]) -> int:
    process = await asyncio.create_subprocess_exec(
        *command(PLUGIN, *arguments),
        stdin=DEVNULL,
        stdout=PIPE,
        env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,  # Ctrl-C is for the parent, which then ends it
    )
    try:
        if process.stdout is not None:
            async for line in process.stdout:
                screen.print_message(one_line(line.decode(errors="replace").rstrip()))
        return await process.wait()
    finally:
        await end(process)
