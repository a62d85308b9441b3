"""What becomes of the versions of one MachineConfiguration: pure, from what is there and who uses it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from unbounded.machina.configurations.usage import Usage, Use

Template = Mapping[str, Any]  # as the server has it, with fields that this version does not know


@dataclass(frozen=True)
class Version:
    """A MachineConfigurationVersion.

    Args:
        own: it belongs to this configuration, and not to one of that name before.
        orphan: it belongs to nobody.
        going: it is being deleted.
        announced: it says that it is about to change, so that no node is begun from it.
    """

    name: str
    number: int
    template: Template
    deployed: bool = False
    deployed_machines: int = 0
    in_use: str | None = None  # as its condition says; None where it has none yet
    own: bool = True
    orphan: bool = False
    going: bool = False
    announced: bool = False


@dataclass(frozen=True)
class Seen:
    """One configuration, its versions, and who uses them.

    Args:
        latest: status.latestVersion; 0 where there is none.
        reserved: a number that this process has written there for a version that it has not made yet.
        going: the configuration is being deleted.
    """

    name: str
    template: Template
    limit: int
    latest: int
    versions: tuple[Version, ...]
    usage: Usage
    reserved: int = 0
    going: bool = False


@dataclass(frozen=True)
class Note:
    """Write into a version's status who uses it."""

    version: Version
    deployed: bool
    use: Use


@dataclass(frozen=True)
class Adopt:
    """Make a version that belongs to nobody the configuration's own."""

    version: Version


@dataclass(frozen=True)
class Reserve:
    """Write status.latestVersion before there is such a version: a number whose version is gone is not used again."""

    number: int


@dataclass(frozen=True)
class Create:
    number: int
    template: Template


@dataclass(frozen=True)
class Announce:
    """Say that a version is about to change. Who takes a Machine's slot for it after that sees it, and who did before
    is seen by the live look that comes before the change: so what a node is made from does not change under it."""

    version: Version


@dataclass(frozen=True)
class Withdraw:
    """Take back that a version is about to change, as it stays."""

    version: Version


@dataclass(frozen=True)
class Edit:
    version: Version
    template: Template


@dataclass(frozen=True)
class Delete:
    """Take away a version that nobody uses: there are more than the history is to hold."""

    version: Version


Action = Note | Adopt | Reserve | Create | Announce | Withdraw | Edit | Delete


@dataclass(frozen=True)
class Plan:
    """What to do now, in this order; then look again.

    Args:
        latest, current: what the status is to say once there is nothing to do; 0 for nothing.
    """

    actions: tuple[Action, ...]
    latest: int
    current: int


def plan(seen: Seen) -> Plan:
    """Decide what the versions of one configuration need next.

    What is known of their use is written first: a version that a node was made from is not edited after that.
    """
    notes = tuple(_notes(seen))
    highest = max((version.number for version in seen.versions), default=0)
    newest = _newest(seen)
    current = newest.number if newest is not None and newest.template == seen.template else 0
    actions: tuple[Action, ...] = notes
    if not notes:
        changes = tuple(_changes(seen, newest, highest))
        actions = (*_withdrawals(seen, changes), *map(_announced_first, changes))
    return Plan(actions, max(highest, seen.latest), current)


def name_of(configuration: str, number: int) -> str:
    """The name of a version."""
    return f"{configuration}-v{number}"


def _notes(seen: Seen) -> Iterator[Note]:
    for version in (one for one in seen.versions if one.own):
        use = seen.usage.versions.get(version.number, Use())
        deployed = version.deployed or bool(use.made)
        said = (version.deployed, version.deployed_machines, version.in_use)
        if said != (deployed, len(use.made), use.text):
            yield Note(version, deployed, use)


def _newest(seen: Seen) -> Version | None:
    ours = (version for version in seen.versions if version.own and not version.going)
    return max(ours, key=lambda version: version.number, default=None)


def _changes(seen: Seen, newest: Version | None, highest: int) -> Iterator[Action]:
    if seen.going:
        return
    orphans = [version for version in seen.versions if version.orphan and not version.going]
    if orphans:
        yield from map(Adopt, orphans)
    elif newest is None or (newest.template != seen.template and newest.deployed):
        number = max(highest, seen.latest) + 1
        if seen.reserved == seen.latest and seen.reserved > highest:
            yield Create(seen.reserved, seen.template)
        else:
            yield Reserve(number)
    elif newest.template != seen.template:
        yield Edit(newest, seen.template)
    else:
        yield from map(Delete, _too_many(seen, newest))


def _announced_first(action: Action) -> Action:
    return Announce(action.version) if isinstance(action, Edit | Delete) and not action.version.announced else action


def _withdrawals(seen: Seen, changes: tuple[Action, ...]) -> Iterator[Withdraw]:
    changing = [action.version.name for action in changes if isinstance(action, Edit | Delete)]
    for version in seen.versions:
        if version.own and version.announced and not version.going and version.name not in changing:
            yield Withdraw(version)


def _too_many(seen: Seen, newest: Version) -> list[Version]:
    """Beyond the limit, those that were never deployed first, and of them the oldest."""
    unused = [
        version
        for version in seen.versions
        if version.own and not version.going and version is not newest and not seen.usage.versions.get(version.number)
    ]
    unused.sort(key=lambda version: (version.deployed, version.number))
    return unused[: max(len(unused) - seen.limit, 0)]
