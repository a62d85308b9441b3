"""Removal of what `install` and `site` created on a cluster: `uninstall`, `site delete` and `token revoke`."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final

from unbounded.api.conditions import counted
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES
from unbounded.api.core import CONFIG_MAPS, NAMESPACES, SECRETS, Secret
from unbounded.api.crd import CONTAINER_CLOUD_DEFINITIONS, DEFINITIONS
from unbounded.api.credential import MACHINE_OPERATION_CREDENTIALS
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import CONFIGMAP_RELEASES, LABEL_MACHINE, LABEL_SITE, NAMESPACE
from unbounded.cli.deploy import components, validation
from unbounded.cli.deploy.apply import restrict_namespace
from unbounded.cli.deploy.pods import SELECTOR
from unbounded.cli.deploy.server_side_apply import kind_name, kind_of, workload_kinds
from unbounded.cli.deploy.workloads import POLICIES, stages, surroundings
from unbounded.cli.manifests import CRDS, foreign_definitions
from unbounded.cli.plugin.command import DONE, TIMED_OUT, USAGE, CliError, CommandSession, refuse_output
from unbounded.cli.plugin.intents import confirm
from unbounded.join import bootstrap_tokens
from unbounded.kube.api import Api, ApiError, NotFound

SHOWN: Final = 10
WAIT_S: Final = 60.0
GROUPS: Final = {  # kinds with too many objects to list for a user
    **dict.fromkeys(POLICIES, "policies"),
    **dict.fromkeys(("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount"), "rights"),
}
STAYS: Final = frozenset({"CustomResourceDefinition", "Namespace", "Secret"})
Raw = dict[str, Any]

POLL_S: Final = 0.2
_TOKEN: Final = re.compile(r"(?:bootstrap-token-)?([a-z0-9]{6})(?:\.[a-z0-9]{16})?")


async def run(session: CommandSession) -> int:
    """Delete the controllers, policies and rights; with --delete-data also definitions, Secrets and the namespace."""
    args = session.invocation.args
    refuse_output(session.invocation, "json", "yaml", what="uninstall prints the names of what it deletes")
    await _refuse_embedded(session)
    await refuse_machines(session)
    brought = await _installed_objects(session)
    data = await _data(session)
    going = brought + (data if args.delete_data else [])
    if not going:
        session.printer.info("this cluster has no objects of an install" + (" except its data" if data else ""))
    else:
        what = "controllers, policies and rights are deleted" + _loss(data if args.delete_data else [])
        await confirm(session.invocation, (NAMESPACE,), what)
        await refuse_machines(session)  # of the time that the answer took
        await delete(session, going, GROUPS)
    if args.delete_data:
        return await _wait(session, going)
    await restrict_namespace(session)
    _list_rest(session, data)
    return DONE


async def refuse_machines(session: CommandSession, site: str = "") -> None:
    """Raise CliError where Machines exist, of the cluster or of one site."""
    found = await names(session.api, MACHINES, labels=f"{LABEL_SITE}={site}" if site else "")
    if not found and not site:
        await refuse_container_cloud(session)
    if not found:
        return
    of_site, selector = (f" of site {site}", f"-l {LABEL_SITE}={site}") if site else ("", "--all")
    raise CliError(
        f"{counted(len(found), 'Machine')}{of_site} {'exists' if len(found) == 1 else 'exist'}: {_shown(found)}",
        next_step=f"`kubectl delete mach {selector}` first; hosts whose Machine has spec.resetOnDelete are "
        "reset, and other hosts remain nodes",
    )


async def refuse_container_cloud(session: CommandSession) -> None:
    """Raise CliError where Machines of Container Cloud exist, unless others serve them."""
    kind = CONTAINER_CLOUD_MACHINES
    try:
        if f"{kind.plural}.{kind.group}" in await foreign_definitions(session.api):
            return
        found = (await session.api.list(kind.raw())).items
    except NotFound:
        return
    if found:
        shown = _shown(sorted(f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in found))
        raise CliError(
            f"{counted(len(found), 'Machine')} of Container Cloud {'exists' if len(found) == 1 else 'exist'}: {shown}",
            next_step="`kubectl delete ma --all --all-namespaces` first, which returns their hosts to stock",
        )


async def _refuse_embedded(session: CommandSession) -> None:
    where = await components.running(session.api)
    if where:
        raise CliError(
            f"no Deployment runs the controllers: {next(iter(where.values()))} runs them and creates their rights",
            next_step="stop it, and delete its data directory",
        )


async def _installed_objects(session: CommandSession) -> list[DeletionTarget]:
    """Return the installed objects that the cluster has, the controllers first and their rights last."""
    desired: list[DeletionTarget] = []
    for stage in (*surroundings(), *reversed(stages(None, container_cloud=True))):
        desired += [target for target in _targets(stage.objects) if target.kind.kind not in STAYS]
    running = await workloads(session.api)
    return [*running, *(one for one in await existing(session.api, desired) if one not in running)]


async def _data(session: CommandSession) -> list[DeletionTarget]:
    """Return what remains without --delete-data, the namespace last.

    These are definitions with their objects, Secrets, and the key of releases.
    """
    foreign = await foreign_definitions(session.api)
    own = [one.name for one in (*DEFINITIONS, *CONTAINER_CLOUD_DEFINITIONS) if one.name not in foreign]
    definitions = [DeletionTarget(CRDS.raw(), name) for name in own]
    found = await existing(session.api, definitions)
    secrets = [(NAMESPACE, name) for name in await names(session.api, SECRETS, NAMESPACE)]
    for label in (LABEL_SITE, LABEL_MACHINE):
        secrets += [(bootstrap_tokens.NAMESPACE, name) for name in await _tokens(session, label)]
    found += [DeletionTarget(SECRETS.raw(), name, namespace) for namespace, name in dict.fromkeys(secrets)]
    found += await existing(session.api, [DeletionTarget(CONFIG_MAPS.raw(), CONFIGMAP_RELEASES, NAMESPACE)])
    return found + await existing(session.api, [DeletionTarget(NAMESPACES.raw(), NAMESPACE)])


async def _tokens(session: CommandSession, label: str) -> list[str]:
    existing = await names(session.api, SECRETS, bootstrap_tokens.NAMESPACE, label)
    return [name for name in existing if bootstrap_tokens.is_secret_name(name)]


async def _wait(session: CommandSession, going: Sequence[DeletionTarget]) -> int:
    """Wait until definitions and the namespace are gone; returns the exit status."""
    slow = [one for one in going if one.kind.kind in ("CustomResourceDefinition", "Namespace")]
    left = await wait_gone(session.api, slow, WAIT_S)
    for one in left:
        session.printer.warn(f"{one} is still being deleted: its status.conditions name the cause")
    return TIMED_OUT if left else DONE


def _targets(bodies: Iterable[dict[str, Any]]) -> list[DeletionTarget]:
    found = []
    for body in bodies:
        kind, meta = kind_of(body), body["metadata"]
        if kind is not None:
            found.append(DeletionTarget(kind, str(meta["name"]), str(meta.get("namespace", ""))))
    return found


def _loss(data: Sequence[DeletionTarget]) -> str:
    definitions = sum(one.kind.kind == "CustomResourceDefinition" for one in data)
    secrets = sum(one.kind.kind == "Secret" for one in data)
    if not data:
        return ""
    objects = f"{counted(definitions, 'definition')} with all their objects"
    return f", and {objects}, {counted(secrets, 'Secret')} and {NAMESPACE}"


def _list_rest(session: CommandSession, data: Sequence[DeletionTarget]) -> None:
    if not data:
        return
    session.printer.info("These remain; `uninstall --delete-data` deletes them too:")
    for one in data:
        session.printer.info(f"  {one}" + (f" in {one.namespace}" if one.namespace else ""))


def _shown(existing: Sequence[str]) -> str:
    more = f" and {len(existing) - SHOWN} more" if len(existing) > SHOWN else ""
    return ", ".join(existing[:SHOWN]) + more


@dataclass(frozen=True)
class DeletionTarget:
    """An object to delete. `namespace` is empty for kinds of the cluster."""

    kind: Kind[Raw]
    name: str
    namespace: str = ""

    def __str__(self) -> str:
        return f"{kind_name(self.kind)}/{self.name}"


async def workloads(api: Api, labels: str = "") -> list[DeletionTarget]:
    """Return the objects in the project's namespace that an install, or its kustomization, created.

    Args:
        labels: a selector that they must match, too.
    """
    selector = ",".join(part for part in (SELECTOR, labels) if part)
    found: list[DeletionTarget] = []
    for kind in workload_kinds():
        found += [DeletionTarget(kind, name, NAMESPACE) for name in await names(api, kind, NAMESPACE, selector)]
    return found


async def names(api: Api, kind: Kind[Any], namespace: str = "", labels: str = "") -> list[str]:
    """Return the names of the objects of a kind; none where the server does not serve the kind."""
    try:
        listing = await api.list(kind.raw(), namespace=namespace, labels=labels)
    except NotFound:
        return []
    return sorted(str(item["metadata"]["name"]) for item in listing.items)


async def existing(api: Api, targets: Iterable[DeletionTarget]) -> list[DeletionTarget]:
    """Return those that the server has."""
    found = []
    for target in targets:
        try:
            await api.get(target.kind, target.name, namespace=target.namespace)
        except NotFound:
            continue
        found.append(target)
    return found


async def delete(
    session: CommandSession, targets: Sequence[DeletionTarget], groups: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Delete objects one after the other, and print each; a missing one is no error.

    Args:
        groups: plurals such as `rights`, by kind: text output counts such objects in place of listing them.
    """
    named = getattr(session.invocation.args, "output", "") == "name"
    for group, members in groupby(targets, lambda one: "" if named else groups.get(one.kind.kind, "")):
        deleted = 0
        for target in members:
            try:
                await session.api.delete(target.kind, target.name, namespace=target.namespace)
            except NotFound:
                continue
            deleted += 1
            if not group:
                session.printer.name(target.kind, target.name, "deleted")
        if group and deleted:
            session.printer.info(f"{group}: {deleted} deleted")


