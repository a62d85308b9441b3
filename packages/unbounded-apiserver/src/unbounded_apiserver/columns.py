"""The columns that `kubectl get` prints for built-in kinds, and the JSONPath of the columns of custom resources."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from unbounded_apiserver.resource_model import TableColumn

_STEP: Final = re.compile(
    r"""\.\.(?P<deep>[A-Za-z_][\w-]*)
      | \.(?P<field>(?:\\.|[^.\[\]\\*])+)
      | (?P<all>\.\*|\[\*\])
      | \['(?P<quoted>(?:[^'\\]|\\.)*)'\]
      | \["(?P<double>(?:[^"\\]|\\.)*)"\]
      | \[(?P<index>-?\d+)\]
      | \[(?P<slice>-?\d*:-?\d*)\]
      | \[\?\(\s*@(?P<left>(?:\.[A-Za-z_][\w-]*)*)\s*
            (?:(?P<op>==|!=|<=|>=|<|>)\s*(?P<right>"[^"]*"|'[^']*'|[-\w.]+))?\s*\)\]
    """,
    re.VERBOSE,
)

Step = Callable[[Any], Iterable[Any]]
Object = Mapping[str, Any]
_UNITS: Final = ((365 * 24 * 3600, "y"), (24 * 3600, "d"), (3600, "h"), (60, "m"), (1, "s"))
# Below `until` seconds, an age is shown in the larger unit and, if there is one, the smaller.
_AGES: Final = (
    (120, "s", ""),
    (600, "m", "s"),
    (3 * 3600, "m", ""),
    (8 * 3600, "h", "m"),
    (48 * 3600, "h", ""),
    (8 * 24 * 3600, "d", "h"),
    (2 * 365 * 24 * 3600, "d", ""),
    (8 * 365 * 24 * 3600, "y", "d"),
)
NAME: Final = TableColumn(
    "Name",
    format="name",
    description="Name of the object.",
    cell=lambda o: o["metadata"].get("name", ""),  # reviews have no name
)
DEFINITION: Final = (
    NAME,
    TableColumn(
        "Created At",
        "date",
        description="Time of its creation.",
        cell=lambda o: o["metadata"].get("creationTimestamp"),
    ),
)
CUSTOM_AGE: Final = TableColumn(
    "Age", "date", description="Time since its creation.", path=".metadata.creationTimestamp"
)


def duration(seconds: float) -> str:
    """Format a duration as kubectl shows ages: 45s, 3m12s, 5h, 2d4h, 3y20d."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    whole = max(whole, 0)
    first, second = next(((a, b) for until, a, b in _AGES if whole < until), ("y", ""))
    size = {unit: length for length, unit in _UNITS}
    shown = f"{whole // size[first]}{first}"
    rest = whole % size[first] // size[second] if second else 0
    return f"{shown}{rest}{second}" if rest else shown


def age(moment: str | None, now: datetime | None = None) -> str:
    """Format the age of an RFC 3339 time."""
    if not moment:
        return "<unknown>"
    try:
        then = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    except ValueError:
        return "<invalid>"
    return duration(((now or datetime.now(UTC)) - then).total_seconds())


def _age(obj: Object) -> str:
    return age(obj["metadata"].get("creationTimestamp"))


def _node_status(obj: Object) -> str:
    ready = next((c for c in obj.get("status", {}).get("conditions", ()) if c["type"] == "Ready"), None)
    words = ["Unknown" if ready is None else "Ready" if ready["status"] == "True" else "NotReady"]
    if obj.get("spec", {}).get("unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_roles(obj: Object) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = obj["metadata"].get("labels", {})
    roles = {key.removeprefix(prefix) for key in labels if key.startswith(prefix) and key != prefix}
    if labels.get("kubernetes.io/role"):
        roles.add(labels["kubernetes.io/role"])
    return ",".join(sorted(roles)) or "<none>"


def _node_info(name: str, otherwise: str = "<unknown>") -> Any:
    return lambda obj: obj.get("status", {}).get("nodeInfo", {}).get(name) or otherwise


def _node_address(kind: str) -> Any:
    def find(obj: Object) -> str:
        addresses = obj.get("status", {}).get("addresses", ())
        return next((a["address"] for a in addresses if a["type"] == kind), "<none>")

    return find


def _event_last_seen(obj: Object) -> str:
    series = obj.get("series") or {}
    return age(series.get("lastObservedTime") or obj.get("lastTimestamp") or obj.get("eventTime"))


def _event_first_seen(obj: Object) -> str:
    return age(obj.get("firstTimestamp") or obj.get("eventTime"))


def _event_object(obj: Object) -> str:
    about = obj.get("involvedObject", {})
    kind = about.get("kind", "").lower()
    return f"{kind}/{about['name']}" if about.get("name") else kind


def _event_source(obj: Object) -> str:
    source = obj.get("source") or {}
    component = source.get("component") or obj.get("reportingComponent", "")
    host = source.get("host") or obj.get("reportingInstance", "")
    return f"{component}, {host}" if host else component


def _event_count(obj: Object) -> Any:
    series = obj.get("series") or {}
    return series.get("count") or obj.get("count") or 1


AGE: Final = TableColumn("Age", description="Time since the object's creation.", cell=_age)

NAMESPACE: Final = (
    NAME,
    TableColumn("Status", description="Active or Terminating.", cell=lambda o: o.get("status", {}).get("phase", "")),
    AGE,
)
CONFIG_MAP: Final = (
    NAME,
    TableColumn(
        "Data", description="Number of keys.", cell=lambda o: len(o.get("data", ())) + len(o.get("binaryData", ()))
    ),
    AGE,
)
SECRET: Final = (
    NAME,
    TableColumn("Type", description="Type of the secret.", cell=lambda o: o.get("type", "")),
    TableColumn("Data", description="Number of keys.", cell=lambda o: len(o.get("data", ()))),
    AGE,
)
SERVICE_ACCOUNT: Final = (NAME, AGE)
LEASE: Final = (
    NAME,
    TableColumn("Holder", description="Holder of the lease.", cell=lambda o: o["spec"].get("holderIdentity", "")),
    AGE,
)
NODE: Final = (
    NAME,
    TableColumn("Status", description="Readiness of the node, and its cordon.", cell=_node_status),
    TableColumn("Roles", description="Roles by label.", cell=_node_roles),
    AGE,
    TableColumn("Version", description="Version of kubelet.", cell=_node_info("kubeletVersion", "")),
    TableColumn("Internal-IP", priority=1, description="An internal address.", cell=_node_address("InternalIP")),
    TableColumn("External-IP", priority=1, description="An external address.", cell=_node_address("ExternalIP")),
    TableColumn("OS-Image", priority=1, description="The operating system.", cell=_node_info("osImage")),
    TableColumn("Kernel-Version", priority=1, description="The kernel.", cell=_node_info("kernelVersion")),
    TableColumn(
        "Container-Runtime", priority=1, description="The runtime.", cell=_node_info("containerRuntimeVersion")
    ),
)
EVENT: Final = (
    TableColumn("Last Seen", description="Time since it was last observed.", cell=_event_last_seen),
    TableColumn("Type", description="Normal or Warning.", cell=lambda o: o.get("type", "")),
    TableColumn("Reason", description="One word for why.", cell=lambda o: o.get("reason", "")),
    TableColumn("Object", description="Object of the event.", cell=_event_object),
    TableColumn(
        "Subobject",
        priority=1,
        description="Part of the object.",
        cell=lambda o: o.get("involvedObject", {}).get("fieldPath", ""),
    ),
    TableColumn("Source", priority=1, description="Reporting component.", cell=_event_source),
    TableColumn("Message", description="A sentence for people.", cell=lambda o: o.get("message", "").strip()),
    TableColumn("First Seen", priority=1, description="Time since it was first observed.", cell=_event_first_seen),
    TableColumn("Count", priority=1, description="Number of occurrences.", cell=_event_count),
    TableColumn(
        "Name", priority=1, format="name", description="Name of the event.", cell=lambda o: o["metadata"]["name"]
    ),
)


class BadPath(Exception):
    """The path cannot be parsed."""


@lru_cache(maxsize=1024)
def compile_path(path: str) -> Callable[[Any], list[Any]]:
    """Return a function that finds all values of a path like `.spec.a[?(@.type=="Ready")].status`. Raises BadPath."""
    steps: list[Step] = []
    at = 0
    text = path.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None:
            raise BadPath(f"unrecognized text in {path!r} at {text[at:]!r}")
        steps.append(_step(match))
        at = match.end()

    def find(value: Any) -> list[Any]:
        found = [value]
        for step in steps:
            found = [inner for outer in found for inner in step(outer)]
        return found

    return find


def _step(match: re.Match[str]) -> Step:
    kind = match.lastgroup
    if match["left"] is not None:
        return _filter(match["left"], match["op"], match["right"])
    if kind in {"field", "quoted", "double"}:
        name = re.sub(r"\\(.)", r"\1", match[kind])
        return lambda value: (value[name],) if isinstance(value, Mapping) and name in value else ()
    if kind == "all":
        return _children
    if kind == "deep":
        return lambda value: _deep(value, match["deep"])
    if kind == "index":
        index = int(match["index"])
        return lambda value: value[index : index + 1 or None] if isinstance(value, list) else ()
    first, last = (int(part) if part else None for part in match["slice"].split(":"))
    return lambda value: value[first:last] if isinstance(value, list) else ()


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()


def _deep(value: Any, name: str) -> Iterable[Any]:
    if isinstance(value, Mapping) and name in value:
        yield value[name]
    for child in _children(value):
        yield from _deep(child, name)


def _filter(left: str, operator: str | None, right: str | None) -> Step:
    find = compile_path(left)

    def holds(item: Any) -> bool:
        found = find(item)
        if operator is None or right is None:
            return bool(found)
        return any(_compare(value, operator, right) for value in found)

    return lambda value: [item for item in _children(value) if holds(item)]


def _compare(value: Any, operator: str, text: str) -> bool:
    desired: Any = text[1:-1] if text[0] in "\"'" else {"true": True, "false": False}.get(text, _number(text))
    if operator == "==":
        return bool(value == desired)
    if operator == "!=":
        return bool(value != desired)
    if type(value) is not type(desired) and not (isinstance(value, int | float) and isinstance(desired, int | float)):
        return False
    compared = {"<": value < desired, "<=": value <= desired, ">": value > desired, ">=": value >= desired}
    return bool(compared[operator])


def _number(text: str) -> int | float | str:
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text
