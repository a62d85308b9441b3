"""Bodies in the protobuf form: as a kubelet sent them, of all kinds that are served, and malformed."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.apiserver.kubelet_replay import load
from tests.apiserver.support import Client, refusal, running
from tests.apiserver.test_kubelet_replay import RECORDING
from unbounded_apiserver import protobuf, type_descriptors
from unbounded_apiserver.core_types import NODE
from unbounded_apiserver.field_numbers import INLINE, NUMBERS
from unbounded_apiserver.resource_model import Resource
from unbounded_apiserver.served_resources import Catalog
from unbounded_apiserver.type_descriptors import AnyType, ListType, MapType, StructType, TypeDesc
from unbounded_apiserver.workloads.pods import DELETE_OPTIONS, POD

PROTOBUF = "application/vnd.kubernetes.protobuf"
NEWER = {  # fields of a release after 1.36, which are read from JSON alone
    *("ConfigMapVolumeSource.defaultUser", "ContainerImage.volumes", "DownwardAPIVolumeFile.user"),
    *("DownwardAPIVolumeSource.defaultUser", "EmptyDirVolumeSource.mode", "GRPCAction.mode", "HTTPGetAction.protocol"),
    *("ClusterTrustBundleProjection.user", "KeyToPath.user", "PodCertificateProjection.user"),
    *("PodSpec.evictionResponders", "PodStatus.volumeHealth", "ProjectedVolumeSource.defaultUser"),
    *("NodeAllocatableResourceClaimStatus.mapping", "NodeAllocatableResourceClaimStatus.overhead"),
    *("SecretVolumeSource.defaultUser", "ServiceAccountTokenProjection.user", "VolumeMount.bindMountOptions"),
}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with running(tmp_path) as (_, client):
        yield client


def served() -> Iterator[Resource]:
    for resource in Catalog():
        yield resource
        yield from resource.transient.values()


def kinds() -> dict[str, StructType]:
    """Return the shapes of all kinds that are read from protobuf, by version and name."""
    found = ((resource, resource.type.shape) for resource in served())
    return {"DeleteOptions": DELETE_OPTIONS} | {
        f"{resource.api_version}/{resource.kind}": shape
        for resource, shape in found
        if shape is not None and protobuf.readable(shape)
    }


def structs(shape: TypeDesc, found: dict[tuple[str, str], StructType]) -> None:
    match shape:
        case ListType(item=inner) | MapType(value=inner):
            structs(inner, found)
        case StructType() if (shape.package, shape.name) not in found:
            found[shape.package, shape.name] = shape
            for member in shape.members().values():
                structs(member.shape, found)


def numbered(package: str, name: str) -> set[str]:
    fields = NUMBERS.get((package, name), {}).values()
    inline = (numbered(package, field.removeprefix(INLINE)) for field in fields if field.startswith(INLINE))
    return {field for field in fields if not field.startswith(INLINE)}.union(*inline)


def test_all_fields_of_served_kinds_have_numbers() -> None:
    found: dict[tuple[str, str], StructType] = {}
    for shape in kinds().values():
        structs(shape, found)
    missing = set()
    for (package, name), shape in found.items():
        members = {key for key, member in shape.members().items() if not isinstance(member.shape, AnyType)}
        known = numbered(package, name)
        if {"apiVersion", "kind"} <= members and not known & {"apiVersion", "kind"}:
            members -= {"apiVersion", "kind"}  # of the envelope
        if known:
            missing |= {f"{name}.{key}" for key in members - known}
    assert missing <= NEWER, sorted(missing - NEWER)


@pytest.mark.slow
def test_bodies_of_a_kubelet_are_what_its_server_read() -> None:
    known = kinds()
    bodies = [exchange for exchange in load(RECORDING) if "requestProtobuf" in exchange]
    assert len(bodies) == 20
    for exchange in bodies:
        request = exchange["request"]
        shape = known.get(f"{request['apiVersion']}/{request['kind']}", DELETE_OPTIONS)
        read = protobuf.decode(base64.b64decode(exchange["requestProtobuf"]), shape)
        assert in_form(shape, read) == in_form(shape, request), exchange["n"]


def in_form(shape: StructType, value: dict[str, Any]) -> dict[str, Any]:
    unknown: list[str] = []
    result = type_descriptors.decode(shape, deepcopy(value), unknown)
    assert not unknown
    result.pop("apiVersion", None)  # of DeleteOptions, the recording has the internal one
    result["metadata"] = {k: v for k, v in result.get("metadata", {}).items() if k != "managedFields"}
    if shape.name == "TokenRequest":
        result.pop("status")  # of the request, the recording has the token that was made for it
    return result


def part(number: int, value: bytes | int) -> bytes:
    """Return one field of a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def body(kind: str, raw: bytes) -> bytes:
    return protobuf.MAGIC + part(1, part(1, b"v1") + part(2, kind.encode())) + part(2, raw)


