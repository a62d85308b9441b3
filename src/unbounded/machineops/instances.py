"""Which Machines are bound to one instance: an index of their cache. There is to be one: it would be acted on twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from unbounded.api.machine import Machine
from unbounded.kube.cache import Cache
from unbounded.machineops.foreign import instance_of
from unbounded.machineops.provider import Instance, Provider

INDEX_INSTANCE: Final = "instance"


def by_instance(providers: Mapping[str, Provider]) -> Callable[[Machine], tuple[str, ...]]:
    """Machines by what their providers take their spec.providerID for, however that is written."""

    def keys(machine: Machine) -> tuple[str, ...]:
        provider = providers.get(machine.provider or "")
        if provider is None or machine.spec.provider_id is None:
            return ()
        try:
            return (_key(provider, instance_of(provider, machine.spec.provider_id)),)
        except ValueError:  # an operation on the Machine says what is wrong with it
            return ()

    return keys


def others_bound_to(
    machines: Cache[Machine], provider: Provider, instance: Instance, machine: Machine
) -> tuple[str, ...]:
    """The names of the Machines beside this one that are bound to an instance.

    Args:
        machines: indexed by INDEX_INSTANCE.
    """
    bound = machines.by(INDEX_INSTANCE, _key(provider, instance))
    return tuple(sorted(other.name for other in bound if other.name != machine.name))


def _key(provider: Provider, instance: Instance) -> str:
    return f"{provider.name} {instance.binding}"
