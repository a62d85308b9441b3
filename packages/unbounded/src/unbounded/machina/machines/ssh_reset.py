"""Removal of the agent and the node from a host over SSH, before its Machine is deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial

from unbounded.api.machine import SSHHop
from unbounded.machina.machines.outcome import OutOfTime
from unbounded.machina.machines.runs import HostRun
from unbounded.machina.provisioning.model import Finished, Installer
from unbounded.machina.ssh.model import FirstUse, Ssh, SshRejected, SshRoute


async def reset_over_ssh(
    run: HostRun,
    *,
    machine: str,
    uid: str,
    generation: int,
    route: Callable[[], Awaitable[SshRoute]],
    first_use: FirstUse,
    ssh: Ssh,
    installer: Installer,
    tell: Callable[[HostRun, str], None],
    limit_s: float,
) -> Finished:
    """Reset a host and return the result.

    Raises:
        Failure: the reset could not be started, or its result is unknown.
    """
    run.step = "logging in to the host to reset it"
    try:
        async with asyncio.timeout(limit_s):
            way = await route()
            run.version, run.generation = way.host.identity.version, generation
            with _recording_refused_key(run, way):
                async with ssh.login(way, on_first_use=first_use) as shell:
                    run.step = "resetting the host"
                    told = partial(tell, run)
                    return await installer.reset(shell, machine, uid, limit_s=limit_s, tell=told)
    except TimeoutError as error:
        raise OutOfTime(f"{run.step}: not complete within {limit_s / 60:.0f} minutes") from error


@contextmanager
def _recording_refused_key(run: HostRun, way: SshRoute) -> Iterator[None]:
    """Record the version of the key that was refused as that of the run."""
    try:
        yield
    except SshRejected as error:
        if error.hop == SSHHop.BASTION:
            run.version = way.bastion.identity.version if way.bastion is not None else ""
        raise
