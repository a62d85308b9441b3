"""`kubectl unbounded install`: installation of definitions, rights, policies and controllers on a cluster."""

from __future__ import annotations

from collections.abc import Mapping

from unbounded.api.names import NAMESPACE
from unbounded.cli.deploying import machine_ops
from unbounded.cli.deploying.bringing import (
    CLIENT,
    SERVER,
    bring,
    config_for,
    running_beside,
    show,
    tell_where,
    wait_available,
)
from unbounded.cli.deploying.images import chosen_image, require_usable
from unbounded.cli.deploying.live import live_machina, pod_security
from unbounded.cli.deploying.told import given_to_machina
from unbounded.cli.deploying.wanted import Raw, stages
from unbounded.cli.deploying.workloads import MACHINA, Machina, MachineOps, machina_config
from unbounded.cli.plugin.command import DONE, USAGE, CliError, Session, refuse_output


async def run(session: Session) -> int:
    args = session.told.args
    if args.namespace != NAMESPACE:
        raise CliError(
            f"--namespace: {args.namespace!r} cannot be had: rights, policies and Machines name {NAMESPACE}",
            next_step="leave --namespace out",
            status=USAGE,
        )
    if args.diff:
        refuse_output(session.told, "json", "yaml", what="--diff prints differences, not objects")
    if args.diff and args.dry_run == CLIENT:
        text = "--diff: with --dry-run client no server is asked, and there is nothing to differ from"
        raise CliError(text, status=USAGE)
    require_usable(args)
    given = given_to_machina(args)
    asked = machine_ops.asked_for(args)
    if args.dry_run == CLIENT:
        alone = Machina(_image(session), machina_config(given=given))
        wanted = stages(alone, machine_ops.without_cluster(args, asked, alone))
        return show(session, (body for stage in wanted for body in stage.objects))
    where = await running_beside(session.api)
    machina = None if where else await _machina(session, given)
    clouds: tuple[MachineOps, ...] = ()
    others: tuple[Raw, ...] = ()
    if machina is not None:
        clouds, others = await machine_ops.to_bring(session, asked, machina)
    wanted = stages(machina, others, level=await pod_security(session.api))
    whole = args.verbose or getattr(args, "output", "") not in ("", "wide")
    await bring(session, wanted, dry_run=args.dry_run == SERVER, diff=args.diff, summary=not whole)
    if session.printer.whole and not args.diff:
        show(session, (body for stage in wanted for body in stage.objects))
    if args.diff or args.dry_run == SERVER:
        return DONE
    tell_where(session, where, given)
    if machina is not None and args.wait:
        status = await wait_available(session, [MACHINA, *(one.name for one in clouds)], args.timeout)
        if status != DONE:
            return status
    init = f"{session.told.program} site init --name SITE"
    session.printer.say(f"Next: `{init}` makes the token with which hosts of a site join.")
    return DONE


async def _machina(session: Session, given: Mapping[str, str]) -> Machina:
    """Return the desired machina: its present image source and configuration, unless flags override them."""
    live = await live_machina(session.api)
    return Machina(_image(session, live.image), await config_for(session, live, given))


def _image(session: Session, there: str = "") -> str:
    args = session.told.args
    return chosen_image("machina", image=args.image, registry=args.image_registry, there=there)
