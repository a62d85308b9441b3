"""Calls that read: single resources, and lists with filters, order and pages."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from unbounded_lab.cloud.history import Body, HistoryMap, TaggedView
from unbounded_lab.cloud.oci import model, views
from unbounded_lab.cloud.oci.errors import OciProblem, invalid, not_found
from unbounded_lab.cloud.oci.misbehaviours import MOST_ON_A_PAGE
from unbounded_lab.cloud.oci.tenancy import Tenancy
from unbounded_lab.http import LabReply

JSON: Final = "application/json"
PAGE_SIZE: Final = 100
SORTED_BY: Final = {"TIMECREATED": "timeCreated", "DISPLAYNAME": "displayName"}

Query = Mapping[str, str]
Read = Callable[[Tenancy, tuple[str, ...], Query, float], LabReply]
ShelfOf = Callable[[Tenancy], HistoryMap[Any]]


def json_reply(body: Any, *, status: int = 200, **headers: str | None) -> LabReply:
    """Return a JSON reply. Underscores in names of headers become dashes; headers that are None are left out."""
    named = {name.replace("_", "-"): value for name, value in headers.items() if value is not None}
    return LabReply(status, msgspec.json.encode(body), {"content-type": JSON, **named})


def one(shelf: ShelfOf) -> Read:
    """Return a call that reads a single resource, with the lag of the fault `get_lag_s`."""

    def read(tenancy: Tenancy, ids: tuple[str, ...], _query: Query, now: float) -> LabReply:
        shown = shelf(tenancy).view_at(ids[0], now - tenancy.faults.get_lag_s)
        if shown is None:
            raise not_found()
        return json_reply(shown.body, etag=shown.etag)

    return read


def many(shelf: ShelfOf, *, filters: tuple[str, ...], needed: tuple[str, ...] = ("compartmentId",)) -> Read:
    """Return a call that reads a list of resources.

    Args:
        filters: query parameters that must equal the field of the same name.
        needed: required ones of them.
    """

    def read(tenancy: Tenancy, _ids: tuple[str, ...], query: Query, now: float) -> LabReply:
        check_compartment(tenancy, query, needed)
        requested = {name: query[name] for name in (*filters, "compartmentId") if name in query}
        every = shelf(tenancy).views_at(now - tenancy.faults.list_lag_s)
        return page(tenancy, query, ordered(query, (shown.body for shown in every if _matches(shown, requested))))

    return read


def check_compartment(tenancy: Tenancy, query: Query, needed: tuple[str, ...] = ("compartmentId",)) -> None:
    """Check the required parameters of a list.

    Raises:
        OciProblem: a parameter is missing, or the compartment is none of this tenancy.
    """
    for name in needed:
        if not query.get(name):
            raise OciProblem("MissingParameter", f"{name} is missing")
    if query.get("compartmentId", tenancy.id) not in (tenancy.id, tenancy.compartment_id):
        raise not_found()


def _matches(shown: TaggedView, requested: Query) -> bool:
    return all(shown.body.get(name) == value for name, value in requested.items())


def ordered(query: Query, bodies: Iterable[Body]) -> list[Body]:
    """Sort as the query requests; newest first by default."""
    by = one_of(query, "sortBy", *SORTED_BY) or "TIMECREATED"
    order = one_of(query, "sortOrder", "ASC", "DESC") or ("DESC" if by == "TIMECREATED" else "ASC")
    return sorted(bodies, key=lambda body: (body[SORTED_BY[by]], body["id"]), reverse=order == "DESC")


def one_of(query: Query, name: str, *values: str) -> str | None:
    """Return a parameter with a fixed set of values.

    Raises:
        OciProblem: it has another one.
    """
    given = query.get(name)
    if given is not None and given not in values:
        raise invalid(f"{name} has to be one of {', '.join(values)}")
    return given


def page(tenancy: Tenancy, query: Query, bodies: list[Body], *, key: str = "id") -> LabReply:
    """Return the requested page of a list, with the token of the next one; it may be smaller than requested."""
    limit = query.get("limit", str(PAGE_SIZE))
    if not limit.isdecimal() or not 1 <= int(limit) <= MOST_ON_A_PAGE:
        raise invalid(f"limit has to be between 1 and {MOST_ON_A_PAGE}")
    start = _start(query.get("page"), [body[key] for body in bodies])
    shown = bodies[start : start + min(int(limit), tenancy.faults.page_size)]
    is_last = start + len(shown) >= len(bodies)
    token = None if is_last else urlsafe_b64encode(shown[-1][key].encode()).decode()
    return json_reply(shown, opc_next_page=token)


def _start(token: str | None, ids: list[str]) -> int:
    """Return the index after the last item of the page before."""
    if token is None:
        return 0
    try:
        return ids.index(urlsafe_b64decode(token).decode()) + 1
    except ValueError as error:
        raise invalid("page is not a token of this list") from error


def images(tenancy: Tenancy, _ids: tuple[str, ...], query: Query, now: float) -> LabReply:
    """List images. Platform images are in every compartment; `shape` selects those that it can boot."""
    check_compartment(tenancy, query)
    shape = tenancy.shapes.get(query["shape"]) if "shape" in query else None
    if "shape" in query and shape is None:
        raise invalid(f"shape {query['shape']} not found")
    fitting = {image.id for image in tenancy.images if shape is None or image.fits(shape)}
    filters = ("displayName", "operatingSystem", "operatingSystemVersion", "lifecycleState")
    requested = {name: query[name] for name in filters if name in query}
    every = tenancy.images.views_at(now - tenancy.faults.list_lag_s)
    found = (shown.body for shown in every if shown.body["id"] in fitting and _matches(shown, requested))
    here = (body for body in found if body["compartmentId"] in (None, query["compartmentId"]))
    return page(tenancy, query, ordered(query, here))


def shapes(tenancy: Tenancy, _ids: tuple[str, ...], query: Query, _now: float) -> LabReply:
    check_compartment(tenancy, query)
    one_of(query, "availabilityDomain", *model.AVAILABILITY_DOMAINS)  # each has all shapes
    image = tenancy.images.get(query["imageId"]) if "imageId" in query else None
    if "imageId" in query and image is None:
        raise not_found()
    found = [shape for shape in tenancy.shapes.values() if image is None or image.fits(shape)]
    requested = query.get("shape")
    return page(
        tenancy, query, [views.shape_body(each) for each in found if requested in (None, each.name)], key="shape"
    )


def availability_domains(tenancy: Tenancy, _ids: tuple[str, ...], query: Query, _now: float) -> LabReply:
    check_compartment(tenancy, query)
    return json_reply(
        [
            {"name": name, "id": model.ocid("availabilitydomain", tenancy.seed, name), "compartmentId": tenancy.id}
            for name in model.AVAILABILITY_DOMAINS
        ]
    )


def work_request(tenancy: Tenancy, ids: tuple[str, ...], query: Query, now: float) -> LabReply:
    """Return one work request, with Retry-After from the fault `work_again_s`."""
    reply = one(lambda t: t.work_requests)(tenancy, ids, query, now)
    again_s = tenancy.faults.work_again_s
    return reply if again_s is None else replace(reply, headers={**reply.headers, "retry-after": f"{again_s:.0f}"})


def work_requests(tenancy: Tenancy, _ids: tuple[str, ...], query: Query, now: float) -> LabReply:
    """List summaries of work requests, newest first; `resourceId` selects those of one resource."""
    check_compartment(tenancy, query)
    every = (shown.body for shown in tenancy.work_requests.views_at(now - tenancy.faults.list_lag_s))
    here = (body for body in every if body["compartmentId"] == query["compartmentId"])
    requested = query.get("resourceId")
    found = [body for body in here if requested in (None, *(each["identifier"] for each in body["resources"]))]
    newest_first = sorted(found, key=lambda body: (body["timeAccepted"], body["id"]), reverse=True)
    return page(
        tenancy, query, [{name: each for name, each in body.items() if name != "resources"} for body in newest_first]
    )


def work_request_errors(tenancy: Tenancy, ids: tuple[str, ...], query: Query, _now: float) -> LabReply:
    work = tenancy.work_requests.get(ids[0])
    if work is None:
        raise not_found()
    one_of(query, "sortOrder", "ASC", "DESC")  # there is at most one
    return page(tenancy, query, views.work_request_errors(work), key="timestamp")
