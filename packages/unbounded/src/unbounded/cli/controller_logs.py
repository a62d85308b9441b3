"""The end of the logs of the controllers' Pods, without secrets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import msgspec

from unbounded.cli.support_redaction import redacted_object
from unbounded.kube.api import ApiError, InvalidObject
from unbounded.kube.client import HttpApi
from unbounded.kube.secret_text import find_values, hide
from unbounded.metalman.console_text import redacted

Raw = dict[str, Any]

LINES: Final = 2000  # of a container
MOST_BYTES: Final = 1024 * 1024  # of a container
PODS_AT_ONCE: Final = 8


@dataclass(frozen=True)
class ControllerLog:
    """The log of one container, or of the one before its last restart.

    Attributes:
        name: POD/CONTAINER, with `.previous` for the one before.
        is_cut: the last lines had more than MOST_BYTES, and their end is missing.
        error: why it could not be read; None for one that was read.
    """

    name: str
    text: str = ""
    is_cut: bool = False
    error: ApiError | None = None


async def read_controller_logs(
    api: HttpApi, pods: Sequence[Raw], known: Collection[str] = ()
) -> AsyncIterator[ControllerLog]:
    """Yield the logs of Pods, in their order.

    Args:
        known: secrets that are removed wherever they are.
    """
    for begin in range(0, len(pods), PODS_AT_ONCE):
        read = (_of_pod(api, pod, known) for pod in pods[begin : begin + PODS_AT_ONCE])
        for found in chain.from_iterable(await asyncio.gather(*read)):
            yield found


async def _of_pod(api: HttpApi, pod: Raw, known: Collection[str]) -> list[ControllerLog]:
    """Return the logs of a Pod; after a failure that is not of one container alone, none of its others."""
    meta, found = pod["metadata"], list[ControllerLog]()
    for container, previous in _instances(pod):
        name = f"{meta['name']}/{container}{'.previous' if previous else ''}"
        try:
            data = await api.pod_log(
                meta["name"],
                namespace=meta["namespace"],
                container=container,
                lines=LINES,
                most_bytes=MOST_BYTES,
                previous=previous,
            )
        except ApiError as error:
            found.append(ControllerLog(name, error=error))
            if not isinstance(error, InvalidObject):  # a container that has not started, or nothing before it
                break
        else:
            found.append(ControllerLog(name, redacted_log(data, known), len(data) >= MOST_BYTES))
    return found


def _instances(pod: Raw) -> Iterator[tuple[str, bool]]:
    """Yield the containers of a Pod; before one that was restarted, its instance before that."""
    status = pod.get("status") or {}
    restarted = {
        one["name"]
        for kind in ("initContainerStatuses", "containerStatuses")
        for one in status.get(kind) or ()
        if one.get("restartCount")
    }
    for kind in ("initContainers", "containers"):
        for container in pod["spec"].get(kind) or ():
            name = container["name"]
            if name in restarted:
                yield name, True
            yield name, False


def redacted_log(data: bytes, known: Collection[str] = ()) -> str:
    """Return a log without secrets and escape sequences. A record in JSON is one afterwards, too.

    Args:
        known: secrets that are removed wherever they are.
    """
    parts, lines = list[str](), list[bytes]()
    for line in data.splitlines():
        record = _redacted_record(line)
        if record:
            parts += [*_redacted_lines(lines), record]
            lines.clear()
        else:
            lines.append(line)
    text = "".join(f"{part}\n" for part in (*parts, *_redacted_lines(lines)))
    return hide(text, find_values(text, known))


def _redacted_record(line: bytes) -> str:
    """Return a record in JSON without secrets; empty for a line that is none."""
    if not line.startswith(b"{"):
        return ""
    try:
        return msgspec.json.encode(redacted_object(msgspec.json.decode(line, type=Raw))).decode()
    except (msgspec.DecodeError, RecursionError):
        return ""


def _redacted_lines(lines: Sequence[bytes]) -> Iterator[str]:
    """Yield lines as one text: a secret may have several."""
    if lines:
        yield redacted_object(redacted(b"\n".join(lines), ()))
