"""Routing of URL paths to resources, objects and discovery documents, and the attributes for their authorization."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from unbounded_apiserver.auth import AuthAttributes
from unbounded_apiserver.builtin_resources import NAMESPACES
from unbounded_apiserver.resource_model import Resource, ResourcePath
from unbounded_apiserver.served_resources import Catalog

_NAMESPACE_SUBRESOURCES: Final = frozenset(NAMESPACES.subresources)


_OF_ONE: Final = {
    "GET": "get",
    "HEAD": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
_OF_MANY: Final = {"GET": "list", "HEAD": "list", "DELETE": "deletecollection"}
KNOWN_PATHS: Final = 4096
KNOWN_LENGTH: Final = 256


class NoSuchPath(Exception):
    """A 404 in plain text, the answer of kube-apiserver outside its own groups."""


@dataclass(frozen=True)
class DiscoveryPath:
    """A discovery document: of all groups (`group` is None), a group, or a group and version."""

    core: bool
    group: str | None = None
    version: str | None = None


class PathRouter:
    """Routes of a catalog that changes, with a cache: clients request the same paths again and again."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._generation = catalog.generation
        self._known: dict[str, ResourcePath | DiscoveryPath | None] = {}

    def route(self, raw_path: str) -> ResourcePath | DiscoveryPath | None:
        """Return the cached result of `parse`. Raises NoSuchPath."""
        if self._generation != self._catalog.generation or len(self._known) >= KNOWN_PATHS:
            self._generation = self._catalog.generation
            self._known.clear()
        try:
            return self._known[raw_path]
        except KeyError:
            found = parse(self._catalog, raw_path)
        if len(raw_path) <= KNOWN_LENGTH:
            self._known[raw_path] = found
        return found


def parse(catalog: Catalog, raw_path: str) -> ResourcePath | DiscoveryPath | None:
    """Return the route of a path under /api or /apis; None for other paths. Raises NoSuchPath."""
    segments = raw_path.split("/")[1:]
    parts = [unquote(part) for part in segments] if "%" in raw_path else segments[:]
    if parts and parts[-1] == "":
        parts.pop()
    if not parts or parts[0] not in {"api", "apis"}:
        return None
    core = parts[0] == "api"
    if len(parts) == 1:
        return DiscoveryPath(core)
    group, rest = ("", parts[1:]) if core else (parts[1], parts[2:])
    if not rest:
        return DiscoveryPath(core, group)
    version, rest = rest[0], rest[1:]
    if not rest:
        return DiscoveryPath(core, group, version)
    resources = catalog.version(group, version)
    if resources is None:
        raise NoSuchPath
    return _resource_path(resources, rest, segments[len(parts) - len(rest) :])


def _resource_path(resources: dict[str, Resource], parts: list[str], segments: list[str]) -> ResourcePath:
    """Return the route of the parts of a path after group and version; `segments` are the same, encoded."""
    before = len(parts)
    watch = parts[0] == "watch" and len(parts) > 1
    if watch:
        parts = parts[1:]
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2 and parts[2] not in _NAMESPACE_SUBRESOURCES:
        namespace, parts = parts[1], parts[2:]
    resource = resources.get(parts[0])
    subresource = parts[2] if len(parts) > 2 else ""
    proxied = resource.proxied.get(subresource) if resource is not None else None
    passes = proxied is not None and proxied.passes_path
    if resource is None or (len(parts) > 3 and not passes):
        if any(r.custom for r in resources.values()):
            raise NoSuchPath
        return ResourcePath(None)
    name = parts[1] if len(parts) > 1 else ""
    if bool(namespace) != resource.namespaced and (namespace or name):
        if resource.custom:
            raise NoSuchPath
        return ResourcePath(None)
    rest = "".join(f"/{part}" for part in segments[before - len(parts) + 3 :]) if passes else ""
    return ResourcePath(resource, namespace, name, subresource, watch, rest)


def single_name(selector: str) -> str:
    """Return the name in a field selector that matches one object alone; authorization uses it as the object's name."""
    if "\\" in selector:
        return ""
    terms = (re.fullmatch(r"metadata\.name==?([-.a-z0-9]+)", term) for term in selector.split(","))
    return next((term[1] for term in terms if term), "")


def resource_attributes(verb: str, resource: Resource, place: ResourcePath, selector: str) -> AuthAttributes:
    """Return the attributes of a request for a resource. A Namespace is in itself, as in Kubernetes.

    Args:
        selector: the field selector of a list or watch.
    """
    namespace = place.name if resource is NAMESPACES else place.namespace
    name = place.name or (single_name(selector) if verb in {"list", "watch"} else "")
    return AuthAttributes(verb, resource.group, resource.plural, place.subresource, namespace, name, selector=selector)


def path_attributes(method: str, raw_path: str) -> AuthAttributes:
    """Return the attributes of a path that is not served or is not a resource, from the path alone."""
    path = unquote(raw_path)
    parts = [part for part in path.split("/") if part]
    other = AuthAttributes(method.lower(), path=path)
    if not parts or parts[0] not in {"api", "apis"}:
        return other
    head = 2 if parts[0] == "api" else 3
    if len(parts) <= head:
        return other
    group, rest = ("" if parts[0] == "api" else parts[1]), parts[head:]
    watching = rest[0] == "watch" and len(rest) > 1
    if watching:
        rest = rest[1:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
        if len(rest) > 2 and rest[2] not in _NAMESPACE_SUBRESOURCES:
            rest = rest[2:]
    resource, name, subresource = (*rest, "", "")[:3]
    verb = (_OF_ONE if name else _OF_ONE | _OF_MANY).get(method, method.lower())
    return AuthAttributes("watch" if watching else verb, group, resource, subresource, namespace, name)
