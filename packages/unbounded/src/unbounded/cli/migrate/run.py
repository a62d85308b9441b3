"""The command `unbounded migrate`, and the text of its plan."""

from __future__ import annotations

import asyncio
import shlex
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import msgspec
import yaml

from unbounded.api.core import CONFIG_MAPS, NODES
from unbounded.api.failures import Failure, Rejected, Stale
from unbounded.api.machine import MACHINES
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploy.components import PXE_FILE
from unbounded.cli.deploy.machina_settings import SETTINGS
from unbounded.cli.deploy.objects import CONFIG_FILE
from unbounded.cli.deploy.server_side_apply import PODS
from unbounded.cli.migrate import steps
from unbounded.cli.migrate.copied_objects import LEFT, Raw
from unbounded.cli.migrate.copy_plan import ObjectRef, ServerObject, ServerObjects
from unbounded.cli.migrate.hand_over import hand_over
from unbounded.cli.migrate.migration_record import MarkerFile, MarkerStage, open_record, read_record
from unbounded.cli.migrate.sides import MigrationSource, MigrationTarget
from unbounded.cli.migrate.steps import MigrationPlan
from unbounded.cli.servers import UpFailed, local_config, serving_api
from unbounded.cli.settings import MigrateSettings
from unbounded.cli.terminal_text import one_line
from unbounded.kube.api import ServerUnreachable
from unbounded.kube.client import HttpApi
from unbounded.kube.config import ConfigError, from_kubeconfig
from unbounded.kube.process import until_signal
from unbounded.operations.component_record import COMPONENTS
from unbounded_apiserver.data_dir import DataInUse

USER_AGENT: Final = "unbounded-migrate"
_PODS_SHOWN: Final = 5


def run(settings: MigrateSettings) -> int:
    """Migrate until done, or until SIGINT or SIGTERM; returns the exit status."""
    try:
        return asyncio.run(until_signal(_run(settings)))
    except (Failure, ConfigError, UpFailed) as error:
        print(f"error: {_error_text(error, settings)}", file=sys.stderr)
        return 1


def _error_text(error: Exception, settings: MigrateSettings) -> str:
    match error:
        case Stale():
            return f"{error}; the other side wrote at the same moment: run the command again"
        case ServerUnreachable():
            return f"{error}; nothing is lost: run the command again when {settings.to} leads to a running API server"
    return str(error)


async def _run(settings: MigrateSettings) -> int:
    if settings.to is None:
        async with _source(settings) as source:
            return await _roll_back(source, None)
    async with HttpApi(from_kubeconfig(settings.to, context=settings.context), user_agent=USER_AGENT) as api:
        target = MigrationTarget(api, settings.endpoint)
        if not (settings.up.data / "kubeconfig").exists():
            return await _run_on_target(settings, target)
        if settings.plan:
            async with _any_source(settings) as source:
                return await _show(settings, source, target)
        async with _source(settings) as source:
            if settings.take_back:
                return await _roll_back(source, target)
            return await _migrate(settings, source, target)


@asynccontextmanager
async def _source(settings: MigrateSettings) -> AsyncIterator[MigrationSource]:
    """Serve the data inside the context, without controllers. The lock on the data excludes another server."""
    async with (
        serving_api(settings.up) as server,
        HttpApi(local_config(server, settings.up.bind), user_agent=USER_AGENT) as api,
    ):
        yield _source_of(settings, api)


@asynccontextmanager
async def _any_source(settings: MigrateSettings) -> AsyncIterator[MigrationSource]:
    """Give access to the data, even while `unbounded up` serves it."""
    async with AsyncExitStack() as stack:
        try:
            source = await stack.enter_async_context(_source(settings))
        except UpFailed as error:
            if not isinstance(error.__cause__, DataInUse):
                raise
            config = from_kubeconfig(settings.up.data / "kubeconfig")
            source = _source_of(settings, await stack.enter_async_context(HttpApi(config, user_agent=USER_AGENT)))
        yield source


def _source_of(settings: MigrateSettings, api: HttpApi) -> MigrationSource:
    data = settings.up.data
    return MigrationSource(api, MarkerFile(data), f"{socket.gethostname()}:{data.absolute()}")


async def _show(settings: MigrateSettings, source: MigrationSource, target: MigrationTarget) -> int:
    return await _report(await steps.plan(source, target), settings, source, target)


async def _report(
    planned: steps.MigrationPlan, settings: MigrateSettings, source: MigrationSource, target: MigrationTarget
) -> int:
    """Print the plan and the obstacles; returns the exit status."""
    pods = tuple(
        f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in (await source.api.list(PODS)).items
    )
    text = plan_text(planned, server=target.server, data=str(settings.up.data), kubeconfig=str(settings.to), pods=pods)
    print(text)
    if not planned.obstacles:
        return 0
    print("\nTo be solved first", *(f"  - {one}" for one in planned.obstacles), sep="\n", file=sys.stderr)
    return 1


async def _migrate(settings: MigrateSettings, source: MigrationSource, target: MigrationTarget) -> int:
    marker = source.marker.read()
    if marker is None or marker.stage is not MarkerStage.MOVED:
        planned = await steps.plan(source, target)
        if status := await _report(planned, settings, source, target):
            return status
        if not settings.yes and not planned.begun and not await _agreed():
            return 1
        await steps.migrate(source, target, planned, _print)
    else:
        await steps.check_cluster(marker, target)
    await hand_over(source, target, _print)
    return 0


