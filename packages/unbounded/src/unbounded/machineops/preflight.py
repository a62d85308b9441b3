"""Checks of an operation against its provider, before any request to the cloud."""

from __future__ import annotations

from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.machineops import power, reasons, replacement
from unbounded.machineops.provider import Provider
from unbounded.machineops.sanitize import parse_instance
from unbounded.operations import reasons as common
from unbounded.operations.ownership import ExecutorKind
from unbounded.operations.parameters import invalid
from unbounded.operations.ports import Refusal
from unbounded.workflow.procedure import Procedure


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
