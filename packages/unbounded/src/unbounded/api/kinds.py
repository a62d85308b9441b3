"""Kinds: the path of each resource, and the type that decodes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


@dataclass(frozen=True)
class Kind(Generic[T]):
    """One resource of the API: its path, its names, and the type that its objects decode into.

    With `dict` as `type`, objects are plain JSON with every field that the server knows.
    """

    group: str
    version: str
    kind: str
    plural: str
    type: type[T]
    namespaced: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, name: str = "", *, namespace: str = "", subresource: str = "") -> str:
        """Return the URL path of the collection, or of one object or its subresource."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return "/".join(part for part in (f"{root}{scope}/{self.plural}", name, subresource) if part)

    def raw(self) -> Kind[dict[str, Any]]:
        """Return the same resource, decoded as plain JSON: for lists that are written back whole."""
        return cast("Kind[dict[str, Any]]", replace(self, type=cast("type[T]", dict)))
