"""The address of an API server, as users write it in flags, files and kubeconfigs."""

from __future__ import annotations

import re
from typing import Final

from unbounded.kube.settings import HIGHEST_PORT

_ENDPOINT: Final = re.compile(
    r"https://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9.])?)(:(?P<port>[0-9]{1,5}))?/?"
)


def endpoint_url(text: str) -> str:
    """The address of an API server, `HOST`, `HOST:PORT` or `https://HOST:PORT`, as a URL without a slash at its end.

    Raises:
        ValueError: it is none, with the words for who wrote it.
    """
    url = text.strip()
    url = url if "://" in url else f"https://{url}"
    found = _ENDPOINT.fullmatch(url)
    if found is None or not 1 <= int(found["port"] or 443) <= HIGHEST_PORT:
        raise ValueError(f"{text!r} is not an address of an API server, such as https://10.0.0.1:6443")
    return url.rstrip("/")
