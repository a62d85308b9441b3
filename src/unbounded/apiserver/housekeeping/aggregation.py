"""Aggregate the rules of cluster roles into those that select them by labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from unbounded.apiserver.access.kinds import CLUSTER_ROLES
from unbounded.apiserver.admission import labels
from unbounded.apiserver.collection import ObjectChange
from unbounded.apiserver.housekeeping.work import Work
from unbounded.apiserver.selectors import labels_match
from unbounded.apiserver.store import Store
from unbounded.apiserver.types import Object
from unbounded.apiserver.writes import Writes, WriteTarget

ALL: Final = ""  # roles are few: any change reconciles all of them


class RoleAggregator:
    """The controller of aggregated cluster roles. A role that aggregates others of them follows their changes."""

    def __init__(self, store: Store, writes: Writes) -> None:
        self._store = store
        self._writes = writes
        self._work: Work[str] = Work(self._look)

    def begin(self) -> None:
        self._work.note(ALL)
        self._store.listen(self._hear, CLUSTER_ROLES.name)

    async def run(self) -> None:
        await self._work.run()

    def _hear(self, _change: ObjectChange) -> None:
        self._work.note(ALL)

    async def _look(self, _key: str) -> None:
        for role in self._roles():
            if role.get("aggregationRule") is not None:
                await self._writes.edit(WriteTarget(CLUSTER_ROLES, "", role["metadata"]["name"]), self._gather)

    def _gather(self, role: Object) -> None:
        if role.get("aggregationRule") is not None and (role.get("rules") or []) != (
            rules := gathered(role, self._roles())
        ):
            role["rules"] = rules

    def _roles(self) -> list[Object]:
        return [record.decode() for record in self._store.snapshot(CLUSTER_ROLES.name).with_prefix("")]


def gathered(role: Mapping[str, Any], roles: Iterable[Object]) -> list[Object]:
    """Return the rules of the roles that a role selects: each rule once, by selector and then by name."""
    others = sorted(
        (other for other in roles if other["metadata"]["name"] != role["metadata"]["name"]),
        key=lambda other: str(other["metadata"]["name"]),
    )
    rules: list[Object] = []
    for selector in role["aggregationRule"].get("clusterRoleSelectors") or ():
        wanted = labels.read(selector)
        for other in others:
            if labels_match(wanted, other["metadata"].get("labels") or {}):
                rules += [rule for rule in other.get("rules") or () if rule not in rules]
    return rules
