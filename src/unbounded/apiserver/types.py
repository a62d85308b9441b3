"""What the registry needs to know of a resource, and the protocol that built-in and custom types meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final, Protocol

from unbounded.apiserver import naming
from unbounded.apiserver.managed.typed import Fields
from unbounded.apiserver.schema import FieldError
from unbounded.apiserver.shapes import Struct
from unbounded.apiserver.status import qualified

Object = dict[str, Any]

ALL_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
STATUS_VERBS: Final = ("get", "patch", "update")


@dataclass(frozen=True)
class Column:
    """A column of a Table. `path` is a JSONPath of the object, or `cell` computes the value."""

    name: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0
    cell: Callable[[Mapping[str, Any]], Any] | None = None
    path: str = ""


class Type(Protocol):
    """What makes one type different from others. Methods change the object that they get, in place."""

    @property
    def generation(self) -> bool:
        """Whether metadata.generation counts changes of the desired state."""
        ...

    @property
    def name_check(self) -> naming.Check: ...

    @property
    def unconditional_update(self) -> bool:
        """Whether a PUT may leave out the resourceVersion."""
        ...

    @property
    def create_on_update(self) -> bool:
        """Whether a PUT of an object that does not exist creates it."""
        ...

    @property
    def shape(self) -> Struct | None:
        """The merge keys of strategic merge patches; None refuses them."""
        ...

    @property
    def tracked(self) -> bool:
        """Whether owners of fields are noted from the creation on, and not from the first server-side apply."""
        ...

    @property
    def merging(self) -> Fields:
        """How server-side apply merges objects, and by which paths their fields are owned."""
        ...

    def empty(self) -> Object:
        """What an object holds without being told."""
        ...

    def decode(self, obj: Object) -> list[str]:
        """Bring a client's object into the type's form; the paths of fields that it does not know.

        Raises:
            shapes.WrongType: a field has the wrong type.
        """
        ...

    def default(self, obj: Object) -> None:
        """Fill in what was left out; after `decode`."""
        ...

    def prepare(self, obj: Object, old: Object | None) -> None:
        """What the server decides when the object is created (`old` is None) or updated."""
        ...

    def advise(self, obj: Object) -> list[str]:
        """What the client is warned of, though the object is accepted."""
        ...

    def validate(self, obj: Object, old: Object | None, warnings: list[str] | None = None) -> list[FieldError]:
        """What is wrong with the object, metadata apart; `warnings` takes what is wrong and was so before."""
        ...


def _no_rules(_obj: Object, _old: Object) -> list[FieldError]:
    return []


@dataclass(frozen=True)
class Part:
    """A subresource of stored objects that shows the whole object and lets a part of it change.

    `prepare` brings what was sent, in place, to what may be stored over the old object at this time; `rules` say what
    is wrong with that beside the rules of the type.
    """

    prepare: Callable[[Object, Object, datetime], None]
    verbs: tuple[str, ...] = STATUS_VERBS
    rules: Callable[[Object, Object], list[FieldError]] = _no_rules


def keep_all_but_status(obj: Object, old: Object, _now: datetime) -> None:
    """What the status subresource of built-in types does: metadata may change with it, as in Kubernetes."""
    status, meta = obj.get("status"), obj["metadata"]
    obj.clear()
    obj.update({**old, "metadata": meta})
    obj.pop("status", None)
    if status is not None:
        obj["status"] = status


@dataclass(frozen=True)
class View:
    """How a resource shows the objects of another one, as which they are stored. Both functions return a new object."""

    of: Resource
    shown: Callable[[Object], Object]
    stored: Callable[[Object], Object]


STATUS: Final[Mapping[str, Part]] = {"status": Part(keep_all_but_status)}


@dataclass(frozen=True)
class Proxied:
    """A subresource that a kubelet answers.

    Args:
        kind: what discovery shows.
        passes: a path of the kubelet's follows in the URL.
    """

    kind: str
    verbs: tuple[str, ...]
    passes: bool = False


@dataclass(frozen=True, eq=False)
class Resource:
    """One resource in one version, as it is served."""

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    namespaced: bool
    type: Type
    list_kind: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    parts: Mapping[str, Part] = field(default_factory=dict)  # subresources that are stored with the object
    storage_version: str = ""
    stored_type: Type | None = None  # that of the version in which objects are stored, where it is another one
    selectable: Mapping[str, str] = field(default_factory=dict)  # field of a selector: dotted path in the object
    columns: tuple[Column, ...] = ()
    custom: bool = False
    deprecation: str = ""
    schema: Mapping[str, Any] | None = None  # the OpenAPI schema of custom types
    asked: Mapping[str, Resource] = field(default_factory=dict)  # subresources that are created and not stored
    proxied: Mapping[str, Proxied] = field(default_factory=dict)  # subresources that a kubelet answers
    accepting: bool = True  # False while its definition is being deleted
    grace: Callable[[Object, int | None], int] | None = None  # seconds that a deletion leaves an object; None: none
    view: View | None = None  # of another resource's objects
    shows_deleted: bool = False  # whether a deletion answers the object even when it is gone

    @cached_property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @cached_property
    def stored_as(self) -> str:
        """The apiVersion of stored objects."""
        if self.view is not None:
            return self.view.of.stored_as
        return f"{self.group}/{self.storage_version or self.version}" if self.group else self.version

    @cached_property
    def name(self) -> str:
        """The resource across versions, such as `widgets.example.com`: what the store knows."""
        return qualified(self.plural, self.group) if self.view is None else self.view.of.name

    @cached_property
    def prefix(self) -> bytes:
        """How the JSON of an object in this version begins (see metadata.encode)."""
        return b'{"apiVersion":"%b","kind":"%b",' % (self.api_version.encode(), self.kind.encode())

    def key(self, namespace: str, name: str) -> str:
        return f"{namespace}/{name}" if self.namespaced else name
