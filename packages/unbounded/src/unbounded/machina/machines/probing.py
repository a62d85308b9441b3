"""Probes of SSH ports in the background, with a concurrency limit; a host that hangs delays only itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from unbounded.api.failures import Failure
from unbounded.api.machine import SSHHop
from unbounded.kube.logs import Log
from unbounded.machina.machines.metrics import MachineMetrics
from unbounded.machina.ssh.model import FirstUse, Ssh, SshReason, SshRejected, SshRoute, SshTransient

LIMIT_S: Final = 90.0  # of one probe, through a bastion and with the write of a pin: beyond the limits of SSH itself

ProbeCallback = Callable[[SshTransient | SshRejected | None], None]
"""(error of the probe, None if the port answered): called when a probe has ended."""

log = Log("machines")


class Prober:
    def __init__(self, ssh: Ssh, at_once: int, metrics: MachineMetrics) -> None:
        self._ssh = ssh
        self._turns = asyncio.Semaphore(at_once)
        self._metrics = metrics

    def start(
        self,
        group: asyncio.TaskGroup,
        machine: str,
        route: Callable[[], Awaitable[SshRoute]],
        first_use: FirstUse,
        looked: ProbeCallback,
    ) -> asyncio.Task[None]:
        return group.create_task(self._probe(machine, route, first_use, looked), name=f"{machine}: probe")

    async def _probe(
        self, machine: str, route: Callable[[], Awaitable[SshRoute]], first_use: FirstUse, looked: ProbeCallback
    ) -> None:
        async with self._turns:
            error = await self._error(machine, route, first_use)
        self._metrics.probed(str(error.reason) if error is not None else "Reachable")
        looked(error)

    async def _error(
        self, machine: str, route: Callable[[], Awaitable[SshRoute]], first_use: FirstUse
    ) -> SshTransient | SshRejected | None:
        try:
            async with asyncio.timeout(LIMIT_S):
                await self._ssh.probe(await route(), on_first_use=first_use)
        except (SshTransient, SshRejected) as error:
            return error
        except TimeoutError:
            return SshTransient(SshReason.TIMED_OUT, SSHHop.HOST, f"no answer within {LIMIT_S:.0f} s")
        except Failure as error:  # an error of the API while a key was pinned, or an invalid address
            return SshTransient(SshReason.UNREACHABLE, SSHHop.HOST, str(error))
        except Exception:
            log.exception("probe failed", machine=machine)
            return SshTransient(
                SshReason.UNREACHABLE, SSHHop.HOST, "machina met an internal error; its log has the details"
            )
        return None
