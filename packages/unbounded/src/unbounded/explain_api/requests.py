"""Requests of the API, parsed and checked: the object to explain, and the writes to plan."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final
from urllib.parse import unquote

import msgspec
from msgspec import Meta

from unbounded.api.configuration import MACHINE_CONFIGURATIONS
from unbounded.api.core import CONFIG_MAPS
from unbounded.api.fields import DNS_LABEL, DNS_SUBDOMAIN
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import CONFIGMAP_OPERATIONS, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS, OperationKind
from unbounded.explain.chain import KINDS, NAMESPACED, TOPICS
from unbounded.explain.links import Topic
from unbounded.explain_api.statuses import RequestRejected, bad_request
from unbounded.plan.container_cloud import PLANNED
from unbounded.plan.effects import decoded
from unbounded.plan.intent import Intent, IntentPatch, Raw

MOST: Final = 100  # objects and patches of one plan
LONGEST_NAME: Final = 253
_WRITABLE: Final[Mapping[tuple[str, str], Kind[Any]]] = {
    (kind.api_version, kind.kind): kind for kind in (MACHINES, MACHINE_OPERATIONS, MACHINE_CONFIGURATIONS)
}
_PATCHABLE: Final = {**_WRITABLE, (CONFIG_MAPS.api_version, CONFIG_MAPS.kind): CONFIG_MAPS}


class PatchRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A merge patch (RFC 7386) of an existing object.

    Attributes:
        status: of the subresource status.
    """

    api_version: Annotated[str, Meta(description="Such as unbounded-cloud.io/v1alpha3.")]
    kind: Annotated[str, Meta(description="Machine, MachineOperation, MachineConfiguration, or ConfigMap.")]
    name: str
    namespace: Annotated[str, Meta(description="Of the ConfigMap that pauses all operations.")] = ""
    patch: dict[str, Any]
    status: Annotated[bool, Meta(description="Patch the subresource status.")] = False


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Writes to plan. Give `creates` and `patches`, or `objects`.

    Attributes:
        objects: objects of Container Cloud, each created or changed, as `plan -f FILE` takes them.
    """

    creates: Annotated[
        list[dict[str, Any]],
        Meta(description="New objects: MachineOperations, Machines and MachineConfigurations.", max_length=MOST),
    ] = []
    patches: Annotated[list[PatchRequest], Meta(description="Changes of existing objects.", max_length=MOST)] = []
    objects: Annotated[
        list[dict[str, Any]],
        Meta(
            description="Objects of Container Cloud, as they are to be: each is created, or patched where it exists. "
            "Those of namespaced kinds name their namespace.",
            max_length=MOST,
        ),
    ] = []


class ExplainRequest(msgspec.Struct, frozen=True):
    """An object to explain."""

    topic: Topic
    name: str
    namespace: str = ""


def explain_request(segments: Sequence[str]) -> ExplainRequest:
    """Parse the segments of a path: KIND, NAMESPACE for a namespaced kind, and NAME. Raises RequestRejected."""
    kind, *rest = map(unquote, segments)
    topic = TOPICS.get(kind.lower())
    if topic is None:
        known = ", ".join(sorted({f"{one.plural}.{one.group}" for one in KINDS.values()} & TOPICS.keys()))
        raise RequestRejected(404, "NotFound", f"kind {kind!r} cannot be explained: the kinds are machine, {known}")
    form = f"/explain/{kind}/NAMESPACE/NAME" if topic in NAMESPACED else f"/explain/{kind}/NAME"
    if len(rest) != (2 if topic in NAMESPACED else 1):
        raise bad_request(f"the path of {KINDS[topic].kind} is {form}")
    namespace = rest[0] if topic in NAMESPACED else ""
    if topic in NAMESPACED:
        _check_name("NAMESPACE", namespace, DNS_LABEL)
    _check_name("NAME", rest[-1])
    return ExplainRequest(topic, rest[-1], namespace)


def _check_name(where: str, text: str, pattern: str = DNS_SUBDOMAIN) -> None:
    if len(text) > LONGEST_NAME or not re.fullmatch(pattern, text):
        raise bad_request(f"{where}: {text[:LONGEST_NAME]!r} is not a name: a-z, 0-9, '-' and '.'")


def plan_request(body: bytes) -> tuple[PlanRequest, list[str]]:
    """Decode a body; return it with the fields that this release does not know. Raises RequestRejected."""
    try:
        raw = msgspec.json.decode(body)
        found = msgspec.convert(raw, PlanRequest)
    except msgspec.ValidationError as error:
        raise RequestRejected(422, "Invalid", str(error)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}") from error
    unknown = sorted(set(raw) - set(PlanRequest.__struct_encode_fields__))
    known = set(PatchRequest.__struct_encode_fields__)
    unknown += [
        f"patches[{at}].{name}"
        for at, patch in enumerate(raw.get("patches") or ())
        for name in sorted(set(patch) - known)
    ]
    return found, unknown


def intent_of(request: PlanRequest) -> Intent:
    """Return the writes of a request. Raises RequestRejected."""
    if bool(request.objects) == bool(request.creates or request.patches):
        raise bad_request("give creates and patches, or objects: one of the two, and not both")
    for at, manifest in enumerate(request.creates):
        _check_manifest(f"creates[{at}]", manifest, _WRITABLE)
        if manifest["kind"] == MACHINE_OPERATIONS.kind:
            _check_operation(f"creates[{at}]", manifest)
    patches = tuple(_patch(f"patches[{at}]", one) for at, one in enumerate(request.patches))
    return Intent(creates=tuple(request.creates), patches=patches)


def manifests_of(request: PlanRequest) -> list[Raw]:
    """Return the objects of Container Cloud of a request. Raises RequestRejected."""
    for at, manifest in enumerate(request.objects):
        where = f"objects[{at}]"
        _check_manifest(where, manifest, PLANNED)
        if not PLANNED[manifest["apiVersion"], manifest["kind"]].namespaced:
            continue
        namespace = manifest["metadata"].get("namespace")
        if not isinstance(namespace, str):
            raise bad_request(f"{where}.metadata.namespace: expected the namespace of the object")
        _check_name(f"{where}.metadata.namespace", namespace, DNS_LABEL)
    return request.objects


def _check_manifest(where: str, manifest: Raw, kinds: Mapping[tuple[str, str], Kind[Any]]) -> None:
    version, kind, metadata = manifest.get("apiVersion"), manifest.get("kind"), manifest.get("metadata")
    if not isinstance(version, str) or not isinstance(kind, str) or (version, kind) not in kinds:
        raise bad_request(f"{where}: {_name_of(version, kind)} cannot be planned: {_names_of(kinds)} can")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise bad_request(f"{where}.metadata.name: expected the name of the object")
    _check_name(f"{where}.metadata.name", metadata["name"])
    if not isinstance(manifest.get("spec", {}), dict):
        raise bad_request(f"{where}.spec: expected an object")


def _check_operation(where: str, manifest: Raw) -> None:
    """Raise RequestRejected (422) for fields of the wrong type, which no plan can be made of."""
    try:
        OperationKind(decoded(manifest).spec.operation_kind)
    except (msgspec.ValidationError, ValueError) as error:
        raise RequestRejected(422, "Invalid", f"{where}: {error}") from error


def _patch(where: str, request: PatchRequest) -> IntentPatch:
    kind = _PATCHABLE.get((request.api_version, request.kind))
    if kind is None:
        asked = _name_of(request.api_version, request.kind)
        raise bad_request(f"{where}: {asked} cannot be planned: {_names_of(_PATCHABLE)} can")
    if kind is CONFIG_MAPS and (request.namespace, request.name) != (NAMESPACE, CONFIGMAP_OPERATIONS):
        raise bad_request(f"{where}: the only ConfigMap is {CONFIGMAP_OPERATIONS} in namespace {NAMESPACE}")
    if kind is not CONFIG_MAPS and request.namespace:
        raise bad_request(f"{where}.namespace: {kind.kind} is in no namespace")
    _check_name(f"{where}.name", request.name)
    return IntentPatch(kind, request.name, request.patch, status=request.status, namespace=request.namespace)


def _name_of(version: object, kind: object) -> str:
    return f"kind {kind!r} of apiVersion {version!r}"[:LONGEST_NAME]


def _names_of(kinds: Mapping[tuple[str, str], Kind[Any]]) -> str:
    return ", ".join(f"{kind} ({version})" for version, kind in kinds)
