"""The stored form of metadata.managedFields: apart from the object, and shared.

Thousands of objects that the same managers wrote differ only in the time of each entry. The common part is in memory
once, as the bytes of answers, so that most writes neither decode nor encode it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import msgspec

APPLY: Final = "Apply"
UPDATE: Final = "Update"
FIELDS_V1: Final = "FieldsV1"
COMMON_BYTES: Final = 4096  # larger sets are seldom common to many objects, and not worth the memory of a cache
KNOWN_SHARES: Final = 4096
KNOWN_TIMES: Final = 1024

_MANAGED: Final = b',"managedFields":['
_REVISION: Final = b'"resourceVersion":"'  # its first mention is that of metadata (see metadata.encode)
_FIELDS: Final = b'"fieldsType":"%b","fieldsV1":' % FIELDS_V1.encode()
_encode: Final = msgspec.json.Encoder().encode

Object = dict[str, Any]


class FieldManager(msgspec.Struct, frozen=True):
    """A writer, identified by all of these fields; appliers have no `api_version` of their own."""

    name: str
    operation: str
    subresource: str = ""
    api_version: str = ""

    def described(self) -> str:
        """The name in conflicts."""
        text = _encode(self.name).decode()
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return f"{text} using {self.api_version}" if self.operation == UPDATE else text


@dataclass(frozen=True, eq=False, slots=True)
class EncodedEntry:
    """The fields that one manager owns in an object, as JSON around the time."""

    manager: FieldManager
    version: str
    head: bytes
    tail: bytes

    @property
    def fields(self) -> bytes:
        """The set of its fields (FieldsV1), with the keys in order."""
        return self.tail[len(_FIELDS) : len(self.tail) - len(_end(self.manager))]

    def shown(self, time: bytes) -> bytes:
        """Return an item of metadata.managedFields."""
        return b'%b"time":"%b",%b' % (self.head, time, self.tail) if time else self.head + self.tail


def encoded_entry(manager: FieldManager, version: str, fields: bytes) -> EncodedEntry:
    """Return the shared instance if it is small and used often enough, else a new one."""
    return _known(manager, version, fields) if len(fields) <= COMMON_BYTES else _made(manager, version, fields)


def _made(manager: FieldManager, version: str, fields: bytes) -> EncodedEntry:
    who: Object = {"manager": manager.name} if manager.name else {}
    head = _encode(who | {"operation": manager.operation, "apiVersion": version})
    return EncodedEntry(manager, version, head[:-1] + b",", _FIELDS + fields + _end(manager))


_known: Final = lru_cache(maxsize=KNOWN_SHARES)(_made)


def _end(manager: FieldManager) -> bytes:
    return b',"subresource":%b}' % _encode(manager.subresource) if manager.subresource else b"}"


@lru_cache(maxsize=KNOWN_TIMES)
def encode_time(time: str) -> bytes:
    """Return the time of an entry; one instance for all entries of one second."""
    return time.encode()


@lru_cache(maxsize=KNOWN_SHARES)
def _once(shares: tuple[EncodedEntry, ...]) -> tuple[EncodedEntry, ...]:
    """Return the shared instance: most objects of a kind have the same owners."""
    return shares


@lru_cache(maxsize=KNOWN_TIMES)
def _encoded(shares: tuple[EncodedEntry, ...], times: tuple[bytes, ...]) -> bytes:
    """Return the encoded owners, shared by objects that were written in the same second."""
    return b",".join([share.shown(time) for share, time in zip(shares, times, strict=True)])


class ManagedFields:
    """All entries of an object in the order of answers, each with its time (empty if unknown)."""

    __slots__ = ("entries", "times")

    def __init__(self, shares: Sequence[EncodedEntry], times: Sequence[bytes]) -> None:
        self.entries = _once(tuple(shares))
        self.times = tuple(times)

    @staticmethod
    def of(entries: Iterable[tuple[EncodedEntry, bytes]]) -> ManagedFields:
        """Sort entries as Kubernetes does: appliers first, then by time, name, version and subresource."""
        keyed = [(*_rank(share, time), at, share) for at, (share, time) in enumerate(entries)]
        keyed.sort()
        return ManagedFields([key[-1] for key in keyed], [key[1] for key in keyed]) if keyed else NO_OWNERS

    def __bool__(self) -> bool:
        return bool(self.entries)

    @property
    def size(self) -> int:
        """The size of the items of managedFields in bytes."""
        return len(self.encode())

    def encode(self) -> bytes:
        """Return the items of metadata.managedFields, without the brackets around them."""
        return _encoded(self.entries, self.times)

    def shown(self) -> list[Object]:
        """Return metadata.managedFields."""
        items: list[Object] = msgspec.json.decode(b"[%b]" % self.encode())
        return items

    def equal_but_times(self, other: ManagedFields) -> bool:
        """Return whether the owners are equal except for times."""
        if self.entries == other.entries:
            return True
        mine, theirs = ([(s.head, s.tail) for s in o.entries] for o in (self, other))
        return mine == theirs


def _rank(share: EncodedEntry, time: bytes) -> tuple[str, bytes, str, str, str]:
    manager = share.manager
    return manager.operation, time, manager.name, share.version, manager.subresource


NO_OWNERS: Final = ManagedFields((), ())


@lru_cache(maxsize=KNOWN_TIMES)
def single_owner(share: EncodedEntry, time: bytes) -> ManagedFields:
    """Return the one owner of an object; one instance for all objects that it created in one second."""
    return ManagedFields((share,), (time,))


def join_body(bare: bytes, owners: ManagedFields) -> bytes:
    """Return the JSON of a stored object with its managedFields, which follow the resourceVersion."""
    if not owners.entries:
        return bare
    at = _behind_revision(bare)
    return b"%b%b%b]%b" % (bare[:at], _MANAGED, owners.encode(), bare[at:])


def split_body(body: bytes) -> tuple[bytes, ManagedFields]:
    """Split the result of `join_body` into its parts."""
    start = _behind_revision(body) if _REVISION in body else 0
    if not body.startswith(_MANAGED, start):
        return body, NO_OWNERS
    given = _whole.decode(body).metadata.managed_fields
    items = _items.decode(given)
    shares = [encoded_entry(_manager(item), item.version, bytes(item.fields)) for item in items]
    rest = body[start + len(_MANAGED) - 1 + len(bytes(given)) :]
    return body[:start] + rest, ManagedFields(shares, [encode_time(item.time) for item in items])


def _behind_revision(body: bytes) -> int:
    return body.index(b'"', body.index(_REVISION) + len(_REVISION)) + 1


class _Metadata(msgspec.Struct, rename="camel"):
    managed_fields: msgspec.Raw


class _Whole(msgspec.Struct):
    metadata: _Metadata


class _Item(msgspec.Struct, rename={"fields": "fieldsV1", "version": "apiVersion"}):
    operation: str
    fields: msgspec.Raw
    manager: str = ""
    version: str = ""
    time: str = ""
    subresource: str = ""


_whole: Final = msgspec.json.Decoder(_Whole)
_items: Final = msgspec.json.Decoder(list[_Item])


def _manager(item: _Item) -> FieldManager:
    return FieldManager(item.manager, item.operation, item.subresource, "" if item.operation == APPLY else item.version)
