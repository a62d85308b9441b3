"""A command that is planned on the in-memory API, which takes no write but in a dry run."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import msgspec

from tests.operations.world import defaults
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.api.core import LEASES, SECRETS, SELF_SUBJECT_REVIEWS
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.plan import plan_lines
from unbounded.cli.plugin.command import CliInvocation, CommandSession
from unbounded.cli.plugin.output import printer_for
from unbounded.cli.plugin.parsing import commands, loaded, parse
from unbounded.kube.api import AlreadyExists, EvictionBlocked, Forbidden, InvalidObject
from unbounded.kube.clock import rfc3339, utc_now
from unbounded.plan.changes import changes_of
from unbounded.plan.model import Plan, PlannedChange

SECRET = {"name": "bmc", "namespace": NAMESPACE, "key": "password"}
LAB = {"unbounded-cloud.io/site": "lab"}


class DryApi(MemoryApi):
    """An API in which the stage is written before `closed`; after that a write that is no dry run is a fault."""

    def __init__(self) -> None:
        super().__init__(now=virtual_now, defaults=defaults)
        self.closed = False
        self.refuses = ""
        self.hides = ""  # a plural: what may not be read
        self.guarded: dict[str, str] = {}  # Pods that a budget guards
        self.evicts = True  # the user may
        self.dry = 0

    async def list(self, kind: Kind[Any], *, namespace: str = "", labels: str = "", fields: str = "") -> Any:
        """Pods can be selected by their Node, as with any server."""
        if kind.plural != "pods":
            return await super().list(kind, namespace=namespace, labels=labels, fields=fields)
        found = await super().list(kind, namespace=namespace, labels=labels)
        _, _, node = fields.partition("spec.nodeName=")
        return replace(found, items=tuple(one for one in found.items if one.spec.node_name == node))

    async def get(self, kind: Kind[Any], name: str, *, namespace: str = "") -> Any:
        if kind.plural == self.hides:
            raise Forbidden(f"{self.hides} is forbidden", code=403, reason="Forbidden")
        return await super().get(kind, name, namespace=namespace)

    async def create(
        self, kind: Kind[Any], body: Mapping[str, Any], *, namespace: str = "", manager: str = "", dry_run: bool = False
    ) -> Any:
        if kind is SELF_SUBJECT_REVIEWS:  # an answer, and no write
            return {"status": {"userInfo": {"username": "alice"}}}
        if kind.plural.endswith("/eviction"):
            assert body["deleteOptions"]["dryRun"] == ["All"], "a plan has evicted"
            self._evict(body["metadata"]["name"])
            return dict(body)
        if not self._is_dry(dry_run=dry_run):
            return await super().create(kind, body, namespace=namespace)
        return dict(body)

    def _evict(self, pod: str) -> None:
        """Answer the eviction of a Pod in a dry run, as a server does."""
        if not self.evicts:
            raise Forbidden("pods/eviction is forbidden", code=403, reason="Forbidden")
        if budget := self.guarded.get(pod):
            cause = {"reason": "DisruptionBudget", "message": f"The disruption budget {budget} needs 1 healthy pods"}
            status = {"details": {"causes": [cause]}}
            raise EvictionBlocked("Cannot evict pod", code=429, reason="TooManyRequests", status=status)

    async def patch(
        self,
        kind: Kind[Any],
        name: str,
        patch: Mapping[str, Any],
        *,
        namespace: str = "",
        subresource: str = "",
        manager: str = "",
        dry_run: bool = False,
    ) -> Any:
        if not self._is_dry(dry_run=dry_run):
            return await super().patch(kind, name, patch, namespace=namespace, subresource=subresource)
        return dict(patch)

    async def delete(self, kind: Kind[Any], name: str, **options: Any) -> None:
        assert not self.closed
        await super().delete(kind, name, **options)

    def _is_dry(self, *, dry_run: bool) -> bool:
        assert dry_run or not self.closed, "a plan has written"
        self.dry += dry_run
        if dry_run and self.refuses:
            raise InvalidObject(self.refuses, code=422, reason="Invalid")
        return dry_run


class Staged:
    """Machines of site lab, operations on them, and whose processes live."""

    def __init__(self) -> None:
        self.api = DryApi()

    async def machine(self, name: str, *, status: dict[str, Any] | None = None, **spec: Any) -> None:
        with suppress(AlreadyExists):
            password = {"metadata": {"name": SECRET["name"]}, "data": {SECRET["key"]: "eA=="}}
            await self.api.create(SECRETS, password, namespace=SECRET["namespace"])
        redfish = {"url": f"https://{name}", "username": "u", "passwordRef": SECRET}
        spec = spec or {"pxe": {"image": "i", "redfish": redfish}}
        await self.api.create(MACHINES, {"metadata": {"name": name, "labels": LAB}, "spec": spec})
        if status:
            await self.api.patch(MACHINES, name, {"status": status}, subresource="status")

    async def operation(self, name: str, kind: str, machine: str, *, status: Any = None, **spec: Any) -> None:
        body = {"operationKind": kind, "machineRef": machine, **spec}
        await self.api.create(MACHINE_OPERATIONS, {"metadata": {"name": name}, "spec": body})
        if status:
            await self.api.patch(MACHINE_OPERATIONS, name, {"status": status}, subresource="status")

    async def alive(self, *leases: str) -> None:
        for name in ("unbounded-operations", *leases):
            spec = {"holderIdentity": "p1", "renewTime": rfc3339(utc_now(), micro=True)}
            await self.api.create(LEASES, {"metadata": {"name": name}, "spec": spec}, namespace=NAMESPACE)

    async def plan(self, *words: str) -> list[PlannedChange]:
        """The plan of a command; whatever is written from now on is a fault."""
        self.api.closed = True
        before, dry = self.api.writes, self.api.dry
        command, args = parse(commands(), words, program="kubectl unbounded plan", others={})
        told = CliInvocation(args, {}, io.StringIO(), io.StringIO(), io.StringIO(), colour=False, terminal=False)
        session = CommandSession(told, cast("Any", self.api), printer_for(told))
        changes = await changes_of(session.api, await loaded(command.intend)(session))
        assert self.api.writes == before
        assert self.api.dry - dry == len(changes)
        assert plan_data(changes)["changes"]
        return changes

    async def shown(self, *words: str, wide: bool = False) -> str:
        return "\n".join(plan_lines(await self.plan(*words), wide=wide))


def plan_data(changes: Sequence[PlannedChange]) -> dict[str, Any]:
    """The JSON values of a plan."""
    values: dict[str, Any] = msgspec.to_builtins(Plan(tuple(changes)))
    return values


def story(report: Any) -> Any:
    """A test from an `async def test(staged)`, in virtual time."""

    def test() -> None:
        async def run() -> None:
            await report(Staged())

        run_virtual(run())

    test.__name__, test.__doc__, test.__module__ = report.__name__, report.__doc__, report.__module__
    return test
