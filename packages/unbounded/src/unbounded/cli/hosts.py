"""`host list` and `host adopt`: the BareMetalHosts of Container Cloud."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from unbounded.api.container_cloud.host import BARE_METAL_HOSTS, BareMetalHost
from unbounded.api.container_cloud.names import ANNOTATION_ADOPT
from unbounded.api.core import NODES
from unbounded.api.machine import Machine
from unbounded.cli.operation_commands import lookup
from unbounded.cli.plugin.command import DONE, USAGE, CliError, CommandSession
from unbounded.cli.plugin.flags import pair
from unbounded.cli.plugin.intents import execute_intent
from unbounded.cli.plugin.output import NONE, table
from unbounded.containercloud.hosts.model import CONDITION_AVAILABLE, host_of_machine, is_free
from unbounded.kube.api import NotFound, ObjectKey, key_of
from unbounded.kube.selectors import SelectorError, label_test
from unbounded.plan.intent import Intent

Raw = dict[str, Any]

HEADS: Final = ("NAMESPACE", "NAME", "STATE", "POWER", "USED BY", "MACHINE", "MESSAGE")


async def run_list(session: CommandSession) -> int:
    """Print the hosts of a namespace, or of all; returns the exit status."""
    args = session.invocation.args
    try:
        label_test(args.selector)
    except SelectorError as error:
        raise CliError(f"--selector: {error}", status=USAGE) from None
    namespace = "" if args.all_namespaces else args.namespace or session.api.config.namespace
    listed = await session.api.list(BARE_METAL_HOSTS.raw(), namespace=namespace, labels=args.selector)
    hosts = [(raw, msgspec.convert(raw, BareMetalHost)) for raw in listed.items]
    chosen = sorted(
        ((raw, host) for raw, host in hosts if is_free(host) or not args.available), key=lambda one: key_of(one[1])
    )
    if session.printer.whole or args.output == "name" or not chosen:
        session.printer.objects(BARE_METAL_HOSTS, [raw for raw, _ in chosen])
        return DONE
    first = 0 if args.all_namespaces else 1
    cells = [_row(host)[first:] for _, host in chosen]
    for line in table(HEADS[first:], cells, session.invocation.style):
        print(line, file=session.invocation.out)
    return DONE


def _row(host: BareMetalHost) -> list[str]:
    status, reference = host.status, host.spec.consumer_ref
    power = {True: "On", False: "Off", None: NONE}[status.powered_on]
    user = NONE if reference is None else f"{reference.namespace}/{reference.name}"
    message = next((one.message for one in status.conditions if one.type == CONDITION_AVAILABLE), NONE)
    key = key_of(host)
    return [key.namespace, key.name, host.state or NONE, power, user, status.provisioning.id or NONE, message]


async def run_adopt(session: CommandSession) -> int:
    """Create a BareMetalHost that adopts a Machine; returns the exit status."""
    return await execute_intent(session, await intend_adopt(session), wait=False, timeout_s=None)


async def intend_adopt(session: CommandSession) -> Intent:
    """Return the BareMetalHost that `run_adopt` would create, after the checks of its controller.

    Raises:
        CliError: the Machine is that of a host, or has to be adopted as it is.
    """
    args = session.invocation.args
    machine = await lookup.machine(session, args.machine)
    key = ObjectKey(args.namespace or session.api.config.namespace, args.name or machine.name)
    lookup.checked_name(key.name, "--name" if args.name else "MACHINE")
    owner = host_of_machine(machine)
    if owner is not None:
        raise CliError(f"Machine {machine.name} is that of BareMetalHost {owner} already")
    if not args.externally_provisioned and (why := await _why_as_it_is(session, machine)) is not None:
        raise CliError(
            f"Machine {machine.name} {why}: a claim would install its host again",
            next_step="--externally-provisioned adopts it as it is",
        )
    try:
        labels = dict(map(pair, args.label))
    except ValueError as error:
        raise CliError(f"--label: {error}", status=USAGE) from None
    spec: Raw = {"externallyProvisioned": True} if args.externally_provisioned else {}
    metadata: Raw = {"name": key.name, "namespace": key.namespace, "annotations": {ANNOTATION_ADOPT: machine.name}}
    if labels:
        metadata["labels"] = labels
    kind = {"apiVersion": BARE_METAL_HOSTS.api_version, "kind": BARE_METAL_HOSTS.kind}
    return Intent(creates=({**kind, "metadata": metadata, "spec": spec},), dry_run=args.dry_run)


async def _why_as_it_is(session: CommandSession, machine: Machine) -> str | None:
    """Return why a Machine has to be adopted as it is; None for one that may be installed again."""
    if machine.spec.ssh is not None:
        return "has spec.ssh"
    if machine.provider is not None:
        return f"has provider {machine.provider}"
    if machine.spec.pxe is None or machine.spec.pxe.redfish is None:
        return "has no spec.pxe.redfish"
    try:
        await session.api.get(NODES, machine.name)
    except NotFound:
        return None
    return "has a Node"
