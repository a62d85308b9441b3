"""The command `support`: an archive with what is known of one Machine or of all, for a person who helps.

It leaves out Secrets and what may hold one. The one kind of Secret that it reads is the console output of a failed
boot, which metalman has stored without secrets. Whatever cannot be read is left out, too, and named in the archive.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Sequence
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, Final

from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS, MACHINE_CONFIGURATIONS
from unbounded.api.container_cloud.cluster import CLUSTER_RELEASES, CLUSTERS, MACHINE_POOLS
from unbounded.api.container_cloud.host import BARE_METAL_HOST_PROFILES, BARE_METAL_HOSTS
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES
from unbounded.api.container_cloud.network import IPAM_HOSTS, L2_TEMPLATES, SUBNETS
from unbounded.api.core import EVENTS, LEASES, NODES, PODS
from unbounded.api.credential import MACHINE_OPERATION_CREDENTIALS
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS
from unbounded.api.failures import Failure
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.api.profile import MACHINE_PROFILES
from unbounded.cli.controller_logs import read_controller_logs
from unbounded.cli.deploy.pods import SELECTOR
from unbounded.cli.events import AllObjects, Scope, scope_of
from unbounded.cli.host_ssh import ended_by_signals
from unbounded.cli.plugin.command import DONE, USAGE, CliError, CommandSession
from unbounded.cli.support_archive import ENDINGS, BoundedArchive, new_archive
from unbounded.cli.support_bundle import Raw, SupportBundle
from unbounded.cli.support_logs import add_logs, add_logs_of_all, by_need
from unbounded.cli.tree import Subject, subject_of
from unbounded.explain.chain import explain
from unbounded.explain.facts import ExplainFacts
from unbounded.explain.facts_reader import FactsReader
from unbounded.explain.links import Topic
from unbounded.explain.tree import tree_of
from unbounded.kube.api import ApiError, Forbidden, NotFound, is_kind_missing
from unbounded.kube.clock import rfc3339, utc_now

OUR_KINDS: Final = (
    *(MACHINES, MACHINE_OPERATIONS, MACHINE_CONFIGURATIONS, MACHINE_CONFIGURATION_VERSIONS),
    *(MACHINE_DISRUPTION_BUDGETS, MACHINE_PROFILES, MACHINE_OPERATION_CREDENTIALS, NODES),
    *(CLUSTERS, CLUSTER_RELEASES, MACHINE_POOLS, CONTAINER_CLOUD_MACHINES, BARE_METAL_HOSTS),
    *(BARE_METAL_HOST_PROFILES, L2_TEMPLATES, SUBNETS, IPAM_HOSTS),
)
ALWAYS_LEFT_OUT: Final = (
    "Secrets; of their type for the kept output of consoles, that is among the logs",
    "ConfigMaps and BareMetalHostCredentials",
    "scripts and files of MachineProfiles, and user data",
    "managedFields, annotations of other tools, and values of environment variables",
    "queries of URLs, and values under names such as password or token",
)
MOST_EXPLAINED: Final = 1000  # Machines
EXPLAINED_AT_ONCE: Final = 8
EXPLAIN_S: Final = 120.0  # after this time, no further Machine is explained
OBJECT_BYTES: Final = 48 * 1024 * 1024
EVENT_BYTES: Final = 8 * 1024 * 1024
CONTROLLER_BYTES: Final = 16 * 1024 * 1024  # of the logs of all controllers


async def run(session: CommandSession) -> int:
    """Write the archive; returns the exit status."""
    args, now = session.invocation.args, utc_now()
    if bool(args.name) == args.all:
        raise CliError("name a Machine, or give --all", status=USAGE)
    if args.all and args.namespace:
        raise CliError(f"-n {args.namespace}: --all collects all namespaces", next_step="omit -n", status=USAGE)
    stamp = now.strftime("%Y%m%d-%H%M%S")
    path = Path(args.output or f"unbounded-support-{stamp}.tar.zst")
    if not path.name.endswith(ENDINGS):
        raise CliError(f"-o {path}: it has to end in {', '.join(ENDINGS)}", status=USAGE)
    found = None if args.all else await subject_of(session)
    try:
        with ended_by_signals(), new_archive(path) as tar:
            bundle = SupportBundle(session, BoundedArchive(tar, f"unbounded-support-{stamp}", now.timestamp()))
            if found is None:
                await _add_all(bundle)
            else:
                await _add_one(bundle, found)
            await _add_versions(bundle)
            _add_readme(bundle, args.name or "all Machines")
    except OSError as error:
        raise CliError(f"-o {path}: {error.strerror or error}") from error
    for text in bundle.notes():
        session.printer.warn(f"note: left out: {text}")
    session.printer.info(f"{path}: {bundle.archive.files} files; README.txt in it names what is left out")
    return DONE


def _add_readme(bundle: SupportBundle, about: str) -> None:
    lines = [
        f"State of {about}, read at {rfc3339(utc_now())} by `{bundle.session.invocation.program} support`.",
        "It has names, addresses, serial numbers and states. Look through it before you pass it on.",
        "",
        "Always left out:",
        *(f"- {text}" for text in ALWAYS_LEFT_OUT),
        "",
        "Left out this time:",
        *(bundle.index() or ["- nothing"]),
    ]
    bundle.archive.left += sum(len(line) for line in lines) * 4  # it always fits
    bundle.archive.add("README.txt", "\n".join([*lines, ""]))


async def _add_versions(bundle: SupportBundle) -> None:
    versions = {
        "unbounded": version_of("unbounded"),
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    try:
        versions["kubernetes"] = await bundle.session.api.version()
    except Failure as error:
        bundle.leave_out(f"the version of Kubernetes: {error}")
    bundle.add_json("versions.json", versions)


async def _listed(bundle: SupportBundle, kind: Kind[Any], *, namespace: str = "", labels: str = "") -> Sequence[Raw]:
    """Return the objects of a kind; none, with a note, where they cannot be read."""
    try:
        return (await bundle.session.api.list(kind.raw(), namespace=namespace, labels=labels)).items
    except ApiError as error:
        if not (isinstance(error, NotFound) and is_kind_missing(error)):  # a kind that is not installed
            bundle.leave_out(f"{_file_of(kind)}{f' of namespace {namespace}' if namespace else ''}: {error}")
        return ()


def _file_of(kind: Kind[Any]) -> str:
    return f"{kind.plural}.{kind.group}" if kind.group else kind.plural


async def _add_all(bundle: SupportBundle) -> None:
    """Add all objects, their Events, logs, and explanations of Machines."""
    machines = await _listed(bundle, MACHINES)
    await _add_explanations(bundle, [one["metadata"]["name"] for one in by_need(machines)])
    await add_logs_of_all(bundle, machines)
    await _add_controllers(bundle)
    await _add_leases(bundle)
    await _add_events(bundle, AllObjects(), [""])
    for kind in OUR_KINDS:
        items = machines if kind is MACHINES else await _listed(bundle, kind)
        bundle.add_objects(f"objects/{_file_of(kind)}.json", items, OBJECT_BYTES)


async def _add_explanations(bundle: SupportBundle, names: Sequence[str]) -> None:
    """Add the explanations of the first of some Machines."""
    if len(names) > MOST_EXPLAINED:
        bundle.leave_out(
            f"explanations of {len(names) - MOST_EXPLAINED} of {len(names)} Machines", names[MOST_EXPLAINED:]
        )
    if not names:
        return
    api, loop = bundle.session.api, asyncio.get_running_loop()
    late = await FactsReader(api, utc_now, ApiError).late_leases()
    ends_at, free = loop.time() + EXPLAIN_S, asyncio.Semaphore(EXPLAINED_AT_ONCE)

    async def add(name: str) -> None:
        async with free:
            if loop.time() < ends_at:
                await _add_explanation(bundle, name, late.__contains__)
            else:
                bundle.leave_out(f"explanations of Machines after {EXPLAIN_S:g} s", [name])

    async with asyncio.TaskGroup() as group:
        for name in names[:MOST_EXPLAINED]:
            group.create_task(add(name))


async def _add_leases(bundle: SupportBundle) -> None:
    leases = await _listed(bundle, LEASES, namespace=NAMESPACE)
    bundle.add_objects(f"objects/{_file_of(LEASES)}.json", leases, OBJECT_BYTES)


async def _add_controllers(bundle: SupportBundle) -> None:
    """Add the Pods of the controllers, and the end of their logs."""
    try:
        pods = (await bundle.session.api.list(PODS.raw(), namespace=NAMESPACE, labels=SELECTOR)).items
    except ApiError as error:
        bundle.leave_out(f"Pods and logs of the controllers: {error}")
        return
    if not pods:
        bundle.leave_out(
            f"logs of the controllers: {NAMESPACE} has no Pod of them. `unbounded up` prints its log on its terminal, "
            "and keeps none"
        )
    bundle.add_objects(f"objects/{_file_of(PODS)}.json", pods, OBJECT_BYTES)
    left = CONTROLLER_BYTES
    async for log in read_controller_logs(bundle.session.api, pods, bundle.known):
        if isinstance(log.error, Forbidden):
            bundle.leave_out(f"logs of the controllers: {log.error}")
            return
        size = len(log.text.encode())
        if log.error is not None:
            bundle.leave_out(f"the log of {log.name}: {log.error}")
        elif size > left or not bundle.archive.add(f"controllers/{log.name}.log", log.text):
            bundle.leave_out(f"the log of {log.name}: the archive has reached its size for logs of controllers")
        else:
            left -= size
            if log.is_cut:
                bundle.leave_out(f"the newest lines in the log of {log.name}: it has too many bytes")


async def _add_explanation(bundle: SupportBundle, name: str, is_late: Callable[[str], bool] | None = None) -> None:
    program = bundle.session.invocation.program
    try:
        found = await explain(bundle.session.api, Topic.MACHINE, name, program=program, is_late=is_late)
    except Failure as error:
        bundle.leave_out(f"the explanation of Machine {name}: {error}")
    else:
        bundle.add_json(f"explain/{name}.json", found)


async def _add_events(bundle: SupportBundle, scope: Scope, namespaces: Sequence[str]) -> None:
    """Add the Events of a scope, the oldest first."""
    found: list[Raw] = []
    for namespace in namespaces:
        items = await _listed(bundle, EVENTS, namespace=namespace)
        found += [event for event in items if await scope.covers(event)]
    found.sort(key=lambda event: str(event["metadata"].get("creationTimestamp", "")))
    bundle.add_objects("events.json", found, EVENT_BYTES)


async def _add_one(bundle: SupportBundle, found: Subject) -> None:
    """Add a Machine, the objects around it, its Events, its explanation and the logs of its host."""
    api = bundle.session.api
    facts = await FactsReader(api, utc_now, ApiError).related(found)
    for fact in facts.unread:
        bundle.leave_out(fact.text)
    machine = next(iter(facts.machines.values()), None)
    if machine is not None:
        await add_logs(bundle, machine)  # first: it learns what may be secret
    for kind, references in _objects_of(facts).items():
        items = [item for namespace, name in references if (item := await _read(bundle, kind, namespace, name))]
        bundle.add_objects(f"objects/{_file_of(kind)}.json", items, OBJECT_BYTES)
    await _add_leases(bundle)
    bundle.add_json("tree.json", tree_of(found, facts))
    scope, namespaces = scope_of(api, facts)
    await _add_events(bundle, scope, namespaces)
    if machine is not None:
        await _add_explanation(bundle, machine.name)
    await _add_controllers(bundle)


def _objects_of(facts: ExplainFacts) -> dict[Kind[Any], list[tuple[str, str]]]:
    """Return the objects around a Machine, by kind, as namespace and name."""
    groups: tuple[tuple[Kind[Any], Any], ...] = (
        (MACHINES, facts.machines),
        (MACHINE_OPERATIONS, facts.operations),
        (NODES, facts.nodes),
        (MACHINE_CONFIGURATIONS, facts.configurations),
        (MACHINE_DISRUPTION_BUDGETS, facts.budgets),
        (CONTAINER_CLOUD_MACHINES, facts.claims),
        (BARE_METAL_HOSTS, facts.hosts),
        (CLUSTERS, facts.clusters),
    )
    found = {
        kind: [(one.metadata.namespace or "", one.metadata.name) for one in items.values()] for kind, items in groups
    }
    profiles = (one.spec.pxe.profile_ref for one in facts.machines.values() if one.spec.pxe is not None)
    found[MACHINE_PROFILES] = [("", one.name) for one in profiles if one is not None]
    return found


async def _read(bundle: SupportBundle, kind: Kind[Any], namespace: str, name: str) -> Raw | None:
    try:
        return await bundle.session.api.get(kind.raw(), name, namespace=namespace)
    except ApiError as error:
        bundle.leave_out(f"{_file_of(kind)}/{name}: {error}")
        return None
