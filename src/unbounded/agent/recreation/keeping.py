"""The node that is there keeps serving: a machine or a service that is down, and should be up, is started again.

An operation that was ended between its stop and its start leaves a machine that is down, and disabled at boot; so does
a `poweroff` inside. Whatever it was, it is found by looking, and not by who did it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from unbounded.agent.model import Slot, SlotFacts
from unbounded.agent.ports import Nodes
from unbounded.agent.recreation.perform import Lock
from unbounded.agent.recreation.plan import Limits
from unbounded.api.failures import Failure
from unbounded.kube.backoff import Backoff
from unbounded.kube.logs import Log

AGAIN: Final = Backoff(base_s=20.0, max_s=600.0)  # between starts of one that does not stay up

log = Log("agent")


def down(facts: SlotFacts) -> str:
    """What of a node does not run, in words; empty for one that serves."""
    if not facts.running:
        return "its machine does not run"
    missing = [name for name, runs in (("containerd", facts.containerd), ("kubelet", facts.kubelet)) if not runs]
    return "" if not missing else f"{' and '.join(missing)} {'do' if len(missing) > 1 else 'does'} not run"


class Keeper:
    """Args:
    held_back: why the node is somebody else's now; empty when it is ours to start.
    """

    def __init__(self, nodes: Nodes, lock: Lock, limits: Limits, held_back: Callable[[], str]) -> None:
        self._nodes = nodes
        self._lock = lock
        self._limits = limits
        self._held_back = held_back
        self._starts = 0  # since it was last seen to stay up
        self._not_before: float | None = None  # of the next start; None while it is not known to be down
        self._up_since: float | None = None

    async def keep(self, home: Slot) -> float:
        """Look at the node, and start what is down; gives back in how many seconds to look again."""
        if self._held_back():
            self._not_before = None
            return self._limits.keep_s
        lacks = down(await self._nodes.look(home))
        now = asyncio.get_running_loop().time()
        if not lacks:
            return self._serves(now)
        self._up_since = None
        if self._not_before is None:  # it may be on its way up, or down with its host
            self._not_before = now + (AGAIN.after(self._starts) if self._starts else self._limits.down_s)
        if now < self._not_before:
            return self._not_before - now
        self._starts += 1
        await self._start(home)
        again_s = AGAIN.after(self._starts)
        self._not_before = asyncio.get_running_loop().time() + again_s
        return again_s

    def _serves(self, now: float) -> float:
        """One that goes down again soon after is started ever more rarely."""
        self._not_before = None
        self._up_since = now if self._up_since is None else self._up_since
        if now - self._up_since >= self._limits.keep_s:
            self._starts = 0
        return self._limits.keep_s

    async def _start(self, home: Slot) -> None:
        try:
            async with self._lock("start of a node that is down"):
                lacks = down(await self._nodes.look(home))
                if lacks and not self._held_back():  # both may have changed while the host was somebody else's
                    log.warning("the node is down, and is started", slot=str(home), why=lacks, attempt=self._starts)
                    await self._nodes.start(home)
        except (Failure, OSError) as error:
            log.warning("the node is down, and could not be started", error=error, slot=str(home))
