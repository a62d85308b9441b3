"""machine-ops-controller on a cluster: which Deployments of it there are, and which there are to be."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from unbounded.api.names import NAMESPACE
from unbounded.cli.deploying import checks
from unbounded.cli.deploying.images import chosen_image, repository
from unbounded.cli.deploying.kinds import DEPLOYMENTS
from unbounded.cli.deploying.live import config_in, containers, image_in, mounted_config
from unbounded.cli.deploying.told import SETTINGS
from unbounded.cli.deploying.workloads import (
    MACHINE_OPS,
    MACHINE_OPS_CONFIG,
    Machina,
    MachineOps,
    machine_ops_config,
    machine_ops_objects,
)
from unbounded.cli.plugin.command import USAGE, CliError, Session
from unbounded.kube.errors import NotFound
from unbounded.kube.port import Api

Raw = dict[str, Any]

ENABLE: Final = "--enable-machine-ops-controller"
LABEL: Final = f"app.kubernetes.io/name={MACHINE_OPS}"


@dataclass(frozen=True)
class Running:
    """A Deployment that a cluster has.

    Args:
        name: of the Deployment.
        config_map: that it is told by; kustomize appends to its name.
    """

    name: str
    scope: MachineOps
    config_map: str

    @property
    def ours(self) -> bool:
        """Whether `install` has brought it; others belong to who brought them."""
        return (self.name, self.config_map) == (self.scope.name, MACHINE_OPS_CONFIG)


def asked_for(args: Namespace) -> MachineOps | None:
    """The Deployment that was asked for, its image empty where that was not; None for none.

    Raises:
        CliError: something cannot be meant.
    """
    given = {"--site": args.site, "--provider": args.provider, "--machine-ops-image": args.machine_ops_image}
    if not args.enable_machine_ops_controller:
        for flag in (flag for flag, value in given.items() if value):
            raise CliError(f"{flag} is for machine-ops-controller", next_step=f"give {ENABLE} too", status=USAGE)
        return None
    checked = {"--site": checks.site, "--provider": checks.provider, "--machine-ops-image": checks.image}
    try:
        said = {flag: checks.flagged(flag, checked[flag], value) if value else "" for flag, value in given.items()}
    except checks.BadFlag as error:
        raise CliError(str(error), status=USAGE) from None
    asked = MachineOps(said["--machine-ops-image"], said["--site"], said["--provider"])
    if len(asked.name) > checks.LONGEST_LABEL:
        raise CliError(
            f"--site, --provider: {asked.name} would be the name of a Service, and has {len(asked.name)} characters of"
            f" at most {checks.LONGEST_LABEL}",
            next_step="have one for the provider in all sites, or a Deployment of your own (examples/kustomize)",
            status=USAGE,
        )
    return asked


def without_cluster(args: Namespace, asked: MachineOps | None, machina: Machina) -> tuple[Raw, ...]:
    """What would be brought to a cluster that has none yet. Raises CliError."""
    if asked is None:
        return ()
    return machine_ops_objects((_with_image(args, asked, "", machina),), machine_ops_config(None, _hosts(machina)))


async def to_bring(
    session: Session, asked: MachineOps | None, machina: Machina, *, as_it_is: bool = False
) -> tuple[tuple[MachineOps, ...], tuple[Raw, ...]]:
    """The Deployments that there are to be, and all objects of them: the one that was asked for, and those that
    `install` has brought before, told what machina tells new hosts.

    Args:
        machina: as it is to be.
        as_it_is: do not bring those that run to this version.
    Raises:
        CliError: another one looks after the Machines of the one that was asked for.
    """
    args, there = session.told.args, await running(session.api)
    wanted = {one.name: one.scope if as_it_is else _kept(args, one.scope) for one in there if one.ours}
    if asked is not None:
        _refuse_two(asked, there, session.told.program)
        before = next((one.scope.image for one in there if one.name == asked.name), "")
        wanted[asked.name] = _with_image(args, asked, before, machina)
    for one in there:
        if not one.ours:
            text = f"deployment.apps/{one.name} is told by ConfigMap {one.config_map}: it was not brought by `install`"
            after = f"is told by {MACHINE_OPS_CONFIG} from here on" if one.name in wanted else "is left as it is"
            session.printer.warn(f"{text}, and {after}")
    config = await config_in(session.api, MACHINE_OPS_CONFIG) if wanted else {}
    found = tuple(wanted[name] for name in sorted(wanted))
    return found, machine_ops_objects(found, machine_ops_config(config, _hosts(machina)))


async def running(api: Api) -> tuple[Running, ...]:
    """Those of the cluster; none where the server knows no Deployments."""
    try:
        found = await api.list(DEPLOYMENTS, namespace=NAMESPACE, labels=LABEL)
    except NotFound:
        return ()
    return tuple(running_as(body) for body in found.items)


def running_as(deployment: Raw) -> Running:
    """What a Deployment looks after, by what it is told."""
    words = [str(word) for one in containers(deployment) for word in one.get("args") or ()]
    scope = MachineOps(image_in(deployment, MACHINE_OPS), _told(words, "--site"), _told(words, "--provider"))
    return Running(deployment["metadata"]["name"], scope, mounted_config(deployment, MACHINE_OPS, MACHINE_OPS_CONFIG))


def _told(words: Sequence[str], flag: str) -> str:
    """The value of a flag, which may stand behind a = or as a word of its own; empty where it is not given."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word == flag:
            return after
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return ""


def _refuse_two(asked: MachineOps, there: Sequence[Running], program: str) -> None:
    """Two that lead do not know of each other: both would work on the same Machines. Nor may one take another's place:
    the names of two scopes can be the same."""
    for one in there:
        namesake = one.name == asked.name and (one.scope.site, one.scope.provider) != (asked.site, asked.provider)
        if namesake or (one.name != asked.name and one.scope.shares_with(asked)):
            sites = f"site {one.scope.site}" if one.scope.site else "all sites"
            providers = f"provider {one.scope.provider}" if one.scope.provider else "all providers"
            why = "it would be replaced by one for others" if namesake else "both would work on the same Machines"
            raise CliError(
                f"deployment.apps/{one.name} looks after {providers} of {sites}: {why}",
                next_step=f"`kubectl --namespace {NAMESPACE} delete deployment {one.name}`, then `{program} install"
                f" {ENABLE} …` for each part of what it did",
                status=USAGE,
            )


def _with_image(args: Namespace, one: MachineOps, there: str, machina: Machina) -> MachineOps:
    image = chosen_image(MACHINE_OPS, image=one.image, registry=args.image_registry, there=there, beside=machina.image)
    return replace(one, image=image)


def _kept(args: Namespace, one: MachineOps) -> MachineOps:
    """One that runs, with the image of this version; one of somebody's own, who has put providers into it, stays."""
    if repository(one.image).rpartition("/")[2] != MACHINE_OPS:
        return one
    return replace(one, image=chosen_image(MACHINE_OPS, registry=args.image_registry, there=one.image))


def _hosts(machina: Machina) -> Mapping[str, Any]:
    """What machina tells new hosts, which is what they are to be told here too."""
    return {setting.key: machina.config[setting.key] for setting in SETTINGS if setting.key in machina.config}
