"""`kubectl unbounded install`: installation of definitions, rights, policies and controllers on a cluster."""

from __future__ import annotations

from collections.abc import Mapping

from unbounded.api.machine import MACHINES
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploy import apply, machine_ops
from unbounded.cli.deploy.live_machina import chosen_image, live_machina, pod_security, require_usable
from unbounded.cli.deploy.machina_settings import settings_from_flags
from unbounded.cli.deploy.workloads import MACHINA, MachinaWorkload, MachineOpsWorkload, Raw, machina_config, stages
from unbounded.cli.manifests import CRDS
from unbounded.cli.plugin.command import DONE, USAGE, CliError, CommandSession, refuse_output
from unbounded.kube.api import Forbidden


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
    given = settings_from_flags(args)
    scope = machine_ops.requested_scope(args)
    if args.dry_run == apply.CLIENT:
        alone = MachinaWorkload(_image(session), machina_config(given=given))
        desired = stages(alone, machine_ops.objects_without_cluster(args, scope, alone))
        return apply.show(session, (body for stage in desired for body in stage.objects))
    where = await apply.embedded_controllers(session.api)
    machina = None if where else await _machina(session, given)
    clouds: tuple[MachineOpsWorkload, ...] = ()
    others: tuple[Raw, ...] = ()
    if machina is not None:
        clouds, others = await machine_ops.desired_deployments(session, scope, machina)
    desired = stages(machina, others, level=await pod_security(session.api))
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
        status = await apply.wait_available(session, [MACHINA, *(one.name for one in clouds)], args.timeout)
        if status != DONE:
            return status
    if not where:
        await _report_other_machines(session)
    init = f"{session.invocation.program} site init --name SITE"
    session.printer.info(f"Next: create the token with which hosts of a site join: `{init}`")
    return DONE


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
    if others := sorted(names - {MACHINES.group}):
        session.printer.info(
            f"Note: this cluster also has machines.{' and machines.'.join(others)}. "
            f"Use `kubectl get mach`: `machines` may be the other kind"
        )


def _image(session: CommandSession, existing: str = "") -> str:
    args = session.invocation.args
    return chosen_image("machina", image=args.image, registry=args.image_registry, there=existing)
