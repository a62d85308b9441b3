"""Deletion of the objects that an install created: for `uninstall` and `site delete`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final

from unbounded.api.kinds import Kind
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploy.kinds import workload_kinds
from unbounded.cli.deploy.namespace import SELECTOR
from unbounded.cli.deploy.server_side_apply import kind_name
from unbounded.cli.plugin.command import CommandSession
from unbounded.kube.errors import NotFound
from unbounded.kube.port import Api

Raw = dict[str, Any]

POLL_S: Final = 0.2


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
