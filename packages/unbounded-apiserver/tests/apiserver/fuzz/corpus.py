"""Requests that make sense: those recorded from a kube-apiserver, the project's own kinds, and all built-in kinds."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from tests.apiserver.fuzz.values import example
from tests.apiserver.replay import PLACEHOLDER
from tests.apiserver.support import GOLDENS
from tests.support.paths import ROOT
from unbounded_apiserver.resource_model import Resource
from unbounded_apiserver.served_resources import Catalog

DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
FILLED: Final = {"rv": "1", "time": "2026-01-01T00:00:00Z", "microtime": "2026-01-01T00:00:00.000000Z"}
NAMESPACE: Final = "fuzz"
NAMESPACES: Final = (
    NAMESPACE,
    *(f"g-{n}" for n in ("crud", "list", "watch", "patch", "sub", "del", "tab", "core", "auth")),
)


@dataclass(frozen=True)
class Ask:
    """One request. A body that is a str or bytes goes out as it is, any other as JSON."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None


def recorded() -> list[Ask]:
    """Return the requests of the goldens, without watches that would wait for their end."""
    asks = []
    for file in sorted(GOLDENS.glob("*.json")):
        for exchange in json.loads(file.read_text())["exchanges"]:
            request = json.loads(_filled(json.dumps(exchange["request"])))
            if "events" not in exchange["response"] and "999999999" not in request["path"]:
                asks.append(Ask(request["method"], request["path"], request.get("headers", {}), request.get("body")))
    return asks


def _filled(text: str) -> str:
    return PLACEHOLDER.sub(lambda match: FILLED.get(match[1] or match[3], "x1"), text)


def definitions() -> list[Ask]:
    """The project's own CRDs; those of the goldens are among what was recorded."""
    files = sorted((ROOT / "deploy" / "crd").glob("*.yaml"))
    return [Ask("POST", DEFINITIONS, {}, yaml.load(file.read_bytes(), Loader=yaml.CSafeLoader)) for file in files]


def own_kinds() -> Iterator[Ask]:
    """The examples that users are shown, created, replaced, patched."""
    plurals = {d.body["spec"]["names"]["kind"]: d.body["spec"] for d in definitions()}
    for file in sorted((ROOT / "examples").glob("*.yaml")):
        for obj in yaml.load_all(file.read_bytes(), Loader=yaml.CSafeLoader):
            spec = plurals.get(obj.get("kind"))
            if spec is None:
                continue
            namespace = obj["metadata"].get("namespace")
            prefix = f"/apis/{obj['apiVersion']}"
            prefix += f"/namespaces/{NAMESPACE}" if spec["scope"] == "Namespaced" else ""
            if namespace:
                obj["metadata"]["namespace"] = NAMESPACE
            yield from _life(f"{prefix}/{spec['names']['plural']}", obj)


def built_in(rng: random.Random) -> Iterator[Ask]:
    """An object of each built-in kind, made from its shape."""
    for resource in Catalog():
        yield from _life(_collection(resource), _of_shape(resource, rng))


def _of_shape(resource: Resource, rng: random.Random) -> dict[str, Any]:
    shape = resource.type.shape
    obj = example(shape, rng) if shape is not None else {}
    name = rng.choice(("a", "b", "c"))
    return {**obj, "apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": f"fuzz-{name}"}}


def _collection(resource: Resource) -> str:
    prefix = f"/apis/{resource.group}" if resource.group else "/api"
    where = f"namespaces/{NAMESPACE}/" if resource.namespaced else ""
    return f"{prefix}/{resource.version}/{where}{resource.plural}"


def _life(path: str, obj: dict[str, Any]) -> Iterator[Ask]:
    name = obj["metadata"].get("name", "x")
    one = f"{path}/{name}"
    yield Ask("POST", path, {}, obj)
    yield Ask("PUT", one, {}, obj)
    for media in ("merge-patch", "strategic-merge-patch", "json-patch"):
        body: Any = obj
        if media == "json-patch":
            body = [{"op": "replace", "path": f"/{re.sub('/', '~1', key)}", "value": obj[key]} for key in obj]
        yield Ask("PATCH", one, {"Content-Type": f"application/{media}+json"}, body)
    apply = f"{one}?fieldManager=fuzz&force=true"
    yield Ask("PATCH", apply, {"Content-Type": "application/apply-patch+yaml"}, obj)
    yield Ask("GET", f"{path}?limit=2&labelSelector=a%3Db&fieldSelector=metadata.name%3Da")
    yield Ask("PATCH", f"{one}/status", {"Content-Type": "application/merge-patch+json"}, obj)
    yield Ask("DELETE", one, {}, {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"})
