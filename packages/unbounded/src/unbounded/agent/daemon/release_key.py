"""The public key that verifies signatures of agent releases, on a host that has joined.

The host stores it as Upgrade.PublicKey of its configuration, and adopts the one that the cluster publishes: at each
poll, and before each AgentUpgrade. The ConfigMap is read from the API server that the agent already trusts, and no node
may write it. Where none is published any more the host keeps its own: only root on the host removes a key.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final, NoReturn

from unbounded.agent.layout import Layout
from unbounded.agent.recreation.perform import Lock
from unbounded.agent.recreation.report import ConditionReport, one_line
from unbounded.agent.recreation.status import RecreationStatusWriter
from unbounded.agent.stored_config import require_stored_config, store_config, with_release_key
from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.api.core import CONFIG_MAPS
from unbounded.api.failures import Failure, Rejected
from unbounded.api.names import CONFIGMAP_RELEASES, NAMESPACE
from unbounded.join.release_key import fingerprint, published_key
from unbounded.kube.errors import NotFound
from unbounded.kube.logs import Log
from unbounded.kube.port import Api

log = Log("agent")

POLL_S: Final = 300.0
AFTER_TROUBLE_S: Final = 60.0
_ANY: Final = "any release may run: neither this host nor the cluster names a key"


class ReleaseKeyFollower:
    """Follows the published public key.

    Args:
        lock: the host's lock; its argument names the holder.
        is_reported: returns whether the Machine has the condition; without a key it gets none.
    """

    def __init__(
        self, api: Api, layout: Layout, status: RecreationStatusWriter, *, lock: Lock, is_reported: Callable[[], bool]
    ) -> None:
        self._api = api
        self._layout = layout
        self._status = status
        self._lock = lock
        self._is_reported = is_reported

    async def run(self) -> NoReturn:
        """Follow the published key until cancelled."""
        while True:
            wait_s = POLL_S
            try:
                await self.poll()
            except (Failure, OSError) as error:
                log.warning("cannot follow the public key of releases", error=error)
                wait_s = AFTER_TROUBLE_S
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
        own = require_stored_config(self._layout).upgrade.public_key
        if not published or published == own:
            return own, published
        async with self._lock("public key of releases"):
            store_config(self._layout, with_release_key(require_stored_config(self._layout), published))
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
