"""Checks of an operation against its provider, before any change in the cloud, and a preview of losses.

Two Machines with one instance are a fault, as both would act on it. An index of Machines by instance finds them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from unbounded.api.credential import MACHINE_OPERATION_CREDENTIALS, AuthMode, MachineOperationCredential
from unbounded.api.failures import Failure
from unbounded.api.machine import Machine
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.kube.api import Api, ApiError
from unbounded.kube.cache import Cache
from unbounded.machineops import power, reasons, replacement
from unbounded.machineops.credentials import Sessions, SiteLogins, mode_of, select_credential
from unbounded.machineops.provider import Instance, Job, Loss, Provider, Transient
from unbounded.machineops.rate_limits import ScopeBudget
from unbounded.machineops.replacement_state import ReplacementSecret
from unbounded.machineops.sanitize import parse_instance
from unbounded.operations import reasons as common
from unbounded.operations.executor_protocol import Refusal
from unbounded.operations.executor_selection import ExecutorKind
from unbounded.operations.parameters import invalid
from unbounded.workflow.procedure import Procedure

INDEX_INSTANCE: Final = "instance"
PREVIEW_S: Final = 30.0  # longest wait of a user for a preview
WORKLOAD_IDENTITY: Final = "its controller logs in with its own workload identity, which no other process has"


def procedure_of(provider: Provider, operation: MachineOperation) -> Procedure:
    """Return the procedure of an operation; raise Refusal for a kind that the provider does not support."""
    kind = OperationKind(operation.spec.operation_kind)
    if kind not in provider.kinds:
        raise Refusal(common.UNSUPPORTED_OPERATION, f"{provider.name} does not support {kind}")
    if operation.status.execution is None:  # running operations are not interrupted
        _check_parameters(provider, operation, kind)
    if kind is OperationKind.HOST_REPLACE:
        return replacement.replace(provider.replacement)
    return power.procedure(operation, kind, restarts_once=provider.restarts_once)


def _check_parameters(provider: Provider, operation: MachineOperation, kind: OperationKind) -> None:
    wrong = invalid(operation, ExecutorKind.CLOUD, provider.parameters.get(kind, frozenset()))
    if wrong is not None:
        raise Refusal(common.INVALID_PARAMETERS, f"{wrong} (provider {provider.name})")


def provider_id_of(machine: Machine) -> str:
    """Return `spec.providerID`; raise Refusal if it is not set."""
    if not machine.spec.provider_id:
        raise Refusal(reasons.INVALID_PROVIDER_ID, f"Machine {machine.name} has no spec.providerID")
    return machine.spec.provider_id


def invalid_provider_id(machine: Machine, error: ValueError) -> Refusal:
    """Return the refusal for an invalid `spec.providerID`."""
    return Refusal(reasons.INVALID_PROVIDER_ID, f"spec.providerID of Machine {machine.name}: {error}")


def preflight_refusal(provider: Provider, operation: MachineOperation, machine: Machine) -> Refusal | None:
    """Return the refusal that would end an operation at once; None if only the cloud can tell."""
    try:
        procedure_of(provider, operation)
        parse_instance(provider, provider_id_of(machine))
    except ValueError as error:
        return invalid_provider_id(machine, error)
    except Refusal as refusal:
        return refusal
    return None


class NoLogin(Transient):
    """No login to the cloud is usable from here."""


@dataclass(frozen=True)
class _CredentialList:
    """Credentials with the interface of their cache."""

    items: tuple[MachineOperationCredential, ...]

    def all(self) -> Iterable[MachineOperationCredential]:
        return self.items


async def preview_losses(
    api: Api, provider: Provider, operation: MachineOperation, machine: Machine
) -> tuple[Loss, ...]:
    """Return the losses of a HostReplace; reads from the cloud and changes nothing.

    The login is that of the Machine's MachineOperationCredential, read with the rights of `api`.

    Raises:
        Refusal: the replacement would be refused.
        NoLogin: the cloud was not called; the message names the cause.
        Transient: the cloud has given no answer.
    """
    instance = parse_instance(provider, provider_id_of(machine))
    job = Job(
        operation=operation.name,
        uid=operation.metadata.uid,
        kind=OperationKind.HOST_REPLACE,
        machine=machine.name,
        machine_uid=machine.metadata.uid,
        instance=instance,
        parameters=operation.spec.parameters,
    )
    sessions = await _sessions(api, provider, machine)
    limit_s = min(provider.call_limit_s, PREVIEW_S)
    try:
        async with sessions.use() as session, asyncio.timeout(limit_s):
            keep = ReplacementSecret(api, operation, machine, instance.binding)
            return (await session.look_replace(job, keep)).losses
    except Failure:
        raise
    except TimeoutError as error:
        raise Transient(f"{provider.name} did not answer within {limit_s:.0f} s") from error
    except Exception as error:  # of a provider by others, in the process of the reader
        raise Transient(f"provider {provider.name} failed ({type(error).__name__})") from error
    finally:
        await sessions.close()


async def _sessions(api: Api, provider: Provider, machine: Machine) -> Sessions:
    """Return sessions of the Machine's credential.

    Raises:
        NoLogin: no login is usable from here.
    """
    site = machine.site or ""
    try:
        credentials = _CredentialList(tuple((await api.list(MACHINE_OPERATION_CREDENTIALS)).items))
        if mode_of(select_credential(credentials.all(), site, provider.name), provider) is not AuthMode.EXTERNAL_PLUGIN:
            raise NoLogin(WORKLOAD_IDENTITY)
        logins = SiteLogins(api, credentials, provider, namespace=NAMESPACE, reader="you have")
        await logins.login_for(site)
    except (Refusal, ApiError) as error:
        raise NoLogin(str(error)) from error
    return Sessions(provider, site, logins, ScopeBudget(provider.rates))


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
