"""Authorization attributes of requests."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from unbounded_apiserver.auth import AuthAttributes
from unbounded_apiserver.builtin import NAMESPACES
from unbounded_apiserver.types import Resource, ResourcePath

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
