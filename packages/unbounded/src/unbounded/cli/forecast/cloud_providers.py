"""Forecasts of cloud providers for an operation, from their own code: rejections, stages, and losses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from unbounded.api.failures import Failure
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.cli.explain.facts import ExplainFacts
from unbounded.cli.explain.fixes import fixes_for
from unbounded.cli.forecast.model import MachineForecast, Obstacle, OperationForecast, PlannedLoss, StageLine
from unbounded.cli.forecast.operations import stages
from unbounded.kube.options import SettingsError
from unbounded.kube.port import Api
from unbounded.operations import reasons
from unbounded.operations.ownership import provider_of
from unbounded.operations.ports import Refusal

if TYPE_CHECKING:
    from unbounded.machineops.provider import Loss, Provider

QUERIED_TARGETS: Final = 20  # targets for which the cloud is called

Providers = Mapping[str, "Provider | str"]  # by name; the reason in place of one that is not installed here


async def providers_of(planned: OperationForecast) -> Providers:
    """Load the providers of the plan's targets."""
    names = sorted({name for one in planned.targets if (name := _provider(one))})
    return {name: await asyncio.to_thread(_loaded, name) for name in names}


def _loaded(name: str) -> Provider | str:
    from unbounded.machineops.registry import load  # noqa: PLC0415  # SDKs come with a provider

    try:
        return load(name)
    except SettingsError as error:
        return str(error)


def with_refusals(
    planned: OperationForecast, operation: MachineOperation, facts: ExplainFacts, providers: Providers
) -> OperationForecast:
    """Return the plan with what providers reject before they call their clouds, and with notes on missing providers.
    Pure.
    """
    targets = tuple(_with_refusal(one, operation, facts, providers) for one in planned.targets)
    unknown = (
        f"whether provider {name} supports it with these parameters, and its stages: {found}"
        for name, found in providers.items()
        if isinstance(found, str)
    )
    there = planned.stages or _stages(operation, list(providers.values()))
    return replace(planned, targets=targets, stages=there, unchecked=(*planned.unchecked, *unknown))


async def with_losses(
    planned: OperationForecast, operation: MachineOperation, facts: ExplainFacts, providers: Providers, api: Api
) -> OperationForecast:
    """Return the plan with the losses that the clouds report, for the first QUERIED_TARGETS targets."""
    if planned.kind != OperationKind.HOST_REPLACE:
        return planned
    looked = [await _with_losses(one, operation, facts, providers, api) for one in planned.targets[:QUERIED_TARGETS]]
    unknown = tuple(f"the losses of {one.machine}: {why}" for one, why in looked if why)
    targets = (*(one for one, _ in looked), *planned.targets[QUERIED_TARGETS:])
    return replace(planned, targets=targets, unchecked=(*planned.unchecked, *unknown))


async def _with_losses(
    one: MachineForecast, operation: MachineOperation, facts: ExplainFacts, providers: Providers, api: Api
) -> tuple[MachineForecast, str]:
    """Return the outlook of a target with its losses, or the reason why they are unknown."""
    provider = providers.get(_provider(one) or "")
    if provider is None or isinstance(provider, str) or one.fails_at_once:
        return one, ""
    from unbounded.machineops.preflight import preview_losses  # noqa: PLC0415  # only for operations of its own
    from unbounded.machineops.provider import check_losses  # noqa: PLC0415  # as above

    losses: tuple[Loss, ...] = ()
    machine = facts.machines[one.machine]
    try:
        losses = await preview_losses(api, provider, operation, machine)
        check_losses(losses, operation.spec.parameters, one.machine)
    except Refusal as refusal:
        fixes = fixes_for(refusal.reason, machine, operation, facts)
        obstacle = Obstacle(f"machine/{one.machine}", str(refusal), refusal.reason, fixes)
        one = replace(one, obstacles=(*one.obstacles, obstacle))
    except (Failure, ValueError) as failure:
        return one, str(failure)
    invocation = tuple(PlannedLoss(each.field, each.consequence, each.lessens_security) for each in losses)
    return replace(one, losses=invocation), ""


def _provider(one: MachineForecast) -> str | None:
    return None if one.refused else provider_of(one.executor)


def _with_refusal(
    one: MachineForecast, operation: MachineOperation, facts: ExplainFacts, providers: Providers
) -> MachineForecast:
    from unbounded.machineops.preflight import preflight_refusal  # noqa: PLC0415  # only for operations of its own

    provider = providers.get(_provider(one) or "")
    if provider is None or isinstance(provider, str):
        return one
    machine = facts.machines[one.machine]
    refusal = preflight_refusal(provider, operation, machine)
    if refusal is None:
        return one
    asks_for_it_otherwise = refusal.reason == reasons.INVALID_PARAMETERS  # the message explains the parameters, too
    fixes = () if asks_for_it_otherwise else fixes_for(refusal.reason, machine, operation, facts)
    return replace(
        one, obstacles=(*one.obstacles, Obstacle(f"machine/{one.machine}", str(refusal), refusal.reason, fixes))
    )


def _stages(operation: MachineOperation, providers: Sequence[Provider | str]) -> tuple[StageLine, ...]:
    """Return the stages of the one provider; none where there are several, as they differ."""
    from unbounded.machineops.preflight import procedure_of  # noqa: PLC0415  # as above

    if len(providers) != 1 or isinstance(providers[0], str):
        return ()
    try:
        return stages(procedure_of(providers[0], operation))
    except Refusal:
        return ()
