"""Rules of every answer, for any input."""

from __future__ import annotations

import json
from typing import Any, Final

from tests.apiserver.fuzz.inputs import Input
from tests.apiserver.fuzz.line import Answer

TOO_NEW: Final = 504  # "Too large resource version": the requested version may still come


def fault(sent: Input, answer: Answer) -> str:
    """Return the fault of an answer, '' if there is none."""
    if answer.body is None or sent.head:
        return "" if answer.code < 500 or answer.code == TOO_NEW else f"{answer.code} without a body"
    text = answer.body.decode(errors="replace")
    if answer.code >= 500 and not (answer.code == TOO_NEW and "Too large resource version" in text):
        return f"{answer.code}: {text[:500]}"
    if answer.media != "application/json":
        return ""
    try:
        body = json.loads(answer.body, parse_constant=_refused) if answer.body else None
    except (ValueError, RecursionError) as error:
        return f"{answer.code} with a body that is not JSON: {error}: {text[:200]}"
    return _status_fault(answer.code, body) if answer.code >= 400 else ""


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _status_fault(code: int, body: Any) -> str:
    """Return the fault of a refusal that is not a Status as clients decode it."""
    if not isinstance(body, dict) or (body.get("kind"), body.get("apiVersion")) != ("Status", "v1"):
        return f"{code} that is no Status: {str(body)[:300]}"
    if body.get("code") != code or body.get("status") != "Failure" or not isinstance(body.get("message"), str):
        return f"{code} with a Status that does not say so: {str(body)[:300]}"
    if not body["message"]:
        return f"{code} without a message"
    causes = (body.get("details") or {}).get("causes", [])
    if not all(isinstance(c.get(key, ""), str) for c in causes for key in ("reason", "message", "field")):
        return f"{code} with causes that are not texts: {str(causes)[:300]}"
    return ""
