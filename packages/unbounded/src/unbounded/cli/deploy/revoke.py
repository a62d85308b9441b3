"""`kubectl unbounded token revoke` and `site delete`: removal of a site's tokens and controllers."""

from __future__ import annotations

import re
from typing import Any, Final

from unbounded.api.core import SECRETS, Secret
from unbounded.api.credential import MACHINE_OPERATION_CREDENTIALS
from unbounded.api.machine import MACHINES
from unbounded.api.names import LABEL_MACHINE, LABEL_SITE, NAMESPACE
from unbounded.cli.deploy import validation
from unbounded.cli.deploy.apply import restrict_namespace
from unbounded.cli.deploy.server_side_apply import kind_name
from unbounded.cli.deploy.uninstall import DeletionTarget, delete, names, refuse_machines, workloads
from unbounded.cli.plugin.command import DONE, USAGE, CliError, CommandSession, refuse_output
from unbounded.cli.plugin.intents import confirm
from unbounded.join import tokens
from unbounded.kube.errors import NotFound

_TOKEN: Final = re.compile(r"(?:bootstrap-token-)?([a-z0-9]{6})(?:\.[a-z0-9]{16})?")


async def revoke(session: CommandSession) -> int:
    """Delete bootstrap tokens, by their ids or all of a site."""
    args = session.invocation.args
    refuse_output(session.invocation, "json", "yaml", what="token revoke prints the names of what it deletes")
    if bool(args.tokens) == bool(args.site):
        raise CliError("name tokens, or all tokens of a site with --site SITE", status=USAGE)
    desired = await _of_site(session, _site(args.site)) if args.site else [_secret_of(one) for one in args.tokens]
    existing = [name for name in dict.fromkeys(desired) if await _token_exists(session, name)]
    for name in (name for name in dict.fromkeys(desired) if name not in existing):
        session.printer.info(f"secret/{name} does not exist: no host can join with it")
    if args.site and not desired:
        session.printer.info(f"site {args.site} has no token")
    if existing:
        await confirm(session.invocation, existing, "hosts that have not joined yet can no longer join with it")
        await delete(session, [_target(name) for name in existing])
        await _warn_waiting_machines(session, set(existing))
    return DONE


async def delete_site(session: CommandSession) -> int:
    """Delete the metalman, the machine-ops-controller and the tokens of a site that has no Machine left."""
    site = _site(session.invocation.args.name, "--name")
    refuse_output(session.invocation, "json", "yaml", what="site delete prints the names of what it deletes")
    await refuse_machines(session, site)
    label = f"{LABEL_SITE}={site}"
    going = [*await workloads(session.api, label), *map(_target, await _of_site(session, site))]
    if not going:
        session.printer.info(f"no controller runs for site {site}, and it has no token")
    else:
        await confirm(session.invocation, (site,), "its controllers and tokens are deleted")
        await delete(session, going)
    await restrict_namespace(session)
    await _list_rest(session, site)
    return DONE


async def _list_rest(session: CommandSession, site: str) -> None:
    label = f"{LABEL_SITE}={site}"
    rest = [f"secret/{name} in {NAMESPACE}" for name in await names(session.api, SECRETS, NAMESPACE, label)]
    kind = MACHINE_OPERATION_CREDENTIALS
    try:
        listing = await session.api.list(kind.raw())
    except NotFound:
        listing = None
    rest += [
        f"{kind_name(kind)}/{body['metadata']['name']}"
        for body in (listing.items if listing else ())
        if body.get("spec", {}).get("siteName") == site
    ]
    if rest:
        session.printer.info(
            f"These objects of site {site} remain; delete them with kubectl if nothing else uses them:"
        )
        for one in rest:
            session.printer.info(f"  {one}")


async def _of_site(session: CommandSession, site: str) -> list[str]:
    existing = await names(session.api, SECRETS, tokens.NAMESPACE, f"{LABEL_SITE}={site}")
    return [name for name in existing if tokens.is_secret_name(name)]


async def _token_exists(session: CommandSession, name: str) -> bool:
    """Return whether the Secret exists; raise CliError where it is a token of another project."""
    try:
        secret: Secret = await session.api.get(SECRETS, name, namespace=tokens.NAMESPACE)
    except NotFound:
        return False
    if secret.type != tokens.TYPE or not {LABEL_SITE, LABEL_MACHINE} & secret.metadata.labels.keys():
        raise CliError(
            f"secret/{name} has neither the label {LABEL_SITE} nor {LABEL_MACHINE}: another tool made it",
            next_step=f"delete it anyway with `kubectl --namespace {tokens.NAMESPACE} delete secret {name}`",
        )
    return True


async def _warn_waiting_machines(session: CommandSession, gone: set[str]) -> None:
    waiting = [
        machine.name
        for machine in (await session.api.list(MACHINES)).items
        if (spec := machine.spec.kubernetes) is not None
        and spec.bootstrap_token_ref is not None
        and spec.bootstrap_token_ref.name in gone
    ]
    if waiting:
        session.printer.warn(
            f"Machines name it: {', '.join(waiting[:10])}. Those that have not joined wait until "
            f"`{session.invocation.program} site init --name SITE` creates a new one."
        )


def _secret_of(text: str) -> str:
    match = _TOKEN.fullmatch(text)
    if match is None:
        raise CliError(
            f"{text!r} is not a token: expected its id, 6 characters of a-z and 0-9, such as abcdef", status=USAGE
        )
    return tokens.secret_name(match[1])


def _target(name: str) -> DeletionTarget:
    kind: Any = SECRETS.raw()
    return DeletionTarget(kind, name, tokens.NAMESPACE)


def _site(text: str, flag: str = "--site") -> str:
    try:
        return validation.flagged(flag, validation.site, text)
    except validation.BadFlag as error:
        raise CliError(str(error), status=USAGE) from None
