"""Lists that kubelet keeps by watching, as client-go's reflectors do since Kubernetes 1.35 (streaming lists)."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from .api import Refused

INITIAL = "k8s.io/initial-events-end"
AGAIN_S = 0.5
Watch = Callable[[str, float], Iterator[dict[str, Any]]]


def watch_path(path: str, selector: str, version: str = "") -> tuple[str, float]:
    """Return path and query of a watch, and its maximum duration in seconds.

    Args:
        version: the version after which it begins; '' to begin with the existing objects.
    """
    seconds = random.randint(300, 600)
    options = {"allowWatchBookmarks": "true", "timeout": f"{seconds}s", "timeoutSeconds": str(seconds), "watch": "true"}
    if selector:
        options["fieldSelector"] = selector
    if version:
        options["resourceVersion"] = version
    else:
        options |= {"resourceVersionMatch": "NotOlderThan", "sendInitialEvents": "true"}
    return f"{path}?" + "&".join(f"{key}={quote(options[key], safe='')}" for key in sorted(options)), float(seconds)


class Reflector(threading.Thread):
    """One list.

    Args:
        watch: yields the events of a path, which may last so many seconds.
        path: of the list.
        selector: of fields; '' for none.
    """

    def __init__(self, watch: Watch, path: str, selector: str = "") -> None:
        super().__init__(daemon=True, name=path)
        self.path = path
        self.problem = "has not been read yet"  # '' once all objects have come
        self._watch = watch
        self._selector = selector
        self._version = ""
        self._stopped = False
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}

    def stop(self) -> None:
        """End with the present watch."""
        self._stopped = True

    def run(self) -> None:
        while not self._stopped:
            try:
                self._follow()
            except (Refused, OSError, RuntimeError, http.client.HTTPException) as error:
                self._version = ""
                self.problem = self.problem and f"cannot be read: {error}"
            time.sleep(AGAIN_S)

    def _follow(self) -> None:
        if not self._version:
            self.objects.clear()
        for event in self._watch(*watch_path(self.path, self._selector, self._version)):
            self._take(event["type"], event["object"])

    def _take(self, kind: str, obj: dict[str, Any]) -> None:
        if kind == "ERROR":
            raise RuntimeError(str(obj.get("message")))
        meta = obj["metadata"]
        self._version = meta["resourceVersion"]
        if kind == "BOOKMARK":
            if (meta.get("annotations") or {}).get(INITIAL) == "true":
                self.problem = ""
            return
        key = meta.get("namespace", ""), meta["name"]
        if kind == "DELETED":
            self.objects.pop(key, None)
        else:
            self.objects[key] = obj
