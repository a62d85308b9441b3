"""The move of a host to another API server, on which its Machine and its Node have other UIDs.

The agent trusts only a successor that its Machine names, read from the API server that it already trusts. It requests
certificates for the successor through that server. It proves the successor by reading its own Machine there, and then
writes its configuration, which commits the move. At the next start, `finish` does the rest before anything else runs.
Otherwise the node's controllers would take the Node of the other server for a lost one.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from unbounded.agent.cluster_access import ClusterAccess, access_of_config, config_with
from unbounded.agent.daemon.cluster_sync import AccessNodes
from unbounded.agent.daemon.identity import USER_AGENT, client_config, exec_access
from unbounded.agent.model import CertificateAccess, Slot
from unbounded.agent.paths import HostPaths
from unbounded.agent.recreation.perform import Lock
from unbounded.agent.recreation.report import ConditionReport, one_line
from unbounded.agent.recreation.status import RecreationStatusWriter
from unbounded.agent.settings import require_stored_config, store_config
from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.api.failures import Failure, Rejected, Transient
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import ANNOTATION_SUCCESSOR
from unbounded.join import csr
from unbounded.join.agent_config import AgentConfig
from unbounded.join.migration_successor import MIGRATE, Successor, successor_agent, successor_in, successor_kubelet
from unbounded.kube.api import Api, NotFound
from unbounded.kube.cache import Cache
from unbounded.kube.client import HttpApi
from unbounded.kube.credentials import AuthInfo, StaticCredentials
from unbounded.kube.durable_files import remove_durably, write_durably
from unbounded.kube.logs import Log

log = Log("agent")

RETRY_S: Final = 30.0
_DIGITS: Final = 12


def access_of_successor(successor: Successor) -> ClusterAccess:
    return ClusterAccess(successor.server, successor.ca_pem, successor.dns)


def _digest(successor: Successor) -> str:
    return hashlib.sha256(f"{successor.server}\0{successor.ca_pem}".encode()).hexdigest()[:_DIGITS]


class ServerMigration:
    """Moves this host's agent to the successor that its Machine names.

    Args:
        machines: of the trusted server; it has this host's Machine alone.
        lock: the host's lock; its argument names the holder.
        held_back: why another controller owns the node now; empty when none does.
        restart: restarts this daemon.
    """

    def __init__(
        self,
        api: Api,
        paths: HostPaths,
        config: AgentConfig,
        machines: Cache[Machine],
        status: RecreationStatusWriter,
        *,
        lock: Lock,
        held_back: Callable[[], str],
        restart: Callable[[], Awaitable[None]],
    ) -> None:
        self._api = api
        self._paths = paths
        self._config = config
        self._machines = machines
        self._status = status
        self._lock = lock
        self._blocked_by = held_back
        self._restart = restart

    async def run(self) -> None:
        """Run until cancelled; the cache has to be synced."""
        changed = asyncio.Event()
        changed.set()
        with self._machines.subscribed(lambda _old, _new: changed.set()):
            while True:
                await changed.wait()
                changed.clear()
                machine = self._machines.get(self._config.machine_name)
                text = machine.metadata.annotations.get(ANNOTATION_SUCCESSOR) if machine is not None else None
                if text is None:
                    continue
                try:
                    await self.follow(successor_in(text))
                except (Failure, OSError) as error:
                    log.warning("cannot move to another API server yet", error=error)
                    await self._report(error)
                    await asyncio.sleep(RETRY_S * random.uniform(0.8, 1.2))  # noqa: S311  # many agents
                    changed.set()

    async def follow(self, successor: Successor) -> None:
        """Move the agent's configuration; the daemon that starts next moves the rest.

        Raises:
            Rejected: the successor has another Machine than named, or refuses the agent.
            Transient: another controller owns the node now, or there is no answer.
        """
        access = access_of_successor(successor)
        if access_of_config(self._config).same(access):
            return
        machine, folder = self._config.machine_name, self._paths.successor_identity(_digest(successor))
        agent = await self._certificate(csr.IdentityFiles(folder, successor_agent(machine)), successor_agent(machine))
        if exec_access(self._config) is None:
            await self._certificate(csr.IdentityFiles(folder, successor_kubelet(machine)), successor_kubelet(machine))
        config = config_with(self._config, access)
        await self._check(config, agent, successor)
        async with self._lock("move to another API server"):
            if blocker := self._blocked_by():
                raise Transient(blocker)
            if self._paths.recreation.exists():
                raise Transient("a recreation of the node is in progress")
            write_durably(self._paths.succession, msgspec.json.encode(successor))
            store_config(self._paths, config_with(require_stored_config(self._paths), access))  # the commit
        log.info("moving to another API server; the daemon restarts", access=str(access))
        await self._restart()

    async def _report(self, error: Exception) -> None:
        """Report the cause in the Machine's status on the old server, for the user that follows the move there."""
        used = access_of_config(self._config).server
        report = ConditionReport(
            ConditionType.CLUSTER_ACCESS_CURRENT,
            ConditionStatus.FALSE,
            ConditionReason.PENDING,
            one_line(f"{used} stays in use; cannot move to its successor: {error}"),
        )
        with suppress(Failure):
            await self._status.report((report,), None, None)

    async def _certificate(self, files: csr.IdentityFiles, desired: csr.RequestedIdentity) -> csr.StoredCertificate:
        return await csr.good_certificate(self._api, files, desired, approver=MIGRATE)

    async def _check(self, config: AgentConfig, agent: csr.StoredCertificate, successor: Successor) -> None:
        """Read this Machine from the successor with the identity that the agent will have there."""
        login = StaticCredentials(AuthInfo(certificate=agent.certificate))
        async with HttpApi(client_config(config, login), user_agent=USER_AGENT) as api:
            try:
                found = await api.get(MACHINES, config.machine_name)
            except NotFound as error:
                raise Rejected(f"{successor.server} has no Machine {config.machine_name}") from error
        if found.metadata.uid != successor.machine_uid:
            raise Rejected(f"{successor.server} has another Machine {config.machine_name}, so it is another cluster")


