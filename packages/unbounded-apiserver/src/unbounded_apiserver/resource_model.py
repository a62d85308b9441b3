"""Resources as the server sees them, the protocol of built-in and custom types, and conversion of versions.

An object is stored in one version and converted to the requested one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from unbounded_apiserver import name_validation
from unbounded_apiserver.collection import StoredObject
from unbounded_apiserver.managed_fields.merge import ObjectKind
from unbounded_apiserver.metadata import encode
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.status import qualified
from unbounded_apiserver.store import Store
from unbounded_apiserver.type_descriptors import StructType

Object = dict[str, Any]

ALL_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
STATUS_VERBS: Final = ("get", "patch", "update")
SCALE: Final = "scale"


@dataclass(frozen=True)
class TableColumn:
    """A column of a Table. `path` is a JSONPath of the object, or `cell` computes the value."""

    name: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0
    cell: Callable[[Mapping[str, Any]], Any] | None = None
    path: str = ""


class ResourceType(Protocol):
    """The behaviour of one type. Methods change the object that they get, in place."""

    @property
    def generation(self) -> bool:
        """True if metadata.generation counts changes of the desired state."""
        ...

    @property
    def name_check(self) -> name_validation.Check: ...

    @property
    def unconditional_update(self) -> bool:
        """True if a PUT may leave out the resourceVersion."""
        ...

    @property
    def create_on_update(self) -> bool:
        """True if a PUT of an object that does not exist creates it."""
        ...

    @property
    def shape(self) -> StructType | None:
        """The shape with the merge keys of strategic merge patches; None rejects such patches."""
        ...

    @property
    def tracks_owners(self) -> bool:
        """True if field owners are recorded from the creation on, False if from the first server-side apply."""
        ...

    @property
    def merge_fields(self) -> ObjectKind:
        """The rules by which server-side apply merges objects, and the paths of their field owners."""
        ...

    def empty(self) -> Object:
        """Return the fields of an object to which a client has given nothing."""
        ...

    def decode(self, obj: Object) -> list[str]:
        """Bring a client's object into the type's form; return the paths of unknown fields.

        Raises:
            shapes.WrongType: a field has the wrong type.
        """
        ...

    def default(self, obj: Object) -> None:
        """Fill in absent fields, after `decode`."""
        ...

    def prepare(self, obj: Object, old: Object | None) -> None:
        """Set the server's fields of a created object (`old` is None) or an updated one."""
        ...

    def advise(self, obj: Object) -> list[str]:
        """Return warnings about an object that is accepted."""
        ...

    def validate(
        self,
        obj: Object,
        old: Object | None,
        warnings: list[str] | None = None,
        others: Sequence[FieldError] = (),
    ) -> list[FieldError]:
        """Return the errors of an object without its metadata.

        Args:
            warnings: takes errors that the old object had too.
            others: the errors of the metadata, some of which keep rules from running.
        """
        ...


def _no_rules(_obj: Object, _old: Object) -> list[FieldError]:
    return []


@dataclass(frozen=True)
class Subresource:
    """A subresource of stored objects that shows the whole object and allows changes of a part.

    `prepare` completes the client's object, in place, to the one that is stored over the old object at this time.
    `rules` return its errors beyond those of the type's rules.
    """

    prepare: Callable[[Object, Object, datetime], None]
    verbs: tuple[str, ...] = STATUS_VERBS
    rules: Callable[[Object, Object], list[FieldError]] = _no_rules


def keep_all_but_status(obj: Object, old: Object, _now: datetime) -> None:
    """Keep all but the status, for the status subresource of built-in types; metadata may change, as in Kubernetes."""
    status, meta = obj.get("status"), obj["metadata"]
    obj.clear()
    obj.update({**old, "metadata": meta})
    obj.pop("status", None)
    if status is not None:
        obj["status"] = status


@dataclass(frozen=True)
class ResourceView:
    """A resource's view of the objects of another resource, which stores them. Both functions return a new object."""

    source: Resource
    from_stored: Callable[[Object], Object]
    to_stored: Callable[[Object], Object]


@dataclass(frozen=True)
class ScalePaths:
    """The paths of an object's replicas, desired and present, and of the selector of their labels; '' for none."""

    spec: str
    status: str
    selector: str = ""


STATUS: Final[Mapping[str, Subresource]] = {"status": Subresource(keep_all_but_status)}


@dataclass(frozen=True)
class ProxiedSubresource:
    """A subresource that a kubelet serves.

    Args:
        kind: the kind in discovery.
        passes: the rest of the URL is a path on the kubelet.
    """

    kind: str
    verbs: tuple[str, ...]
    passes_path: bool = False


