"""Validation of Events, worded as by Kubernetes. events.k8s.io has more rules than the core group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from unbounded_apiserver import field_errors, name_validation
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.types import Object

DEFAULT: Final = "default"  # the namespace of Events about cluster-scoped objects
SYSTEM: Final = "kube-system"  # also allowed for such Events if they have an eventTime
LIMITS: Final = {"action": 128, "reason": 128, "message": 1024}
INSTANCE: Final = 128
TYPES: Final = ("Normal", "Warning")


def rules_of_event(event: Object, controller_field: str) -> list[FieldError]:
    """Return the errors of an Event in the form of the core group.

    Args:
        controller_field: the name that the client's version has for reportingComponent.
    """
    about = event["involvedObject"].get("namespace", "")
    where = event["metadata"].get("namespace", "")
    timed = bool(event.get("eventTime"))
    agrees = bool(about) or where in {DEFAULT, SYSTEM} if timed else where == (about or DEFAULT)
    errors = (
        [] if agrees else [field_errors.invalid("involvedObject.namespace", about, "does not match event.namespace")]
    )
    return [*errors, *_reported(event, controller_field)] if timed else errors


def _reported(event: Object, controller_field: str) -> Iterator[FieldError]:
    """Yield the fields that an Event with an eventTime lacks."""
    controller, instance = event["reportingComponent"], event["reportingInstance"]
    if not controller:
        yield field_errors.required(controller_field)
    yield from (
        field_errors.invalid(controller_field, controller, why) for why in name_validation.qualified_name(controller)
    )
    if not instance:
        yield field_errors.required("reportingInstance")
    if len(instance.encode()) > INSTANCE:
        yield field_errors.invalid("reportingInstance", "", f"can have at most {INSTANCE} characters")
    for name, limit in LIMITS.items():
        value = event.get(name, "")
        if not value and name != "message":
            yield field_errors.required(name)
        if len(value.encode()) > limit:
            yield field_errors.invalid(name, "", f"can have at most {limit} characters")


def rules_of_new_event(event: Object) -> Iterator[FieldError]:
    """Yield the further errors of a new Event of events.k8s.io. The Event is in the form of the core group."""
    yield from _series(event)
    if not event.get("eventTime"):
        yield field_errors.required("eventTime")
    if event.get("type", "") not in TYPES:
        yield field_errors.invalid("type", "", f"has invalid value: {event.get('type', '')}")
    for name in ("firstTimestamp", "lastTimestamp", "count", "source"):
        if event.get(name):
            yield field_errors.invalid(name, "", "needs to be unset")


def rules_of_changed_event(event: Object, old: Object) -> Iterator[FieldError]:
    """Yield the errors of a changed Event of events.k8s.io: only the series may change."""
    if event.get("series") != old.get("series"):
        yield from _series(event)
    for name in (
        *("involvedObject", "reason", "message", "source", "firstTimestamp", "lastTimestamp", "count", "type"),
        *("eventTime", "action", "related"),
    ):
        if event.get(name) != old.get(name):
            yield field_errors.immutable(name, event.get(name))
    for name, shown in (("reportingComponent", "reportingController"), ("reportingInstance", "reportingInstance")):
        if event.get(name) != old.get(name):
            yield field_errors.immutable(shown, event.get(name))


def _series(event: Object) -> Iterator[FieldError]:
    series = event.get("series")
    if series is None:
        return
    if series.get("count", 0) < 2:
        yield field_errors.invalid("series.count", "", "should be at least 2")
    if not series.get("lastObservedTime"):
        yield field_errors.required("series.lastObservedTime")
