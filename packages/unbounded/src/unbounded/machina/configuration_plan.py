"""Users of a MachineConfiguration, and the actions on its versions. Pure.

A Machine uses a configuration if its node is made from it, or if the user names it in the Machine's spec. A version can
be edited until an agent locks its Machine to make a node from it. Then the version is final, and a changed template
becomes the next number. Numbers are never reused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from unbounded.api.machine import Machine
from unbounded.api.names import ANNOTATION_BOUND

NAMED: Final = 5  # names in a message
Template = Mapping[str, Any]  # as the server stores it, with fields that this version does not know


@dataclass(frozen=True)
class VersionUsers:
    """Names of the Machines that use a configuration or a version, sorted.

    Args:
        made: their node was made from it, or is being made.
        named: the user names it in their spec.
    """

    made: tuple[str, ...] = ()
    named: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Description of the users for a message; empty if there are none."""
        parts = (("the node of {} uses it", self.made), ("the spec of {} names it", self.named))
        return "; ".join(form.format(names_text(names)) for form, names in parts if names)

    def __bool__(self) -> bool:
        return bool(self.made or self.named)


@dataclass(frozen=True)
class ConfigurationUsers:
    """Users of one configuration.

    Args:
        versions: users by the number of the version.
        whole: users of any version, and of the configuration without a version.
    """

    versions: Mapping[int, VersionUsers]
    whole: VersionUsers


def configurations_of(machine: Machine) -> tuple[str, ...]:
    """Return the configurations that a Machine uses or names, as keys of an index."""
    ref = machine.spec.configuration_ref
    names = {ref.name if ref else None, *(name for name, _number in node_versions(machine))}
    return tuple(sorted(name for name in names if name))


def node_versions(machine: Machine) -> frozenset[tuple[str, int | None]]:
    """Return the versions that a Machine's node is made from, as (name of the configuration, number).

    During a recreation these are the version of the running node and the version that the agent has locked the Machine
    for.
    """
    active = machine.status.active_operation
    taken = (machine.status.configuration, active.configuration if active is not None else None)
    return frozenset((one.name, one.version) for one in taken if one is not None and one.name)


def is_bound_by_us(machine: Machine) -> bool:
    """Return whether the binder wrote `spec.configurationRef`, and not the user."""
    ref = machine.spec.configuration_ref
    return ref is not None and ref.version is None and machine.metadata.annotations.get(ANNOTATION_BOUND) == ref.name


def usage_of(configuration: str, machines: Iterable[Machine]) -> ConfigurationUsers:
    """Return the users of a configuration.

    Args:
        machines: at least those that `configurations_of` indexes under it.
    """
    made: dict[int, list[str]] = {}
    named: dict[int, list[str]] = {}
    whole: list[str] = []
    for machine in sorted(machines, key=lambda machine: machine.name):
        for number in (
            number for name, number in node_versions(machine) if name == configuration and number is not None
        ):
            made.setdefault(number, []).append(machine.name)
        ref = machine.spec.configuration_ref
        if ref is not None and ref.name == configuration and not is_bound_by_us(machine):
            whole.append(machine.name)
            if ref.version is not None:
                named.setdefault(ref.version, []).append(machine.name)
    versions = {
        number: VersionUsers(tuple(made.get(number, ())), tuple(named.get(number, ()))) for number in {*made, *named}
    }
    return ConfigurationUsers(
        versions, VersionUsers(tuple(sorted({name for names in made.values() for name in names})), tuple(whole))
    )


