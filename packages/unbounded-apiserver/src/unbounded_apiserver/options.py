"""Options of requests, parsed from the query (and for deletions from the body) as kube-apiserver does."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import msgspec

from unbounded_apiserver import field_errors, type_descriptor_parser, type_descriptors
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.status import StatusError, bad_request, invalid

META: Final = "meta.k8s.io"
INT64_DIGITS: Final = 20  # more than any of them has
MANAGER_BYTES: Final = 128
AGENTS: Final = 256  # User-Agents whose names are cached
Query = Mapping[str, Sequence[str]]
Object = dict[str, Any]


def first(query: Query, name: str) -> str:
    """Return the first value of a parameter, '' if it is absent."""
    values = query.get(name)
    return values[0] if values else ""


def flag(query: Query, name: str) -> bool:
    """Parse a boolean parameter: true if present and not false or 0."""
    return name in query and first(query, name).lower() not in {"false", "0"}


def integer(query: Query, name: str) -> int | None:
    """Parse an integer, None if absent. Raises StatusError (400)."""
    text = first(query, name)
    if not text:
        return None
    if not re.fullmatch(r"[-+]?[0-9]+", text, re.ASCII):
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    digits = text.lstrip("+-0")
    value = int(text) if len(digits) < INT64_DIGITS else None
    if value is None or not -(2**63) <= value < 2**63:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": value out of range')
    return value


def check_timeout(query: Query) -> None:
    """Check the `timeout` of a request that is not a watch. Raises StatusError (400)."""
    text = first(query, "timeout")
    if text and not re.fullmatch(r"([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+|0", text):
        raise bad_request(f'invalid timeout specified in the request URL - time: invalid duration "{text}"')


class WriteOptions(msgspec.Struct, frozen=True):
    """Options of a create, an update or a patch.

    - `warnings` collects the warnings that the client gets with the answer.
    - `prepare` may change the client's object before the type's own rules check it.
    - `admit` checks last, with the object that is to be stored. Both functions get the replaced object too (None:
      nothing), and raise StatusError.
    - `manager` owns the fields that are written. None, for writes of the server itself, records no owner.
    - `force` takes the fields of other managers in a server-side apply.
    """

    dry_run: bool = False
    validation: str = "Warn"
    warnings: list[str] = []
    prepare: Callable[[Object, Object | None], None] | None = None
    admit: Callable[[Object, Object | None], None] | None = None
    manager: str | None = None
    force: bool = False

    @classmethod
    def read(
        cls, query: Query, kind: str, warnings: list[str], *, agent: str = "", applies: bool | None = None
    ) -> WriteOptions:
        """Parse the options of a request. Raises StatusError (422).

        Args:
            kind: CreateOptions, UpdateOptions or PatchOptions.
            agent: the User-Agent, which names the manager when no parameter does.
            applies: whether a patch is a server-side apply; None for other requests.
        """
        if not query and not applies:
            return cls(warnings=warnings, manager=_agent_name(agent))
        errors: list[FieldError] = []
        dry = list(query.get("dryRun", ()))
        if any(value != "All" for value in dry):
            errors.append(field_errors.unsupported("dryRun", dry, ["All"]))
        validation = first(query, "fieldValidation")
        if validation not in {"", "Ignore", "Strict", "Warn"}:
            errors.append(field_errors.unsupported("fieldValidation", validation, ["", "Ignore", "Strict", "Warn"]))
        manager = first(query, "fieldManager")
        if len(manager.encode()) > MANAGER_BYTES:
            errors.append(field_errors.too_long("fieldManager", MANAGER_BYTES))
        elif not manager.isprintable():
            errors.append(field_errors.invalid("fieldManager", manager, "should only contain printable characters"))
        if applies and not manager:
            errors.append(field_errors.required("fieldManager", "is required for apply patch"))
        if applies is False and "force" in query:
            errors.append(field_errors.forbidden("force", "may not be specified for non-apply patch"))
        if errors:
            raise invalid(META, kind, "", errors)
        owner = manager or _agent_name(agent)
        return cls(bool(dry), validation or "Warn", warnings, manager=owner, force=flag(query, "force"))


@lru_cache(maxsize=AGENTS)
def _agent_name(agent: str) -> str:
    """Return the first part of a User-Agent, as far as it is printable."""
    name = "".join(c for c in agent.partition("/")[0] if c.isprintable())
    return name.encode()[:MANAGER_BYTES].decode(errors="ignore")


POLICIES: Final = ("Foreground", "Background", "Orphan")
_DELETE_OPTIONS: Final = type_descriptor_parser.read(
    """
DeleteOptions
  kind string
  apiVersion string
  gracePeriodSeconds int64*
  preconditions Preconditions
  orphanDependents bool*
  propagationPolicy string
  dryRun [string]
Preconditions
  uid string
  resourceVersion string
