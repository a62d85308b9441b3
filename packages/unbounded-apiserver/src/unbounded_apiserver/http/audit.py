"""The audit log: the user, the request and the result of each. Bodies and headers, hence secrets, are never logged."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from unbounded.kube.logs import Log
from unbounded_apiserver import metadata
from unbounded_apiserver.auth import AuthAttributes, User

LIMIT_BYTES: Final = 64 * 2**20  # of one file; one older file is kept
CLOSED: Final = -1
REFERENCES: Final = 256  # cached references without names
READS: Final = frozenset({"get", "list", "watch", "head"})
REFUSED: Final = frozenset({401, 403})
CONNECTING: Final = frozenset({"attach", "exec", "portforward"})  # subresources on which a GET does more than read
STARTED: Final = "ResponseStarted"  # the stage of an upgraded connection when it begins
COMPLETE: Final = "ResponseComplete"
SECRET: Final = frozenset({"secrets"})  # resources whose reads are logged too

log = Log(__name__)


def is_logged(method: str, attributes: AuthAttributes | None, code: int, *, impersonates: bool) -> bool:
    """Return whether a request is logged: writes, denials, connections into Pods, impersonation, reads of Secrets."""
    if code in REFUSED or impersonates:
        return True
    verb = attributes.verb if attributes is not None else method.lower()
    if verb not in READS or attributes is None:
        return verb not in READS
    return attributes.resource in SECRET or attributes.subresource in CONNECTING


class AuditEntry(msgspec.Struct, frozen=True):
    """One request. `sender` sent it, `user` is the impersonated user; `code` is 0 if there was no answer.

    `annotations` come from admission policies.
    """

    method: str
    uri: str
    sender: User
    user: User
    attributes: AuthAttributes | None
    code: int
    source: str
    agent: str
    annotations: Mapping[str, str]
    stage: str = COMPLETE


class AuditLog:
    """A file of JSON lines, readable by its owner alone, as kube-apiserver writes them (audit.k8s.io/v1, level
    Metadata).
    """

    def __init__(self, path: Path, now: Callable[[], datetime], *, limit: int = LIMIT_BYTES) -> None:
        self._path = path
        self._now = now
        self._limit = limit
        self._failing = False
        self._file = self._open()

    def append(self, entry: AuditEntry) -> None:
        """Append an entry. A full disk stops no request: it is logged once, and entries are lost."""
        if self._file == CLOSED:
            return
        line = msgspec.json.encode(_event(entry, metadata.format_time(self._now()))) + b"\n"
        try:
            self._size += os.write(self._file, line)
            if self._size > self._limit:
                self._rotate()
        except OSError as error:
            if not self._failing:
                log.warning("cannot write the audit log", error=error, path=str(self._path))
            self._failing = True
        else:
            self._failing = False

    def close(self) -> None:
        """Close the file. Later entries are dropped, as another file may have its descriptor by then."""
        os.close(self._file)
        self._file = CLOSED

    def _rotate(self) -> None:
        self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        old, self._file = self._file, self._open()
        os.close(old)

    def _open(self) -> int:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(file).st_size
        return file


def _event(entry: AuditEntry, at: str) -> dict[str, Any]:
    attributes = entry.attributes
    event: dict[str, Any] = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "stage": entry.stage,
        "requestURI": entry.uri,
        "verb": attributes.verb if attributes is not None else entry.method.lower(),
        "user": entry.sender.info_json,
        "sourceIPs": [entry.source],
        "userAgent": entry.agent,
        "responseStatus": {"code": entry.code},
        "stageTimestamp": at,
    }
    if entry.user is not entry.sender:
        event["impersonatedUser"] = entry.user.info_json
    if attributes is not None and not attributes.path:
        event["objectRef"] = _of_one(attributes) if attributes.name else _of_many(attributes)
    if entry.annotations:
        event["annotations"] = dict(entry.annotations)
    return event


def _of_one(attributes: AuthAttributes) -> msgspec.Raw:
    named = {
        "resource": attributes.resource,
        "namespace": attributes.namespace,
        "name": attributes.name,
        "apiGroup": attributes.group,
        "subresource": attributes.subresource,
    }
    return msgspec.Raw(msgspec.json.encode({key: value for key, value in named.items() if value}))


_of_many: Final = lru_cache(maxsize=REFERENCES)(_of_one)
