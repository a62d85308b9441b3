"""Options of log, exec, attach and port-forward: parsed from a client's query, encoded for the kubelet."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

from unbounded_apiserver import field_errors, type_descriptors
from unbounded_apiserver.options import Query, first, flag, integer
from unbounded_apiserver.resource_model import Object
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.status import bad_request, invalid

ZERO_TIME: Final = "0001-01-01T00:00:00Z"  # Go's zero time, for a parameter without a value
_PORT_LIMIT: Final = 1 << 16
_STREAMS: Final = {"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}  # kubelet's names


@dataclass(frozen=True)
class StreamOptions:
    """Options of one request.

    Args:
        container: '' for the only one of the Pod.
        query: for the kubelet.
        options_object: the options object for admission policies; empty for logs, which are no connection.
        follow: whether the kubelet may answer at any later time, when there is something to send.
        verify_certificate: whether the server may require a certificate that it can verify.
    """

    container: str
    query: str
    options_object: Object
    follow: bool = False
    verify_certificate: bool = True


def read_log(query: Query, pod: str) -> StreamOptions:
    """Return the PodLogOptions of a query. Raises StatusError (400, 422)."""
    numbers = {name: _int64(query, name) for name in ("sinceSeconds", "tailLines", "limitBytes")}
    since = _time(first(query, "sinceTime")) if "sinceTime" in query else None
    errors = _check_log(numbers, since, split="stream" in query)
    if errors:
        raise invalid("", "PodLogOptions", pod, errors)
    given = {name: "true" for name in ("follow", "previous", "timestamps") if flag(query, name)}
    given |= {name: str(value) for name, value in numbers.items() if value is not None}
    if since is not None:
        given["sinceTime"] = since
    return StreamOptions(
        first(query, "container"),
        urlencode(sorted(given.items())),
        {},
        follow="follow" in given,
        verify_certificate=not flag(query, "insecureSkipTLSVerifyBackend"),
    )


def _check_log(numbers: Mapping[str, int | None], since: str | None, *, split: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    tail, limit, seconds = (numbers[name] for name in ("tailLines", "limitBytes", "sinceSeconds"))
    if tail is not None and tail < 0:
        errors.append(field_errors.invalid("tailLines", tail, "must be greater than or equal to 0"))
    if limit is not None and limit < 1:
        errors.append(field_errors.invalid("limitBytes", limit, "must be greater than 0"))
    if seconds is not None and since is not None:
        why = "at most one of `sinceTime` or `sinceSeconds` may be specified"
        errors.append(field_errors.forbidden("[]", why))  # the path of the whole object in kube-apiserver
    elif seconds is not None and seconds < 1:
        errors.append(field_errors.invalid("sinceSeconds", seconds, "must be greater than 0"))
    if split:
        errors.append(field_errors.forbidden("stream", "may not be specified"))
    return errors


def _read_exec(query: Query) -> StreamOptions:
    return _streams(query, "PodExecOptions", list(query.get("command", ())))


def _read_attach(query: Query) -> StreamOptions:
    return _streams(query, "PodAttachOptions", [])


def _streams(query: Query, kind: str, command: list[str]) -> StreamOptions:
    container = first(query, "container")
    given = [name for name in _STREAMS if flag(query, name)]
    pairs = [(_STREAMS[name], "1") for name in given] + [("command", word) for word in command]
    options_object: Object = {"kind": kind, "apiVersion": "v1", **dict.fromkeys(given, True)}
    options_object |= {key: value for key, value in (("container", container), ("command", command)) if value}
    return StreamOptions(container, urlencode(sorted(pairs, key=lambda pair: pair[0])), options_object)


def _read_port_forward(query: Query) -> StreamOptions:
    ports = [_port(text) for value in query.get("ports", ()) for text in value.split(",")]
    options_object: Object = {"kind": "PodPortForwardOptions", "apiVersion": "v1"}
    if not ports:
        return StreamOptions("", "", options_object)
    return StreamOptions("", urlencode({"port": ",".join(map(str, ports))}), {**options_object, "ports": ports})


CONNECTIONS: Final[Mapping[str, Callable[[Query], StreamOptions]]] = {
    "attach": _read_attach,
    "exec": _read_exec,
    "portforward": _read_port_forward,
}


def _int64(query: Query, name: str) -> int | None:
    if name in query and not first(query, name):
        raise bad_request('strconv.ParseInt: parsing "": invalid syntax')
    return integer(query, name)


def _port(text: str) -> int:
    valid = re.fullmatch(r"[0-9]+", text, re.ASCII)
    if valid and (port := int(text[-20:])) < _PORT_LIMIT and not text[:-20].strip("0"):
        return port
    why = "value out of range" if valid else "invalid syntax"
    raise bad_request(f'cannot convert to []int32: strconv.ParseUint: parsing "{text}": {why}')


def _time(text: str) -> str:
    """Format a time as Go does by RFC 3339. Raises StatusError (400)."""
    if not text:
        return ZERO_TIME
    try:
        if type_descriptors.TIME.check is not None:
            type_descriptors.TIME.check(text)
        return datetime.fromisoformat(text).astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"
    except type_descriptors.WrongType as error:
        raise bad_request(str(error)) from error
    except (ValueError, OverflowError) as error:
        part = str(error).partition(" ")[0]
        raise bad_request(f'parsing time "{text}": {part} out of range') from error
