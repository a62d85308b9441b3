"""Events of the server's own controllers; a repeated Event increments its count."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from typing import Final

from unbounded.kube.logs import Log
from unbounded_apiserver import metadata
from unbounded_apiserver.builtin_resources import EVENTS
from unbounded_apiserver.decoding import normalize
from unbounded_apiserver.options import WriteOptions
from unbounded_apiserver.resource_model import Object
from unbounded_apiserver.status import StatusError
from unbounded_apiserver.writes import Writes, WriteTarget

REMEMBERED: Final = 4096
DEFAULT: Final = "default"  # the namespace of Events about cluster-scoped objects

log = Log(__name__)


class ApiEventRecorder:
    """Write Events. One that cannot be written is only logged: the action that it reports has happened."""

    def __init__(self, writes: Writes, now: Callable[[], datetime]) -> None:
        self._writes = writes
        self._now = now
        self._known: OrderedDict[tuple[str, ...], str] = OrderedDict()

    async def record(self, component: str, about: Object, reason: str, message: str, kind: str = "Normal") -> None:
        """Write an Event about an object (an ObjectReference), or increment the count of an equal one."""
        namespace = about.get("namespace", DEFAULT)
        key = (component, namespace, about["kind"], about["name"], about.get("uid", ""), reason, message, kind)
        moment = metadata.format_time(self._now())

        def count(event: Object) -> None:
            event["count"] = event.get("count", 1) + 1
            event["lastTimestamp"] = moment

        try:
            if (name := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                if await self._writes.edit(WriteTarget(EVENTS, namespace, name), count) is not None:
                    return
            name = f"{about['name']}.{int(self._now().timestamp() * 1e9):x}"
            event: Object = {
                "metadata": {"name": name},
                "involvedObject": about,
                "reason": reason,
                "message": message,
                "source": {"component": component},
                "firstTimestamp": moment,
                "lastTimestamp": moment,
                "count": 1,
                "type": kind,
                "reportingComponent": component,
            }
            normalize(EVENTS, event)
            await self._writes.create_object(EVENTS, namespace, event, WriteOptions())
        except StatusError as error:
            log.warning("cannot write an event", error=error, reason=reason, name=about["name"])
            return
        self._known[key] = name
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