"""
)["DeleteOptions"]


@dataclass(frozen=True)
class DeleteOptions:
    """Options of a deletion. `policy` is '' for the default, which is Background.

    `admit` checks last, with the object that is to be deleted. It raises StatusError.
    """

    dry_run: bool = False
    policy: str = ""
    uid: str = ""
    resource_version: str = ""
    grace_s: int | None = None  # None: the object's own
    admit: Callable[[Object], None] | None = None

    @classmethod
    def read(cls, query: Query, body: Any) -> DeleteOptions:
        """Parse options from the body, if there is one, else from the query. Raises StatusError."""
        grace_s = integer(query, "gracePeriodSeconds")
        given = _delete_options(body)
        policy = given.get("propagationPolicy") or first(query, "propagationPolicy")
        dry = given.get("dryRun") or list(query.get("dryRun", ()))
        preconditions = given.get("preconditions") or {}
        orphan = given.get("orphanDependents", {"true": True, "false": False}.get(first(query, "orphanDependents")))
        errors: list[FieldError] = []
        if any(value != "All" for value in dry):
            errors.append(field_errors.unsupported("dryRun", dry, ["All"]))
        if policy and policy not in POLICIES:
            errors.append(field_errors.unsupported("propagationPolicy", policy, [*POLICIES, "nil"]))
        if policy and orphan is not None:
            why = "orphanDependents and deletionPropagation cannot be both set"
            errors.append(field_errors.invalid("propagationPolicy", policy, why))
        if errors:
            raise invalid(META, "DeleteOptions", "", errors)
        if orphan is not None and not policy:
            policy = "Orphan" if orphan else "Background"
        uid, version = preconditions.get("uid", ""), preconditions.get("resourceVersion", "")
        return cls(bool(dry), policy, uid, version, given.get("gracePeriodSeconds", grace_s))


def _delete_options(body: Any) -> Object:
    """Return the body of a deletion in its type's form. Raises StatusError (400)."""
    if body is not None and not isinstance(body, dict):
        raise bad_request("the body of the request is not a DeleteOptions object")
    kind = (body or {}).get("kind", "DeleteOptions")
    if kind != "DeleteOptions":
        raise bad_request(f"the object provided is unrecognized (must be of type DeleteOptions): {kind}")
    try:
        return type_descriptors.decode(_DELETE_OPTIONS, body or {}, [])
    except type_descriptors.WrongType as error:
        raise bad_request(str(error)) from error


@dataclass(frozen=True)
class ListOptions:
    """Options of a list or a watch, and its start revision. `revision` is None if the request has none."""

    labels: str = ""
    fields: str = ""
    limit: int = 0
    token: str = ""
    revision: int | None = None
    match: str = ""
    watch: bool = False
    bookmarks: bool = False
    initial: bool | None = None
    timeout_s: int | None = None

    @classmethod
    def read(cls, query: Query, *, watch: bool) -> ListOptions:
        """Parse the options of a list or a watch. Raises StatusError."""
        text = first(query, "resourceVersion")
        initial = flag(query, "sendInitialEvents") if "sendInitialEvents" in query else None
        match = first(query, "resourceVersionMatch")
        timeout_s = integer(query, "timeoutSeconds")
        limit = integer(query, "limit") or 0
        _check_match(text, match, initial, watch=watch, token=first(query, "continue"))
        return cls(
            first(query, "labelSelector"),
            first(query, "fieldSelector"),
            max(limit, 0),
            first(query, "continue"),
            revision(text, watch=watch),
            match,
            watch,
            flag(query, "allowWatchBookmarks"),
            initial,
            timeout_s,
        )


def revision(text: str, *, watch: bool = False) -> int | None:
    """Parse a resourceVersion parameter. Raises StatusError (400), whose message differs for watches."""
    if not text:
        return None
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    why = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
    if watch:
        raise bad_request(why)
    raise bad_request(f"invalid resource version: {why}")


def _check_match(text: str, match: str, initial: bool | None, *, watch: bool, token: str) -> None:
    def refuse(name: str, why: str) -> StatusError:
        return invalid(META, "ListOptions", "", [field_errors.forbidden(name, why)])

    where = "resourceVersionMatch"
    if match not in {"", "Exact", "NotOlderThan"}:
        raise invalid(META, "ListOptions", "", [field_errors.unsupported(where, match, ["Exact", "NotOlderThan", ""])])
    if watch:
        if match and initial is None:
            raise refuse(where, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
        if initial is not None and match != "NotOlderThan":
            raise refuse(where, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
        return
    if initial is not None:
        raise refuse("sendInitialEvents", "sendInitialEvents is forbidden for list")
    if match and token:
        raise refuse(where, "resourceVersionMatch is forbidden when continue is provided")
    if match and not text:
        raise refuse(where, "resourceVersionMatch is forbidden unless resourceVersion is provided")
    if match == "Exact" and text == "0":
        raise refuse(where, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"')
