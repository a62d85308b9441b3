"""Discovery of the served groups, versions and resources, plain and aggregated."""

from __future__ import annotations

from typing import Any, Final

from unbounded_apiserver.http.paths import DiscoveryPath, NoSuchPath
from unbounded_apiserver.resource_model import SCALE, Resource
from unbounded_apiserver.scale import SCALES
from unbounded_apiserver.served_resources import Catalog

_CUSTOM_VERBS: Final = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")


def document(catalog: Catalog, listing: DiscoveryPath, address: str) -> dict[str, Any]:
    """Return a plain discovery document. Raises NoSuchPath."""
    if listing.core and listing.version is None:
        addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}
    groups = catalog.groups()
    if listing.group is None:
        found = [_group(name, versions) for name, versions in groups.items() if name]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}
    if listing.group not in groups:
        raise NoSuchPath
    if listing.version is None:
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(listing.group, groups[listing.group])}
    return _resources(catalog, listing.group, listing.version)


def _group(name: str, versions: list[str]) -> dict[str, Any]:
    shown = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": shown, "preferredVersion": shown[0]}


def _resources(catalog: Catalog, group: str, version: str) -> dict[str, Any]:
    resources = catalog.version(group, version)
    if resources is None:
        raise NoSuchPath
    shown: list[dict[str, Any]] = []
    for resource in resources.values():
        entry: dict[str, Any] = {
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": _verbs(resource),
        }
        if resource.short_names:
            entry["shortNames"] = list(resource.short_names)
        if resource.categories:
            entry["categories"] = list(resource.categories)
        shown.append(entry)
        for subresource, verbs in _subresources(resource):
            of = _shown(resource, subresource)
            entry = {"name": f"{resource.plural}/{subresource}", "singularName": "", "namespaced": resource.namespaced}
            if of is not resource:
                entry |= {"group": of.group, "version": of.version}
            shown.append({**entry, "kind": of.kind, "verbs": verbs})
        for subresource, proxied in resource.proxied.items():
            name = f"{resource.plural}/{subresource}"
            entry = {"name": name, "singularName": "", "namespaced": resource.namespaced, "kind": proxied.kind}
            shown.append({**entry, "verbs": list(proxied.verbs)})
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": shown}


def aggregated(catalog: Catalog, *, core: bool) -> dict[str, Any]:
    """Return all groups with their resources in one document (apidiscovery.k8s.io/v2)."""
    items = []
    for group, versions in catalog.groups().items():
        if (group == "") is not core:
            continue
        shown = [
            {
                "version": version,
                "resources": [
                    _aggregated(resource) for _, resource in sorted((catalog.version(group, version) or {}).items())
                ],
                "freshness": "Current",
            }
            for version in versions
        ]
        items.append({"metadata": {"name": group} if group else {}, "versions": shown})
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }


def _aggregated(resource: Resource) -> dict[str, Any]:
    kind = _kind(resource)
    entry: dict[str, Any] = {
        "resource": resource.plural,
        "responseKind": kind,
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": _verbs(resource),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    subresources = [
        {"subresource": name, "responseKind": _kind(_shown(resource, name)), "verbs": verbs}
        for name, verbs in _subresources(resource)
    ]
    subresources += [
        {"subresource": name, "responseKind": {**kind, "kind": proxied.kind}, "verbs": list(proxied.verbs)}
        for name, proxied in resource.proxied.items()
    ]
    if subresources:
        entry["subresources"] = subresources
    return entry


def _kind(resource: Resource) -> dict[str, str]:
    return {"group": resource.group, "version": resource.version if resource.group else "", "kind": resource.kind}


def _verbs(resource: Resource) -> list[str]:
    return list(_CUSTOM_VERBS if resource.custom else resource.verbs)


def _subresources(resource: Resource) -> list[tuple[str, list[str]]]:
    transient = [(name, ["create"]) for name in resource.transient]
    return [*transient, *((name, list(verbs)) for name, verbs in resource.changed_by.items())]


def _shown(resource: Resource, subresource: str) -> Resource:
    """Return the resource whose objects a subresource shows."""
    return SCALES if subresource == SCALE else resource.transient.get(subresource, resource)


def roots(catalog: Catalog) -> dict[str, list[str]]:
    """Return the paths that `GET /` lists."""
    paths = {"/api", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"}
    for group, versions in catalog.groups().items():
        base = f"/apis/{group}" if group else "/api"
        paths |= {base, *(f"{base}/{version}" for version in versions)}
    return {"paths": sorted(paths)}
