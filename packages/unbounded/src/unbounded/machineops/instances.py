"""Index of Machines by instance. Two Machines with one instance are a fault: both would act on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from unbounded.api.machine import Machine
from unbounded.kube.cache import Cache
from unbounded.machineops.provider import Instance, Provider
from unbounded.machineops.sanitize import parse_instance

INDEX_INSTANCE: Final = "instance"


def by_instance(providers: Mapping[str, Provider]) -> Callable[[Machine], tuple[str, ...]]:
    """Return an index function of Machines by their instance, whatever the spelling of spec.providerID."""

    def keys(machine: Machine) -> tuple[str, ...]:
        provider = providers.get(machine.provider or "")
        if provider is None or machine.spec.provider_id is None:
            return ()
        try:
            return (_key(provider, parse_instance(provider, machine.spec.provider_id)),)
        except ValueError:  # an operation on the Machine reports the fault
            return ()

    return keys


def others_bound_to(
    machines: Cache[Machine], provider: Provider, instance: Instance, machine: Machine
) -> tuple[str, ...]:
    """Return the names of the other Machines with an instance.

    Args:
        machines: indexed by INDEX_INSTANCE.
    """
    bound = machines.by(INDEX_INSTANCE, _key(provider, instance))
    return tuple(sorted(other.name for other in bound if other.name != machine.name))


def _key(provider: Provider, instance: Instance) -> str:
    return f"{provider.name} {instance.binding}"