async def wait_gone(api: Api, targets: Sequence[DeletionTarget], within_s: float) -> list[DeletionTarget]:
    """Wait until the server has none of these objects; returns those that are left after the time."""
    until = time.monotonic() + within_s
    while True:
        left = await existing(api, targets)
        if not left or time.monotonic() >= until:
            return left
        await asyncio.sleep(POLL_S)


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
        await refuse_machines(session, site)  # of the time that the answer took
        await delete(session, going)
    await restrict_namespace(session)
    await _list_site_rest(session, site)
    return DONE


async def _list_site_rest(session: CommandSession, site: str) -> None:
    """Name the objects of a site that remain; what cannot be read is named, too, as the rest is deleted already."""
    label, rest, kind = f"{LABEL_SITE}={site}", list[str](), MACHINE_OPERATION_CREDENTIALS
    try:
        rest += [f"secret/{name} in {NAMESPACE}" for name in await names(session.api, SECRETS, NAMESPACE, label)]
        rest += [
            f"{kind_name(kind)}/{body['metadata']['name']}"
            for body in (await session.api.list(kind.raw())).items
            if body.get("spec", {}).get("siteName") == site
        ]
    except NotFound:  # a cluster without the project's definitions
        pass
    except ApiError as error:
        session.printer.warn(f"some objects that remain cannot be listed: {error}")
    if rest:
        session.printer.info(
            f"These objects of site {site} remain; delete them with kubectl if nothing else uses them:"
        )
        for one in rest:
            session.printer.info(f"  {one}")