async def finish_migration(paths: HostPaths, config: AgentConfig, nodes: AccessNodes, lock: Lock) -> None:
    """Complete a move whose configuration is written; discard one that was not committed.

    Raises:
        Rejected: a file of the move is missing.
        Transient: kubelet does not start, or another process holds the host's lock.
    """
    try:
        successor = msgspec.json.decode(paths.succession.read_bytes(), type=Successor)
    except FileNotFoundError:
        return
    except msgspec.DecodeError as error:
        raise Rejected(f"{paths.succession}: {error}") from error
    folder = paths.successor_identity(_digest(successor))
    async with lock("move to another API server"):
        if access_of_config(config).same(access_of_successor(successor)):
            await _finish(paths, config, nodes, successor)
        remove_durably(paths.succession)
    shutil.rmtree(folder, ignore_errors=True)


async def _finish(paths: HostPaths, config: AgentConfig, nodes: AccessNodes, successor: Successor) -> None:
    folder, machine = paths.successor_identity(_digest(successor)), config.machine_name
    stored = {
        purpose: content for purpose in (csr.AGENT, csr.KUBELET) if (content := _content(folder, purpose)) is not None
    }
    kubelet = None
    if exec_access(config) is None:
        kubelet = CertificateAccess(
            csr.parse_certificate(stored.get(csr.KUBELET, b""), successor_kubelet(machine)).pem()
        )
    for slot in Slot:
        applied = nodes.applied(slot)
        if applied is not None:
            # a slot that never registered a Node joins like a new one
            uid = successor.node_uid if applied.node_uid else ""
            await nodes.succeed(slot, access_of_successor(successor), kubelet, uid)
    for purpose, content in stored.items():
        write_durably(csr.certificate_file(paths.identity, purpose), content)
    paths.published_access.unlink(missing_ok=True)
    log.info("moved to another API server", machine=machine, access=str(access_of_successor(successor)))


def _content(folder: Path, purpose: str) -> bytes | None:
    try:
        return csr.certificate_file(folder, purpose).read_bytes()
    except FileNotFoundError:
        return None
