"""Update of registry logins from their Secrets, so that a changed password needs no new node."""

from __future__ import annotations

import asyncio
from typing import Final, NoReturn

from unbounded.agent.model import Slot
from unbounded.agent.node.pull_secrets import PullSecrets, secret_names
from unbounded.agent.ports import Nodes
from unbounded.agent.recreation.perform import Lock
from unbounded.api.failures import Failure
from unbounded.kube.logs import Log

log = Log("agent")

EVERY_S: Final = 300.0


async def follow_logins(nodes: Nodes, secrets: PullSecrets, lock: Lock, *, every_s: float = EVERY_S) -> NoReturn:
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
