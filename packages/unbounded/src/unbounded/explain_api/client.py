"""Client of the API, for programs that have no rights to the library's reads, or another release of it.

Fields and codes that this release does not know are ignored. A release that differs by more than one minor one is
refused, on either side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from unbounded.api.failures import Rejected
from unbounded.explain.results import RELEASE, Explanation
from unbounded.explain_api.releases import HEADER, release_fault
from unbounded.explain_api.requests import PlanRequest
from unbounded.kube import object_codec
from unbounded.kube.api import ReadFailed, ServerUnreachable
from unbounded.kube.client import TRANSPORT_ERRORS
from unbounded.kube.config import ClientConfig
from unbounded.kube.http_pool import HttpAddress, HttpPool, split_server

T = TypeVar("T")
ANSWER_S: Final = 90.0


class ReleaseMismatch(Rejected):
    """The server has a release with which this one cannot talk."""


@dataclass(frozen=True)
class ExplainClient:
    """Requests to one server, each over a connection of its own.

    Args:
        config: URL and authority of the API, and the caller's credentials.
        release: of this program.
    """

    config: ClientConfig
    release: str = RELEASE

    async def explain(self, kind: str, name: str, *, namespace: str = "") -> Explanation:
        """Return what blocks an object.

        Raises:
            ReleaseMismatch
            ApiError: the server rejects the request, or does not answer.
        """
        place = "/".join(quote(one, safe="") for one in (kind, namespace, name) if one)
        return await self._request("GET", f"/explain/{place}", None, Explanation)

    async def plan(self, request: PlanRequest) -> Mapping[str, Any]:
        """Return the plan of writes as JSON values, which later releases may extend. Raises as `explain`."""
        body = msgspec.json.encode(request)
        found: dict[str, Any] = await self._request("POST", "/plan", body, dict[str, Any])
        return found

    async def _request(self, method: str, path: str, body: bytes | None, answer: type[T]) -> T:
        login = await self.config.credentials.login()
        host, port, root = split_server(self.config.server)
        context = self.config.ssl_context(login.certificate)
        headers = [("Accept", "application/json"), (HEADER, self.release), *login.headers()]
        headers += [("Content-Type", "application/json")] if body is not None else []
        pool = HttpPool()
        try:
            address = HttpAddress(host, port, context, self.config.tls_server_name)
            response = await pool.request(address, method, f"{root}{path}", headers, body, silence_s=ANSWER_S)
            content = await response.read()
        except TRANSPORT_ERRORS as error:
            raise ServerUnreachable(f"{method} {path}: {error}") from error
        finally:
            await pool.close()
        server = response.headers.get(HEADER, "")
        if server and (fault := release_fault(server, self.release)):
            raise ReleaseMismatch(f"{self.config.server}: {fault}")
        if response.status >= 300:
            raise object_codec.error_from(content, code=response.status, writing=False, what=f"{method} {path}")
        try:
            return msgspec.json.decode(content, type=answer)
        except msgspec.DecodeError as error:
            raise ReadFailed(f"{method} {path}: unexpected content: {error}") from error
