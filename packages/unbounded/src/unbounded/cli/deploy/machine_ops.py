"""machine-ops-controller on a cluster: its existing Deployments and the desired ones."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from unbounded.api.names import NAMESPACE
from unbounded.cli.deploy import validation, workloads
from unbounded.cli.deploy.live_machina import chosen_image, config_in, containers, image_in, mounted_config, repository
from unbounded.cli.deploy.machina_settings import SETTINGS
from unbounded.cli.deploy.server_side_apply import DEPLOYMENTS
from unbounded.cli.plugin.command import USAGE, CliError, CommandSession
from unbounded.kube.api import Api, NotFound

Raw = dict[str, Any]

ENABLE: Final = "--enable-machine-ops-controller"
LABEL: Final = f"app.kubernetes.io/name={workloads.MACHINE_OPS}"


@dataclass(frozen=True)
class RunningController:
    """An existing Deployment.

    Args:
        name: of the Deployment.
        config_map: its configuration; kustomize appends to its name.
    """

    name: str
    scope: workloads.MachineOpsWorkload
    config_map: str

    @property
    def ours(self) -> bool:
        """True if `install` created it; others belong to their creators."""
        return (self.name, self.config_map) == (self.scope.name, workloads.MACHINE_OPS_CONFIG)


def requested_scope(args: Namespace) -> workloads.MachineOpsWorkload | None:
    """Return the Deployment that the flags request, its image empty where no flag gives it; None for none.

    Raises:
        CliError: a flag is invalid.
    """
    given = {"--site": args.site, "--provider": args.provider, "--machine-ops-image": args.machine_ops_image}
    if not args.enable_machine_ops_controller:
        for flag in (flag for flag, value in given.items() if value):
            raise CliError(
                f"{flag} applies only to machine-ops-controller", next_step=f"give {ENABLE} too", status=USAGE
            )
        return None
    checked = {"--site": validation.site, "--provider": validation.provider, "--machine-ops-image": validation.image}
    try:
        values = {
            flag: validation.flagged(flag, checked[flag], value) if value else "" for flag, value in given.items()
        }
    except validation.BadFlag as error:
        raise CliError(str(error), status=USAGE) from None
    scope = workloads.MachineOpsWorkload(values["--machine-ops-image"], values["--site"], values["--provider"])
    if len(scope.name) > validation.LONGEST_LABEL:
        raise CliError(
            f"--site, --provider: {scope.name} would be the name of a Service, and has {len(scope.name)} "
            f"characters of at most {validation.LONGEST_LABEL}",
            next_step="deploy one for the provider in all sites, or a Deployment of your own (examples/kustomize)",
            status=USAGE,
        )
    return scope


def objects_without_cluster(
    args: Namespace, scope: workloads.MachineOpsWorkload | None, machina: workloads.MachinaWorkload
) -> tuple[Raw, ...]:
    """Return the objects for a cluster that has no Deployment yet. Raises CliError."""
    if scope is None:
        return ()
    return workloads.machine_ops_objects(
        (_with_image(args, scope, "", machina),), workloads.machine_ops_config(None, _hosts(machina))
    )


async def desired_deployments(
    session: CommandSession,
    scope: workloads.MachineOpsWorkload | None,
    machina: workloads.MachinaWorkload,
    *,
    as_it_is: bool = False,
) -> tuple[tuple[workloads.MachineOpsWorkload, ...], tuple[Raw, ...]]:
    """Return the desired Deployments, and all their objects: the requested one, and those of earlier `install` runs.

    They get the settings that machina passes to new hosts.

    Args:
        machina: the desired one.
        as_it_is: do not update running Deployments to this version.

    Raises:
        CliError: another Deployment serves Machines of the requested one.
    """
    args, existing = session.invocation.args, await running(session.api)
    desired = {one.name: one.scope if as_it_is else _updated(args, one.scope) for one in existing if one.ours}
    if scope is not None:
        _refuse_two(scope, existing, session.invocation.program)
        before = next((one.scope.image for one in existing if one.name == scope.name), "")
        desired[scope.name] = _with_image(args, scope, before, machina)
    for one in existing:
        if not one.ours:
            text = f"deployment.apps/{one.name} reads ConfigMap {one.config_map}: `install` did not create it"
            after = (
                f"from now on it reads {workloads.MACHINE_OPS_CONFIG}" if one.name in desired else "it is not changed"
            )
            session.printer.warn(f"{text}, and {after}")
    config = await config_in(session.api, workloads.MACHINE_OPS_CONFIG) if desired else {}
    found = tuple(desired[name] for name in sorted(desired))
    return found, workloads.machine_ops_objects(found, workloads.machine_ops_config(config, _hosts(machina)))


async def running(api: Api) -> tuple[RunningController, ...]:
    """Return the Deployments of the cluster; none where the server does not serve Deployments."""
    try:
        found = await api.list(DEPLOYMENTS, namespace=NAMESPACE, labels=LABEL)
    except NotFound:
        return ()
    return tuple(running_as(body) for body in found.items)


def running_as(deployment: Raw) -> RunningController:
    """Return the scope of a Deployment, from its arguments."""
    words = [str(word) for one in containers(deployment) for word in one.get("args") or ()]
    scope = workloads.MachineOpsWorkload(
        image_in(deployment, workloads.MACHINE_OPS), _flag_value(words, "--site"), _flag_value(words, "--provider")
    )
    return RunningController(
        deployment["metadata"]["name"],
        scope,
        mounted_config(deployment, workloads.MACHINE_OPS, workloads.MACHINE_OPS_CONFIG),
    )


def _flag_value(words: Sequence[str], flag: str) -> str:
    """Return the value of a flag, after a = or as the next word; empty where the flag is not given."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word == flag:
            return after
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return ""


