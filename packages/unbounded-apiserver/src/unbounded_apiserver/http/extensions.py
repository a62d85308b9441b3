"""Extensions: paths beside the Kubernetes API that a product serves on the same port, for authenticated users.

An extension gets a token that is good for the user of its request, and for no longer than that. It reads the API with
it as any other client. So it needs no rights, and each of its reads is authorized and audited as one of the user.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from unbounded_apiserver.auth import User
from unbounded_apiserver.http.reply import HttpReply


class ExtensionCall(msgspec.Struct, frozen=True):
    """A request to an extension.

    Attributes:
        path: as on the wire, without the query.
        user: after impersonation.
        token: bearer token of this server, good for the user until the answer.
    """

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes
    user: User
    token: str


Extension = Callable[[ExtensionCall], Awaitable[HttpReply]]


def first_segment(path: str) -> str:
    """Return the first segment of a path, which names an extension."""
    return path.removeprefix("/").partition("/")[0]
