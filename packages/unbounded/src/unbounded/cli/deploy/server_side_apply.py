"""Application of objects to a server: server-side apply writes the objects that differ, and no others."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

import yaml

from unbounded.api.kinds import Kind
from unbounded.cli.deploy.kinds import kind_of
from unbounded.cli.plugin.command import MANAGER
from unbounded.kube.errors import InvalidObject, NotFound
from unbounded.kube.tasks import gather

Raw = dict[str, Any]


AT_ONCE: Final = 8  # more would cost more for connections than they save
# Fields that every write changes, or that the server maintains: no difference for a user.
NOISE: Final = frozenset({"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink"})


class ApplyApi(Protocol):
    """The required part of an API client; `unbounded.kube.client.HttpApi` implements it."""

    async def get(self, kind: Kind[Raw], name: str, *, namespace: str = "") -> Raw: ...

    async def apply(
        self, kind: Kind[Raw], body: Mapping[str, Any], *, manager: str, force: bool = False, dry_run: bool = False
    ) -> Raw: ...


class ApplyOutcome(StrEnum):
    CREATED = "created"
    CONFIGURED = "configured"
    UNCHANGED = "unchanged"


@dataclass(frozen=True)
class AppliedChange:
    """Result of applying one object, or of a dry run.

    Args:
        difference: from the live object to the desired one, as `diff -u` writes it; empty where they are equal.
    """

    kind: Kind[Raw]
    name: str
    namespace: str
    outcome: ApplyOutcome
    difference: str = ""

    @property
    def what(self) -> str:
        """The object as kubectl writes it: deployment.apps/machina-controller."""
        return f"{kind_name(self.kind)}/{self.name}"


def kind_name(kind: Kind[Any]) -> str:
    """Return a kind as kubectl writes it before a name: configmap, deployment.apps."""
    return f"{kind.kind.lower()}.{kind.group}" if kind.group else kind.kind.lower()


class Applier:
    """Server-side apply to one server, with the command line as field manager."""

    def __init__(self, api: ApplyApi) -> None:
        self._api = api

    async def apply_all(self, bodies: Iterable[Raw], *, dry_run: bool = False) -> tuple[AppliedChange, ...]:
        """Apply objects concurrently; returns the changes in the order of the objects.

        Args:
            dry_run: write nothing, and return the changes that would be made.

        Raises:
            ApiError: one could not be applied; others may have been. A repetition does no harm.
        """
        desired = list(bodies)
        changes: dict[int, AppliedChange] = {}

        free = asyncio.Semaphore(AT_ONCE)

        async def one(place: int, body: Raw) -> None:
            async with free:
                changes[place] = await self._one(body, dry_run=dry_run)

        await gather(one(place, body) for place, body in enumerate(desired))
        return tuple(changes[place] for place in range(len(desired)))

    async def _one(self, body: Raw, *, dry_run: bool) -> AppliedChange:
        kind, meta = _kind(body), body["metadata"]
        name, namespace = str(meta["name"]), str(meta.get("namespace", ""))
        try:
            live = await self._api.get(kind, name, namespace=namespace)
        except NotFound:
            if not dry_run:
                await self._apply(kind, body)
            return AppliedChange(kind, name, namespace, ApplyOutcome.CREATED, differences({}, body, name))
        coming = await self._apply(kind, body, dry_run=True)
        difference = differences(live, coming, name)
        if not difference:
            return AppliedChange(kind, name, namespace, ApplyOutcome.UNCHANGED)
        if not dry_run:
            await self._apply(kind, body)
        return AppliedChange(kind, name, namespace, ApplyOutcome.CONFIGURED, difference)

    async def _apply(self, kind: Kind[Raw], body: Raw, *, dry_run: bool = False) -> Raw:
        return await self._api.apply(kind, body, manager=MANAGER, force=True, dry_run=dry_run)


def _kind(body: Mapping[str, Any]) -> Kind[Raw]:
    kind = kind_of(body)
    if kind is None:
        raise InvalidObject(f"{body.get('apiVersion')} {body.get('kind')} is not a kind that install applies")
    return kind


def differences(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> str:
    """Return the difference of two states of an object, without the server's own fields; empty if they are equal."""
    old, new = _shown(before), _shown(after)
    if old == new:
        return ""
    lines = difflib.unified_diff(_lines(old), _lines(new), f"live/{name}", f"desired/{name}", lineterm="", n=2)
    return "\n".join(lines)


def _lines(body: Mapping[str, Any]) -> list[str]:
    # dumped by the C library
    text: str = yaml.dump(dict(body), Dumper=yaml.CSafeDumper, sort_keys=True, width=110) if body else ""
    return text.splitlines()


def _shown(body: Mapping[str, Any]) -> Raw:
    """Return the part of an object that a user decides on. Values of a Secret are replaced by their lengths."""
    shown = {key: value for key, value in body.items() if key != "status"}
    if meta := shown.get("metadata"):
        shown["metadata"] = {key: value for key, value in meta.items() if key not in NOISE}
    if shown.get("kind") == "Secret":
        shown["data"] = {key: f"({len(value)} characters)" for key, value in (shown.get("data") or {}).items()}
    return shown
