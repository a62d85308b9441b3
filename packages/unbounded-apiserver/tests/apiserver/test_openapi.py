"""The OpenAPI documents, by validators that others wrote and by the conventions that kubectl relies on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV2SpecValidator, OpenAPIV30SpecValidator

from tests.apiserver.support import GOLDENS as RECORDED
from tests.apiserver.support import golden_definitions
from unbounded_apiserver.crd_types import DEFINITIONS, served_resources
from unbounded_apiserver.http import openapi_facts
from unbounded_apiserver.http.openapi import OpenApi
from unbounded_apiserver.served_resources import Catalog

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    catalog = Catalog()
    for definition in golden_definitions():
        DEFINITIONS.type.decode(definition)
        DEFINITIONS.type.default(definition)
        catalog.define(definition["metadata"]["name"], served_resources(definition))
    return catalog


@pytest.fixture(scope="module")
def documents(catalog: Catalog) -> dict[str, Any]:
    """The documents of v3 by path."""
    served = OpenApi(catalog)
    return {path: json.loads(served.document(path) or b"") for path in json.loads(served.index())["paths"]}


@pytest.fixture(scope="module")
def v2(catalog: Catalog) -> Any:
    return json.loads(OpenApi(catalog).v2())


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_each_document_of_v3_is_valid(documents: dict[str, Any]) -> None:
    assert {"version", "api/v1", "apis/example.com/v1"} <= documents.keys()
    wrong = {
        path: [error.message for error in OpenAPIV30SpecValidator(document).iter_errors()]
        for path, document in documents.items()
    }
    assert not any(wrong.values()), wrong


def test_the_document_of_v2_is_valid(v2: Any) -> None:
    assert [error.message for error in OpenAPIV2SpecValidator(v2).iter_errors()] == []
    assert "/api/v1/namespaces/{namespace}/pods/{name}/eviction" in v2["paths"]


def test_references_resolve(documents: dict[str, Any], v2: Any) -> None:
    for path, document in documents.items():
        schemas = document["components"]["schemas"]
        missing = {r for r in references(document) if r.removeprefix("#/components/schemas/") not in schemas}
        assert not missing, path
    assert {r for r in references(v2) if r.removeprefix("#/definitions/") not in v2["definitions"]} == set()


def test_operations_have_names_of_their_own(documents: dict[str, Any]) -> None:
    for path, document in documents.items():
        named = [
            operation["operationId"]
            for item in document["paths"].values()
            for method, operation in item.items()
            if method != "parameters"
        ]
        assert len(named) == len(set(named)), path


def test_each_kind_is_found_by_group_version_and_kind(catalog: Catalog, documents: dict[str, Any], v2: Any) -> None:
    """kubectl finds the schema of an object by this extension, and what may be done by that of the paths."""
    for resource in catalog:
        kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
        path = f"apis/{resource.group}/{resource.version}" if resource.group else f"api/{resource.version}"
        for schemas in (documents[path]["components"]["schemas"], v2["definitions"]):
            found = [n for n, s in schemas.items() if kind in s.get("x-kubernetes-group-version-kind", ())]
            assert len(found) == 1, (kind, found)
        served = [
            operation
            for item in documents[path]["paths"].values()
            for method, operation in item.items()
            if method != "parameters" and operation.get("x-kubernetes-group-version-kind") == kind
        ]
        assert served, kind
        if "patch" in resource.verbs:  # so that kubectl can request a dry run and validation
            patch = next(o for o in served if o["x-kubernetes-action"] == "patch")
            assert {"dryRun", "fieldValidation"} <= {p["name"] for p in patch["parameters"]}


def test_numbers_that_may_be_strings_are_so_in_both(documents: dict[str, Any], v2: Any) -> None:
    name = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
    assert documents["api/v1"]["components"]["schemas"][name]["oneOf"] == [{"type": "string"}, {"type": "integer"}]
    assert v2["definitions"][name]["format"] == "int-or-string"


def kubernetes_schemas() -> dict[str, Any]:
    """The types as the Kubernetes project publishes them for 1.37, from the package kubernetes-validate."""
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / "v1.37.0-local"
    found: dict[str, Any] = json.loads((folder / "_definitions.json").read_text())["$defs"]
    return found


def built_in(documents: dict[str, Any]) -> dict[str, Any]:
    schemas: dict[str, Any] = {}
    for path, document in documents.items():
        if "example.com" not in path:
            schemas |= document["components"]["schemas"]
    return schemas


def test_the_fields_that_are_required_are_those_of_kubernetes(documents: dict[str, Any], v2: Any) -> None:
    theirs = kubernetes_schemas()
    ours = {name: schema for name, schema in built_in(documents).items() if name in theirs}
    assert len(ours) > 300
    found = {name: sorted(schema.get("required", ())) for name, schema in ours.items()}
    assert found == {name: sorted(theirs[name].get("required", ())) for name in ours}
    assert found == {name: sorted(v2["definitions"][name].get("required", ())) for name in ours}
    assert "name" in found["io.k8s.api.core.v1.Container"]


def replaced(schemas: dict[str, Any]) -> set[tuple[str, str]]:
    """The objects that a strategic merge patch replaces as a whole."""
    key = "x-kubernetes-patch-strategy"
    fields = ((name, field, given) for name, s in schemas.items() for field, given in s.get("properties", {}).items())
    return {(name, field) for name, field, given in fields if given.get(key) == "replace"}


def test_the_objects_that_patches_replace_are_those_of_kubernetes(documents: dict[str, Any], v2: Any) -> None:
    expected = {("io.k8s.api.policy.v1.PodDisruptionBudgetSpec", "selector")}
    assert (
        replaced(kubernetes_schemas()) - {("io.k8s.api.policy.v1beta1.PodDisruptionBudgetSpec", "selector")} == expected
    )
    assert replaced(built_in(documents)) == replaced(v2["definitions"]) == expected


def enums(schemas: dict[str, Any]) -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = {}
    for name, schema in schemas.items():
        for key, field in schema.get("properties", {}).items():
            if values := field.get("enum") or field.get("items", {}).get("enum"):
                found.setdefault(name, {})[key] = values
    return found


def test_the_values_that_fields_take_are_those_of_kube_apiserver(documents: dict[str, Any], v2: Any) -> None:
    recorded = json.loads((RECORDED.parent / "openapi-enums.json").read_text())["enums"]
    assert enums(built_in(documents)) == recorded
    assert {n: f for n, f in enums(v2["definitions"]).items() if n.startswith("io.k8s.")} == recorded


def test_what_is_said_of_fields_is_said_of_fields_that_there_are(documents: dict[str, Any]) -> None:
    schemas = built_in(documents)
    for name, fields in {**openapi_facts.OPTIONAL_FIELDS, **openapi_facts.REQUIRED_FIELDS}.items():
        assert fields <= schemas[name]["properties"].keys(), name
