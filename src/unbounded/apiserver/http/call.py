"""One parsed request, and the form of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

import msgspec
from aiohttp import web

from unbounded.apiserver.auth import ANONYMOUS, UNAUTHENTICATED, AuthAttributes, AuthChain, RequestCredentials, User
from unbounded.apiserver.http.audit import COMPLETE, Entry
from unbounded.apiserver.http.connection import Connection
from unbounded.apiserver.http.heads import Said
from unbounded.apiserver.http.negotiate import PLAIN, Form
from unbounded.apiserver.http.reply import Reply
from unbounded.apiserver.status import StatusError, too_many, warning_headers
from unbounded.apiserver.types import Resource

BODIES_BYTES: Final = 128 * 2**20
NOBODY: Final = User(ANONYMOUS, (UNAUTHENTICATED,))


@dataclass
class Room:
    """Memory for the bodies of the running requests; without a limit, many clients could exhaust the memory."""

    limit: int = BODIES_BYTES
    taken: int = 0


class Call(msgspec.Struct):
    """One parsed request."""

    request: web.BaseRequest
    said: Said  # parsed from its head
    query: Mapping[str, list[str]]
    asker: User = NOBODY
    user: User = NOBODY  # after impersonation
    asked: AuthAttributes | None = None
    resource: Resource | None = None  # the requested one, if it is served
    form: Form = PLAIN
    new_name: str = ""  # the name in a created object; '' if the server generates one
    warnings: list[str] = []
    annotations: dict[str, str] = {}  # for the audit log
    room: Room = msgspec.field(default_factory=Room)
    held: int = 0  # bytes of that room

    def hold(self, size: int) -> None:
        """Reserve memory for this many more bytes of the body. Raises StatusError (429) if there is not enough."""
        if self.room.taken + size > self.room.limit:
            raise too_many()
        self.room.taken += size
        self.held += size

    def release(self) -> None:
        """Release the reserved memory."""
        self.room.taken -= self.held
        self.held = 0

    def check(self, guard: AuthChain, attributes: AuthAttributes) -> None:
        """Authorize the request and record its attributes. Raises StatusError (403)."""
        self.asked = attributes
        guard.authorize(self.user, attributes)

    def answer(self, body: bytes, code: int = 200, media: str = "") -> Reply:
        answer = Reply(body, media or self.form.media_type, code)
        if self.warnings:
            answer.more += [("Warning", value) for value in warning_headers(self.warnings)]
        return answer

    def failure(self, error: StatusError) -> Reply:
        answer = self.answer(msgspec.json.encode(error.body()), error.code, "application/json")
        if error.retry_after_s is not None:
            answer.more.append(("Retry-After", str(error.retry_after_s)))
        return answer

    @property
    def connection(self) -> Connection:
        """The connection of the request."""
        return cast(Connection, self.request.protocol)

    def credentials(self) -> RequestCredentials:
        """Return the credentials of the request."""
        certificate, connection = self.connection.proof
        return RequestCredentials(certificate, self.request.headers, connection)

    def entry(self, code: int, *, stage: str = COMPLETE) -> Entry:
        """Return the request's entry for the audit log; `code` is 0 if there was no answer."""
        request = self.request
        return Entry(
            request.method,
            request.raw_path,
            self.asker,
            self.user,
            self.asked,
            code,
            request.remote or "",
            self.said.agent,
            self.annotations,
            stage,
        )
