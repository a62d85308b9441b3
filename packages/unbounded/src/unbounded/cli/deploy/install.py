"""`kubectl unbounded install`: installation of definitions, rights, policies and controllers on a cluster."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Final

from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES
from unbounded.api.machine import MACHINES
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploy import apply, console_install, machine_ops
from unbounded.cli.deploy.console_workload import CONSOLE, console_objects
from unbounded.cli.deploy.live_machina import (
    chosen_image,
    config_in,
    live_image,
    live_machina,
    pod_security,
    require_usable,
)
from unbounded.cli.deploy.machina_settings import settings_from_flags
from unbounded.cli.deploy.workloads import (
    CONTAINER_CLOUD,
    CONTAINER_CLOUD_CONFIG,
    CONTAINER_CLOUD_CONTROLLER,
    MACHINA,
    ContainerCloudWorkload,
    MachinaWorkload,
    MachineOpsWorkload,
    Raw,
    container_cloud_objects,
    machina_config,
    stages,
)
from unbounded.cli.manifests import CRDS, foreign_definitions
from unbounded.cli.plugin.command import DONE, USAGE, CliError, CommandSession, refuse_output
from unbounded.kube.api import Forbidden

LEAST_KUBERNETES: Final = (1, 32)
SHOWN: Final = 5  # definitions of others that a message names


async def run(session: CommandSession) -> int:
    args = session.invocation.args
    if args.namespace != NAMESPACE:
        raise CliError(
            f"--namespace: {args.namespace!r} is not supported: rights, policies and Machines name {NAMESPACE}",
            next_step="omit --namespace",
            status=USAGE,
        )
    if args.diff:
        refuse_output(session.invocation, "json", "yaml", what="--diff prints differences, not objects")
    if args.diff and args.dry_run == apply.CLIENT:
        text = "--diff: --dry-run client sends no request, so there is no object to compare with"
        raise CliError(text, status=USAGE)
    require_usable(args)
    _require_container_cloud(args)
    console_install.require_console(args)
    oidc = console_install.oidc_changes(args)
    given = settings_from_flags(args)
    scope = machine_ops.requested_scope(args)
    if args.dry_run == apply.CLIENT:
        alone = MachinaWorkload(_image(session), machina_config(given=given))
        clouds_alone = machine_ops.objects_without_cluster(args, scope, alone)
        beside = container_cloud_objects(_container_cloud(session, "", alone.image)) if args.container_cloud else ()
        console = console_install.console_without_cluster(session, alone.image, oidc) if args.console else None
        served = () if console is None else console_objects(console)
        desired = stages(alone, (*clouds_alone, *beside, *served), container_cloud=args.container_cloud)
        return apply.show(session, (body for stage in desired for body in stage.objects))
    require_kubernetes(await session.api.version())
    where = await apply.embedded_controllers(session.api)
    machina = None if where else await _machina(session, given)
    clouds: tuple[MachineOpsWorkload, ...] = ()
    others: tuple[Raw, ...] = ()
    if machina is not None:
        clouds, others = await machine_ops.desired_deployments(session, scope, machina)
    own = await _live_container_cloud(session, machina)
    console = None if machina is None else await console_install.desired_console(session, machina.image, oidc)
    desired = stages(
        machina,
        (*others, *(own or ()), *(() if console is None else console_objects(console))),
        level=await pod_security(session.api),
        container_cloud=own is not None,
    )
    is_verbose = args.verbose or getattr(args, "output", "") not in ("", "wide")
    await apply.apply_stages(
        session, desired, dry_run=args.dry_run == apply.SERVER, diff=args.diff, summary=not is_verbose
    )
    if session.printer.whole and not args.diff:
        apply.show(session, (body for stage in desired for body in stage.objects))
    if args.diff or args.dry_run == apply.SERVER:
        return DONE
    apply.report_embedded(session, where, given)
    if machina is not None and args.wait:
        names = [MACHINA, *(one.name for one in clouds), *[CONTAINER_CLOUD_CONTROLLER] * bool(own)]
        names += [CONSOLE] * (console is not None and await console_install.has_certificate(session.api))
        status = await apply.wait_available(session, names, args.timeout)
        if status != DONE:
            return status
    if where:
        _warn_embedded(session)
    else:
        await _report_other_machines(session)
    if console is not None:
        await console_install.report_next_steps(session, console, oidc)
    init = f"{session.invocation.program} site init --name SITE"
    session.printer.info(f"Next: create the token with which hosts of a site join: `{init}`")
    return DONE


def require_kubernetes(version: str) -> None:
    """Raise CliError for a version of the API server that lacks what definitions and policies need."""
    found = re.match(r"v([1-9][0-9]*)\.([0-9]+)", version)  # v0.0.0 is a build without a version
    if found is not None and (int(found[1]), int(found[2])) < LEAST_KUBERNETES:
        least = ".".join(map(str, LEAST_KUBERNETES))
        text = f"the API server is that of Kubernetes {version}, and Unbounded needs {least} or newer"
        raise CliError(text, next_step="update the cluster, or choose another one with --context or --kubeconfig")


async def _machina(session: CommandSession, given: Mapping[str, str]) -> MachinaWorkload:
    """Return the desired machina: its present image source and configuration, unless flags override them."""
    live = await live_machina(session.api)
    return MachinaWorkload(_image(session, live.image), await apply.config_for(session, live, given))


async def _report_other_machines(session: CommandSession) -> None:
    """Print which other groups have `machines`, such as Cluster API's: kubectl may take the name for one of theirs."""
    try:
        definitions = (await session.api.list(CRDS)).items
    except Forbidden:
        return
    names = {one["spec"]["group"] for one in definitions if one["spec"]["names"]["plural"] == MACHINES.plural}
    if CONTAINER_CLOUD_MACHINES.group in names and not await foreign_definitions(session.api):
        session.printer.info(
            "Note: for kubectl, `machines` now means the Machines of Container Cloud, short `ma`. Use `kubectl get "
            "mach` for those of unbounded-cloud.io"
        )
        return
    if others := sorted(names - {MACHINES.group}):
        session.printer.info(
            f"Note: this cluster also has machines.{' and machines.'.join(others)}. "
            f"Use `kubectl get mach`: `machines` may be the other kind"
        )


