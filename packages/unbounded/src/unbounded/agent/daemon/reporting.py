"""Reports of the agent: its part of its Machine's status, conditions of the host, and on the host a deleted Machine."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Final

import msgspec

from unbounded.agent.cluster_access import ClusterAccess, fingerprint
from unbounded.agent.layout import Layout
from unbounded.agent.node.gpus import gpus_described, read_cdi_result
from unbounded.agent.node.manual_changes import node_modified
from unbounded.agent.node_spec.for_build import deleted_machine_message
from unbounded.agent.preflight.observe_host import graphics
from unbounded.agent.recreation.report import ConditionReport
from unbounded.api.conditions import ConditionType
from unbounded.api.machine import MACHINES, Machine
from unbounded.kube.cache import Cache
from unbounded.kube.clock import Backoff
from unbounded.kube.controller import Controller
from unbounded.kube.logs import Log
from unbounded.kube.port import Api
from unbounded.kube.status_writer import StatusWriter
from unbounded.kube.workqueue import WorkQueue

log = Log("agent")


AFTER_TROUBLE: Final = Backoff(base_s=0.5, max_s=30.0)


class AgentStatusReporter:
    """Writes the agent's status fields whenever the Machine's differ from them, and never otherwise.

    These are its version, the host's boot id, and the API server and CA that it uses.
    """

    def __init__(
        self,
        api: Api,
        machines: Cache[Machine],
        machine: str,
        *,
        version: str,
        host_boot_id: str,
        access: ClusterAccess | None = None,
    ) -> None:
        self._status = StatusWriter(api, MACHINES, fields=("agent",), cache=machines)
        self._machines = machines
        self._machine = machine
        self._wanted = {"version": version, "hostBootID": host_boot_id}
        if access is not None:
            self._wanted |= {"apiServer": access.server, "clusterCA": fingerprint(access.ca_pem)}
        self._controller: Controller[str] = Controller(
            "agent status", self._reconcile, workers=1, queue=WorkQueue(failed=AFTER_TROUBLE)
        )

    async def run(self) -> None:
        """Run until cancelled; the cache has to be synced."""
        stop = self._machines.subscribe(self._changed)
        try:
            await self._controller.run()
        finally:
            stop()

    def _changed(self, _old: Machine | None, new: Machine | None) -> None:
        if new is not None and new.name == self._machine and self._differs(new):
            self._controller.enqueue(new.name)

    def _differs(self, machine: Machine) -> bool:
        agent = machine.status.agent
        return agent is None or not self._wanted.items() <= msgspec.to_builtins(agent).items()

    async def _reconcile(self, name: str) -> None:
        machine = self._machines.get(name)
        if machine is None or not self._differs(machine):
            return
        await self._status.merge(name, {"agent": self._wanted})
        log.info("reported", machine=name, version=self._wanted["version"])


class DeletedMachineReport:
    """Reports a deleted Machine in the log and in a file that `unbounded-agent status` reads, while it is missing.

    The agent does not create the Machine again: the deletion may be intended.
    """

    def __init__(self, machines: Cache[Machine], machine: str, layout: Layout) -> None:
        self._machines = machines
        self._machine = machine
        self._file = layout.machine_missing
        self._is_reported = False

    async def run(self) -> None:
        """Run until cancelled; the cache has to be synced."""
        try:
            with self._machines.subscribed(lambda _old, _new: self._observe()):
                self._observe()
                await asyncio.get_running_loop().create_future()
        finally:
            self._withdraw()

    def _observe(self) -> None:
        if self._machines.get(self._machine) is not None:
            self._withdraw()
        elif not self._is_reported:
            self._is_reported = True
            words = deleted_machine_message(self._machine)
            log.error(words, machine=self._machine)
            with suppress(OSError):
                self._file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                self._file.write_text(f"{words}\n")

    def _withdraw(self) -> None:
        self._is_reported = False
        with suppress(OSError):
            self._file.unlink(missing_ok=True)


def host_conditions(layout: Layout, types: Collection[str]) -> tuple[ConditionReport, ...]:
    """Return conditions about the host. Blocking.

    Args:
        types: of the conditions that the Machine has.
    """
    found = graphics(layout)
    is_reported = ConditionType.GPUS_DESCRIBED in types
    gpus = gpus_described(read_cdi_result(layout), cards=found.cards, driver=found.driver, is_reported=is_reported)
    return (*node_modified(layout), *(() if gpus is None else (gpus,)))
