"""Aggregate the rules of cluster roles into those that select them by labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from unbounded_apiserver import selectors
from unbounded_apiserver.access.resource_types import CLUSTER_ROLES
from unbounded_apiserver.collection import ObjectChange
from unbounded_apiserver.controllers.work_queue import ControllerQueue
from unbounded_apiserver.resource_model import Object
from unbounded_apiserver.selectors import labels_match
from unbounded_apiserver.store import Store
from unbounded_apiserver.writes import Writes, WriteTarget

ALL: Final = ""  # roles are few: any change reconciles all of them


class RoleAggregationController:
    """The controller of aggregated cluster roles. A role that aggregates others of them follows their changes."""

    def __init__(self, store: Store, writes: Writes) -> None:
        self._store = store
        self._writes = writes
        self._queue: ControllerQueue[str] = ControllerQueue(self._reconcile)

    def begin(self) -> None:
        self._queue.add(ALL)
        self._store.listen(self._on_change, CLUSTER_ROLES.name)

    async def run(self) -> None:
        await self._queue.run()

    def _on_change(self, _change: ObjectChange) -> None:
        self._queue.add(ALL)

    async def _reconcile(self, _key: str) -> None:
        for role in self._roles():
            if role.get("aggregationRule") is not None:
                await self._writes.edit(WriteTarget(CLUSTER_ROLES, "", role["metadata"]["name"]), self._aggregate)

    def _aggregate(self, role: Object) -> None:
        if role.get("aggregationRule") is not None and (role.get("rules") or []) != (
            rules := aggregated_rules(role, self._roles())
        ):
            role["rules"] = rules

    def _roles(self) -> list[Object]:
        return [record.decode() for record in self._store.snapshot(CLUSTER_ROLES.name).with_prefix("")]


def aggregated_rules(role: Mapping[str, Any], roles: Iterable[Object]) -> list[Object]:
    """Return the rules of the roles that a role selects: each rule once, by selector and then by name."""
    others = sorted(
        (other for other in roles if other["metadata"]["name"] != role["metadata"]["name"]),
        key=lambda other: str(other["metadata"]["name"]),
    )
    rules: list[Object] = []
    for selector in role["aggregationRule"].get("clusterRoleSelectors") or ():
        desired = selectors.from_object(selector)
        for other in others:
            if labels_match(desired, other["metadata"].get("labels") or {}):
                rules += [rule for rule in other.get("rules") or () if rule not in rules]
    return rules
