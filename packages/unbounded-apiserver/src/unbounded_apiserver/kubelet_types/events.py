"""events.k8s.io: a second view of the Events of the core group. Each Event is stored once, in the core form."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from unbounded_apiserver import type_descriptor_parser
from unbounded_apiserver.builtin_resources import EVENTS, BuiltInType
from unbounded_apiserver.core_types import EVENT, rules_of_changed_event, rules_of_event, rules_of_new_event
from unbounded_apiserver.resource_model import Object, ResourceView, TableColumn
from unbounded_apiserver.schema import FieldError

GROUP: Final = "events.k8s.io"
NAMES: Final = {  # field of this view, and its name in the core group, where the two differ
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_SHOWN: Final = {core: name for name, core in NAMES.items()}
TYPES: Final = type_descriptor_parser.read(
    """
Event: An event of an object; kept for an hour.
  action string  The action on the object.
  deprecatedCount int32  The number of its occurrences; of Events of the core group.
  deprecatedFirstTimestamp time!  The time of its first occurrence; of Events of the core group.
  deprecatedLastTimestamp time!  The time of its last occurrence; of Events of the core group.
  deprecatedSource EventSource!  The reporter; of Events of the core group.
  eventTime microtime!  The time of its first occurrence.
  note string  Message for users.
  reason string  The cause, as one word.
  regarding ObjectReference!  The object that it happened to.
  related ObjectReference*  A second object that is concerned.
  reportingController string  The controller that reports.
  reportingInstance string  Instance of the controller.
  series EventSeries*  The series that this event represents.
  type string  Normal or Warning.
EventSeries: A series of the same event.
  count int32!  The number of occurrences.
  lastObservedTime microtime!  The time of the last one.
""",
    package="io.k8s.api.events.v1",
    known={"EventSource": EVENT.members()["source"].shape},
)


def to_core(event: Object) -> Object:
    """Return an Event in the form of the core group."""
    core = {NAMES.get(name, name): value for name, value in event.items()}
    for name in ("reportingComponent", "reportingInstance"):
        core.setdefault(name, "")
    return core | {"apiVersion": EVENTS.api_version}


def from_core(event: Object) -> Object:
    """Return an Event of the core group in the form of this one; empty names of the reporter are left out."""
    shown = {_SHOWN.get(name, name): value for name, value in event.items()}
    for name in ("reportingController", "reportingInstance"):
        if not shown.get(name):
            shown.pop(name, None)
    return shown


def _rules(obj: Object, old: Object | None) -> list[FieldError]:
    event = to_core(obj)
    errors = rules_of_event(event, "reportingController")
    more = rules_of_new_event(event) if old is None else rules_of_changed_event(event, to_core(old))
    return [*errors, *more]


def _column(column: TableColumn) -> TableColumn:
    """Return a column of the core group's Events for objects of this view."""
    cell = column.cell
    return column if cell is None else replace(column, cell=lambda obj: cell(to_core(dict(obj))))


def _selector(core: str) -> str:
    first, dot, rest = core.partition(".")
    return _SHOWN.get(first, first) + dot + rest


EVENTS_V1: Final = replace(
    EVENTS,
    group=GROUP,
    type=BuiltInType(
        type_descriptor_parser.kind(TYPES, "Event"), create_on_update=True, rules=_rules, qualified_finalizers=False
    ),
    selectable={_selector(name): path for name, path in EVENTS.selectable.items() if name != "source"},
    columns=tuple(map(_column, EVENTS.columns)),
    view=ResourceView(EVENTS, from_core, to_core),
)
