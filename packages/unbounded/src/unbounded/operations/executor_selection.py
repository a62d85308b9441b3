"""Ownership of operations: a pure function from kind and Machine to the executor, and the executors not available.

The process that starts the executors reports those that are not available. No other component can observe a process
that does not run.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from unbounded.api.fields import MAX_LABEL_VALUE, is_provider_name
from unbounded.api.machine import Machine
from unbounded.api.names import ANNOTATION_PROVIDER, BUILT_IN_PROVIDERS
from unbounded.api.operation import OperationKind

AUTHORITIES: Final = 16_384  # the number of BMCs of a large site; each change of a Machine parses its BMC's URL
LEAST: Final = 3  # the least length of a name that may be part of the other


class ExecutorKind(StrEnum):
    CLOUD = "machine-ops-controller"
    METALMAN = "metalman"
    AGENT = "unbounded-agent"


@dataclass(frozen=True)
class Row:
    """A row of the ownership table; the first matching row names the executor (None: unsupported)."""

    kinds: frozenset[OperationKind]
    the_machine_has: str
    matches: Callable[[Machine], bool]
    executor: ExecutorKind | None


_HOST: Final = frozenset(kind for kind in OperationKind if kind.is_host)
_REBOOT: Final = frozenset({OperationKind.HOST_REBOOT})
_BMC: Final = frozenset(kind for kind in OperationKind if kind.needs_bmc)
_INSIDE: Final = frozenset(OperationKind) - _HOST - _BMC


def _has_bmc(machine: Machine) -> bool:
    return machine.spec.pxe is not None and machine.spec.pxe.redfish is not None


def _has_agent(machine: Machine) -> bool:
    return machine.has_agent


def _is_misnamed(machine: Machine) -> bool:
    """Return whether the provider's name is invalid: the server validates spec.provider, but not the annotation.

    A name with a slash would be parsed as one with a site.
    """
    return machine.provider is not None and not is_provider_name(machine.provider)


TABLE: Final = (
    Row(_HOST, "an invalid provider name", _is_misnamed, None),
    Row(_HOST, "a provider", lambda machine: machine.provider is not None, ExecutorKind.CLOUD),
    Row(
        _HOST,
        "`spec.pxe.redfish`, no provider, no providerID",
        lambda machine: _has_bmc(machine) and not machine.spec.provider_id,
        ExecutorKind.METALMAN,
    ),
    Row(
        _REBOOT,
        "no provider, no BMC, but an agent (`status.agent.version`)",
        lambda machine: not _has_bmc(machine) and not machine.spec.provider_id and _has_agent(machine),
        ExecutorKind.AGENT,
    ),
    Row(_HOST, "none of these", lambda _machine: True, None),
    Row(_BMC, "`spec.pxe.redfish`", _has_bmc, ExecutorKind.METALMAN),
    Row(_BMC, "no BMC", lambda _machine: True, None),
    Row(_INSIDE, "", lambda _machine: True, ExecutorKind.AGENT),
)


_ROWS: Final = {kind: tuple(row for row in TABLE if kind in row.kinds) for kind in OperationKind}


def executor_of(kind: OperationKind, machine: Machine) -> ExecutorKind | None:
    """Return the component that executes `kind` on this Machine; None when there is none."""
    for row in _ROWS[kind]:  # no generator: each change of a Machine comes here several times
        if row.matches(machine):
            return row.executor
    return None


def bmc_of(machine: Machine) -> str | None:
    """Return BMC and system of the Machine's metalman operations; None where it has none.

    Machines with the same system return the same text, in any spelling of their URLs.
    """
    if machine.spec.pxe is None or machine.spec.pxe.redfish is None:
        return None
    if executor_of(OperationKind.HOST_REBOOT, machine) is not ExecutorKind.METALMAN:
        return None
    redfish = machine.spec.pxe.redfish
    return f"{authority_of(redfish.url)} Systems/{redfish.device_id}"


@lru_cache(maxsize=AUTHORITIES)
def authority_of(url: str) -> str:
    """Return host, port and path of a BMC's URL; the text itself where it is no URL."""
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)
    except ValueError:
        return url
    try:
        host = ip_address(host).compressed
    except ValueError:  # a host name
        host = host.removesuffix(".")
    path = parts.path.rstrip("/").removesuffix("/v1").removesuffix("/redfish")
    return f"{f'[{host}]' if ':' in host else host}:{port}{path}"


