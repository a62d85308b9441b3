"""The parts that every Kubernetes object shares, and `Kind`: the path of a resource, and the type that decodes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Generic, TypeVar, cast

from unbounded.api.fields import (
    CONDITION_REASON,
    CONDITION_TYPE,
    MAX_REASON,
    ApiStruct,
    Field,
    LabelKey,
    LabelValue,
    Message,
    ObjectName,
    Time,
)

T = TypeVar("T")


class OwnerReference(ApiStruct, frozen=True, kw_only=True):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(ApiStruct, frozen=True, kw_only=True):
    """metadata of an object, without managedFields (they are dropped on decode)."""

    name: str = ""
    generate_name: str | None = None
    namespace: str | None = None
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class Condition(ApiStruct, frozen=True, kw_only=True):
    """One aspect of the current state of the object, as metav1.Condition has it."""

    type: Annotated[
        str,
        Field("CamelCase, or foo.example.com/CamelCase; one entry for each type.", CONDITION_TYPE, max_length=316),
    ]
    status: Annotated[str, Field("True, False or Unknown.", enum=("True", "False", "Unknown"))]
    reason: Annotated[
        str,
        Field("Cause of the status, in CamelCase.", CONDITION_REASON, min_length=1, max_length=MAX_REASON),
    ]
    message: Annotated[Message, Field("Details for users; may be empty.")] = ""
    last_transition_time: Annotated[Time, Field("When the status last changed from one value to another.")]
    reason_transition_time: Annotated[
        Time | None,
        Field("Time of the last change of the reason; absent if it changed with the status, at lastTransitionTime."),
    ] = None
    observed_generation: Annotated[
        int | None, Field("metadata.generation of the object at the time of the observation.", minimum=0)
    ] = None

    @property
    def since(self) -> str:
        """Return the begin of the condition's cause, RFC 3339: the last change of status or reason."""
        return self.reason_transition_time or self.last_transition_time


class LabelSelectorRequirement(ApiStruct, frozen=True, kw_only=True):
    """One requirement on the value of one label."""

    key: Annotated[LabelKey, Field("Label key that the requirement applies to.")]
    operator: Annotated[
        str,
        Field("Relation of the label's value to the values.", enum=("In", "NotIn", "Exists", "DoesNotExist")),
    ]
    values: Annotated[
        tuple[LabelValue, ...],
        Field("At least one for In and NotIn; none for Exists and DoesNotExist.", max_items=64),
    ] = ()


class LabelSelector(ApiStruct, frozen=True, kw_only=True):
    """Objects by their labels; matchLabels and matchExpressions have to hold together."""

    match_labels: Annotated[dict[str, LabelValue], Field("Labels with the exact values that an object must have.")] = {}
    match_expressions: Annotated[
        tuple[LabelSelectorRequirement, ...], Field("Requirements that an object must meet.", max_items=32)
    ] = ()


class LocalObjectReference(ApiStruct, frozen=True, kw_only=True):
    """An object whose kind and namespace follow from the referring field."""

    name: Annotated[ObjectName, Field("Name of the object.")]


class Object(ApiStruct, frozen=True, kw_only=True):
    """The base of all API objects; the kinds below add spec, status or data."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()

    @property
    def name(self) -> str:
        return self.metadata.name


@dataclass(frozen=True)
class Kind(Generic[T]):
    """One resource of the API: its path, its names, and the type that its objects decode into.

    With `dict` as `type`, objects are plain JSON with every field that the server knows.
    """

    group: str
    version: str
    kind: str
    plural: str
    type: type[T]
    namespaced: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, name: str = "", *, namespace: str = "", subresource: str = "") -> str:
        """Return the URL path of the collection, or of one object or its subresource."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return "/".join(part for part in (f"{root}{scope}/{self.plural}", name, subresource) if part)

    def raw(self) -> Kind[dict[str, Any]]:
        """Return the same resource, decoded as plain JSON: for lists that are written back whole."""
        return cast("Kind[dict[str, Any]]", replace(self, type=cast("type[T]", dict)))
