"""The OpenAPI documents, by validators that others wrote and by the conventions that kubectl relies on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV2SpecValidator, OpenAPIV30SpecValidator

from tests.apiserver.support import golden_definitions
from unbounded.apiserver.catalog import Catalog
from unbounded.apiserver.definitions import DEFINITIONS, defined
from unbounded.apiserver.http.openapi import OpenApi

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    catalog = Catalog()
    for definition in golden_definitions():
        DEFINITIONS.type.decode(definition)
        DEFINITIONS.type.default(definition)
        catalog.define(definition["metadata"]["name"], defined(definition))
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
        if "patch" in resource.verbs:  # so kubectl knows that it may ask for a dry run and for validation
            patch = next(o for o in served if o["x-kubernetes-action"] == "patch")
            assert {"dryRun", "fieldValidation"} <= {p["name"] for p in patch["parameters"]}


def test_numbers_that_may_be_strings_are_so_in_both(documents: dict[str, Any], v2: Any) -> None:
    name = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
    assert documents["api/v1"]["components"]["schemas"][name]["oneOf"] == [{"type": "string"}, {"type": "integer"}]
    assert v2["definitions"][name]["format"] == "int-or-string"
