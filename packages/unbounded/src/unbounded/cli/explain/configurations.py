"""The answer of `why` about a MachineConfiguration: the phase of its rolling update, and what it waits for."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any, Final

from unbounded.api.configuration import MachineConfiguration, UpdatePhase, UpdateStatus
from unbounded.cli.explain.links import PLUGIN, ExplainLink, Fix

SETTLED: Final = frozenset({UpdatePhase.COMPLETE, UpdatePhase.ROLLED_BACK})
_NEXT: Final = {
    UpdatePhase.HALTED: "nothing starts until a new version exists, or the failed Machines are tried again",
    UpdatePhase.PAUSED: "nothing starts until rollingUpdate.paused is false",
}


def explain_configuration(configuration: MachineConfiguration) -> ExplainLink:
    """Return the link of a configuration; it is a first cause."""
    name, rollout = configuration.metadata.name, configuration.status.rollout
    about = f"configuration/{name}"
    if rollout is None:
        strategy = configuration.spec.update_strategy.type
        return ExplainLink(about, f"{strategy}: a Node gets the newest version when the Node is deleted")
    wait = rollout.waiting
    return ExplainLink(
        about,
        f"{rollout.phase} version {rollout.version}: {rollout.message}",
        held_by="" if wait is None else wait.held_by or "",
        since="" if wait is None else wait.since,
        until="" if wait is None else wait.until or "",
        next_step=_NEXT.get(UpdatePhase(rollout.phase), ""),
        fixes=tuple(_fixes(name, rollout)),
    )


def _fixes(name: str, rollout: UpdateStatus) -> Iterator[Fix]:
    if rollout.phase == UpdatePhase.PAUSED:
        yield Fix(_paused(name, value=False), "continues, and tries failed Machines again")
        return
    if rollout.phase == UpdatePhase.HALTED:
        for failed in rollout.failed[:1]:
            yield Fix(f"{PLUGIN} why machine/{failed.machine}", "shows the state of the first failed Machine")
        yield Fix(_paused(name, value=True), "pauses; the command with false then tries the failed Machines again")
        return
    kind, _, held_by = ("" if rollout.waiting is None else rollout.waiting.held_by or "").partition(" ")
    namespace, _, pod = held_by.partition("/")
    match kind:
        case "PodDisruptionBudget":
            yield Fix(f"kubectl -n {namespace} describe pdb {pod}", "shows why the budget allows no eviction")
        case "MachineDisruptionBudget":
            yield Fix(f"kubectl describe mdb {held_by}", "shows its groups, and the holders of its grants")
        case "Pod":
            yield Fix(f"kubectl -n {namespace} delete pod {pod}", "deletes the pod; nothing creates it again")
        case "Node":
            yield Fix(f"kubectl describe node {held_by}", "shows its conditions, and whether it is cordoned")
        case "Machine":
            yield Fix(f"{PLUGIN} why machine/{held_by}", "shows what blocks the Machine")
        case _:
            return


def _paused(name: str, *, value: bool) -> str:
    change: dict[str, Any] = {"spec": {"updateStrategy": {"rollingUpdate": {"paused": value}}}}
    return f"kubectl patch mc {name} --type=merge -p {shlex.quote(json.dumps(change))}"