async def _of_site(session: CommandSession, site: str) -> list[str]:
    existing = await names(session.api, SECRETS, bootstrap_tokens.NAMESPACE, f"{LABEL_SITE}={site}")
    return [name for name in existing if bootstrap_tokens.is_secret_name(name)]


async def _token_exists(session: CommandSession, name: str) -> bool:
    """Return whether the Secret exists; raise CliError where it is a token of another project."""
    try:
        secret: Secret = await session.api.get(SECRETS, name, namespace=bootstrap_tokens.NAMESPACE)
    except NotFound:
        return False
    if secret.type != bootstrap_tokens.TYPE or not {LABEL_SITE, LABEL_MACHINE} & secret.metadata.labels.keys():
        raise CliError(
            f"secret/{name} has neither the label {LABEL_SITE} nor {LABEL_MACHINE}: another tool made it",
            next_step=f"delete it anyway with `kubectl --namespace {bootstrap_tokens.NAMESPACE} delete secret {name}`",
        )
    return True


async def _warn_waiting_machines(session: CommandSession, gone: set[str]) -> None:
    try:
        machines = (await session.api.list(MACHINES)).items
    except NotFound:  # a cluster without the project's definitions
        return
    except ApiError as error:  # the tokens are deleted already
        session.printer.warn(f"the Machines that name it cannot be listed: {error}")
        return
    waiting = [
        machine.name
        for machine in machines
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
    return bootstrap_tokens.secret_name(match[1])


def _target(name: str) -> DeletionTarget:
    kind: Any = SECRETS.raw()
    return DeletionTarget(kind, name, bootstrap_tokens.NAMESPACE)


def _site(text: str, flag: str = "--site") -> str:
    try:
        return validation.flagged(flag, validation.site, text)
    except validation.BadFlag as error:
        raise CliError(str(error), status=USAGE) from None
