"""The parts that every Kubernetes object shares."""

from unbounded.api.base import ApiStruct


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
    """metav1.Condition: `status` is True, False or Unknown; `reason` is CamelCase."""

    type: str
    status: str
    reason: str
    message: str = ""
    last_transition_time: str
    observed_generation: int | None = None


class LabelSelectorRequirement(ApiStruct, frozen=True, kw_only=True):
    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(ApiStruct, frozen=True, kw_only=True):
    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class LocalObjectReference(ApiStruct, frozen=True, kw_only=True):
    name: str


class Object(ApiStruct, frozen=True, kw_only=True):
    """What every API object has; the kinds below add spec, status or data."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
