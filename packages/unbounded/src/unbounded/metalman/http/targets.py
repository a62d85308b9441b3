"""Parser of request targets. A client's bytes select from a table; this module never makes a path of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import unquote_to_bytes

from unbounded.metalman.tftp.names import normalized_name

BOOT: Final = "boot"
PREFIX: Final = re.compile(r"[A-Za-z0-9]{26,128}", re.ASCII)
ABSOLUTE: Final = re.compile(r"(?i:https?)://[^/?#]*", re.ASCII)
LONGEST: Final = 4096


class HttpRoute(Enum):
    """Target of a request. All but files are POST requests under the prefix of a boot."""

    FILE = "a file"
    ATTEST = "attest"
    DISABLE = "pxe/disable"
    CLOUD_INIT = "cloudinit/log"
    PROGRESS = "progress"


POSTED: Final = {route.value: route for route in HttpRoute if route is not HttpRoute.FILE}


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """Parsed target; `path` is normalized (see `tftp.names.normalized_name`) and does not contain the prefix."""

    route: HttpRoute
    prefix: str | None
    path: str


def parse_target(target: str) -> HttpTarget | None:
    """Parse a request target; None for a target that cannot exist here.

    The query is ignored, and `%` is decoded once. The absolute form with `http://host` before the path is meant for
    proxies, but a server has to accept it, too (RFC 9112 3.2.2).
    """
    path = ABSOLUTE.sub("", target, count=1).partition("?")[0]
    if not path.startswith("/") or len(path) > LONGEST:
        return None
    try:
        name = normalized_name(unquote_to_bytes(path).decode())
    except UnicodeDecodeError:
        return None
    if name is None:
        return None
    first, _, rest = name.partition("/")
    prefix, _, below = rest.partition("/")
    if first != BOOT or PREFIX.fullmatch(prefix) is None:
        return HttpTarget(HttpRoute.FILE, None, name)
    return HttpTarget(POSTED.get(below, HttpRoute.FILE), prefix, below) if below else None
