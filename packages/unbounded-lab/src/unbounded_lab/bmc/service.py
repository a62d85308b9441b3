"""The Redfish service of a BMC: a request and the time in, a reply out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from unbounded_lab.bmc.actions import ACTIONS, LOGIN
from unbounded_lab.bmc.device import BmcExchange, SimulatedBmc
from unbounded_lab.bmc.faults import BmcAdmission, admission, apply_faults, busy
from unbounded_lab.bmc.http import JSON, BmcRequest, RedfishProblem
from unbounded_lab.bmc.resources import OPEN, RESOURCES, ROOT, metadata, system
from unbounded_lab.http import LabReply

METADATA: Final = f"{ROOT}/$metadata"
LINK_KEYS: Final = frozenset({"@odata.id", "target", "@Redfish.ActionInfo", "TaskMonitor"})
COMMON_HEADERS: Final = {"odata-version": "4.0", "cache-control": "no-cache"}


def admit(bmc: SimulatedBmc, request: BmcRequest, now: float) -> BmcAdmission:
    """Decide how a request reaches the service. The caller calls it once for each request."""
    bmc.requests += 1
    admitted = admission(bmc, request)
    if admitted.dropped:
        bmc.journal.append(BmcExchange(now, request.method, request.path, 0, "lost on the way"))
    return admitted


def answer(bmc: SimulatedBmc, request: BmcRequest, now: float) -> LabReply:
    """Execute an admitted request and return the reply, including faults."""
    bmc.advance(now)
    try:
        reply = _answer(bmc, request, now)
    except RedfishProblem as problem:
        reply = problem.reply()
    reply = apply_faults(bmc, request, replace(reply, headers={**COMMON_HEADERS, **reply.headers}))
    bmc.journal.append(BmcExchange(now, request.method, request.path, reply.status, reply.fate.value))
    return reply


def _answer(bmc: SimulatedBmc, request: BmcRequest, now: float) -> LabReply:
    problem = busy(bmc, now)
    if problem is not None:
        raise problem
    path = request.path.rstrip("/")
    if bmc.dials.slashes == "redirected" and path == request.path and path.startswith(ROOT):
        return LabReply(308, headers={"location": f"{path}/"})
    method = "GET" if request.method == "HEAD" else request.method
    if (method, path) != LOGIN and not (method == "GET" and path in OPEN):
        bmc.access.admit(request, now, bmc.dials)
    if method == "GET" and path == METADATA:
        return LabReply(200, metadata(), {"content-type": "application/xml"})
    reply = _show(bmc, path, now) if method == "GET" else None
    return _with_slashes(bmc, reply or _act(bmc, method, path, request, now))


def _show(bmc: SimulatedBmc, path: str, now: float) -> LabReply | None:
    """Return the resource at a path with its ETag; None when there is none."""
    found = RESOURCES.find(path)
    if found is None:
        return None
    render, ids = found
    body = render(bmc, ids, now)
    if body is None:
        raise RedfishProblem("ResourceMissingAtURI", path)
    if bmc.dials.empty_in_transition and render is system and _in_transition(bmc, ids[0], now):
        return LabReply(200, b"", {"content-type": JSON})
    return _tagged(bmc, body)


def _in_transition(bmc: SimulatedBmc, name: str, now: float) -> bool:
    found = bmc.system(name)
    return found is not None and found.in_transition(now)


def _act(bmc: SimulatedBmc, method: str, path: str, request: BmcRequest, now: float) -> LabReply:
    routes = ACTIONS.get(method)
    found = routes and routes.find(path)
    if not found:
        if RESOURCES.find(path) or any(others.find(path) for others in ACTIONS.values()):
            raise RedfishProblem("OperationNotAllowed", headers={"allow": ", ".join(_allowed(path))})
        raise RedfishProblem("ResourceMissingAtURI", request.path)
    act, ids = found
    _check_etag(bmc, method, path, request, now)
    reply = act(bmc, ids, request, now)
    if method == "PATCH":
        return _tagged(bmc, msgspec.json.decode(reply.body))
    return reply


def _allowed(path: str) -> list[str]:
    shown = ["GET", "HEAD"] if RESOURCES.find(path) else []
    return shown + [method for method, routes in ACTIONS.items() if routes.find(path)]


def _check_etag(bmc: SimulatedBmc, method: str, path: str, request: BmcRequest, now: float) -> None:
    """Check a request's If-Match.

    Raises:
        Problem: it is missing, not accepted, or differs from the resource's ETag.
    """
    given = request.headers.get("if-match")
    if method == "POST" and given is not None and bmc.dials.if_match_on_post == "refused":
        raise RedfishProblem("PreconditionFailed")
    if method != "PATCH":
        return
    if given is None:
        if bmc.dials.if_match_on_patch == "required":
            raise RedfishProblem("PreconditionRequired")
        return
    if bmc.dials.if_match_on_patch == "refused":
        raise RedfishProblem("PreconditionFailed")
    if given != "*" and bmc.dials.etags != "none":
        found = RESOURCES.find(path)
        body = found and found[0](bmc, found[1], now)
        if body and given != _etag(bmc, msgspec.json.encode(body)):
            raise RedfishProblem("PreconditionFailed")


def _etag(bmc: SimulatedBmc, encoded: bytes) -> str:
    """Return the ETag as the resource has it, and as If-Match must repeat it."""
    digest = hashlib.blake2b(encoded, digest_size=8).hexdigest()
    return f'W/"{digest}"' if bmc.dials.etags == "weak" else f'"{digest}"'


def _tagged(bmc: SimulatedBmc, body: Mapping[str, Any]) -> LabReply:
    encoded = msgspec.json.encode(body)
    if bmc.dials.etags == "none":
        return LabReply(200, encoded, {"content-type": JSON})
    etag = _etag(bmc, encoded)
    header = f'"{etag}"' if bmc.dials.etags == "double-quoted" else etag
    tag = b',"@odata.etag":' + msgspec.json.encode(etag) + b"}"
    return LabReply(200, encoded[:-1] + tag, {"content-type": JSON, "etag": header})


def _with_slashes(bmc: SimulatedBmc, reply: LabReply) -> LabReply:
    """Return the reply with a slash at the end of all paths, for a BMC that redirects those without."""
    if bmc.dials.slashes != "redirected":
        return reply
    headers = dict(reply.headers)
    if "location" in headers:
        headers["location"] = _slashed(headers["location"])
    body = msgspec.json.encode(_slashed_links(msgspec.json.decode(reply.body))) if reply.body else b""
    return replace(reply, body=body, headers=headers)


def _slashed_links(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _slashed(each) if key in LINK_KEYS and isinstance(each, str) else _slashed_links(each)
            for key, each in value.items()
        }
    return [_slashed_links(each) for each in value] if isinstance(value, list) else value


def _slashed(path: str) -> str:
    return path if path.endswith("/") else f"{path}/"