def executor_name(kind: OperationKind, machine: Machine) -> str | None:
    """Return the executor as status and lock name it: `metalman/lab`, `machine-ops-controller/site/AzureVM`."""
    match executor_of(kind, machine):
        case ExecutorKind.CLOUD:
            return "/".join(part for part in (ExecutorKind.CLOUD, machine.site, machine.provider) if part)
        case ExecutorKind.METALMAN:
            return "/".join(part for part in (ExecutorKind.METALMAN, machine.site) if part)
        case ExecutorKind.AGENT:
            return f"{ExecutorKind.AGENT}/{machine.name}"
        case None:
            return None


def is_agent(executor: str) -> bool:
    """Return whether an executor, as the status names it, is the agent of a Machine."""
    return executor.partition("/")[0] == ExecutorKind.AGENT


def provider_of(executor: str) -> str | None:
    """Return the provider that an executor, as the status names it, serves; None where it serves none."""
    component, _, scope = executor.partition("/")
    return scope.rpartition("/")[2] or None if component == ExecutorKind.CLOUD else None


def why_unsupported(kind: OperationKind, machine: Machine) -> str:
    """Return the message for an unsupported kind: the fields that the Machine lacks."""
    no_executor = f"no executor supports {kind} on Machine {machine.name}"
    if kind.needs_bmc:
        return f"{no_executor}: the Machine needs spec.pxe.redfish"
    field = "spec.provider" if machine.spec.provider else f"annotation {ANNOTATION_PROVIDER}"
    if _is_misnamed(machine):
        name = (machine.provider or "")[: MAX_LABEL_VALUE + 1]
        similar = nearest(name, BUILT_IN_PROVIDERS)
        return (
            f"{no_executor}: {field} is {name!r}, an invalid provider name. A name has at most {MAX_LABEL_VALUE} "
            "letters, digits, '-', '_' and '.', and begins and ends with a letter or a "
            f"digit{f'; {similar} is one' if similar else ''}"
        )
    needs = f"spec.pxe.redfish, or spec.provider (or {field}) with spec.providerID"
    agent = ", or an agent that reports status.agent.version" if kind is OperationKind.HOST_REBOOT else ""
    return f"{no_executor}: the Machine needs {needs}{agent}"


@dataclass(frozen=True)
class Unavailability:
    """The reason why a provider is not served.

    Args:
        text: the problem and its fix; constant as long as the problem lasts.
        then: the next automatic step and its time.
        is_problem: False for a process that is starting.
    """

    text: str
    then: str = ""
    is_problem: bool = True

    @property
    def whole(self) -> str:
        return f"{self.text}; {self.then}" if self.then else self.text


class ExecutorHealth:
    """Unavailable providers by name; empty where no process starts executors."""

    def __init__(self) -> None:
        self._absent: dict[str, Unavailability] = {}
        self._changed: list[Callable[[str, Unavailability | None], None]] = []

    def report(self, provider: str, absence: Unavailability | None) -> None:
        """Record that a provider is not served, or (None) that it is."""
        if self._absent.get(provider) == absence:
            return
        if absence is None:
            del self._absent[provider]
        else:
            self._absent[provider] = absence
        for changed in self._changed:
            changed(provider, absence)

    def all(self) -> dict[str, Unavailability]:
        """Return the providers that are not served now."""
        return dict(self._absent)

    def of(self, executor: str) -> Unavailability | None:
        """Return the reason why an executor does not serve; None where it serves, or nothing is known.

        Args:
            executor: as the status names it.
        """
        return self._absent.get(provider_of(executor) or "")

    @contextmanager
    def subscribed(self, changed: Callable[[str, Unavailability | None], None]) -> Iterator[None]:
        """Call `changed` with the provider and its absence at each change, while the context is entered."""
        self._changed.append(changed)
        try:
            yield
        finally:
            self._changed.remove(changed)


def nearest(text: str, known: Iterable[str]) -> str:
    """Return the most similar known name, ignoring case and separators; empty where none is similar."""
    target, plain = _plain(text), {_plain(one): one for one in known}
    within = [one for one in plain if min(len(one), len(target)) >= LEAST and (one in target or target in one)]
    near = within or difflib.get_close_matches(target, plain, n=1, cutoff=0.6)
    return plain[near[0]] if near else ""


def _plain(text: str) -> str:
    return re.sub("[^a-z0-9]", "", text.lower())
