"""The profile of a BMC: its recorded answers as a file, which the lab's BMC replays."""

from __future__ import annotations

from typing import Any, Final

from unbounded.metalman.certify.connection import Connection
from unbounded.metalman.certify.recording import RecordedAnswer
from unbounded.metalman.certify.redaction import Redactor

FORMAT: Final = "unbounded-bmc-profile/v1"


def profile_of(connection: Connection, username: str, redactor: Redactor | None) -> dict[str, Any]:
    """Return the profile as JSON.

    Args:
        username: of the account, as a name in the answers.
        redactor: has learned the recording; None keeps everything but credentials, which are not recorded.
    """
    answers = sorted(connection.recording.answers.items())
    document = {
        "format": FORMAT,
        "redacted": redactor is not None,
        "login": "session" if connection.has_session else "basic",
        "username": username,
        "openRoot": connection.is_root_open,
        "resources": {path: _resource(answer) for path, answer in answers},
    }
    return document if redactor is None else dict(redactor.replace(document))


def _resource(answer: RecordedAnswer) -> dict[str, Any]:
    """Return one answer. A body that is no JSON object is not kept, only that there was one."""
    found: dict[str, Any] = {"status": answer.status}
    if answer.content_type:
        found["contentType"] = answer.content_type
    if answer.etag:
        found["etag"] = answer.etag
    if answer.document is not None:
        found["body"] = answer.document
    elif not answer.is_empty:
        found["garbled"] = True
    return found


def learn_recording(redactor: Redactor, connection: Connection) -> None:
    """Let a redactor learn all answers and their paths."""
    for path, answer in sorted(connection.recording.answers.items()):
        redactor.learn(path)
        redactor.learn(answer.document or {})
