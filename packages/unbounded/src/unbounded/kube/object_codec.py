"""Codec between objects and the bytes of an API server: lists, watch frames and Status objects. No sockets."""

from __future__ import annotations

import functools
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from unbounded.api.meta import Kind, Object
from unbounded.kube import api
from unbounded.kube.logs import Log

T = TypeVar("T")

LINE_BYTES: Final = 64 * 1024 * 1024  # a frame beyond this is refused; an object of etcd has at most 1.5 MiB
INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"

_BY_CODE: Final[dict[int, type[api.ApiError]]] = {
    400: api.InvalidObject,
    401: api.Forbidden,
    403: api.Forbidden,
    404: api.NotFound,
    409: api.Conflict,
    410: api.Expired,
    422: api.InvalidObject,
    429: api.ServerBusy,
    503: api.ServerBusy,
}

log = Log(__name__)


class ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    # `continue` is a word of Python
    next_page: str = msgspec.field(name="continue", default="")


class ListPage(msgspec.Struct, Generic[T]):
    """One page of a list."""

    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[T] | None = None


class _Frame(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _BookmarkMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _Bookmark(msgspec.Struct):
    metadata: _BookmarkMeta


class LineSplitter:
    """Chunks in, whole lines out."""

    def __init__(self, limit: int = LINE_BYTES) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes, without their ends; what it begins is kept for the next.

        Raises:
            ReadFailed: a line is longer than the limit.
        """
        head, newline, rest = chunk.partition(b"\n")
        self._parts.append(head)
        self._size += len(head)
        if self._size > self._limit:
            raise api.ReadFailed(f"a line of the watch has more than {self._limit} bytes")
        if not newline:
            return []
        lines = [b"".join(self._parts), *rest.split(b"\n")]
        self._parts = [lines.pop()]
        self._size = len(self._parts[0])
        return [line for line in lines if line]


@functools.lru_cache(maxsize=256)
def _decoder(to: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(to)


def decode(kind: Kind[T], raw: bytes | msgspec.Raw) -> T:
    """One object; managedFields, which only server-side apply needs, are dropped.

    Raises:
        ReadFailed: it is no such object.
    """
    try:
        to: Any = kind.type
        item: T = _decoder(to).decode(raw)
        return _complete(kind, item)
    except msgspec.DecodeError as error:  # a ValidationError is one too
        raise api.ReadFailed(f"{kind.kind}: unexpected content: {error}") from error


def decode_page(kind: Kind[T], raw: bytes) -> tuple[list[T], ListMeta]:
    """One page of a list. An object that does not fit the kind's type is logged and left out.

    Raises:
        ReadFailed: it is no list.
    """
    try:
        page = _decoder(cast("Any", ListPage)[kind.type]).decode(raw)
        return [_complete(kind, item) for item in page.items or ()], page.metadata
    except msgspec.DecodeError:
        return _decode_one_by_one(kind, raw)


def _decode_one_by_one(kind: Kind[T], raw: bytes) -> tuple[list[T], ListMeta]:
    try:
        page = _decoder(ListPage[msgspec.Raw]).decode(raw)
    except msgspec.DecodeError as error:
        raise api.ReadFailed(f"list of {kind.plural}: unexpected content: {error}") from error
    items: list[T] = []
    for item in page.items or ():
        try:
            items.append(decode(kind, item))
        except api.ReadFailed as error:
            _log_invalid(kind, error)
    return items, page.metadata


def decode_frame(kind: Kind[T], line: bytes) -> api.WatchEvent[T] | None:
    """Decode one line of a watch; return None for an object that does not fit the kind's type (it is logged).

    Raises:
        Expired, another ApiError: the line is an ERROR frame.
        ReadFailed: the line is no frame.
    """
    try:
        frame = _decoder(_Frame).decode(line)
        if frame.type == api.EventType.BOOKMARK:
            meta = _decoder(_Bookmark).decode(frame.object).metadata
            synced = (meta.annotations or {}).get(INITIAL_EVENTS_END) == "true"
            return api.WatchEvent(api.EventType.BOOKMARK, None, meta.resource_version, synced=synced)
        if frame.type == "ERROR":
            raise error_from(bytes(frame.object), code=0, writing=False)
        type_ = api.EventType(frame.type)
    except (msgspec.DecodeError, ValueError) as error:
        raise api.ReadFailed(f"watch of {kind.plural}: unexpected content: {error}") from error
    try:
        item = decode(kind, frame.object)
    except api.ReadFailed as error:
        _log_invalid(kind, error)
        return None
    return api.WatchEvent(type_, item, api.identify(item).version)


def _log_invalid(kind: Kind[Any], error: api.ReadFailed) -> None:
    log.error("ignored object that cannot be decoded", kind=kind.kind, error=str(error))


def _complete(kind: Kind[T], item: T) -> T:
    """Servers leave apiVersion and kind out of the items of built-in lists; fill them in on a fresh object."""
    if isinstance(item, Object):
        if not item.kind:
            msgspec.structs.force_setattr(item, "kind", kind.kind)
            msgspec.structs.force_setattr(item, "api_version", kind.api_version)
    elif isinstance(item, dict):
        item.setdefault("apiVersion", kind.api_version)
        item.setdefault("kind", kind.kind)
        if isinstance(item.get("metadata"), dict):
            item["metadata"].pop("managedFields", None)
    return item


def error_from(body: bytes, *, code: int, writing: bool, what: str = "") -> api.ApiError:
    """Return the error for an answer that is not a success.

    Args:
        body: a Status object, or the text of a proxy in its place.
        code: the HTTP status; 0 to take the Status object's own.
        writing: whether the request may have changed something.
        what: names the request, for an answer without a message.
    """
    status = _status(body)
    code = code or int(status.get("code") or 500)
    reason = str(status.get("reason") or "")
    message = str(status.get("message") or "") or body[:200].decode("utf-8", "replace").strip() or f"HTTP {code}"
    kind: type[api.ApiError]
    if code == 409 and reason == "AlreadyExists":
        kind = api.AlreadyExists
    elif code == 429 and _has_cause(status, "DisruptionBudget"):
        kind = api.EvictionBlocked
    elif code in _BY_CODE:
        kind = _BY_CODE[code]
    elif code < 500:
        kind = api.InvalidObject
    else:
        kind = api.ServerError if writing else api.ReadFailed
    return kind(
        message if status else f"{what}: {message}" if what else message, code=code, reason=reason, status=status
    )


def _has_cause(status: dict[str, Any], reason: str) -> bool:
    causes = (status.get("details") or {}).get("causes") or ()
    return any(cause.get("reason") == reason for cause in causes)


def _status(body: bytes) -> dict[str, Any]:
    try:
        status = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {}
    return status if isinstance(status, dict) and status.get("kind") == "Status" else {}
