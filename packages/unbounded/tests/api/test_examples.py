"""examples/: every manifest is one that the types read whole."""

from typing import Any

import msgspec
import pytest
import yaml

from tests.support.paths import ROOT
from unbounded.api.core import CONFIG_MAPS, NAMESPACES, SECRETS
from unbounded.api.crd import DEFINITIONS
from unbounded.api.meta import Kind
from unbounded.api.names import API_VERSION

EXAMPLES = ROOT / "examples"
KINDS: dict[str, Kind[Any]] = {
    kind.kind: kind for kind in (*(definition.kind for definition in DEFINITIONS), NAMESPACES, SECRETS, CONFIG_MAPS)
}

MANIFESTS: list[dict[str, Any]] = [
    document
    for path in sorted(EXAMPLES.glob("*.yaml"))
    for document in yaml.load_all(path.read_bytes(), Loader=yaml.CSafeLoader)
]
OURS = [manifest for manifest in MANIFESTS if manifest["apiVersion"] == API_VERSION]


def name_of(manifest: dict[str, Any]) -> str:
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


def references(value: Any) -> set[tuple[str, str]]:
    """(namespace, name) of every reference to a Secret or ConfigMap in a manifest."""
    if not isinstance(value, dict):
        return set()
    found = {(value["namespace"], value["name"])} if {"name", "namespace"} <= value.keys() else set()
    return found.union(*map(references, value.values()))


@pytest.mark.parametrize("manifest", OURS, ids=name_of)
def test_the_types_know_every_field_of_an_example(manifest: dict[str, Any]) -> None:
    kind = KINDS[manifest["kind"]]
    read = msgspec.convert(manifest, kind.type)
    assert msgspec.json.decode(msgspec.json.encode(read)) == manifest


def test_what_the_examples_refer_to_stands_beside_them() -> None:
    there = {(m["metadata"].get("namespace", ""), m["metadata"]["name"]) for m in MANIFESTS}
    wanted = set().union(*(references(manifest["spec"]) for manifest in OURS))
    tokens = {
        ("kube-system", manifest["spec"]["kubernetes"]["bootstrapTokenRef"]["name"])
        for manifest in OURS
        if "bootstrapTokenRef" in manifest["spec"].get("kubernetes", {})
    }
    configurations = {("", m["spec"]["configurationRef"]["name"]) for m in OURS if "configurationRef" in m["spec"]}
    assert len(wanted) >= 4
    assert wanted | tokens | configurations <= there


def test_no_two_examples_have_one_name() -> None:
    names = [name_of(manifest) for manifest in MANIFESTS]
    assert sorted(set(names)) == sorted(names)


def test_there_is_an_example_of_every_operation_owner() -> None:
    kinds = {manifest["spec"]["operationKind"] for manifest in OURS if manifest["kind"] == "MachineOperation"}
    assert kinds == {"HostReboot", "HostPowerOff", "HostReplace", "NodeReboot", "AgentUpgrade", "AgentReset"}
