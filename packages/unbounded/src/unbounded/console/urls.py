"""URLs of the console's pages; each can be sent to others."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlencode

FLEET: Final = "/"
ROLLOUTS: Final = "/rollouts"
HOSTS: Final = "/hosts"
LOGIN: Final = "/login"
END: Final = "/end"
START: Final = "/start/"  # the secret of a one-time URL follows


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
