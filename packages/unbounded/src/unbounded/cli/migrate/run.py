"""The command `unbounded migrate`."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from unbounded.api.failures import Failure, Rejected, Stale
from unbounded.cli.deploy.kinds import PODS
from unbounded.cli.migrate import steps
from unbounded.cli.migrate.hand_over import hand_over
from unbounded.cli.migrate.marker import MarkerFile, MarkerStage
from unbounded.cli.migrate.record import open_record, read_record
from unbounded.cli.migrate.render import plan_text
from unbounded.cli.migrate.settings import MigrateSettings
from unbounded.cli.migrate.sides import MigrationSource, MigrationTarget
from unbounded.cli.servers import UpFailed, local_config, serving_api
from unbounded.kube.client import HttpApi
from unbounded.kube.config import ConfigError, from_kubeconfig
from unbounded.kube.errors import ServerUnreachable
from unbounded.kube.process import until_signal
from unbounded_apiserver.data_dir import DataInUse

USER_AGENT: Final = "unbounded-migrate"


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
