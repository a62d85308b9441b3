"""Preview of a replacement's losses, without an operation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from unbounded.api.credential import MACHINE_OPERATION_CREDENTIALS, AuthMode, MachineOperationCredential
from unbounded.api.machine import Machine
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.kube.errors import ApiError
from unbounded.kube.port import Api
from unbounded.machineops.budget import ScopeBudget
from unbounded.machineops.credentials import SiteLogins, mode_of, select_credential
from unbounded.machineops.preflight import provider_id_of
from unbounded.machineops.provider import Job, Loss, Provider, Transient
from unbounded.machineops.replacement_state import ReplacementSecret
from unbounded.machineops.sanitize import parse_instance
from unbounded.machineops.sessions import Sessions
from unbounded.operations.ports import Refusal


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

    Raises:
        Refusal: the replacement would be refused.
        Transient: the preview is impossible from here; the message names the cause.
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
    try:
        async with sessions.use() as session, asyncio.timeout(provider.call_limit_s):
            keep = ReplacementSecret(api, operation, machine, instance.binding)
            return (await session.look_replace(job, keep)).losses
    except TimeoutError as error:
        raise Transient(f"{provider.name} did not answer within {provider.call_limit_s:.0f} s") from error
    finally:
        await sessions.close()


async def _sessions(api: Api, provider: Provider, machine: Machine) -> Sessions:
    """Return sessions of the Machine's credential.

    Raises:
        Transient: no login is usable from here.
    """
    site = machine.site or ""
    try:
        credentials = _CredentialList(tuple((await api.list(MACHINE_OPERATION_CREDENTIALS)).items))
        if mode_of(select_credential(credentials.all(), site, provider.name), provider) is not AuthMode.EXTERNAL_PLUGIN:
            raise Transient("its controller uses its own workload identity, which this command does not have")
        logins = SiteLogins(api, credentials, provider, namespace=NAMESPACE)
        await logins.login_for(site)
    except (Refusal, ApiError) as error:
        raise Transient(str(error)) from error
    return Sessions(provider, site, logins, ScopeBudget(provider.rates))
