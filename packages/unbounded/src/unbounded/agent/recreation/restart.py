"""Restart of a present node: a machine or a service that should run and does not is started again.

An operation that was interrupted between its stop and its start leaves a machine that is stopped and disabled at boot;
so does a `poweroff` inside. The observed state counts, whatever its cause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from unbounded.agent.model import Slot, SlotFacts
from unbounded.agent.ports import Nodes
from unbounded.agent.recreation.perform import Lock
from unbounded.agent.recreation.plan import RecreationLimits
from unbounded.api.failures import Failure
from unbounded.kube.clock import Backoff
from unbounded.kube.logs import Log

AGAIN: Final = Backoff(base_s=20.0, max_s=600.0)  # between starts of a node that does not stay up

log = Log("agent")


def stopped_part(facts: SlotFacts) -> str:
    """Return which part of a node does not run; empty for a node that serves."""
    if not facts.running:
        return "its machine is not running"
    missing = [name for name, runs in (("containerd", facts.containerd), ("kubelet", facts.kubelet)) if not runs]
    return "" if not missing else f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not running"


class NodeRestarter:
    """Restarts stopped parts of the node.

    Args:
        held_back: returns why another controller owns the node now; empty when none does.
    """

    def __init__(self, nodes: Nodes, lock: Lock, limits: RecreationLimits, held_back: Callable[[], str]) -> None:
        self._nodes = nodes
        self._lock = lock
        self._limits = limits
        self._blocked_by = held_back
        self._starts = 0  # since it last stayed up
        self._not_before: float | None = None  # earliest time of the next start; None while it is not known to be down
        self._up_since: float | None = None

    async def ensure_running(self, home: Slot) -> float:
        """Observe the node, and start stopped parts; return the seconds until the next check."""
        if self._blocked_by():
            self._not_before = None
            return self._limits.check_s
        lacks = stopped_part(await self._nodes.observe(home))
        now = asyncio.get_running_loop().time()
        if not lacks:
            return self._record_serving(now)
        self._up_since = None
        if self._not_before is None:  # it may be starting, or stopping together with its host
            self._not_before = now + (AGAIN.after(self._starts) if self._starts else self._limits.down_s)
        if now < self._not_before:
            return self._not_before - now
        self._starts += 1
        await self._start(home)
        again_s = AGAIN.after(self._starts)
        self._not_before = asyncio.get_running_loop().time() + again_s
        return again_s

    def _record_serving(self, now: float) -> float:
        """Record that the node serves. A node that soon stops again is restarted at growing intervals."""
        self._not_before = None
        self._up_since = now if self._up_since is None else self._up_since
        if now - self._up_since >= self._limits.check_s:
            self._starts = 0
        return self._limits.check_s

    async def _start(self, home: Slot) -> None:
        try:
            async with self._lock("start of a node that is down"):
                lacks = stopped_part(await self._nodes.observe(home))
                if lacks and not self._blocked_by():  # both may have changed while the lock was awaited
                    log.warning("node is down; starting it", slot=str(home), why=lacks, attempt=self._starts)
                    await self._nodes.start(home)
        except (Failure, OSError) as error:
            log.warning("node is down; cannot start it", error=error, slot=str(home))
