"""A request before its execution, as admission policies see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from unbounded_apiserver.auth import User
from unbounded_apiserver.types import Object, Resource

Operation = Literal["CONNECT", "CREATE", "DELETE", "UPDATE"]


@dataclass(frozen=True)
class AdmissionRequest:
    """A request before its execution.

    Args:
        kind: group, version and kind of the object, which may differ from the resource's (for a token request).
        name: '' if the server generates it.
        obj: the new object, None for a deletion; for a connection its options.
        old: the present object, None for a creation.
        options: the CreateOptions, UpdateOptions or DeleteOptions; empty for a connection.
    """

    operation: Operation
    user: User
    resource: Resource
    kind: tuple[str, str, str]
    subresource: str
    namespace: str
    name: str
    obj: Object | None
    old: Object | None
    dry_run: bool
    options: Mapping[str, Any]

    @property
    def shown_name(self) -> str:
        """The name of the object in a denial."""
        meta: Mapping[str, Any] = (self.obj or {}).get("metadata", {})
        return self.name or meta.get("name") or meta.get("generateName") or "Unknown"

    def request(self, version: str) -> dict[str, Any]:
        """Return the AdmissionRequest, with the resource in the policy's version; empty fields are absent."""
        resource, (group, _, kind) = self.resource, self.kind
        own = self.kind[:2] != (resource.group, resource.version)
        told = self._request_fields
        return {
            "kind": {"group": group, "version": self.kind[1] if own else version, "kind": kind},
            "resource": {"group": resource.group, "version": version, "resource": resource.plural},
            **told,
        }

    @cached_property
    def _request_fields(self) -> dict[str, Any]:
        resource, (group, version, kind) = self.resource, self.kind
        optional = {
            "subResource": self.subresource,
            "requestSubResource": self.subresource,
            "name": self.name,
            "namespace": self.namespace,
        }
        return {
            "requestKind": {"group": group, "version": version, "kind": kind},
            "requestResource": {"group": resource.group, "version": resource.version, "resource": resource.plural},
            "operation": self.operation,
            "userInfo": self.user.info(),
            "dryRun": self.dry_run,
            "options": dict(self.options),
            **{key: value for key, value in optional.items() if value},
        }
