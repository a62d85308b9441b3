"""Lists from an API server with the standard library alone, read faster than the whole client is imported.

It reads what `kubectl get` reads: Tables, whose rows the server makes, in pages.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Self
from urllib.parse import urlencode, urlsplit

import msgspec

from unbounded.api.names import GROUP, VERSION
from unbounded.cli.plugin.command import MANAGER
from unbounded.kube.api import Expired, ReadFailed, ServerUnreachable
from unbounded.kube.config import ClientConfig
from unbounded.kube.credentials import AuthInfo

PAGE: Final = 500
ANSWER_S: Final = 30.0
TABLE: Final = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"


class _Column(msgspec.Struct):
    name: str
    priority: int = 0


class _Row(msgspec.Struct):
    cells: list[Any]


class _Meta(msgspec.Struct):
    next_page: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct, rename="camel"):
    column_definitions: list[_Column] = []
    rows: list[_Row] | None = None
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _Items(msgspec.Struct):
    items: list[dict[str, Any]] | None = None
    metadata: _Meta = msgspec.field(default_factory=_Meta)


@dataclass
class ServerTable:
    """Rows of cells from the server; `wide` marks the columns for -o wide alone."""

    heads: list[str] = field(default_factory=list)
    wide: list[bool] = field(default_factory=list)
    rows: list[list[Any]] = field(default_factory=list)


class ListReader:
    """One connection; a context manager that closes it. Its calls block.

    Args:
        login: of the configuration's credentials.
        answer_s: limit of each page.
    """

    def __init__(self, config: ClientConfig, login: AuthInfo, *, answer_s: float = ANSWER_S) -> None:
        self._config, self._login = config, login
        self._answer_s = answer_s
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def table(self, plural: str, *, labels: str = "", fields: str = "") -> ServerTable:
        """Return all objects of a kind of the project as a Table. Raises an ApiError."""
        query = {"includeObject": "None", "labelSelector": labels, "fieldSelector": fields}
        table = ServerTable()
        for page in self._pages(plural, query, TABLE, msgspec.json.Decoder(_Page), table.rows.clear):
            if page.column_definitions:  # the server omits them where nothing has changed since the page before
                table.heads = [column.name.upper() for column in page.column_definitions]
                table.wide = [column.priority > 0 for column in page.column_definitions]
            table.rows += [row.cells for row in page.rows or ()]
        return table

    def objects(self, plural: str, *, labels: str = "", fields: str = "") -> list[dict[str, Any]]:
        """Return all objects of a kind of the project. Raises an ApiError."""
        query = {"labelSelector": labels, "fieldSelector": fields}
        found: list[dict[str, Any]] = []
        for page in self._pages(plural, query, "application/json", msgspec.json.Decoder(_Items), found.clear):
            found += page.items or ()
        return found

    def _pages(
        self,
        plural: str,
        query: dict[str, str],
        accept: str,
        decoder: msgspec.json.Decoder[Any],
        start_over: Callable[[], None],
    ) -> Iterator[Any]:
        given = {name: text for name, text in query.items() if text}
        limit: dict[str, str] = {"limit": str(PAGE)}
        more: dict[str, str] = {}
        while True:
            path = f"/apis/{GROUP}/{VERSION}/{plural}?{urlencode(given | limit | more)}"
            try:
                page = decoder.decode(self._get(path, accept))
            except Expired:
                if not more:
                    raise
                start_over()  # the server no longer has the revision of the first page: read all in one page
                limit, more = {}, {}
                continue
            except msgspec.DecodeError as error:
                raise ReadFailed(f"list of {plural}: unexpected content: {error}") from error
            yield page
            if not page.metadata.next_page:
                return
            more = {"continue": page.metadata.next_page}

    def _get(self, path: str, accept: str) -> bytes:
        """Return the body of a successful response."""
        code, body = self._exchange(path, accept)
        if code < 300:
            return body
        from unbounded.kube import object_codec  # noqa: PLC0415  # most answers are no errors

        raise object_codec.error_from(body, code=code, writing=False, what=f"list {path.partition('?')[0]}")

    def _exchange(self, path: str, accept: str) -> tuple[int, bytes]:
        what = f"list {path.partition('?')[0]}"
        connection = self._connection or self._connected(what)
        headers = [("Accept", accept), ("User-Agent", MANAGER), *self._login.headers()]
        try:
            connection.putrequest("GET", urlsplit(self._config.server).path + path)
            for name, value in headers:  # `request` takes each name only once
                connection.putheader(name, value.encode())
            connection.endheaders()
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ReadFailed(f"{what}: {_error_text(error)}") from error

    def _connected(self, what: str) -> http.client.HTTPConnection:
        place = urlsplit(self._config.server)
        host = place.hostname or ""
        port = place.port or (443 if place.scheme == "https" else 80)
        context = self._config.ssl_context(self._login.certificate)
        connection = http.client.HTTPConnection(host, port, timeout=self._answer_s)
        try:
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                name = self._config.tls_server_name or host
                connection.sock = context.wrap_socket(connection.sock, server_hostname=name)
        except OSError as error:
            connection.close()
            raise ServerUnreachable(f"{what}: no connection to {host}:{port}: {_error_text(error)}") from error
        self._connection = connection
        return connection


def _error_text(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, ssl.SSLError):
        return str(error)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
