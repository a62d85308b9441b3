"""Headers of a request that is forwarded unchanged to a kubelet (nodes/proxy), and of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from multidict import CIMultiDict, CIMultiDictProxy

# A kubelet never gets a client's credentials; these headers describe the request.
_ASKED: Final = (
    "Accept",
    "Accept-Encoding",
    "Content-Type",
    "If-Modified-Since",
    "If-None-Match",
    "Range",
    "User-Agent",
)
_OF_CONNECTION: Final = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-connection", "trailer", "transfer-encoding", "upgrade"}
)


def request_headers(headers: Mapping[str, str], remote: str | None) -> dict[str, str]:
    """Return the headers of a request for the kubelet."""
    passed = {name: headers[name] for name in _ASKED if name in headers}
    return passed | ({"X-Forwarded-For": remote} if remote else {})


def answer_headers(headers: CIMultiDictProxy[str], prefix: str) -> CIMultiDict[str]:
    """Return the headers of a kubelet's answer for the client.

    Args:
        prefix: the path of the kubelet's root; redirects to a path of the kubelet are moved below it.
    """
    passed = CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _OF_CONNECTION)
    passed.setdefault("Cache-Control", "no-cache, private")
    where = headers.get("Location", "")
    if where.startswith("/") and not where.startswith("//"):
        passed["Location"] = prefix + where
    return passed
