"""The shapes of Pods and Services, against the types that kubectl has built in."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any, Final

import pytest

from unbounded_apiserver import patches, type_descriptor_parser, type_descriptors
from unbounded_apiserver.type_descriptors import AnyType, ListType, MapType, ScalarType, StructType, TypeDesc
from unbounded_apiserver.workloads.pods import POD
from unbounded_apiserver.workloads.services import SERVICE

KUBECTL: Final = shutil.which("kubectl")
needs_kubectl = [pytest.mark.slow, pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")]
LIMIT_S = 60
OUTSIDE: Final = frozenset({"apiVersion", "kind", "metadata"})
# These commands decode a manifest into Kubernetes' own type, and print that again, without a server.
LOCALLY: Final = {
    "Pod": ("set", "image", "--local", "c=image"),
    "Service": ("set", "selector", "--local", "added=x"),
}
# A string that no type of Kubernetes takes for a number of what it counts.
FILLED: Final = {"string": "x", "boolean": True, "integer": 3, "quantity": "1", "int-or-string": 80}
EMPTY: Final = {"string": "", "boolean": False, "integer": 0, "quantity": "0", "int-or-string": 0}


def through_kubectl(manifest: dict[str, Any], *command: str) -> Any:
    done = subprocess.run(
        [str(KUBECTL), *(command or LOCALLY[manifest["kind"]]), "-f", "-", "-o", "json"],
        input=json.dumps(manifest),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def filled(shape: TypeDesc, values: dict[str, Any]) -> Any:
    """A value with all fields, and these in the scalars; lists and maps have one element."""
    match shape:
        case ScalarType(format="date-time"):
            return "2020-01-01T00:00:00Z"
        case ScalarType(json=kind):
            return values[kind]
        case ListType(item=item):
            return [filled(item, values)]
        case MapType(value=value):
            return {"k": filled(value, values)}
        case StructType():
            members = shape.members().items()
            return {name: filled(member.shape, values) for name, member in members if name not in OUTSIDE}
        case AnyType():
            return {}


def manifest(kind: StructType, values: dict[str, Any]) -> dict[str, Any]:
    obj = {"apiVersion": "v1", "kind": kind.name, "metadata": {"name": "x"}, **filled(kind, values)}
    if kind is POD:
        obj["spec"]["containers"][0] |= {"name": "c", "image": "before"}
        obj["spec"]["imagePullSecrets"] = [{"name": "x"}]  # an empty name is left out, and cannot be merged then
    else:
        obj["spec"]["selector"] = {"added": "x"}
    return obj


def lost(ours: Any, theirs: Any, at: str = "") -> Iterator[str]:
    """Yield the places where ours lacks something of theirs, or differs."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key, value in theirs.items():
            if key not in ours:
                if value is not None:  # Go shows times that are not set
                    yield f"{at}.{key}"
            else:
                yield from lost(ours[key], value, f"{at}.{key}")
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for index, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from lost(mine, other, f"{at}[{index}]")
    elif ours != theirs:
        yield f"{at}: {ours!r}, not {theirs!r}"


class TestWithKubectl:
    pytestmark = needs_kubectl

    @pytest.mark.parametrize("values", [FILLED, EMPTY], ids=["filled", "empty"])
    @pytest.mark.parametrize("kind", [POD, SERVICE], ids=["Pod", "Service"])
    def test_what_kubernetes_keeps_is_kept(self, kind: StructType, values: dict[str, Any]) -> None:
        given = manifest(kind, values)
        unknown: list[str] = []
        ours = type_descriptors.decode(kind, given, unknown)
        assert not unknown
        theirs = through_kubectl(given)
        if kind is POD:
            theirs["spec"]["containers"][0]["image"] = "before"
        assert not list(lost(ours, theirs))

    def test_an_empty_value_is_left_out_where_kubernetes_leaves_it_out(self) -> None:
        given = manifest(SERVICE, EMPTY)
        assert not list(lost(through_kubectl(given), type_descriptors.decode(SERVICE, given, [])))

    def test_lists_merge_by_the_keys_of_kubernetes(self) -> None:
        before = manifest(POD, FILLED)
        patch = {
            "spec": {
                "volumes": [{"name": "x", "$patch": "delete"}, {"name": "v2", "emptyDir": {}}],
                "tolerations": [{"key": "other", "operator": "Exists"}],
                "imagePullSecrets": [{"name": "two"}],
                "containers": [
                    {
                        "name": "c",
                        "env": [{"name": "x", "value": "changed"}, {"name": "y"}],
                        "ports": [{"containerPort": 3, "name": "same"}, {"containerPort": 4}],
                        "volumeMounts": [{"mountPath": "x", "name": "v2"}],
                        "args": ["new"],
                    },
                    {"name": "d", "image": "second"},
                ],
            },
            "status": {"conditions": [{"type": "x", "status": "False"}, {"type": "Ready", "status": "True"}]},
        }
        theirs = through_kubectl(before, "patch", "--local", "--type=strategic", f"-p={json.dumps(patch)}")
        patched = patches.apply(
            patches.STRATEGIC, json.dumps(patch).encode(), type_descriptors.decode(POD, before, []), POD
        )
        assert not list(lost(patched, theirs))


def test_types_may_point_to_each_other_in_any_order() -> None:
    types = type_descriptor_parser.read(
        "First: One.\n  other [Second]name  Others.\nSecond\n  name string!\n  back {int32}"
    )
    other = types["First"].members()["other"]
    assert isinstance(other.shape, ListType)
    assert other.shape == ListType(types["Second"], "name")
    assert other.about == "Others."
    assert type_descriptors.decode(types["First"], {"other": [{"back": {"a": 1}}]}, []) == {
        "other": [{"back": {"a": 1}, "name": ""}]
    }


def test_a_type_can_have_the_fields_of_another() -> None:
    types = type_descriptor_parser.read(
        "Base\n  image string!\n  name string!\nMore of Base: More.\n  image string\n  target string"
    )
    assert list(types["More"].members()) == ["image", "name", "target"]
    assert not types["More"].members()["image"].always
    assert types["Base"].members()["image"].always


@pytest.mark.parametrize("text", ["Type\n name string", "Type\n  name", "Type\n  name nothing", "two words"])
def test_what_is_not_in_the_notation_is_refused(text: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        type_descriptor_parser.read(text)