@dataclass(frozen=True, eq=False)
class Resource:
    """One resource in one version, as it is served."""

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    namespaced: bool
    type: ResourceType
    list_kind: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: Mapping[str, Subresource] = field(
        default_factory=dict
    )  # subresources that are stored with the object
    scale: ScalePaths | None = None  # a subresource that shows the replicas of each object as a Scale
    storage_version: str = ""
    stored_type: ResourceType | None = None  # the type of the stored version, where it is another one
    selectable: Mapping[str, str] = field(default_factory=dict)  # field of a selector: dotted path in the object
    columns: tuple[TableColumn, ...] = ()
    custom: bool = False
    deprecation: str = ""
    schema: Mapping[str, Any] | None = None  # the OpenAPI schema of custom types
    transient: Mapping[str, Resource] = field(default_factory=dict)  # subresources that are created and not stored
    proxied: Mapping[str, ProxiedSubresource] = field(default_factory=dict)  # subresources that a kubelet serves
    accepting: bool = True  # False while its definition is being deleted
    # returns the grace period of a deletion in seconds; None: no grace
    grace: Callable[[Object, int | None], int] | None = None
    view: ResourceView | None = None  # of another resource's objects
    shows_deleted: bool = False  # whether a deletion returns the object even when it is gone

    @cached_property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @cached_property
    def changed_by(self) -> Mapping[str, tuple[str, ...]]:
        """The subresources that show or change stored objects, with their verbs."""
        scale = {} if self.scale is None else {SCALE: STATUS_VERBS}
        return {name: part.verbs for name, part in self.subresources.items()} | scale

    @cached_property
    def stored_as(self) -> str:
        """The apiVersion of stored objects."""
        if self.view is not None:
            return self.view.source.stored_as
        return f"{self.group}/{self.storage_version or self.version}" if self.group else self.version

    @cached_property
    def name(self) -> str:
        """The name of the resource in the store for all versions, such as `widgets.example.com`."""
        return qualified(self.plural, self.group) if self.view is None else self.view.source.name

    @cached_property
    def prefix(self) -> bytes:
        """The first bytes of an object's JSON in this version (see metadata.encode)."""
        return b'{"apiVersion":"%b","kind":"%b",' % (self.api_version.encode(), self.kind.encode())

    def key(self, namespace: str, name: str) -> str:
        return f"{namespace}/{name}" if self.namespaced else name


class ResourcePath(NamedTuple):
    """A resource's collection (`name` is ''), one of its objects, or a subresource of that.

    Args:
        resource: None when the group is served and the resource is not.
        rest: the path after a subresource that passes it on, as the client encoded it; begins with a slash or is ''.
    """

    resource: Resource | None
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    watch: bool = False
    rest: str = ""


def served_body(resource: Resource, body: bytes) -> bytes:
    """Return stored JSON in the resource's version; usually the same bytes."""
    if body.startswith(resource.prefix):
        return body
    return msgspec.json.encode(_converted(resource, msgspec.json.decode(body)))


def decode_stored(resource: Resource, record: StoredObject) -> Object:
    """Return a fresh copy of a stored object, in the resource's version, without managedFields."""
    obj = record.decode()
    return obj if obj["apiVersion"] == resource.api_version else _converted(resource, obj)


def _converted(resource: Resource, obj: Object) -> Object:
    if resource.view is not None:
        obj = resource.view.from_stored(obj)
    obj["apiVersion"] = resource.api_version
    resource.type.decode(obj)
    resource.type.default(obj)
    return obj


def without_kind(resource: Resource, body: bytes) -> bytes:
    """Return an item of a list of built-in objects, which does not repeat apiVersion and kind."""
    return b"{" + body[len(resource.prefix) :] if body.startswith(resource.prefix) else body


def to_stored(resource: Resource, obj: Object) -> None:
    """Convert an object to its stored version, in place; fields unknown there are left out."""
    if resource.view is not None:
        stored = resource.view.to_stored(obj)
        obj.clear()
        obj.update(stored)
    obj["apiVersion"] = resource.stored_as
    if resource.stored_type is not None:
        resource.stored_type.decode(obj)


def is_stored_version(resource: Resource, record: StoredObject) -> bool:
    """Return whether the object's stored version is the one that a write would use now."""
    return record.bare.startswith(b'{"apiVersion":"%b"' % resource.stored_as.encode())


def decode_again(store: Store, resource: str, types: Mapping[str, ResourceType]) -> None:
    """Decode objects that were stored under an older schema with the present one, without writing them.

    Args:
        types: by apiVersion; each object is decoded by the version in which it is stored.
    """
    for record in list(store.snapshot(resource).with_prefix("")):
        obj, before = record.decode(), record.decode()
        if (known := types.get(obj["apiVersion"])) is None:
            continue
        known.decode(obj)
        known.default(obj)
        if obj != before:
            bare = encode(obj, record.revision)
            store.replace_in_place(resource, StoredObject(record.key, record.revision, bare, record.owners))
