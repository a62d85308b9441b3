"""Following of a 202 answer's task to its end or to the limit."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from unbounded.api.failures import Transient, Uncertain
from unbounded.metalman.redfish import documents
from unbounded.metalman.redfish.channel import BmcChannel
from unbounded.metalman.redfish.http import BmcResponse
from unbounded.metalman.redfish.ports import BmcLimits

SLOWER: Final = 1.5


@dataclass(frozen=True, slots=True)
class TaskEnd:
    settled: bool
    said: str = ""


async def follow(channel: BmcChannel, accepted: BmcResponse, *, what: str, limits: BmcLimits) -> TaskEnd:
    """Poll the task until it ends; between polls the BMC is free for other calls.

    Returns:
        not settled if the task still runs at the limit, or if the BMC does not name it.
    Raises:
        TaskFailed, Rejected: the task failed, with its own message.
        Uncertain: the task is gone, or could not be read any more.
    """
    monitor, *resource = documents.monitors_of(accepted) or ("",)
    if not monitor:
        return TaskEnd(settled=False, said="accepted as a task that the BMC does not name")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limits.task_s
    pause_s = limits.task_poll_s
    trouble: Transient | None = None
    told, said = False, ""
    while loop.time() + pause_s <= deadline:
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * SLOWER, limits.task_poll_max_s)
        try:
            async with asyncio.timeout_at(deadline):
                answer = await channel.get(monitor)
        except TimeoutError:
            if not told:  # else the task ran at its last answer, and only the limit cuts this poll off
                trouble = Transient(f"{channel.where}: looking at the task took too long")
            break
        except Transient as error:
            trouble = error
            continue
        if answer.status in (429, 503):
            trouble = Transient(f"{channel.where}: the task cannot be read ({answer.status})")
            continue
        view, trouble = documents.task(answer, where=channel.where, hide=channel.secrets), None
        said = view.said or said
        if isinstance(view.failure, Uncertain) and resource:
            monitor = resource.pop()  # the monitor cannot report (gone, or an error of its own): the Task may
            continue
        if view.failure is not None:
            raise view.failure
        if not view.running:
            return TaskEnd(settled=True, said=said)
        told = True
    if trouble is not None:
        raise Uncertain(f"{channel.where}: {what} was accepted, and its task could not be followed") from trouble
    return TaskEnd(settled=False, said=said or f"its task still ran after {limits.task_s:g} s")
