"""Application of stages of objects to a cluster, with a report of the changes and of each Deployment's rollout."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from unbounded.api.core import CONFIG_MAPS, NAMESPACES
from unbounded.api.crd import CONTAINER_CLOUD_DEFINITIONS
from unbounded.api.crd import DEFINITIONS as DEFINITIONS_OF_ALL
from unbounded.api.meta import Kind
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploy import components, validation
from unbounded.cli.deploy.host_addresses import is_local
from unbounded.cli.deploy.live_machina import LiveMachina, pod_security, warn_of_no_digest
from unbounded.cli.deploy.machina_settings import SETTINGS
from unbounded.cli.deploy.pods import MODES, PRIVILEGED, RESTRICTED, namespace
from unbounded.cli.deploy.server_side_apply import DEPLOYMENTS, PODS, AppliedChange, Applier, ApplyOutcome, kind_of
from unbounded.cli.deploy.workloads import MACHINA_CONFIG, InstallStage, machina_config
from unbounded.cli.manifests import wait_served
from unbounded.cli.plugin.command import DONE, FAILED, TIMED_OUT, CliError, CommandSession
from unbounded.cli.plugin.wait import next_change, watched_object
from unbounded.kube.api import Api, ApiError, NotFound

Raw = dict[str, Any]

DEFINITIONS: Final = "definitions"
NAMED: Final = 4  # up to so many changes of a stage are named in a summary
SERVER: Final = "server"
CLIENT: Final = "client"
CLUSTER_INFO: Final = "cluster-info"
CLUSTER_INFO_NAMESPACE: Final = "kube-public"
NO_DEPLOYMENTS: Final = (
    "the server does not serve Deployments (apps/v1), and no ConfigMap names the place of the controllers"
)


def show(session: CommandSession, bodies: Iterable[Raw]) -> int:
    """Print the objects without a call to a server: their names, or all of them with -o yaml and json."""
    desired = list(bodies)
    match getattr(session.invocation.args, "output", ""):
        case "yaml":
            session.invocation.out.write(yaml.dump_all(desired, Dumper=yaml.CSafeDumper, sort_keys=False, width=110))
        case "json":
            listing = {"apiVersion": "v1", "kind": "List", "items": desired}
            session.invocation.out.write(json.dumps(listing, indent=4) + "\n")
        case _:
            for body in desired:
                kind = kind_of(body)
                if kind is not None:
                    session.printer.name(kind, body["metadata"]["name"], "created (dry run)")
    return DONE


async def apply_stages(
    session: CommandSession,
    stages: Sequence[InstallStage],
    *,
    dry_run: bool = False,
    diff: bool = False,
    terse: bool = False,
    summary: bool = False,
) -> list[AppliedChange]:
    """Apply stage after stage and print the changes.

    Args:
        dry_run: print the changes that the server would make; write nothing.
        diff: print the differences in place of the changes; write nothing.
        terse: omit unchanged objects.
        summary: print a line for each stage in place of one for each object.
    """
    applier = Applier(session.api)
    changes: list[AppliedChange] = []
    for stage in stages:
        brought = await applier.apply_all(stage.objects, dry_run=dry_run or diff)
        if summary and not diff:
            session.printer.info(_summary(stage.name, brought, dry_run=dry_run))
        else:
            for change in brought:
                if not (terse and change.outcome is ApplyOutcome.UNCHANGED):
                    _print_change(session, change, dry_run=dry_run, diff=diff)
        if stage.name == DEFINITIONS and not (dry_run or diff):
            applied = {str(body["metadata"]["name"]) for body in stage.objects}
            every = (*DEFINITIONS_OF_ALL, *CONTAINER_CLOUD_DEFINITIONS)
            await wait_served(session.api, [one for one in every if one.name in applied])
        changes += brought
    return changes


def _summary(stage: str, changes: Sequence[AppliedChange], *, dry_run: bool) -> str:
    """Return the numbers of created, configured and unchanged objects of a stage; with names where they are few."""
    counts = Counter(change.outcome for change in changes)
    parts = []
    for outcome in (one for one in ApplyOutcome if counts[one]):
        few = counts[outcome] <= NAMED and outcome is not ApplyOutcome.UNCHANGED
        named = [change.what for change in changes if change.outcome is outcome] if few else []
        parts.append(f"{counts[outcome]} {outcome}" + (f" ({', '.join(named)})" if named else ""))
    return f"{stage}: {', '.join(parts)}{' (server dry run)' if dry_run else ''}"


def _print_change(session: CommandSession, change: AppliedChange, *, dry_run: bool, diff: bool) -> None:
    if diff:
        if change.difference:
            session.invocation.out.write(f"{change.difference}\n")
        return
    session.printer.name(change.kind, change.name, f"{change.outcome}{' (server dry run)' if dry_run else ''}")


async def restrict_namespace(session: CommandSession) -> None:
    """Make the namespace enforce `restricted` again where a metalman needed `privileged`, and none is left."""
    if await pod_security(session.api) != RESTRICTED:
        return
    try:
        existing: Raw = await session.api.get(NAMESPACES.raw(), NAMESPACE)
    except NotFound:
        return
    labels = existing["metadata"].get("labels") or {}
    if PRIVILEGED in {labels.get(mode) for mode in MODES}:  # another level is an administrator's choice
        await apply_stages(session, (InstallStage("namespace", (namespace(),)),), terse=True)


async def wait_available(session: CommandSession, names: Sequence[str], timeout_s: float | None) -> int:
    """Wait until all Pods of these Deployments are available; returns the exit status.

    Args:
        timeout_s: for all Deployments together; None for no limit.
    """
    until = None if timeout_s is None else time.monotonic() + timeout_s
    for name in names:
        left = 1e9 if until is None else max(0.0, until - time.monotonic())

        def report(text: str, name: str = name) -> None:
            session.printer.info(f"deployment.apps/{name}: {text}")

        found = await wait_rolled_out(session.api, name, NAMESPACE, within_s=left, report=report)
        if not found.done:
            await _print_problems(session, name, found)
            return FAILED if found.failed else TIMED_OUT
        report(found.text)
    return DONE


async def _print_problems(session: CommandSession, name: str, found: Rollout) -> None:
    session.printer.warn(f"deployment.apps/{name}: {found.text}")
    try:
        deployment = await session.api.get(DEPLOYMENTS, name, namespace=NAMESPACE)
    except NotFound:
        return
    for trouble in await pod_problems(session.api, deployment):
        session.printer.warn(f"  {trouble}")
    session.printer.warn(f"  next: kubectl --namespace {NAMESPACE} describe deployment {name}")


async def embedded_controllers(api: Api) -> dict[str, str]:
    """Return where controllers without a Deployment run, by their names; empty for a cluster with Deployments.

    Raises:
        CliError: the server does not serve Deployments either.
    """
    where = dict(await components.running(api))
    if not where and not await _knows_deployments(api):
        raise CliError(NO_DEPLOYMENTS, next_step="run `machina controller` and `metalman` yourself, next to the server")
    return where


def report_embedded(session: CommandSession, where: dict[str, str], given: Mapping[str, str]) -> None:
    """Print where controllers without a Deployment run, and warn of flags that do not reach them."""
    for name, place in sorted(where.items()):
        session.printer.info(f"{name} runs: {place}")
    typed = vars(session.invocation.args)
    images = [flag for flag, name in (("--image", "image"), ("--image-registry", "image_registry")) if typed.get(name)]
    if where and images:
        session.printer.warn(f"{' and '.join(images)}: no effect, as no Deployment runs the controllers")
    for setting in (one for one in SETTINGS if where and one.key in given):
        telling = setting.command(given[setting.key], session.invocation.program, beside=True)
        session.printer.warn(f"{setting.flag}: no effect, as no Deployment runs machina: set it with `{telling}`")


async def _knows_deployments(api: Api) -> bool:
    try:
        await api.list(DEPLOYMENTS, namespace=NAMESPACE)
    except NotFound:
        return False
    return True


async def config_for(session: CommandSession, live: LiveMachina, given: Mapping[str, str]) -> Raw:
    """Return machina's configuration: the flags over the existing configuration over the defaults.

    Without a ConfigMap cluster-info, hosts need the address of the API server from this configuration. It is the
    kubeconfig's server unless another one is configured.
    """
    config = machina_config(live.config, given)
    warn_of_no_digest(session, config)
    if live.config_map != MACHINA_CONFIG:
        session.printer.warn(
            f"machina changes its configuration from ConfigMap {live.config_map} to {MACHINA_CONFIG}: update "
            "the source of the first one, such as a kustomization, or its next apply reverts this"
        )
    if not config.get("apiServerEndpoint") and not await _publishes_itself(session.api):
        own = _own_endpoint(session.api.config.server)
        config["apiServerEndpoint"] = own
        session.printer.warn(
            f"no ConfigMap {CLUSTER_INFO_NAMESPACE}/{CLUSTER_INFO}: hosts will use the API server at {own}"
        )
        if is_local(own):
            session.printer.warn("  hosts cannot reach this address: give --api-server-endpoint HOST:PORT")
    return config


def _own_endpoint(server: str) -> str:
    try:
        return validation.endpoint(server)
    except ValueError as error:
        raise CliError(
            f"hosts cannot use the kubeconfig's address of the API server: {error}",
            next_step="give --api-server-endpoint HOST:PORT, an address that hosts can reach",
        ) from None


async def warn_unknown_endpoint(session: CommandSession, live: LiveMachina) -> None:
    """Warn where neither machina nor the cluster has an address of the API server for hosts."""
    if not live.settings.get("apiServerEndpoint") and not await _publishes_itself(session.api):
        session.printer.warn(
            f"no ConfigMap {CLUSTER_INFO_NAMESPACE}/{CLUSTER_INFO}, and no apiServerEndpoint in "
            f"{live.config_map}: hosts do not get the address of the API server; set it with "
            "--api-server-endpoint HOST:PORT"
        )


async def _publishes_itself(api: Api) -> bool:
    """Return whether the cluster publishes the address of its API server."""
    try:
        await api.get(CONFIG_MAPS, CLUSTER_INFO, namespace=CLUSTER_INFO_NAMESPACE)
    except NotFound:
        return False
    return True


@dataclass(frozen=True)
class Rollout:
    """Progress of a rollout.

    Args:
        text: the progress.
        failed: it will not complete by itself.
    """

    done: bool
    text: str
    failed: bool = False


def rollout_of(deployment: Mapping[str, Any] | None) -> Rollout:
    """Return the progress of a rollout from the status of the Deployment."""
    if deployment is None:
        return Rollout(done=False, text="it does not exist")
    spec, status = deployment.get("spec") or {}, deployment.get("status") or {}
    if int(status.get("observedGeneration", 0)) < int(deployment["metadata"].get("generation", 0)):
        return Rollout(done=False, text="no controller of the cluster has processed it yet")
    desired = int(spec.get("replicas", 1))
    updated, available = int(status.get("updatedReplicas", 0)), int(status.get("availableReplicas", 0))
    if stuck := _condition(status, "Progressing", "False"):
        return Rollout(done=False, text=stuck, failed=True)
    if updated < desired:
        return Rollout(done=False, text=f"{updated} of {desired} Pods have this version")
    if int(status.get("replicas", 0)) > updated:
        return Rollout(done=False, text=f"{int(status['replicas']) - updated} Pods of the previous version remain")
    if available < desired:
        return Rollout(done=False, text=f"{available} of {desired} Pods are available")
    return Rollout(done=True, text=f"{available} of {desired} Pods are available")


def _condition(status: Mapping[str, Any], kind: str, value: str) -> str:
    """Return the message of the condition with this value; empty if there is none."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == kind and condition.get("status") == value:
            return str(condition.get("message") or condition.get("reason") or kind)
    return ""


