"""Forecast of the changes of an intent: the server's answer to a dry run, and the controllers' own decisions."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS, MACHINE_CONFIGURATIONS, MachineConfiguration
from unbounded.api.core import CONFIG_MAPS, PODS, SECRETS, Node, Pod, Secret
from unbounded.api.disruption import DrainProgress
from unbounded.api.failures import Failure
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.machine_spec import SecretKeySelector
from unbounded.api.meta import Kind
from unbounded.api.names import LABEL_CONFIGURATION
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationKind
from unbounded.api.profile import MACHINE_PROFILES, MachineProfile
from unbounded.explain.facts import ExplainFacts
from unbounded.explain.facts_reader import FactsReader
from unbounded.kube.api import Api, Forbidden, NotFound
from unbounded.kube.clock import utc_now
from unbounded.machina.rolling_update_plan import UpdateView
from unbounded.operations.disruption.drain import DrainRules, plan_drain
from unbounded.operations.disruption.drained_nodes import PodEvictions
from unbounded.plan import container_cloud, obstacles
from unbounded.plan.effects import (
    LOSES,
    begun_maintenance,
    counter_request,
    decoded,
    effects,
    forecast,
    forecast_update,
    maintenance_wait,
    merged,
    operation_drain,
    pod_blockers,
    with_image,
    with_template,
)
from unbounded.plan.intent import Intent, IntentPatch, Raw, full_name
from unbounded.plan.kinds import kind_of
from unbounded.plan.model import Plan, PlannedChange, UpdateForecast, plan_hash

AT_ONCE: Final = 10  # Secrets read concurrently
UNAUTHORIZED: Final = 401

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class PlanScope:
    """Permission for reads beside those of the API.

    Attributes:
        reads_secrets: check the passwords of BMCs.
        calls_clouds: load providers, and have them report the losses of replacements, with the logins that the reader
            may read.
    """

    reads_secrets: bool = True
    calls_clouds: bool = True


WHOLE: Final = PlanScope()


class DryRunApi(Api, Protocol):
    """An Api whose writes can be dry runs."""

    async def create(
        self, kind: Kind[T], body: Mapping[str, Any], *, namespace: str = "", dry_run: bool = False
    ) -> T: ...

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        patch: Mapping[str, Any],
        *,
        namespace: str = "",
        subresource: str = "",
        dry_run: bool = False,
    ) -> T: ...


async def plan_intent(api: DryRunApi, intent: Intent, scope: PlanScope = WHOLE) -> Plan:
    """Return the plan of an intent; nothing is written.

    Raises:
        ApiError: an object to patch, or a fact of the plan, cannot be read.
    """
    changes = await changes_of(api, intent, scope)
    return Plan(tuple(changes), plan_hash(intent, changes) if changes else "")


async def plan_manifests(api: DryRunApi, manifests: Sequence[Raw], scope: PlanScope = WHOLE) -> Plan:
    """Return the plan of objects of Container Cloud, each created or changed, in this order; nothing is written.

    Args:
        manifests: whole objects of `container_cloud.PLANNED` with their namespace.

    Raises:
        ApiError: an object, or a fact of the plan, cannot be read.
    """
    intent = await container_cloud.intend_file(api, list(manifests))
    changes = await changes_of_file(api, manifests, scope)
    return Plan(tuple(changes), plan_hash(intent, changes))


async def plan_deletions(api: DryRunApi, manifests: Sequence[Raw], scope: PlanScope = WHOLE) -> Plan:
    """Return the plan of the deletion of objects of Container Cloud, in this order; nothing is deleted.

    Args:
        manifests: objects of `container_cloud.DELETABLE` with their namespace.

    Raises:
        ApiError: an object, or a fact of the plan, cannot be read.
    """
    planner, changes = _planner(api, scope), []
    for manifest in manifests:
        kind, name = container_cloud.kind_of(manifest), manifest["metadata"]["name"]
        what = f"delete {full_name(kind, name)}"
        namespace = container_cloud.namespace_of(manifest)
        before = await container_cloud.stored(api, kind, name, namespace)
        if before is None:
            changes.append(PlannedChange(what, server=f"{full_name(kind, name)} does not exist"))
        else:
            changes.append(await planner.plan_deletion(PlannedChange(what), kind, before))
    deletions = [
        IntentPatch(
            container_cloud.kind_of(one),
            one["metadata"]["name"],
            {"deleted": True},
            namespace=container_cloud.namespace_of(one),
        )
        for one in manifests
    ]
    return Plan(tuple(changes), plan_hash(Intent(patches=tuple(deletions)), changes))


async def changes_of(api: DryRunApi, intent: Intent, scope: PlanScope = WHOLE) -> list[PlannedChange]:
    """Return the writes of an intent in their order: patches come before new objects."""
    changes = [await _of_patch(api, patch, scope) for patch in intent.patches]
    return changes + [await _of_create(api, manifest, scope) for manifest in intent.creates]


async def _of_create(api: DryRunApi, manifest: Raw, scope: PlanScope) -> PlannedChange:
    kind = kind_of(manifest)
    what = f"create {full_name(kind, manifest['metadata']['name'])}"
    change = PlannedChange(what, server=await _rejection(api.create(kind, manifest, dry_run=True)))
    if kind.plural != MACHINE_OPERATIONS.plural:
        return change
    return await _with_operation(api, change, manifest, scope)


async def _with_operation(
    api: Api, change: PlannedChange, manifest: Mapping[str, Any], scope: PlanScope
) -> PlannedChange:
    operation = decoded(manifest)
    facts = await _facts_of(api, operation)
    rules, node = operation_drain(operation, facts), facts.nodes.get(operation.spec.machine_ref or "")
    loses = OperationKind(operation.spec.operation_kind) in LOSES
    pods = await _pods_on(api, node) if node is not None and (loses or rules is not None) else None
    planned = forecast(operation, facts, None if pods is None else len(pods))
    if rules is not None and pods and any(one.drains for one in planned.targets):
        blockers = pod_blockers(await _tried_drain(api, pods, rules))
        targets = (replace(one, held=(*one.held, *blockers)) if one.drains else one for one in planned.targets)
        planned = replace(planned, targets=tuple(targets))
    refs = obstacles.password_refs(planned, facts)
    secrets = await _secrets(api, refs) if scope.reads_secrets else None
    profiles = await _profiles(api, obstacles.profile_names(planned, facts))
    planned = obstacles.with_obstacles(planned, operation, facts, secrets, profiles)
    providers = await obstacles.providers_of(planned, loads=scope.calls_clouds)
    planned = obstacles.with_refusals(planned, operation, facts, providers)
    planned = await obstacles.with_losses(planned, operation, facts, providers, api)
    return replace(change, operation=planned, unread=facts.unread)


async def _facts_of(api: Api, operation: MachineOperation) -> ExplainFacts:
    """Return the facts about an operation that does not exist itself."""
    reader = FactsReader(api)
    if operation.spec.machine_ref is None:
        facts = await reader.of_all(OperationKind(operation.spec.operation_kind))
    else:
        facts = await reader.of_operation(operation)
    covering = {name for machine in facts.machines.values() for name in machine.status.disruption_budgets}
    facts = await reader.with_budgets(facts, sorted(covering))
    others = {name: one for name, one in facts.operations.items() if name != operation.name}
    return dataclasses.replace(facts, operations=others)


async def _of_patch(api: DryRunApi, patch: IntentPatch, scope: PlanScope) -> PlannedChange:
    kind = patch.kind.raw()
    before = await api.get(kind, patch.name, namespace=patch.namespace)
    dry = api.patch(
        kind,
        patch.name,
        patch.body,
        namespace=patch.namespace,
        subresource="status" if patch.status else "",
        dry_run=True,
    )
    change = PlannedChange(f"patch {full_name(kind, patch.name)}: {patch.verb}", server=await _rejection(dry))
    if patch.kind.plural == MACHINE_CONFIGURATIONS.plural:
        after = msgspec.convert(merged(before, patch.body), MachineConfiguration)
        return replace(change, update=await _update(api, after))
    due_operation = counter_request(patch, before)
    facts = await _facts_of_patch(api, patch)
    change = replace(change, effects=await _effects_of(api, patch, before, facts), unread=facts.unread)
    if due_operation is None:
        return change
    machine = await api.get(MACHINES, patch.name)
    words = (*change.effects, f"its metalman creates {due_operation.kind} {due_operation.name}")
    return await _with_operation(api, replace(change, effects=words), due_operation.manifest(machine), scope)


async def _effects_of(api: Api, patch: IntentPatch, before: Raw, facts: ExplainFacts) -> tuple[str, ...]:
    """Return the effects of a patch, with the Pods that a drain would wait for."""
    found = effects(patch, before, facts)
    if patch.kind.plural != MACHINES.plural:
        return found
    changed = msgspec.convert(merged(before, patch.body), Machine)
    rules = begun_maintenance(msgspec.convert(before, Machine), changed, facts)
    pods = None if rules is None else await _pods_on(api, facts.nodes[patch.name])
    if rules is None or pods is None:
        return found
    links = pod_blockers(await _tried_drain(api, pods, rules))
    return (*found, *(text for link in links for text in maintenance_wait(link)))


async def _update(api: Api, after: MachineConfiguration, images: Mapping[str, str] | None = None) -> UpdateForecast:
    """Forecast the rolling update of a configuration as it would be after a patch.

    Args:
        images: that hosts would have then, by the name of their Machine.
    """
    name, reader = after.metadata.name, FactsReader(api)
    facts, versions = await asyncio.gather(
        reader.of_all(OperationKind.NODE_REBOOT),  # by agents, as is the creation of a Node
        api.list(MACHINE_CONFIGURATION_VERSIONS, labels=f"{LABEL_CONFIGURATION}={name}"),
    )
    refs = ((machine, machine.spec.configuration_ref) for machine in facts.machines.values())
    bound = [
        with_image(machine, (images or {}).get(machine.name))
        for machine, ref in refs
        if ref is not None and ref.name == name
    ]
    facts = await reader.with_budgets(facts, sorted({one for m in bound for one in m.status.disruption_budgets}))
    known = with_template(versions.items, after)
    return forecast_update(UpdateView(after, known, bound, utc_now(), facts.nodes, facts.operations), facts)


async def _facts_of_patch(api: Api, patch: IntentPatch) -> ExplainFacts:
    reader = FactsReader(api)
    if patch.kind.plural == MACHINES.plural:
        machine: Machine = await api.get(MACHINES, patch.name)
        return await reader.with_budgets(await reader.of_machine(machine), machine.status.disruption_budgets)
    if patch.kind.plural != CONFIG_MAPS.plural:
        return ExplainFacts()
    operations = await api.list(MACHINE_OPERATIONS)
    return ExplainFacts(operations={one.name: one for one in operations.items})


async def _rejection(dry: Any) -> str:
    """Return the server's rejection of a write; empty where the server accepts it.

    Raises:
        Forbidden: the server does not know the user: nothing was planned for anybody.
    """
    try:
        await dry
    except Failure as error:
        if isinstance(error, Forbidden) and error.code == UNAUTHORIZED:
            raise
        return str(error)
    return ""


async def _pods_on(api: Api, node: Node) -> Sequence[Pod] | None:
    """Return the Pods on a Node; None where the user may not read them."""
    try:
        return (await api.list(PODS, fields=f"spec.nodeName={node.metadata.name}")).items
    except (Forbidden, NotFound):
        return None


async def _tried_drain(api: Api, pods: Sequence[Pod], rules: DrainRules) -> DrainProgress:
    """Return the Pods of a Node that would block its drain now. The server evicts none: it answers in a dry run.

    Those whose eviction it would refuse are missing where the user may not evict Pods.
    """
    evictions, now = PodEvictions(), utc_now()
    step = plan_drain(pods, rules, {}, (), now=now, loop_time=0.0, lost=False)
    with suppress(Forbidden):
        try:
            await evictions.evict(api, step.evict, lambda: None, asyncio.Semaphore(AT_ONCE), dry_run=True)
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
    return plan_drain(pods, rules, evictions.refusals, (), now=now, loop_time=0.0, lost=False).progress


async def _profiles(api: Api, names: Sequence[str]) -> Mapping[str, MachineProfile | None]:
    """Return the MachineProfiles that the user may read; None for one that does not exist."""
    found: dict[str, MachineProfile | None] = {}
    for name in names:
        try:
            profile: MachineProfile = await api.get(MACHINE_PROFILES, name)
            found[name] = profile
        except NotFound:
            found[name] = None
        except Forbidden:
            continue
    return found


async def _secrets(api: Api, desired: Sequence[SecretKeySelector]) -> Mapping[SecretKeySelector, Secret | None]:
    """Return the Secrets that the user may read; None for one that does not exist."""
    turns = asyncio.Semaphore(AT_ONCE)
    found: dict[SecretKeySelector, Secret | None] = {}

    async def read(ref: SecretKeySelector) -> None:
        async with turns:
            try:
                secret: Secret = await api.get(SECRETS, ref.name, namespace=ref.namespace)
                found[ref] = secret
            except NotFound:
                found[ref] = None
            except Forbidden:
                return

    await asyncio.gather(*map(read, desired))
    return found


def _planner(api: DryRunApi, scope: PlanScope) -> container_cloud.ContainerCloudPlanner:
    async def effects_of(patch: IntentPatch) -> tuple[str, ...]:
        before: Raw = await api.get(patch.kind.raw(), patch.name)
        return await _effects_of(api, patch, before, await _facts_of_patch(api, patch))

    async def update_of(after: MachineConfiguration, images: Mapping[str, str]) -> UpdateForecast:
        return await _update(api, after, images)

    async def operation_of(change: PlannedChange, manifest: Raw) -> PlannedChange:
        return await _with_operation(api, change, manifest, scope)

    return container_cloud.ContainerCloudPlanner(
        api, effects_of, update_of, operation_of, reads_secrets=scope.reads_secrets
    )


async def changes_of_file(api: DryRunApi, manifests: Sequence[Raw], scope: PlanScope = WHOLE) -> list[PlannedChange]:
    """Return the changes of objects of Container Cloud, in the order of the file."""

    planner = _planner(api, scope)
    changes = []
    for manifest in manifests:
        intent = await container_cloud.intend_file(api, [manifest])
        for body in intent.creates:
            kind, meta = container_cloud.kind_of(body), body["metadata"]
            namespace = container_cloud.namespace_of(body)
            dry = api.create(kind.raw(), body, namespace=namespace, dry_run=True)
            change = PlannedChange(f"create {full_name(kind, meta['name'])}", server=await _rejection(dry))
            changes.append(await _planned(planner, change, kind, None, body))
        for patch in intent.patches:
            before = await api.get(patch.kind.raw(), patch.name, namespace=patch.namespace)
            dry = api.patch(patch.kind.raw(), patch.name, patch.body, namespace=patch.namespace, dry_run=True)
            change = PlannedChange(f"change {full_name(patch.kind, patch.name)}", server=await _rejection(dry))
            changes.append(await _planned(planner, change, patch.kind, before, merged(before, patch.body)))
    return changes


async def _planned(
    planner: container_cloud.ContainerCloudPlanner, change: PlannedChange, kind: Kind[Any], before: Any, after: Raw
) -> PlannedChange:
    """Return a change with its effects; one that the server refuses has none."""
    return change if change.server else await planner.plan(change, kind, before, after)
