"""One request, as far as it is understood, and the form of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

import msgspec
from aiohttp import web

from unbounded.apiserver.auth import ANONYMOUS, UNAUTHENTICATED, Attributes, Credentials, Guard, User
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
    """For the bodies of the requests that are being answered; without it, many clients could fill the memory."""

    limit: int = BODIES_BYTES
    taken: int = 0


class Call(msgspec.Struct):
    """One request, as far as it is understood."""

    request: web.BaseRequest
    said: Said  # by its head
    query: Mapping[str, list[str]]
    asker: User = NOBODY
    user: User = NOBODY  # whom the request acts as
    asked: Attributes | None = None
    resource: Resource | None = None  # the one that is asked for, if it is served
    form: Form = PLAIN
    new_name: str = ""  # that a creation gives its object; '' when the server is to make one
    warnings: list[str] = []
    annotations: dict[str, str] = {}  # for the audit log
    room: Room = msgspec.field(default_factory=Room)
    held: int = 0  # of that room

    def hold(self, size: int) -> None:
        """Take room for so much more of the body. Raises StatusError (429) when there is none."""
        if self.room.taken + size > self.room.limit:
            raise too_many()
        self.room.taken += size
        self.held += size

    def release(self) -> None:
        """Give back what was held."""
        self.room.taken -= self.held
        self.held = 0

    def check(self, guard: Guard, attributes: Attributes) -> None:
        """Note what is asked for, and raise StatusError (403) when it is not allowed."""
        self.asked = attributes
        guard.check(self.user, attributes)

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
        """The one that the request came on."""
        return cast(Connection, self.request.protocol)

    def credentials(self) -> Credentials:
        """What the request proves its sender with."""
        certificate, connection = self.connection.proof
        return Credentials(certificate, self.request.headers, connection)

    def entry(self, code: int, *, stage: str = COMPLETE) -> Entry:
        """What the audit log may note of it; `code` is 0 when nothing was answered."""
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
