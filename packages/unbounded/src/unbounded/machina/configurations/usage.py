"""Machines that use a configuration: their node is made from it, or the user names it in their spec."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from unbounded.api.machine import Machine
from unbounded.api.names import ANNOTATION_BOUND

NAMED: Final = 5  # names in a message


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