def problems_of(pods: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the problems of Pods, each once: an image that cannot be pulled, no node to run on, crashes."""
    found: dict[str, None] = {}
    for pod in pods:
        status = pod.get("status") or {}
        if unscheduled := _condition(status, "PodScheduled", "False"):
            found[unscheduled] = None
        for container in status.get("containerStatuses") or ():
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                text = f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
                found[text] = None
    return tuple(found)


async def wait_rolled_out(
    api: Api, name: str, namespace: str, *, within_s: float, report: Callable[[str], None]
) -> Rollout:
    """Follow a Deployment until its Pods are available, it has failed, or the time is up; returns its last progress.

    Raises:
        Forbidden: the user may not watch it.
    """
    rollout, trouble, changed = Rollout(done=False, text="it has not been read yet"), "", asyncio.Event()
    deadline = asyncio.timeout(within_s)
    try:
        async with deadline, watched_object(api, DEPLOYMENTS, name, changed, namespace=namespace) as followed:
            while True:
                if bool(followed.trouble) != bool(trouble):  # reported once for each outage
                    message = f"waiting for the API server: {followed.trouble}"
                    report(message if followed.trouble else "the API server answers again")
                trouble = followed.trouble
                before, now = rollout, followed.now
                rollout = rollout_of(now) if followed.synced else rollout
                if rollout.done or rollout.failed:
                    return rollout
                if rollout != before:
                    report(rollout.text)
                await next_change(changed)
    except TimeoutError:
        if not deadline.expired():
            raise
        return rollout


async def pod_problems(api: Api, deployment: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the problems of a Deployment's Pods; none where the user may not read them."""
    selector: Mapping[str, str] = deployment["spec"]["selector"]["matchLabels"]
    labels = ",".join(f"{key}={value}" for key, value in selector.items())
    kind: Kind[Raw] = PODS
    try:
        listing = await api.list(kind, namespace=deployment["metadata"]["namespace"], labels=labels)
    except ApiError:
        return ()
    return problems_of(listing.items)
