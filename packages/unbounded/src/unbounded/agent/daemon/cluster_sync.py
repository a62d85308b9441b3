"""Values of the cluster that the daemon follows onto its host: cluster access, registry logins, and the release key.

Cluster access is the API server's address, its CA and the DNS server. A change is accepted only from an API server that
the agent already trusts, and only after the agent has read its own Machine through the new access. kubelet then gets
new files and is restarted, while its Pods run on; the agent restarts with the new configuration. A change that cannot
be accepted yet is reported in the condition ClusterAccessCurrent, and the host stays unchanged.

Registry logins come from their Secrets, so that a changed password needs no new node.

The public key that verifies signatures of agent releases is stored as Upgrade.PublicKey of the host's configuration.
The host adopts the one that the cluster publishes: at each poll, and before each AgentUpgrade. No node may write its
ConfigMap. Where none is published any more the host keeps its own: only root on the host removes a key.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn, Protocol

import msgspec

from unbounded.agent.cluster_access import ClusterAccess, access_of_config, access_of_goal, config_with, desired_access
from unbounded.agent.interfaces import Nodes
from unbounded.agent.model import BuildRecord, CertificateAccess, Slot
from unbounded.agent.node.pull_secrets import PullSecrets, secret_names
from unbounded.agent.paths import HostPaths
from unbounded.agent.recreation.perform import Lock
from unbounded.agent.recreation.report import ConditionReport, one_line
from unbounded.agent.recreation.status import RecreationStatusWriter
from unbounded.agent.settings import read_stored_config, require_stored_config, store_config, with_release_key
from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.api.core import CONFIG_MAPS, SERVICES
from unbounded.api.failures import Failure, Rejected, Transient
from unbounded.api.names import CONFIGMAP_RELEASES, NAMESPACE
from unbounded.join import cluster_facts
from unbounded.join.agent_config import AgentConfig
from unbounded.join.release_key import fingerprint, published_key
from unbounded.kube.api import Api, NotFound
from unbounded.kube.durable_files import write_durably
from unbounded.kube.logs import Log

log = Log("agent")

POLL_S: Final = 300.0  # each comparison is two reads
RETRY_S: Final = 60.0

Probe = Callable[[AgentConfig], Awaitable[None]]


class AccessNodes(Protocol):
    """Slots of a node whose access can be replaced."""

    def applied(self, slot: Slot) -> BuildRecord | None: ...

    async def follow_access(self, slot: Slot, access: ClusterAccess) -> None:
        """Give kubelet in a complete slot this access; restart it where it runs."""
        ...

    async def succeed(
        self, slot: Slot, access: ClusterAccess, kubelet_access: CertificateAccess | None, node_uid: str
    ) -> None:
        """Move kubelet in a complete slot to another cluster, where its Node has this UID.

        Args:
            kubelet_access: its certificate there; None where a program supplies its credential.
        """
        ...


async def published_access(api: Api) -> ClusterAccess:
    """Return the access that the cluster publishes; unpublished fields are empty.

    Raises:
        Rejected: a published value is invalid.
    """
    try:
        server, ca_pem = await _place(api)
        return ClusterAccess(server, ca_pem, await _dns(api))
    except cluster_facts.InvalidFact as error:
        raise Rejected(str(error)) from error


async def _place(api: Api) -> tuple[str, str]:
    try:
        place = cluster_facts.endpoint_of(
            await api.get(CONFIG_MAPS, cluster_facts.CLUSTER_INFO, namespace=cluster_facts.CLUSTER_INFO_NAMESPACE)
        )
    except NotFound:
        try:
            return "", cluster_facts.root_ca_of(await api.get(CONFIG_MAPS, cluster_facts.ROOT_CA, namespace=NAMESPACE))
        except NotFound:
            return "", ""
    return place.url.rstrip("/"), place.ca_pem


async def _dns(api: Api) -> str:
    try:
        return cluster_facts.dns_of(
            await api.get(SERVICES, cluster_facts.KUBE_DNS, namespace=cluster_facts.KUBE_DNS_NAMESPACE)
        )
    except NotFound:
        return ""


class AccessSync:
    """Follows the published access on this host.

    Args:
        lock: the host's lock; its argument names the holder.
        probe: reads the agent's own Machine with a configuration; raises what failed.
        held_back: why another controller owns the node now; empty when none does.
        restart: restarts this daemon.
        moving: returns whether the Machine names a successor of this API server; then the address is not followed here.
    """

    def __init__(
        self,
        api: Api,
        paths: HostPaths,
        config: AgentConfig,
        nodes: AccessNodes,
        status: RecreationStatusWriter,
        *,
        lock: Lock,
        probe: Probe,
        held_back: Callable[[], str],
        restart: Callable[[], Awaitable[None]],
        moving: Callable[[], bool] = lambda: False,
    ) -> None:
        self._moving = moving
        self._api = api
        self._paths = paths
        self._config = config
        self._nodes = nodes
        self._status = status
        self._lock = lock
        self._probe = probe
        self._blocked_by = held_back
        self._restart = restart

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            wait_s = POLL_S
            try:
                if not self._moving():
                    await self.poll()
            except (Failure, OSError) as error:
                log.warning("cannot follow the cluster's address and CA", error=error)
                wait_s = RETRY_S
            await asyncio.sleep(wait_s * random.uniform(0.8, 1.2))  # noqa: S311  # many agents, one API server

    async def poll(self) -> None:
        """Compare once, and follow a change."""
        published = await published_access(self._api)
        known, used = self._known(), access_of_config(self._config)
        desired = desired_access(used, published, known)
        behind = [slot for slot in Slot if self._is_behind(slot, desired)]
        if used.same(desired) and not behind:
            if known is None or not known.same(published):
                self._know(published)
            await self._report(ConditionReason.APPLIED, f"agent and kubelet use {desired}")
            return
        try:
            await self._follow(used, desired, behind)
        except Failure as error:
            await self._report(
                ConditionReason.PENDING, f"{used} stays in use, although the cluster publishes {desired}: {error}"
            )
            raise
        self._know(published)
        log.info("following the cluster's address and CA; the daemon restarts", access=str(desired))
        await self._restart()

    def _is_behind(self, slot: Slot, desired: ClusterAccess) -> bool:
        applied = self._nodes.applied(slot)
        return applied is not None and not access_of_goal(applied.goal).same(desired)

    async def _follow(self, used: ClusterAccess, desired: ClusterAccess, behind: list[Slot]) -> None:
        if not used.same(desired):
            await self._probe(config_with(self._config, desired))
        async with self._lock("address and CA of the API server"):
            if blocker := self._blocked_by():
                raise Transient(blocker)
            if self._paths.recreation.exists():
                raise Transient("a recreation of the node is in progress")
            for slot in behind:
                await self._nodes.follow_access(slot, desired)
            stored = (
                read_stored_config(self._paths) or self._config
            )  # the public key of releases may have changed since
            store_config(self._paths, config_with(stored, desired))

    async def _report(self, reason: ConditionReason, text: str) -> None:
        status = ConditionStatus.TRUE if reason is ConditionReason.APPLIED else ConditionStatus.FALSE
        await self._status.report(
            (ConditionReport(ConditionType.CLUSTER_ACCESS_CURRENT, status, reason, one_line(text)),), None, None
        )

    def _known(self) -> ClusterAccess | None:
        try:
            return msgspec.json.decode(self._paths.published_access.read_bytes(), type=ClusterAccess)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            log.warning("cannot read what the cluster published before; following only its CA", error=error)
            return None

    def _know(self, published: ClusterAccess) -> None:
        write_durably(self._paths.published_access, msgspec.json.encode(published))


LOGINS_POLL_S: Final = 300.0


async def follow_logins(nodes: Nodes, secrets: PullSecrets, lock: Lock, *, every_s: float = LOGINS_POLL_S) -> NoReturn:
    """Copy changed logins into the slots until cancelled; kubelet reads them at each pull."""
    while True:
        await asyncio.sleep(every_s)
        for slot in Slot:
            try:
                await _follow(slot, nodes, secrets, lock)
            except (Failure, OSError) as error:
                log.warning("cannot update registry logins", error=error, slot=slot)


async def _follow(slot: Slot, nodes: Nodes, secrets: PullSecrets, lock: Lock) -> None:
    """Compare the slot's own logins with its Secrets; the host's copy may belong to a slot that is being built."""
    applied = nodes.applied(slot)
    if applied is None or not secret_names(applied.goal.settings):
        return
    logins = await secrets.read(applied.goal.settings)
    if logins == await asyncio.to_thread(nodes.logins, slot):
        return
    async with lock("logins of the node"):
        if nodes.applied(slot) != applied:  # recreated in between, with logins of its own
            return
        await secrets.keep(logins)
        await nodes.configure(slot, applied.goal.settings)
    log.info("registry logins updated", slot=slot)


KEY_POLL_S: Final = 300.0
_ANY: Final = "any release may run: neither this host nor the cluster names a key"


class ReleaseKeySync:
    """Follows the published public key.

    Args:
        lock: the host's lock; its argument names the holder.
        is_reported: returns whether the Machine has the condition; without a key it gets none.
    """

    def __init__(
        self, api: Api, paths: HostPaths, status: RecreationStatusWriter, *, lock: Lock, is_reported: Callable[[], bool]
    ) -> None:
        self._api = api
        self._paths = paths
        self._status = status
        self._lock = lock
        self._is_reported = is_reported

    async def run(self) -> NoReturn:
        """Follow the published key until cancelled."""
        while True:
            wait_s = KEY_POLL_S
            try:
                await self.poll()
            except (Failure, OSError) as error:
                log.warning("cannot follow the public key of releases", error=error)
                wait_s = RETRY_S
            await asyncio.sleep(wait_s * random.uniform(0.8, 1.2))  # noqa: S311  # many agents, one API server

    async def poll(self) -> None:
        """Adopt the published key once, and report it in the condition ReleaseKeyCurrent."""
        try:
            key, published = await self._adopt()
        except Rejected as error:
            await self._report(
                ConditionReason.PENDING, f"{error}; until it is corrected, no AgentUpgrade runs on this host"
            )
            raise
        if not key and not self._is_reported():
            return
        stays = "" if published or not key else "; the cluster publishes none, and the host keeps its own"
        words = f"releases of the agent must be signed with the key {fingerprint(key)}{stays}" if key else _ANY
        await self._report(ConditionReason.APPLIED, words)

    async def current(self) -> str:
        """Adopt the published key and return the key in force; empty where any release may run.

        Raises:
            Rejected: the published key is invalid, or may not be read.
            Transient: no answer, or another process holds the host's lock.
        """
        return (await self._adopt())[0]

    async def _adopt(self) -> tuple[str, str]:
        """Return the key of this host after the update, and the published one."""
        published = await self._published()
        own = require_stored_config(self._paths).upgrade.public_key
        if not published or published == own:
            return own, published
        async with self._lock("public key of releases"):
            store_config(self._paths, with_release_key(require_stored_config(self._paths), published))
        before = fingerprint(own) if own else "none"
        log.info("public key of releases changed", key=fingerprint(published), before=before)
        return published, published

    async def _published(self) -> str:
        try:
            found = await self._api.get(CONFIG_MAPS, CONFIGMAP_RELEASES, namespace=NAMESPACE)
            return published_key(found)
        except NotFound:
            return ""
        except ValueError as error:
            raise Rejected(str(error)) from error

    async def _report(self, reason: ConditionReason, text: str) -> None:
        status = ConditionStatus.TRUE if reason is ConditionReason.APPLIED else ConditionStatus.FALSE
        await self._status.report(
            (ConditionReport(ConditionType.RELEASE_KEY_CURRENT, status, reason, one_line(text)),), None, None
        )
