"""Headers of a request that is passed on to a kubelet as it is (nodes/proxy), and of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from multidict import CIMultiDict, CIMultiDictProxy

# A client's credentials are none of a kubelet's business; these say what is asked for.
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
    """Return what a kubelet gets to know of a request."""
    passed = {name: headers[name] for name in _ASKED if name in headers}
    return passed | ({"X-Forwarded-For": remote} if remote else {})


def answer_headers(headers: CIMultiDictProxy[str], prefix: str) -> CIMultiDict[str]:
    """Return the headers of a kubelet's answer for the client.

    Args:
        prefix: the path that stands for the kubelet's root; redirects to a path of the kubelet lead below it.
    """
    passed = CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _OF_CONNECTION)
    passed.setdefault("Cache-Control", "no-cache, private")
    where = headers.get("Location", "")
    if where.startswith("/") and not where.startswith("//"):
        passed["Location"] = prefix + where
    return passed
