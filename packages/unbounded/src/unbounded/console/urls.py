"""URLs of the console's pages; each can be sent to others."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, urlencode

FLEET: Final = "/"
ROLLOUTS: Final = "/rollouts"
HOSTS: Final = "/hosts"
LOGIN: Final = "/login"
OIDC_LOGIN: Final = "/login/oidc"  # leads to the OpenID Connect provider
OIDC_CALLBACK: Final = "/login/oidc/callback"  # where the provider leads back to
END: Final = "/end"
START: Final = "/start/"  # the secret of a one-time URL follows
TARGET_BYTES: Final = 4096
# Of a URL as it is sent: printable ASCII without a backslash. Browsers take "//" and "/\" for the begin of a host.
_TARGET: Final = re.compile(r"/(?!/)[!-\[\]-~]*")


def own_target(text: str) -> str:
    """Return the path and query of a page of the console; that of the fleet for any other text."""
    return text if len(text) <= TARGET_BYTES and _TARGET.fullmatch(text) else FLEET


def fleet(**filters: str) -> str:
    """Return the URL of the fleet with filters; empty ones are left out."""
    query = urlencode({name: text for name, text in filters.items() if text}, quote_via=quote)
    return f"{FLEET}?{query}" if query else FLEET


def machine(name: str) -> str:
    return f"/machine/{quote(name, safe='')}"


def operation(name: str) -> str:
    return f"/operation/{quote(name, safe='')}"


def site(name: str) -> str:
    return f"/site/{quote(name, safe='')}"


def host(namespace: str, name: str) -> str:
    return f"/host/{quote(namespace, safe='')}/{quote(name, safe='')}"


def cluster(namespace: str, name: str) -> str:
    return f"/cluster/{quote(namespace, safe='')}/{quote(name, safe='')}"