def _refuse_two(scope: workloads.MachineOpsWorkload, existing: Sequence[RunningController], program: str) -> None:
    """Raise CliError if two Deployments would serve the same Machines, as each would elect its own leader.

    Nor may one replace another: the names of two scopes can be the same.
    """
    for one in existing:
        namesake = one.name == scope.name and (one.scope.site, one.scope.provider) != (scope.site, scope.provider)
        if namesake or (one.name != scope.name and one.scope.shares_with(scope)):
            sites = f"site {one.scope.site}" if one.scope.site else "all sites"
            providers = f"provider {one.scope.provider}" if one.scope.provider else "all providers"
            why = "the new one would replace it" if namesake else "both would work on the same Machines"
            raise CliError(
                f"deployment.apps/{one.name} serves {providers} of {sites}: {why}",
                next_step=f"`kubectl --namespace {NAMESPACE} delete deployment {one.name}`, then `{program} install "
                f"{ENABLE} …` for each part of its work",
                status=USAGE,
            )


def _with_image(
    args: Namespace, one: workloads.MachineOpsWorkload, existing: str, machina: workloads.MachinaWorkload
) -> workloads.MachineOpsWorkload:
    image = chosen_image(
        workloads.MACHINE_OPS, image=one.image, registry=args.image_registry, there=existing, beside=machina.image
    )
    return replace(one, image=image)


def _updated(args: Namespace, one: workloads.MachineOpsWorkload) -> workloads.MachineOpsWorkload:
    """Return a running Deployment with the image of this version. An image of the user's own, with more providers,
    stays.
    """
    if repository(one.image).rpartition("/")[2] != workloads.MACHINE_OPS:
        return one
    return replace(one, image=chosen_image(workloads.MACHINE_OPS, registry=args.image_registry, there=one.image))


def _hosts(machina: workloads.MachinaWorkload) -> Mapping[str, Any]:
    """Return machina's settings of new hosts, which machine-ops-controller passes to new hosts, too."""
    return {setting.key: machina.config[setting.key] for setting in SETTINGS if setting.key in machina.config}
