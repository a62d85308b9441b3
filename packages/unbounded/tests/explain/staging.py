"""Stuck situations, and the question: the chain as `kubectl unbounded why` follows it, on the in-memory API."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from tests.operations.world import World
from tests.support.virtual_time import virtual_now
from unbounded.api.core import CONFIG_MAPS, LEASES, NODES
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import ANNOTATION_PAUSED, CONFIGMAP_OPERATIONS, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.deploy.site_tokens import tokens_for
from unbounded.cli.deploy.trust_host_key import key_of, patch_of
from unbounded.cli.operation_commands.machine_counters import counter_after
from unbounded.cli.plugin.parsing import commands as rows
from unbounded.cli.plugin.parsing import parse
from unbounded.explain.chain import explain
from unbounded.explain.links import ExplainLink, Topic
from unbounded.kube.api import Api, NotFound
from unbounded.kube.clock import rfc3339

MACHINA: Final = "unbounded-operations"
METALMAN: Final = "metalman-lab"
ALIVE: Final = (MACHINA, METALMAN)
NAMESPACES: Final = Kind("", "v1", "Namespace", "namespaces", dict[str, Any])


async def beat(api: Api, name: str, *, holder: str = "p1", renewed: str = "") -> None:
    """Write the Lease of a process, renewed now by default."""
    spec = {
        "holderIdentity": holder,
        "leaseDurationSeconds": 15,
        "renewTime": renewed or rfc3339(virtual_now(), micro=True),
    }
    try:
        await api.patch(LEASES, name, {"spec": spec}, namespace=NAMESPACE)
    except NotFound:
        await api.create(LEASES, {"metadata": {"name": name}, "spec": spec}, namespace=NAMESPACE)


async def why(
    api: Api, name: str, *, topic: Topic | None = Topic.OPERATION, alive: Sequence[str] = ALIVE, namespace: str = ""
) -> tuple[ExplainLink, ...]:
    """Return the explanation, with these processes alive."""
    for process in alive:
        await beat(api, process)
    links = (await explain(api, topic, name, namespace=namespace, now=virtual_now)).links
    for command in commands(links):
        can_be_typed(command)
    for link in links:
        assert re.fullmatch("[A-Z][A-Za-z0-9]*", link.code), link
        assert link.topic
        assert link.name or link.topic in ("machina", "container-cloud"), link
    return links


def can_be_typed(command: str) -> None:
    """Fail for a command of ours that the parser does not take."""
    words = shlex.split(command)
    if words[:2] == ["kubectl", "unbounded"]:
        parse(rows(), words[2:], program="kubectl unbounded", others={})


def abouts(links: Sequence[ExplainLink]) -> list[str]:
    return [link.about for link in links]


def commands(links: Sequence[ExplainLink]) -> list[str]:
    return [fix.command for link in reversed(links) for fix in link.fixes]


async def typed(api: Api, command: str) -> None:
    """Run a command from an answer; only commands that are complete."""
    words = shlex.split(command)
    match words:
        case ["kubectl", "unbounded", "machine", "resume", "--all"]:
            change = {"metadata": {"annotations": {ANNOTATION_PAUSED: None}}}
            await api.patch(CONFIG_MAPS, CONFIGMAP_OPERATIONS, change, namespace=NAMESPACE)
        case ["kubectl", "unbounded", "machine", "resume", name]:
            await api.patch(MACHINES, name, {"metadata": {"annotations": {ANNOTATION_PAUSED: None}}})
        case ["kubectl", "unbounded", "machine", "operation", "cancel", name]:
            await api.patch(MACHINE_OPERATIONS, name, {"spec": {"cancel": True}})
        case ["kubectl", "unbounded", "machine", "operation", "abandon", name]:
            await api.patch(MACHINE_OPERATIONS, name, {"spec": {"abandon": True}})
        case ["kubectl", "unbounded", "machine", "operation", "create", name, "--kind", kind, "--machine", machine]:
            spec = {"operationKind": kind, "machineRef": machine}
            await api.create(MACHINE_OPERATIONS, {"metadata": {"name": name}, "spec": spec})
        case ["kubectl", "unbounded", "machine", "allow-join", name]:
            counter = counter_after(await api.get(MACHINES, name))
            assert counter is not None
            await api.patch(MACHINES, name, {"spec": {"joinCounter": counter}})
        case ["kubectl", "unbounded", "machine", "trust-host-key", name]:
            before = await api.get(MACHINES, name)
            patch = patch_of(before, key_of(before))
            await api.patch(MACHINES, name, patch.body, subresource="status" if patch.status else "")
        case ["kubectl", "unbounded", "site", "init", "--name", site]:
            await tokens_for(api, site, timedelta(days=1), now=virtual_now)
        case ["kubectl", "delete", "node", name]:
            await api.delete(NODES, name)
        case ["kubectl", "patch", "mach" | "mop" as kind, name, *options]:
            status = "--subresource=status" in options
            body = json.loads(options[options.index("-p") + 1])
            patched: Kind[Any] = MACHINES if kind == "mach" else MACHINE_OPERATIONS
            await api.patch(patched, name, body, subresource="status" if status else "")
        case _:
            raise AssertionError(f"cannot be done here: {command}")


async def status(world: World, kind: Kind[Any], name: str, **change: Any) -> None:
    await world.api.patch(kind, name, {"status": change}, subresource="status")
