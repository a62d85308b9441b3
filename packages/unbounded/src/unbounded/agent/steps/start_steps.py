"""Steps of a start, in one list: the host, the identity, the slot, its machine, the agent itself.

HOST_STEPS are the changes of `start` to a host outside of the slots and the agent's own binary. The slot is chosen from
the observation of both.

The daemon starts as soon as the machine runs, before the Node is observed. If kubelet does not get its Node, the daemon
reports that, and recreates the node in the end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from unbounded.agent.interfaces import Nodes, OnProgress
from unbounded.agent.model import CertificateAccess, KubeletAccess, NodeGoal, Slot, SlotFacts
from unbounded.agent.paths import DAEMON_UNIT, HostPaths
from unbounded.agent.settings import read_stored_config, store_config, without_token
from unbounded.agent.steps.kernel import CONFIGURED_SYSCTL, MODULES_STEP, SYSCTL
from unbounded.agent.steps.packages import DROP_INS, PACKAGES
from unbounded.agent.steps.packet_filter import DOCKER, NFTABLES
from unbounded.agent.steps.step import ReversibleStep, StepHost
from unbounded.agent.steps.survey import SURVEY
from unbounded.agent.steps.swap import SWAP
from unbounded.agent.upgrade.units import install_units, units_present
from unbounded.api.failures import Rejected
from unbounded.api.machine_status import AgentStage
from unbounded.join.agent_config import AgentConfig

JOIN: Final = "identity"
SLOT: Final = "node file system"
MACHINE: Final = "node"
RELEASE: Final = "agent release"
CONFIG: Final = "agent configuration"
DAEMON: Final = "agent daemon"


@dataclass(frozen=True)
class StartContext:
    """A host that becomes a node.

    Args:
        goal: of the node, from the configuration.
        read_goal: returns the goal from its Machine; called once there is an identity, while no Node is registered.
        joined: returns whether the agent has a valid certificate and its Machine exists.
        join: gets both.
        access: requests a certificate for kubelet with the agent's own.
        says: reports the stage and the progress in the Machine's status, where possible.
        adopted, adopt: whether this process's release is in use; activate it.
    """

    host: StepHost
    nodes: Nodes
    config: AgentConfig
    goal: NodeGoal
    read_goal: Callable[[], Awaitable[NodeGoal]]
    joined: Callable[[], Awaitable[bool]]
    join: Callable[[OnProgress], Awaitable[None]]
    access: Callable[[OnProgress], Awaitable[KubeletAccess]]
    says: Callable[[AgentStage, str], Awaitable[None]]
    adopted: Callable[[], bool]
    adopt: Callable[[], Awaitable[None]]

    @property
    def paths(self) -> HostPaths:
        return self.host.paths

    async def choice(self) -> SlotChoice:
        one, two = await self.nodes.observe(Slot.KUBE1), await self.nodes.observe(Slot.KUBE2)
        return choose_slot(one, two, self.goal if has_registered(one, two) else await self.read_goal())

    async def certificate_ended(self, slot: Slot) -> bool:
        """Return whether kubelet in a slot needs a certificate and has no valid one: it cannot renew that by itself."""
        by_certificate = self.config.kubelet.auth.exec_credential is None
        return by_certificate and await self.nodes.kubelet_certificate(slot) is None

    @property
    def is_being_recreated(self) -> bool:
        """Return whether a recreation is under way, which the daemon resumes: the slots are not start's then."""
        return self.paths.recreation.exists()


# Identity


async def _joined(starting: StartContext) -> bool:
    return await starting.joined()


async def _join(starting: StartContext, report: OnProgress) -> None:
    await starting.join(report)


# Configuration of the daemon


async def _config_stored(starting: StartContext) -> bool:
    try:
        return read_stored_config(starting.paths) == without_token(starting.config)
    except Rejected:  # damaged: written again
        return False


async def _store_config(starting: StartContext, _report: OnProgress) -> None:
    store_config(starting.paths, starting.config)


# The slot


async def _slot_made(starting: StartContext) -> bool:
    return starting.is_being_recreated or not (await starting.choice()).build


async def _make_slot(starting: StartContext, report: OnProgress) -> None:
    slot = (await starting.choice()).slot
    await starting.says(AgentStage.PREPARING, f"`unbounded-agent start` builds {slot}")
    access = await starting.access(report)
    if (await starting.nodes.observe(slot)).exists:
        report(f"{slot} is incomplete, or built from something else; building it again")
        await starting.nodes.stop(slot)
    await starting.nodes.build(slot, await starting.read_goal(), access, report)


async def _machine_runs(starting: StartContext) -> bool:
    if starting.is_being_recreated:
        return True
    choice = await starting.choice()
    return not choice.start and not await starting.certificate_ended(choice.slot)


async def _start_machine(starting: StartContext, report: OnProgress) -> None:
    slot = (await starting.choice()).slot
    if not has_registered(*[await starting.nodes.observe(one) for one in Slot]):  # of a Node the daemon reports
        await starting.says(AgentStage.STARTING, f"`unbounded-agent start` starts {slot}")
    if await starting.certificate_ended(slot):
        report(f"kubelet in {slot} has no valid certificate; requesting another one")
        access = await starting.access(report)
        if isinstance(access, CertificateAccess):
            await starting.nodes.introduce(slot, access)
    report(f"starting {slot}")
    await starting.nodes.start(slot)


