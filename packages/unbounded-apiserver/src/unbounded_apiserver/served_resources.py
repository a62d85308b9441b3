"""The served resources: built-in ones and those of accepted definitions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from unbounded_apiserver.access.resource_types import REVIEW_RESOURCES, ROLE_RESOURCES, SERVICE_ACCOUNTS
from unbounded_apiserver.admission.policy_types import POLICY_RESOURCES
from unbounded_apiserver.builtin_resources import RESOURCES
from unbounded_apiserver.certificates.csr_types import REQUESTS
from unbounded_apiserver.crd_types import DEFINITIONS, version_order
from unbounded_apiserver.kubelet_types import KUBELET_TYPES
from unbounded_apiserver.resource_model import Resource
from unbounded_apiserver.workloads.disruption_budgets import BUDGETS
from unbounded_apiserver.workloads.pods import PODS
from unbounded_apiserver.workloads.priorities import PRIORITY_CLASSES
from unbounded_apiserver.workloads.services import SERVICES


class Catalog:
    """Resources by group, version and plural. `generation` changes whenever the content does.

    Clients that get a name without a group, as `kubectl get NAME` does, take the first group that has it. The order
    of groups is therefore fixed, and does not follow from the order in which definitions were accepted.
    """

    def __init__(
        self,
        builtin: Iterable[Resource] = (
            *(*RESOURCES, PODS, PRIORITY_CLASSES, SERVICE_ACCOUNTS, SERVICES, REQUESTS, DEFINITIONS),
            *(*ROLE_RESOURCES, *REVIEW_RESOURCES, *POLICY_RESOURCES, *KUBELET_TYPES, BUDGETS),
        ),
        first_groups: Sequence[str] = (),
    ) -> None:
        """Configure a catalog.

        Args:
            first_groups: those that follow the built-in groups; all others come after them, by name.
        """
        self.generation = 0
        self._builtin = tuple(builtin)
        leading = dict.fromkeys((*(resource.group for resource in self._builtin), *first_groups))
        self._rank = {group: rank for rank, group in enumerate(leading)}
        self._served: dict[tuple[str, str], dict[str, Resource]] = {}
        self._defined: dict[str, tuple[Resource, ...]] = {}
        self._stored: dict[str, Resource] = {}  # by definition: the version in which objects are stored, served or not
        for resource in self._builtin:
            self._served.setdefault((resource.group, resource.version), {})[resource.plural] = resource

    def builtin(self, group: str) -> list[Resource]:
        """Return the built-in resources of a group; no definition replaces them."""
        return [resource for resource in self._builtin if resource.group == group]

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        return self._served.get((group, version), {}).get(plural)

    def find_kind(self, api_version: str, kind: str) -> Resource | None:
        """Return the resource whose objects have this apiVersion and kind."""
        group, _, version = api_version.rpartition("/")
        return next((r for r in self._served.get((group, version), {}).values() if r.kind == kind), None)

    def version(self, group: str, version: str) -> dict[str, Resource] | None:
        """Return the resources of one group and version by plural; None if the version is not served."""
        return self._served.get((group, version))

    def versions_of(self, resource: Resource) -> Iterator[Resource]:
        """Yield the same resource in each version in which it is served."""
        for group, version in self._served:
            if group == resource.group and (found := self._served[group, version].get(resource.plural)) is not None:
                yield found

    def groups(self) -> dict[str, list[str]]:
        """Return the served groups in order, each with its versions, the preferred one first; the core group is ''."""
        found: dict[str, list[str]] = {}
        for group, version in self._served:
            found.setdefault(group, []).append(version)
        ordered = sorted(found, key=lambda group: (self._rank.get(group, len(self._rank)), group))
        return {group: sorted(found[group], key=version_order) for group in ordered}

    def __iter__(self) -> Iterator[Resource]:
        for resources in self._served.values():
            yield from resources.values()

    def stored(self) -> Iterator[Resource]:
        """Yield each resource once, in the version in which it is stored, including those without a served version."""
        known = (*self, *self._stored.values())
        by_name = sorted(
            known, key=lambda r: (r.name, r.view is not None, r.version != (r.storage_version or r.version))
        )
        for _, versions in itertools.groupby(by_name, key=lambda r: r.name):
            yield next(versions)

    def by_name(self, name: str) -> Resource | None:
        """Return the resource that has this name in the store."""
        return next((r for r in self.stored() if r.name == name), None)

    def stored_by_definition(self, definition: str) -> Resource | None:
        """Return the resource of an accepted definition, in the version in which it is stored."""
        return self._stored.get(definition)

    def define(self, definition: str, resources: Iterable[Resource], stored: Resource | None = None) -> None:
        """Serve the resources of a definition in place of its earlier ones; `stored` is the stored version."""
        self._stored.pop(definition, None)
        if stored is not None:
            self._stored[definition] = stored
        for old in self._defined.pop(definition, ()):
            version = self._served[old.group, old.version]
            version.pop(old.plural, None)
            if not version:
                del self._served[old.group, old.version]
        added = tuple(resources)
        for resource in added:
            self._served.setdefault((resource.group, resource.version), {})[resource.plural] = resource
        if added:
            self._defined[definition] = added
        self.generation += 1
