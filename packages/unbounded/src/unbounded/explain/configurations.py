"""The answer of `why` about a rolling update: of a MachineConfiguration, or of one Machine in it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import structs

from unbounded.api.conditions import ConditionType
from unbounded.api.configuration import MachineConfiguration, UpdatePhase, UpdateStatus
from unbounded.api.core import Node
from unbounded.api.machine import Machine, NodeUpdatePhase
from unbounded.explain.conditions import agent_fixes, condition_fixes
from unbounded.explain.facts import ExplainFacts
from unbounded.explain.fix_commands import manual_bootstrap
from unbounded.explain.fixes import blocker_fixes, fixes_for_disruption
from unbounded.explain.links import PLUGIN, Explained, ExplainLink, Fix, LinkCode, LinkSubject, Topic
from unbounded.machina import node_update_plan
from unbounded.machina.rolling_update_plan import is_rolling
from unbounded.operations import reasons

SETTLED: Final = frozenset({UpdatePhase.COMPLETE, UpdatePhase.ROLLED_BACK})
_NEXT: Final = {
    UpdatePhase.HALTED: "nothing starts until a new version exists, or the failed Machines are tried again",
    UpdatePhase.PAUSED: "nothing starts until rollingUpdate.paused is false",
}


def explain_rolling_update(name: str, facts: ExplainFacts) -> Explained:
    """Explain the rolling update that the Machine of the facts waits for."""
    link = explain_configuration(facts.configurations[name])
    asked = {f"{PLUGIN} why machine/{one}" for one in facts.machines}
    return Explained(structs.replace(link, fixes=tuple(fix for fix in link.fixes if fix.command not in asked)))


def explain_update(machine: Machine, facts: ExplainFacts) -> Explained | None:
    """Explain the state of a Machine in a rolling update; None where the update does not concern it."""
    ref, update, node = machine.spec.configuration_ref, machine.status.node_update, facts.nodes.get(machine.name)
    configuration = None if ref is None else facts.configurations.get(ref.name)
    if configuration is None or not is_rolling(configuration) or machine.metadata.deletion_timestamp is not None:
        return None
    name = configuration.metadata.name
    rolling = LinkSubject(Topic.CONFIGURATION, name)
    head = f"the rolling update of configuration {name}"
    if update is not None and update.phase in node_update_plan.OPEN:
        reason, held_by, text = node_update_plan.running_wait(machine, facts.read_at)
        is_late = node_update_plan.is_late(machine, facts.read_at)
        if update.phase in (NodeUpdatePhase.DRAINING, NodeUpdatePhase.REPLACING):
            fixes = fixes_for_disruption(machine, facts)
        elif update.image is not None:
            fixes = condition_fixes(machine, ConditionType.NETBOOT_IMAGE_READY)
        else:
            fixes = agent_fixes(machine)
        rollout = configuration.status.rollout
        has_turn = is_late or rollout is None or machine.name in rollout.updating
        if update.phase == NodeUpdatePhase.PREPARING and not has_turn:
            text = f"{text}, ahead of its turn"
            return Explained(
                _of_machine(machine, f"{head}: {text}", reason, held_by, update.since, fixes).link, rolling
            )
        text = f"{text}; meanwhile, other Machines take its turn" if is_late else text
        return _of_machine(machine, f"{head}: {text}", reason, held_by, update.since, fixes)
    if update is not None and update.phase in (NodeUpdatePhase.FAILED, NodeUpdatePhase.PENDING):
        what = f"its update to {update.version} by {head} failed"
        what += f": {update.message}" if update.message else ""
        return Explained(
            _of_machine(machine, what, LinkCode.UPDATE_FAILED, f"configuration/{name}", update.since).link, rolling
        )
    image = _outdated_image(machine, node, configuration)
    target = f"image {image}" if image is not None else _outdated_version(machine, configuration)
    if node is None or target is None:
        return None
    if (blocker := start_blocker(machine, node, image)) is not None:
        return Explained(structs.replace(blocker, what=f"{head} to {target} {blocker.what}"))
    what = f"{head} to {target} has not reached it"
    return Explained(_of_machine(machine, what, LinkCode.UPDATE_PENDING, f"configuration/{name}").link, rolling)


def image_note(machine: Machine, facts: ExplainFacts) -> str:
    """Return a note about a host that rolling updates leave alone, to append to the state of its Machine."""
    ref, node = machine.spec.configuration_ref, facts.nodes.get(machine.name)
    configuration = None if ref is None else facts.configurations.get(ref.name)
    if configuration is None or not is_rolling(configuration) or not _replaces_hosts(configuration):
        return ""
    if not node_update_plan.has_unknown_image(machine, node):
        return ""
    return (
        f"; rolling updates of configuration {configuration.metadata.name} leave its host alone until its next "
        f"HostReplace, as the image on its disk is not known: "
        f"`{node_update_plan.replace_command(machine.name)}` writes it"
    )


def start_blocker(machine: Machine, node: Node | None, image: str | None) -> ExplainLink | None:
    """Return what of a Machine and its Node prevents the start of its update; None for nothing.

    Args:
        image: that its host is to be replaced with; None for an update of the Node alone.
    """
    blocker = node_update_plan.update_blocker(machine, node, image=image)
    if blocker is None:
        return None
    text, held_by = blocker
    fixes: tuple[Fix, ...] = ()
    if node is not None and held_by == f"Node {node.metadata.name}":
        fixes = (Fix(f"kubectl uncordon {node.metadata.name}", "lets the update start"),)
    elif text == node_update_plan.NO_AGENT:
        fixes = (
            agent_fixes(machine)[0],
            Fix(manual_bootstrap(machine), "prints the commands that install an agent"),
        )
    return _of_machine(machine, f"does not start: {text}", LinkCode.UPDATE_BLOCKED, held_by, fixes=fixes).link


def _of_machine(
    machine: Machine, what: str, code: str, held_by: str, since: str = "", fixes: tuple[Fix, ...] = ()
) -> Explained:
    return Explained(ExplainLink(f"machine/{machine.name}", what, code, held_by=held_by, since=since, fixes=fixes))


def _outdated_image(machine: Machine, node: Node | None, configuration: MachineConfiguration) -> str | None:
    """Return the image that the host is to be replaced with; None for none."""
    return node_update_plan.outdated_image(machine, node) if _replaces_hosts(configuration) else None


def _replaces_hosts(configuration: MachineConfiguration) -> bool:
    settings = configuration.spec.update_strategy.rolling_update
    return settings is not None and settings.host


def _outdated_version(machine: Machine, configuration: MachineConfiguration) -> str | None:
    """Return the version that the Machine is bound to; None where its Node has it."""
    ref, made, rollout = machine.spec.configuration_ref, machine.status.configuration, configuration.status.rollout
    if ref is None or rollout is None:
        return None
    target = ref.version or rollout.version
    return None if made is not None and made.version == target else f"version {target}"


def explain_configuration(configuration: MachineConfiguration) -> ExplainLink:
    """Return the link of a configuration; it is a first cause."""
    name, rollout = configuration.metadata.name, configuration.status.rollout
    about = f"configuration/{name}"
    if rollout is None:
        strategy = configuration.spec.update_strategy.type
        return ExplainLink(
            about, f"{strategy}: a Node gets the newest version when the Node is deleted", LinkCode.ON_DELETE
        )
    wait = rollout.waiting
    return ExplainLink(
        about,
        f"{rollout.phase} version {rollout.version}: {rollout.message}",
        rollout.phase if wait is None else wait.reason,
        held_by="" if wait is None else wait.held_by or "",
        since="" if wait is None else wait.since,
        until="" if wait is None else wait.until or "",
        next_step="" if _is_invalid(rollout) else _NEXT.get(UpdatePhase(rollout.phase), ""),
        fixes=tuple(_fixes(name, rollout)),
    )


def _is_invalid(rollout: UpdateStatus) -> bool:
    """Return whether the stages do not fit the Machines."""
    return rollout.waiting is not None and rollout.waiting.reason == reasons.INVALID_SPEC


def _fixes(name: str, rollout: UpdateStatus) -> Iterator[Fix]:
    if rollout.phase == UpdatePhase.PAUSED:
        yield Fix(f"{PLUGIN} config resume {name}", "continues, and tries failed Machines again")
        return
    if _is_invalid(rollout):
        yield Fix(f"kubectl edit mc {name}", "corrects the stages of rollingUpdate")
        return
    if rollout.phase == UpdatePhase.HALTED:
        for failed in rollout.failed[:1]:
            yield Fix(f"{PLUGIN} why machine/{failed.machine}", "shows the state of the first failed Machine")
        yield Fix(f"{PLUGIN} config pause {name}", "pauses; `config resume` then tries the failed Machines again")
        return
    holder = "" if rollout.waiting is None else rollout.waiting.held_by or ""
    yield from blocker_fixes(holder)
    kind, _, held_by = holder.partition(" ")
    match kind:
        case "MachineDisruptionBudget":
            yield Fix(f"kubectl describe mdb {held_by}", "shows its groups, and the holders of its grants")
        case "Node":
            yield Fix(f"kubectl describe node {held_by}", "shows its conditions, and whether it is cordoned")
        case "MachineOperation":
            yield Fix(f"{PLUGIN} why operation/{held_by}", "shows what the HostReplace waits for")
        case "Machine":
            yield Fix(f"{PLUGIN} why machine/{held_by}", "shows what blocks the Machine")
        case "agent" | "metalman":
            machine = held_by.removeprefix("of Machine ")
            yield Fix(f"{PLUGIN} why machine/{machine}", "shows its download, and the commands that help")
        case "condition":
            node = held_by.rpartition(" of Node ")[2]
            yield Fix(f"kubectl describe node {node}", "shows the conditions of the other controller")
        case _:
            return
