"""Installed providers: entry points of the group `unbounded.providers`, including our own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from unbounded.api.fields import is_provider_name
from unbounded.api.operation import OperationKind
from unbounded.kube.logs import Log
from unbounded.kube.options import SettingsError
from unbounded.machineops import replacement
from unbounded.machineops.provider import API_VERSION, GROUP, Provider
from unbounded.operations.executor_selection import ExecutorKind, nearest
from unbounded.operations.parameters import names
from unbounded.workflow.run_state import ACT_WITHIN_S

EXTRAS: Final = {"AzureVM": "azure", "OCIInstance": "oci"}

UNDECLARED: Final = "v1"  # what a provider without `api_version` counts as, until the release after 0.1

_MEMBERS: Final = [name for name in dir(Provider) if not name.startswith("_") and name != "api_version"]

log = Log("machine-ops-controller")


def installed() -> dict[str, list[EntryPoint]]:
    """Return the entry points by name, without importing a provider."""
    found: dict[str, list[EntryPoint]] = {}
    for one in entry_points(group=GROUP):
        found.setdefault(one.name, []).append(one)
    return dict(sorted(found.items()))


def load(name: str) -> Provider:
    """Load the provider of a name.

    Raises:
        SettingsError: there is none or more than one, its dependencies are missing, or it is invalid.
    """
    found = installed().get(name)
    if found is None:
        raise SettingsError(not_installed(name))
    if len({one.value for one in found}) > 1:  # an editable install besides a regular one names the same object twice
        message = " and ".join(sorted(f"{one.dist.name if one.dist else 'somewhere'} ({one.value})" for one in found))
        raise SettingsError(f"provider {name} is registered by {message}: uninstall all but one")
    provider = _imported(name, found[0])
    if isinstance(provider, type):
        raise SettingsError(f"the entry point {name!r} of {GROUP} names a class; it must name an instance")
    try:
        called, wrong = (
            (provider.name, faults(provider)) if _is_for_us(provider) else (name, [_other_version(provider)])
        )
    except Exception as error:  # an error of a third-party provider must not stop the others
        message = f"{type(error).__name__}: {error}"
        raise SettingsError(
            f"the entry point {name!r} of {GROUP} names an object that is not a provider ({message})"
        ) from error
    if called != name:
        raise SettingsError(f"the entry point {name!r} of {GROUP} names a provider with the name {called!r}")
    if wrong:
        raise SettingsError(f"provider {name} cannot be served: {'; '.join(wrong)}")
    return provider


def not_installed(name: str) -> str:
    """Return the message that no package has a provider of this name, with the installed names."""
    there = installed()
    similar = nearest(name, there)
    may_be = f" (did you mean {similar}?)" if similar else ""
    return f"no provider {name!r} is installed{may_be}; installed: {', '.join(there) or 'none'}"


def _imported(name: str, entry: EntryPoint) -> Provider:
    try:
        provider: Provider = entry.load()
    except ImportError as error:
        extra = "; requirements-clouds.txt of the release names the packages for pip" if name in EXTRAS else ""
        raise SettingsError(f"provider {name} lacks a dependency ({error}){extra}") from error
    except AttributeError as error:
        raise SettingsError(f"the entry point {name!r} of {GROUP} cannot be resolved: {error}") from error
    except Exception as error:
        raise SettingsError(f"provider {name} cannot be imported ({type(error).__name__}: {error})") from error
    return provider


def faults(provider: Provider) -> list[str]:
    """Return the faults of a provider's description; empty for a valid one."""
    if not _is_for_us(provider):
        return [_other_version(provider)]
    if lacking := [name for name in _MEMBERS if not hasattr(provider, name)]:
        return [f"it has no {', '.join(lacking)}"]
    wrong = [] if is_provider_name(provider.name) else [f"{provider.name!r} is not a valid value of spec.provider"]
    wrong += [f"{kind} is not a host operation" for kind in sorted(provider.kinds) if not kind.is_host]
    replaces = OperationKind.HOST_REPLACE in provider.kinds
    if replaces != bool(provider.replacement):
        wrong.append(
            "kinds contains HostReplace, but replacement has no steps" if replaces else "steps without HostReplace"
        )
    if provider.call_limit_s <= ACT_WITHIN_S:
        wrong.append(f"call_limit_s must exceed {ACT_WITHIN_S:.0f}, as a call may wait that long before it is sent")
    rates = (provider.rates.reads, provider.rates.writes)
    wrong += [f"{rate} allows no requests" for rate in rates if rate.burst < 1 or rate.per_s <= 0]
    wrong += [
        f"step {step.stage} has a limit of {step.limit_s:g} s, but one of its calls may last "
        f"{provider.call_limit_s:g} s"
        for step in provider.replacement
        if step.limit_s < provider.call_limit_s
    ]
    for kind, given in provider.parameters.items():
        wrong += [f"{kind} has no parameter {name}" for name in sorted(given - names(kind, ExecutorKind.CLOUD))]
    return wrong + (replacement.faults(provider.replacement) if provider.replacement else [])


def _is_for_us(provider: Provider) -> bool:
    return getattr(provider, "api_version", UNDECLARED) == API_VERSION


def _other_version(provider: Provider) -> str:
    return f"it implements {provider.api_version!r} of the provider API, but this release serves {API_VERSION!r}"


@dataclass(frozen=True)
class ServedProviders:
    """Providers by name, and the reasons why other installed ones are not served."""

    providers: Mapping[str, Provider]
    unserved: Mapping[str, str]

    def log_unserved(self) -> None:
        """Log, once, the providers that are not served now, and those that a later release refuses."""
        for name, why in self.unserved.items():
            log.warning("provider is not served", provider=name, why=why)
        for name, provider in self.providers.items():
            if not hasattr(provider, "api_version"):
                counts_as = f"treated as {UNDECLARED!r}; a later release will reject it"
                log.warning("provider declares no api_version", provider=name, why=counts_as)


def load_all() -> ServedProviders:
    """Load all installed providers."""
    found: dict[str, Provider] = {}
    unserved: dict[str, str] = {}
    for name in installed():
        try:
            found[name] = load(name)
        except SettingsError as error:
            unserved[name] = str(error)
    return ServedProviders(found, unserved)


def load_served(name: str) -> ServedProviders:
    """Load the named provider, else all installed ones with complete dependencies.

    Raises:
        SettingsError: there is none.
    """
    if name:
        return ServedProviders({name: load(name)}, {})
    served = load_all()
    if not served.providers:
        raise SettingsError(
            "; ".join(served.unserved.values()) or f"no provider is installed (entry points of {GROUP})"
        )
    return served
