"""Updates a node in place when the cluster's API server address, CA or DNS server changes.

A change is accepted only from an API server that the agent already trusts, and only after the agent has read its own
Machine through the new access. kubelet then gets new files and is restarted, while its Pods run on; the agent restarts
with the new configuration.

A change that cannot be accepted yet is reported in the condition ClusterAccessCurrent, and the host stays unchanged.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import msgspec

from unbounded.agent.cluster_access import (
    ClusterAccess,
    access_of_config,
    access_of_goal,
    config_with,
    desired_access,
)
from unbounded.agent.layout import Layout
from unbounded.agent.model import BuildRecord, CertificateAccess, Slot
from unbounded.agent.recreation.perform import Lock
from unbounded.agent.recreation.report import ConditionReport, one_line
from unbounded.agent.recreation.status import RecreationStatusWriter
from unbounded.agent.stored_config import read_stored_config, store_config
from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.api.core import CONFIG_MAPS, SERVICES
from unbounded.api.failures import Failure, Rejected, Transient
from unbounded.api.names import NAMESPACE
from unbounded.join.agent_config import AgentConfig
from unbounded.join.facts import (
    CLUSTER_INFO,
    CLUSTER_INFO_NAMESPACE,
    KUBE_DNS,
    KUBE_DNS_NAMESPACE,
    ROOT_CA,
    InvalidFact,
    dns_of,
    endpoint_of,
    root_ca_of,
)
from unbounded.kube.durable import write_durably
from unbounded.kube.errors import NotFound
from unbounded.kube.logs import Log
from unbounded.kube.port import Api

log = Log("agent")

POLL_S: Final = 300.0  # each comparison is two reads
AFTER_TROUBLE_S: Final = 60.0

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
    except InvalidFact as error:
        raise Rejected(str(error)) from error


async def _place(api: Api) -> tuple[str, str]:
    try:
        place = endpoint_of(await api.get(CONFIG_MAPS, CLUSTER_INFO, namespace=CLUSTER_INFO_NAMESPACE))
    except NotFound:
        try:
            return "", root_ca_of(await api.get(CONFIG_MAPS, ROOT_CA, namespace=NAMESPACE))
        except NotFound:
            return "", ""
    return place.url.rstrip("/"), place.ca_pem


async def _dns(api: Api) -> str:
    try:
        return dns_of(await api.get(SERVICES, KUBE_DNS, namespace=KUBE_DNS_NAMESPACE))
    except NotFound:
        return ""


class AccessFollower:
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
        layout: Layout,
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
        self._layout = layout
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
                wait_s = AFTER_TROUBLE_S
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
            if held := self._blocked_by():
                raise Transient(held)
            if self._layout.recreation.exists():
                raise Transient("a recreation of the node is in progress")
            for slot in behind:
                await self._nodes.follow_access(slot, desired)
            stored = (
                read_stored_config(self._layout) or self._config
            )  # the public key of releases may have changed since
            store_config(self._layout, config_with(stored, desired))

    async def _report(self, reason: ConditionReason, text: str) -> None:
        status = ConditionStatus.TRUE if reason is ConditionReason.APPLIED else ConditionStatus.FALSE
        await self._status.report(
            (ConditionReport(ConditionType.CLUSTER_ACCESS_CURRENT, status, reason, one_line(text)),), None, None
        )

    def _known(self) -> ClusterAccess | None:
        try:
            return msgspec.json.decode(self._layout.published_access.read_bytes(), type=ClusterAccess)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            log.warning("cannot read what the cluster published before; following only its CA", error=error)
            return None

    def _know(self, published: ClusterAccess) -> None:
        write_durably(self._layout.published_access, msgspec.json.encode(published))
