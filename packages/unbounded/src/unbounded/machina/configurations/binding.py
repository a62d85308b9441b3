"""Binding of a Machine: to the configuration that the user names in its spec, else to a selecting one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from unbounded.api.conditions import ConditionType
from unbounded.api.configuration import MachineConfiguration
from unbounded.api.machine import ConfigurationRef, Machine
from unbounded.kube.selectors import LabelTest, SelectorError, label_test, selector_text
from unbounded.machina.configurations.usage import is_bound_by_us


@dataclass(frozen=True)
class Candidate:
    """A MachineConfiguration that selects Machines."""

    name: str
    selects: LabelTest
    priority: int = 0


@dataclass(frozen=True)
class BindingOptions:
    """Configurations for bindings.

    Args:
        candidates: in order of preference.
        versions: the numbers of each configuration's versions; an empty set for a configuration without versions.
    """

    candidates: tuple[Candidate, ...]
    versions: dict[str, frozenset[int]]


@dataclass(frozen=True)
class BindTo:
    """Write `spec.configurationRef` with the name but without a version, so that the agent takes the newest."""

    name: str


@dataclass(frozen=True)
class Unbind:
    """Remove `spec.configurationRef` that the binder wrote."""


@dataclass(frozen=True)
class SetPending:
    """Write the condition ConfigurationPending."""

    pending: bool
    message: str


@dataclass(frozen=True)
class KeepBinding:
    """Leave the Machine as it is."""


Decision = BindTo | Unbind | SetPending | KeepBinding


def candidate_of(configuration: MachineConfiguration) -> Candidate | None:
    """Return the candidate; None for a configuration that selects nothing or is being deleted."""
    selector = configuration.spec.machine_selector
    if selector is None or configuration.metadata.deletion_timestamp is not None:
        return None
    try:
        selects = label_test(selector_text(selector))
    except SelectorError:  # an older CRD admitted the selector; its meaning is not guessed
        return None
    return Candidate(configuration.metadata.name, selects, configuration.spec.priority)


def in_order(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Sort by descending priority, then by name."""
    return tuple(sorted(candidates, key=lambda one: (-one.priority, one.name)))


def selecting(labels: Mapping[str, str], candidates: Iterable[Candidate]) -> str | None:
    """Return the name of the first candidate that selects a Machine with these labels."""
    return next((one.name for one in candidates if one.selects(labels)), None)


def bind(machine: Machine, known: BindingOptions) -> Decision:
    """Decide the binding of one Machine."""
    ref = machine.spec.configuration_ref
    if ref is not None and not is_bound_by_us(machine):
        return _pending(ref, known)
    best = selecting(machine.metadata.labels, known.candidates)
    if best is not None:
        return _pending(ref, known) if ref is not None and ref.name == best else BindTo(best)
    return Unbind() if ref is not None else _unbound(machine)


def _pending(ref: ConfigurationRef, known: BindingOptions) -> SetPending:
    numbers = known.versions.get(ref.name)
    if numbers is None:
        return SetPending(True, f"spec.configurationRef names MachineConfiguration {ref.name}, which does not exist")
    if ref.version is not None and ref.version not in numbers:
        return SetPending(
            True, f"MachineConfiguration {ref.name} has no version {ref.version}, which spec.configurationRef names"
        )
    if not numbers:
        return SetPending(True, f"MachineConfiguration {ref.name} has no version yet")
    # With the number: the agent watches only its Machine and learns of a new version by it.
    which = f"its newest version, now {max(numbers)}" if ref.version is None else f"its version {ref.version}"
    return SetPending(False, f"MachineConfiguration {ref.name}: its node uses {which}")


def _unbound(machine: Machine) -> Decision:
    """Write no condition for a Machine that has never used a configuration."""
    made = machine.status.configuration
    if made is not None and made.name:
        words = (
            f"its node was created from MachineConfiguration {made.name}, and no MachineConfiguration selects it now"
        )
        return SetPending(True, f"{words}: name one in spec.configurationRef, or add labels that one selects")
    if any(condition.type == ConditionType.CONFIGURATION_PENDING for condition in machine.status.conditions):
        return SetPending(False, "no MachineConfiguration selects it: its node uses the Machine's own spec")
    return KeepBinding()