def _require_container_cloud(args: Namespace) -> None:
    """Raise CliError where --container-cloud-image is given alone."""
    if args.container_cloud_image and not args.container_cloud:
        text = "--container-cloud-image applies only to container-cloud"
        raise CliError(text, next_step="give --container-cloud too", status=USAGE)


def _warn_embedded(session: CommandSession) -> None:
    """Print which flags have no effect beside `unbounded up`."""
    args = session.invocation.args
    if args.container_cloud:
        session.printer.warn("--container-cloud: no Deployment runs the controllers: give it to `unbounded up`")
    if args.console:
        session.printer.warn("--console: no Deployment runs the console: give it to `unbounded up`")


async def _live_container_cloud(session: CommandSession, machina: MachinaWorkload | None) -> tuple[Raw, ...] | None:
    """Return the objects of container-cloud: of the one that runs, or that the flags request; None for none.

    Raises:
        CliError: others serve kinds of its groups.
    """
    running = await live_image(session.api, CONTAINER_CLOUD_CONTROLLER, CONTAINER_CLOUD)
    if machina is None or not (running or session.invocation.args.container_cloud):
        return None
    await refuse_foreign_definitions(session)
    config = await config_in(session.api, CONTAINER_CLOUD_CONFIG)
    return container_cloud_objects(_container_cloud(session, running, machina.image, config))


async def refuse_foreign_definitions(session: CommandSession) -> None:
    """Raise CliError where others serve kinds of Container Cloud's groups: two controllers would act on one host."""
    if found := await foreign_definitions(session.api):
        these = f"{', '.join(found[:SHOWN])}{f' and {len(found) - SHOWN} more' if len(found) > SHOWN else ''}"
        raise CliError(
            f"--container-cloud: this cluster has definitions of other controllers: {these}",
            next_step="use a cluster without Metal3 and Container Cloud, or remove them and these definitions first",
        )


def _container_cloud(
    session: CommandSession, existing: str, machina: str, config: Mapping[str, Any] | None = None
) -> ContainerCloudWorkload:
    args = session.invocation.args
    image = chosen_image(
        CONTAINER_CLOUD,
        image=args.container_cloud_image,
        registry=args.image_registry,
        there=existing,
        beside=machina,
    )
    return ContainerCloudWorkload(image, config or {})


def _image(session: CommandSession, existing: str = "") -> str:
    args = session.invocation.args
    return chosen_image("machina", image=args.image, registry=args.image_registry, there=existing)