# The agent


async def _release_used(starting: StartContext) -> bool:
    return starting.adopted()


async def _use_release(starting: StartContext, _report: OnProgress) -> None:
    await starting.adopt()


async def _daemon_runs(starting: StartContext) -> bool:
    daemon = await starting.host.units.observe(DAEMON_UNIT)
    return units_present(starting.paths) and daemon.enabled == "enabled" and daemon.active == "active"


async def _start_daemon(starting: StartContext, _report: OnProgress) -> None:
    units = starting.host.units
    if install_units(starting.paths):
        await units.reload()
    await units.enable(DAEMON_UNIT)
    if (await units.observe(DAEMON_UNIT)).active == "failed":
        await units.reset_failed(DAEMON_UNIT)
    await units.start(DAEMON_UNIT)


async def _stays(_starting: StartContext) -> None:
    """Do nothing: reset has parts of its own for changes other than the host's own settings."""


def _of_host(step: ReversibleStep[StepHost]) -> ReversibleStep[StartContext]:
    async def present(starting: StartContext) -> bool:
        return await step.present(starting.host)

    async def add(starting: StartContext, report: OnProgress) -> None:
        await step.add(starting.host, report)

    async def remove(starting: StartContext) -> None:
        await step.remove(starting.host)

    return ReversibleStep(step.name, present, add, remove, step.after)


_CHANGES: Final = (DROP_INS, PACKAGES, MODULES_STEP, SYSCTL, CONFIGURED_SYSCTL, SWAP, DOCKER, NFTABLES)
HOST_STEPS: Final[tuple[ReversibleStep[StepHost], ...]] = (
    SURVEY,
    *(replace(step, after=(SURVEY.name, *step.after)) for step in _CHANGES),
)

_HOST: Final = tuple(step.name for step in HOST_STEPS)


@dataclass(frozen=True)
class SlotChoice:
    """Work that a start has to do on the slots.

    Args:
        slot: of the node, present or future.
        build: it has to be built first.
        start: its machine, or its kubelet, does not run.
    """

    slot: Slot
    build: bool
    start: bool


def choose_slot(one: SlotFacts, two: SlotFacts, spec: NodeGoal) -> SlotChoice:
    """Return the slot of the node, and its missing parts.

    A slot stays unchanged once it has registered a Node, whatever the configuration: a node's goal changes by
    recreation alone. Before that it is rebuilt when its goal differs.

    Raises:
        Rejected: the node on this host belongs to another Machine.
    """
    built = sorted((facts for facts in (one, two) if facts.applied is not None), key=_preference)
    for facts in built:
        if facts.applied is not None and facts.applied.goal.machine != spec.machine:
            other = facts.applied.goal.machine
            raise Rejected(
                f"this host is Machine {other}: run `unbounded-agent reset` before it becomes {spec.machine}"
            )
    if not built:
        return SlotChoice(Slot.KUBE1, build=True, start=True)
    facts = built[0]
    build = not has_registered(*built) and not _is_made_from(facts, spec)
    return SlotChoice(
        facts.slot, build=build, start=build or not (facts.running and facts.kubelet and facts.containerd)
    )


def has_registered(*slots: SlotFacts) -> bool:
    """Return whether one of the slots has registered a Node."""
    return any(facts.applied is not None and facts.applied.node_uid for facts in slots)


def _preference(facts: SlotFacts) -> tuple[bool, bool]:
    """Return a sort key: a running slot first, then one that has registered a Node."""
    return not facts.running, not (facts.applied and facts.applied.node_uid)


def _is_made_from(facts: SlotFacts, spec: NodeGoal) -> bool:
    """Return whether the slot has this goal, from any configuration version: another one with equal content is the same
    node.
    """
    made = None if facts.applied is None else facts.applied.goal
    return made is not None and msgspec.structs.replace(made, configuration=spec.configuration) == spec


_OWN: Final[tuple[ReversibleStep[StartContext], ...]] = (
    ReversibleStep(JOIN, _joined, _join, _stays),
    ReversibleStep(CONFIG, _config_stored, _store_config, _stays, after=(JOIN,)),
    ReversibleStep(SLOT, _slot_made, _make_slot, _stays, after=(JOIN,)),
    ReversibleStep(MACHINE, _machine_runs, _start_machine, _stays, after=(SLOT, *_HOST)),
    ReversibleStep(RELEASE, _release_used, _use_release, _stays),
    ReversibleStep(DAEMON, _daemon_runs, _start_daemon, _stays, after=(CONFIG, MACHINE, RELEASE)),
)


def start_steps(*, debootstrap: bool) -> tuple[ReversibleStep[StartContext], ...]:
    """Return all steps of a start.

    Args:
        debootstrap: the root file system is made by a program of the host's packages, and depends on them.
    """
    earlier = {SLOT: (PACKAGES.name,)} if debootstrap else {}
    own = (replace(step, after=(SURVEY.name, *earlier.get(step.name, ()), *step.after)) for step in _OWN)
    return (*(_of_host(step) for step in HOST_STEPS), *own)
