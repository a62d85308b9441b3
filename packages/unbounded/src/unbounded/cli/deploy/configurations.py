"""`kubectl unbounded config …`: MachineConfigurations, their versions, and their Machines."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from unbounded.api.configuration import (
    MACHINE_CONFIGURATION_VERSIONS,
    MACHINE_CONFIGURATIONS,
    MAX_CONFIGURATION_NAME,
    NodeSettings,
    UpdateStrategyType,
)
from unbounded.api.machine import MACHINES
from unbounded.api.machine_names import object_name
from unbounded.api.names import ANNOTATION_BOUND, LABEL_CONFIGURATION
from unbounded.cli.deploy import validation
from unbounded.cli.plugin.command import DONE, USAGE, CliError, CommandSession
from unbounded.cli.plugin.intents import execute_intent
from unbounded.kube.selectors import selector_of
from unbounded.kube.tasks import gather
from unbounded.plan.intent import Intent, IntentPatch, bound_to

Raw = dict[str, Any]

CONFIGURATIONS: Final = MACHINE_CONFIGURATIONS.raw()
VERSIONS: Final = MACHINE_CONFIGURATION_VERSIONS.raw()
SETTINGS: Final = tuple(field.encode_name for field in msgspec.structs.fields(NodeSettings))
TAKES: Final = "A Machine gets it when its node is next created: at its HostReplace, or when its Node is deleted."


def _limit(args: Namespace) -> Raw:
    limit = args.max_unavailable
    if limit is not None and (limit < 1 or args.update_strategy != UpdateStrategyType.ROLLING_UPDATE):
        raise validation.BadFlag("--max-unavailable must be 1 or more, and needs --update-strategy RollingUpdate")
    return {} if limit is None else {"maxUnavailable": limit}


def configuration_of(args: Namespace) -> Raw:
    """Return the MachineConfiguration that the flags describe.

    Raises:
        BadFlag
    """
    kubernetes: Raw = {}
    if args.kubernetes_version:
        kubernetes["version"] = validation.flagged("--kubernetes-version", validation.release, args.kubernetes_version)
    if args.node_labels:
        kubernetes["nodeLabels"] = validation.flagged("--node-labels", validation.labels, args.node_labels)
    if args.taints:
        found = validation.flagged("--taints", validation.taints, args.taints)
        kubernetes["registerWithTaints"] = [validation.taint_fields(taint) for taint in found]
    image = validation.flagged("--agent-image", validation.image, args.agent_image)
    settings = validation.flagged("--settings", _settings, args.settings) if args.settings else {}
    template = {"agent": {"image": image}} | ({"kubernetes": kubernetes} if kubernetes else {}) | settings
    spec: Raw = {
        "template": template,
        "priority": args.priority,
        "updateStrategy": {"type": args.update_strategy} | _limit(args),
    }
    if args.selector:
        spec["machineSelector"] = msgspec.to_builtins(validation.flagged("--selector", selector_of, args.selector))
    return {
        "apiVersion": CONFIGURATIONS.api_version,
        "kind": CONFIGURATIONS.kind,
        "metadata": {"name": validation.flagged("NAME", _name, args.name)},
        "spec": spec,
    }


def _settings(path: str) -> Raw:
    """Return the node settings in a file; the API server checks their values."""
    try:
        found = yaml.load(Path(path).read_bytes(), Loader=yaml.CSafeLoader)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except yaml.YAMLError:
        raise ValueError(f"{path}: not YAML") from None
    if not isinstance(found, dict) or not found or found.keys() - SETTINGS:
        raise ValueError(f"{path}: expected a mapping with some of {', '.join(SETTINGS)}")
    return found


def _name(text: str) -> str:
    if len(object_name(text)) > MAX_CONFIGURATION_NAME:
        raise ValueError(
            f"{text!r}: the name is a label of its versions and can have at most {MAX_CONFIGURATION_NAME} characters"
        )
    return text


async def intend_create(session: CommandSession) -> Intent:
    try:
        body = configuration_of(session.invocation.args)
    except validation.BadFlag as error:
        raise CliError(str(error), status=USAGE) from None
    return Intent(creates=(body,), dry_run=session.invocation.args.dry_run)


async def create(session: CommandSession) -> int:
    return await execute_intent(session, await intend_create(session), wait=False, timeout_s=None)


async def get(session: CommandSession) -> int:
    """Print one MachineConfiguration, or all."""
    name = session.invocation.args.name
    if name:
        session.printer.objects(CONFIGURATIONS, [await session.api.get(CONFIGURATIONS, name)], alone=True)
    else:
        found = (await session.api.list(CONFIGURATIONS)).items
        session.printer.objects(CONFIGURATIONS, sorted(found, key=lambda one: str(one["metadata"]["name"])))
    return DONE


async def versions(session: CommandSession) -> int:
    """Print the versions of a MachineConfiguration, the newest last."""
    name = session.invocation.args.name
    await session.api.get(CONFIGURATIONS, name)  # raises for a mistyped name, which has no versions either
    found = (await session.api.list(VERSIONS, labels=f"{LABEL_CONFIGURATION}={name}")).items
    session.printer.objects(VERSIONS, sorted(found, key=lambda one: int(one["spec"]["version"])))
    return DONE


async def intend_assign(session: CommandSession) -> Intent:
    """Return a patch for each Machine that is not yet bound in this way."""
    args = session.invocation.args
    await session.api.get(CONFIGURATIONS, args.name)
    if args.version is not None:
        await _check_version(session, args.name, args.version)
    machines: dict[str, Raw] = {}

    async def read(name: str) -> None:
        machines[name] = await session.api.get(MACHINES.raw(), name)

    names = list(dict.fromkeys(args.machines))
    await gather(read(name) for name in names)
    patches = [patch for name in names if (patch := _binding(machines[name], args.name, args.version)) is not None]
    return Intent(patches=tuple(patches), notes=(TAKES,))


async def _check_version(session: CommandSession, name: str, version: int) -> None:
    found = (await session.api.list(VERSIONS, labels=f"{LABEL_CONFIGURATION}={name}")).items
    existing = sorted(int(one["spec"]["version"]) for one in found)
    if version not in existing:
        shown = ", ".join(map(str, existing)) or "none"
        raise CliError(
            f"--version: MachineConfiguration {name} has no version {version}; it has: {shown}", status=USAGE
        )


def _binding(machine: Raw, configuration: str, version: int | None) -> IntentPatch | None:
    """Return the patch that binds a Machine by hand, so that no selector rebinds it; None if it is bound so."""
    meta = machine["metadata"]
    existing = (machine.get("spec") or {}).get("configurationRef") or {}
    bound = (meta.get("annotations") or {}).get(ANNOTATION_BOUND)
    if (existing.get("name"), existing.get("version"), bound) == (configuration, version, None):
        return None
    patch = {
        "metadata": {"annotations": {ANNOTATION_BOUND: None}},
        "spec": {"configurationRef": {"name": configuration, "version": version}},
    }
    return IntentPatch(MACHINES, meta["name"], bound_to(meta["uid"], patch))


async def set_paused(session: CommandSession) -> int:
    return await execute_intent(session, await intend_paused(session), wait=False, timeout_s=None)


async def intend_paused(session: CommandSession) -> Intent:
    """Return the patch that pauses or resumes the rolling update; none where it is so already."""
    args, pauses = session.invocation.args, session.invocation.args.path[-1] == "pause"
    found = await session.api.get(MACHINE_CONFIGURATIONS, args.name)
    strategy = found.spec.update_strategy
    if strategy.type != UpdateStrategyType.ROLLING_UPDATE:
        raise CliError(
            f"MachineConfiguration {args.name} has updateStrategy {strategy.type}; only a RollingUpdate can be paused"
        )
    is_paused = strategy.rolling_update is not None and strategy.rolling_update.paused
    if is_paused == pauses:
        return Intent(notes=(f"MachineConfiguration {args.name} is {'' if pauses else 'not '}paused already",))
    body = {"spec": {"updateStrategy": {"rollingUpdate": {"paused": pauses}}}}
    verb = "paused" if pauses else "resumed"
    return Intent(patches=(IntentPatch(MACHINE_CONFIGURATIONS, args.name, body, verb=verb),))


async def assign(session: CommandSession) -> int:
    intent = await intend_assign(session)
    status = await execute_intent(session, intent, wait=False, timeout_s=None)
    changed = {patch.name for patch in intent.patches}
    for name in dict.fromkeys(session.invocation.args.machines):
        if name not in changed:
            session.printer.name(MACHINES, name, "unchanged")
    return status
