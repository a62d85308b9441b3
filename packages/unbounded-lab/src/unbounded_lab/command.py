"""Shared parts of the commands that serve simulators: arguments, tables, and waiting for Ctrl-C.

Control interfaces speak JSON, and errors have a reason.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import re
import signal
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec
from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")


def name(text: str) -> str:
    """Check an argument with a name for simulated things."""
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            "must be lower case letters, digits and '-', at most 40, beginning with a letter"
        )
    return text


def positive(text: str) -> int:
    """Parse an argument with a number of things."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return the type of an argument that is a whole number from `least` to `most`, both included."""

    def parsed(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,9}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}")
        return int(text)

    return parsed


def print_table(out: TextIO, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    lines = [heads, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip(), file=out)


def check_writable(flag: str, path: Path | None) -> None:
    """Check early that a file can be written at the end; writes nothing.

    Raises:
        ValueError: it cannot be written; names the flag and the file.
    """
    if path is None:
        return
    try:
        if path.is_file() or path.is_dir():
            path.open("ab").close()
        elif not path.exists():
            folder = path.parent.resolve(strict=True)
            if not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ValueError(f"{flag} {path}: {error.strerror}") from error


def stop_signal() -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set, and SIGHUP, unless that is ignored (`nohup`)."""
    stop = asyncio.Event()
    ends = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        ends.append(signal.SIGHUP)
    for number in ends:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer an invalid name or value with 400 and the reason."""
    try:
        return await handler(request)
    except (ValueError, msgspec.MsgspecError) as error:
        raise web.HTTPBadRequest(text=str(error)) from error


async def read_object(request: web.Request) -> dict[str, Any]:
    """Return the body of a request.

    Raises:
        msgspec.MsgspecError: it is no JSON object.
    """
    return msgspec.json.decode(await request.read(), type=dict[str, Any])


def json_response(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