async def _agreed() -> bool:
    if not sys.stdin.isatty():
        print("\nNothing was changed. With --yes the migration starts without a question.", file=sys.stderr)
        return False
    answer = await asyncio.to_thread(input, "\nType `yes` to start: ")
    if answer.strip() == "yes":
        return True
    print("Nothing was changed.", file=sys.stderr)
    return False


async def _roll_back(source: MigrationSource, target: MigrationTarget | None) -> int:
    marker = source.marker.read()
    if marker is None:
        raise Rejected(f"{source.marker.data} has no migration in progress, so there is nothing to revert")
    if target is not None:
        await steps.check_cluster(marker, target)
        record = await read_record(target.api, marker.migration)
        if record is not None:
            await steps.roll_back_target(target, record, _print)
    await steps.roll_back_source(source, marker, _print)
    return 0


async def _run_on_target(settings: MigrateSettings, target: MigrationTarget) -> int:
    """Finish the migration or take it back without access to the source."""
    if not (settings.finish or settings.take_back):
        raise Rejected(
            f"--data {settings.up.data}: it contains no data of `unbounded up`; without the source, --finish "
            "or --take-back decides on the target alone"
        )
    record = await open_record(target.api)
    if record is None:
        raise Rejected(f"no migration to {target.server} is in progress")
    if settings.finish:
        await steps.finish(target, record, _print)
        _print(f"agents move once `unbounded migrate` runs beside the data ({record.source})")
    else:
        await steps.roll_back_target(target, record, _print)
        _print(f"the source ({record.source}) acts again after `unbounded migrate --take-back` there")
    return 0


def _print(text: str) -> None:
    print(text, flush=True)


def plan_text(plan: MigrationPlan, *, server: str, data: str, kubeconfig: str, pods: tuple[str, ...]) -> str:
    """Return the plan as text: the objects to copy, those left out, the agents' new server, and the steps.

    Args:
        server: URL of the target.
        kubeconfig: of the target, for the suggested commands.
        pods: Pods that end, as NAMESPACE/NAME.
    """
    copied = plan.source.copied
    size_kib = sum(len(msgspec.json.encode(one.body)) for one in copied) / 1024
    rows = [
        ("copied", f"{_counted(copied)} ({size_kib:,.0f} KiB)"),
        ("created there", _made(plan)),
        ("not copied", "Events, Leases, certificate requests, and objects that kubelets publish again"),
        ("agents", _agents(plan)),
    ]
    if pods:
        more = f" and {len(pods) - _PODS_SHOWN} more" if len(pods) > _PODS_SHOWN else ""
        rows.append(("Pods", f"{len(pods)} end ({', '.join(pods[:_PODS_SHOWN])}{more}): {LEFT['pods']}"))
    lines = [f"Migration of {data} to {server} (Kubernetes {plan.target.version})"]
    lines += [f"  {name:<11} {one_line(text)}" for name, text in rows]
    lines += ["Steps", *(f"  {number}. {step}" for number, step in enumerate(_STEPS, 1))]
    lines += ["Afterwards", *(f"  {command}" for command in commands(plan.source, kubeconfig))]
    return "\n".join(lines)


_STEPS: Final = (
    "The source is frozen: operations are paused, and writes of agents are rejected.",
    "The target is frozen: the Leases of its controllers are held.",
    "Definitions, RBAC and policies are installed there; then objects, each status, and counters are copied.",
    "Point of no return: the target's control plane may act. Until then, --take-back reverts everything.",
    "Agents get certificates of the target, and move. The command serves them until the last one has moved.",
)


def _counted(copied: tuple[ServerObject, ...]) -> str:
    counts = Counter(one.kind.kind for one in copied)
    first = [name for name in (MACHINES.kind, NODES.kind) if name in counts]
    rest = sorted(counts.keys() - set(first))
    return ", ".join(f"{counts[name]} {name}" for name in (*first, *rest)) or "nothing"


def _made(plan: MigrationPlan) -> str:
    new = f"{plan.target.missing} definitions, " if plan.target.missing else ""
    return f"{new}RBAC and policies of this version, where they are missing"


def _agents(plan: MigrationPlan) -> str:
    number = sum(one.status.agent is not None for one in plan.source.machines())
    where = str(plan.target.access) if plan.target.access is not None else "an unknown address"
    return f"{number} move to {where}"


def commands(source: ServerObjects, kubeconfig: str) -> Iterator[str]:
    """Yield the commands that start the controllers on the target, with the source's machina and metalman settings."""
    given = _read_settings(source, CONFIG_FILE)
    flags = "".join(f" {one.flag} {given[one.key]}" for one in SETTINGS if given.get(one.key) and one.key not in _PLACE)
    yield f"kubectl unbounded install --kubeconfig {kubeconfig}{flags}"
    served = "".join(f" --{name} {shlex.quote(str(value))}" for name, value in _read_settings(source, PXE_FILE).items())
    for site in sorted({one.site for one in source.machines() if one.spec.pxe is not None and one.site}):
        yield f"kubectl unbounded site deploy-pxe --site {site} --kubeconfig {kubeconfig}{served}"


_PLACE: Final = frozenset({"apiServerEndpoint", "clusterDns"})  # settings of the source's own network


def _read_settings(source: ServerObjects, key: str) -> Raw:
    existing = source.objects.get(ObjectRef("", CONFIG_MAPS.plural, NAMESPACE, COMPONENTS))
    text = "" if existing is None else (existing.body.get("data") or {}).get(key, "")
    try:
        body = yaml.load(text, Loader=yaml.CSafeLoader)  # the safe loader, in C
    except yaml.YAMLError:
        return {}
    return body if isinstance(body, dict) else {}