def test_maps_packed_numbers_and_inline_messages_are_read() -> None:
    volume = part(1, b"v") + part(2, part(19, part(1, part(1, b"settings"))))
    spec = part(1, volume) + part(14, part(4, b"\x05\x07"))
    quantity = part(1, b"cpu") + part(2, part(1, b"100m"))
    read = protobuf.decode(body("Pod", part(1, part(11, part(1, b"a") + part(2, b"b"))) + part(2, spec)), POD)
    assert read["metadata"] == {"labels": {"a": "b"}}
    assert read["spec"]["volumes"] == [{"name": "v", "configMap": {"name": "settings"}}]
    assert read["spec"]["securityContext"] == {"supplementalGroups": [5, 7]}
    node = protobuf.decode(body("Node", part(3, part(1, quantity))), NODE)
    assert node["status"]["capacity"] == {"cpu": "100m"}


def test_unknown_fields_are_skipped() -> None:
    raw = part(1, part(1, b"n")) + part(15, b"of a later release") + part(14, 1)
    assert protobuf.decode(body("Node", raw), NODE) == {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty data"),
        (b"{}", "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"),
        (b"k8s\x00", "empty body"),
        (body("Node", b"\x0a\x7f"), "unexpected EOF"),
        (body("Node", b"\x08\x01"), "proto: wrong wireType = 0 for field ObjectMeta"),
        (body("Node", b"\x0e"), "proto: illegal wireType 6"),
        (body("Node", b"\x0c"), "proto: Node: wiretype end group for non-group"),
        (body("Node", b"\xff" * 10), "proto: integer overflow"),
    ],
)
def test_malformed_bodies_are_refused_in_the_words_of_kubernetes(data: bytes, why: str) -> None:
    assert str(refusal(protobuf.NotProtobuf, lambda: protobuf.decode(data, NODE))) == why


@pytest.mark.slow
@given(st.sampled_from(sorted(kinds())), st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(kind: str, raw: bytes) -> None:
    shape = kinds()[kind]
    for data in (protobuf.MAGIC + raw, protobuf.MAGIC + part(1, part(2, shape.name.encode())) + part(2, raw)):
        error = refusal(protobuf.NotProtobuf, partial(protobuf.decode, data, shape))
        assert error is None or str(error)


@pytest.mark.slow
async def test_a_malformed_body_is_a_bad_request_that_names_the_kind(client: Client) -> None:
    headers = {"Content-Type": PROTOBUF}
    cut = await client.ask("POST", "/api/v1/nodes", data=body("Node", b"\x0a\x7f"), headers=headers)
    assert cut.status == 400
    assert cut.json()["message"] == 'Node in version "v1" cannot be handled as a Node: unexpected EOF'
    other = await client.ask("POST", "/api/v1/nodes", data=body("Pod", b""), headers=headers)
    assert other.status == 400
    expected = 'Pod in version "v1" cannot be handled as a Node: converting (v1.Pod) to (core.Node): unknown conversion'
    assert other.json()["message"] == expected
