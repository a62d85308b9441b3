"""The agent's part of its Machine's status: its version, the host's boot id, and the API server and CA that it uses."""

from __future__ import annotations

from typing import Final

import msgspec

from unbounded.agent.cluster_access import ClusterAccess, fingerprint
from unbounded.api.machine import MACHINES, Machine
from unbounded.kube.backoff import Backoff
from unbounded.kube.cache import Cache
from unbounded.kube.controller import Controller
from unbounded.kube.logs import Log
from unbounded.kube.port import Api
from unbounded.kube.status_writer import StatusWriter
from unbounded.kube.workqueue import WorkQueue

AFTER_TROUBLE: Final = Backoff(base_s=0.5, max_s=30.0)

log = Log("agent")


class AgentStatusReporter:
    """Writes the agent's status fields whenever the Machine's differ from them, and never otherwise."""

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