def names_text(names: tuple[str, ...]) -> str:
    """Format the first names and the number of the others."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class ObservedVersion:
    """A MachineConfigurationVersion.

    Args:
        own: this configuration owns the version, and not an earlier one of the same name.
        orphan: the version has no owner.
        deleting: the version is being deleted.
        announced: the version is about to change, so agents must not make a node from it.
    """

    name: str
    number: int
    template: Template
    deployed: bool = False
    deployed_machines: int = 0
    in_use: str | None = None  # message of its condition; None if it has no condition yet
    own: bool = True
    orphan: bool = False
    deleting: bool = False
    announced: bool = False


@dataclass(frozen=True)
class ConfigurationObservation:
    """Observation of one configuration, its versions and their users.

    Args:
        latest: status.latestVersion; 0 if not set.
        reserved: a number that this process has reserved in the status for a version that does not exist yet.
        deleting: the configuration is being deleted.
    """

    name: str
    template: Template
    limit: int
    latest: int
    versions: tuple[ObservedVersion, ...]
    usage: ConfigurationUsers
    reserved: int = 0
    deleting: bool = False


@dataclass(frozen=True)
class WriteUsers:
    """Write the users of a version to its status."""

    version: ObservedVersion
    deployed: bool
    use: VersionUsers


@dataclass(frozen=True)
class AdoptVersion:
    """Make the configuration the owner of a version without an owner."""

    version: ObservedVersion


@dataclass(frozen=True)
class ReserveNumber:
    """Write status.latestVersion before the version exists, so that the number of a deleted version is not reused."""

    number: int


@dataclass(frozen=True)
class CreateVersion:
    number: int
    template: Template


@dataclass(frozen=True)
class AnnounceChange:
    """Announce that a version is about to change.

    An agent that locks its Machine for the version later reads the announcement. A live read before the change finds
    the agents that did so earlier. So a version never changes under a node that is made from it.
    """

    version: ObservedVersion


@dataclass(frozen=True)
class WithdrawChange:
    """Withdraw the announcement, as the version stays as it is."""

    version: ObservedVersion


@dataclass(frozen=True)
class EditVersion:
    version: ObservedVersion
    template: Template


@dataclass(frozen=True)
class DeleteVersion:
    """Delete an unused version beyond the limit of the history."""

    version: ObservedVersion


Action = (
    WriteUsers
    | AdoptVersion
    | ReserveNumber
    | CreateVersion
    | AnnounceChange
    | WithdrawChange
    | EditVersion
    | DeleteVersion
)


@dataclass(frozen=True)
class VersionsPlan:
    """Actions, in this order; observe again after them.

    Args:
        latest, current: target values of the status once there are no more actions; 0 for none.
    """

    actions: tuple[Action, ...]
    latest: int
    current: int


def plan(observation: ConfigurationObservation) -> VersionsPlan:
    """Decide the next actions on the versions of one configuration.

    The users of versions are written first: a version with a node is final.
    """
    notes = tuple(_notes(observation))
    highest = max((version.number for version in observation.versions), default=0)
    newest = _newest(observation)
    current = newest.number if newest is not None and newest.template == observation.template else 0
    actions: tuple[Action, ...] = notes
    if not notes:
        changes = tuple(_changes(observation, newest, highest))
        actions = (*_withdrawals(observation, changes), *map(_announced_first, changes))
    return VersionsPlan(actions, max(highest, observation.latest), current)


def name_of(configuration: str, number: int) -> str:
    """Return the name of a version."""
    return f"{configuration}-v{number}"


def _notes(observation: ConfigurationObservation) -> Iterator[WriteUsers]:
    for version in (one for one in observation.versions if one.own):
        use = observation.usage.versions.get(version.number, VersionUsers())
        deployed = version.deployed or bool(use.made)
        reported = (version.deployed, version.deployed_machines, version.in_use)
        if reported != (deployed, len(use.made), use.text):
            yield WriteUsers(version, deployed, use)


def _newest(observation: ConfigurationObservation) -> ObservedVersion | None:
    ours = (version for version in observation.versions if version.own and not version.deleting)
    return max(ours, key=lambda version: version.number, default=None)


def _changes(observation: ConfigurationObservation, newest: ObservedVersion | None, highest: int) -> Iterator[Action]:
    if observation.deleting:
        return
    orphans = [version for version in observation.versions if version.orphan and not version.deleting]
    if orphans:
        yield from map(AdoptVersion, orphans)
    elif newest is None or (newest.template != observation.template and newest.deployed):
        number = max(highest, observation.latest) + 1
        if observation.reserved == observation.latest and observation.reserved > highest:
            yield CreateVersion(observation.reserved, observation.template)
        else:
            yield ReserveNumber(number)
    elif newest.template != observation.template:
        yield EditVersion(newest, observation.template)
    else:
        yield from map(DeleteVersion, _too_many(observation, newest))


def _announced_first(action: Action) -> Action:
    return (
        AnnounceChange(action.version)
        if isinstance(action, EditVersion | DeleteVersion) and not action.version.announced
        else action
    )


def _withdrawals(observation: ConfigurationObservation, changes: tuple[Action, ...]) -> Iterator[WithdrawChange]:
    changing = [action.version.name for action in changes if isinstance(action, EditVersion | DeleteVersion)]
    for version in observation.versions:
        if version.own and version.announced and not version.deleting and version.name not in changing:
            yield WithdrawChange(version)


def _too_many(observation: ConfigurationObservation, newest: ObservedVersion) -> list[ObservedVersion]:
    """Return the versions beyond the limit: never deployed ones first, and of those the oldest."""
    unused = [
        version
        for version in observation.versions
        if version.own
        and not version.deleting
        and version is not newest
        and not observation.usage.versions.get(version.number)
    ]
    unused.sort(key=lambda version: (version.deployed, version.number))
    return unused[: max(len(unused) - observation.limit, 0)]
