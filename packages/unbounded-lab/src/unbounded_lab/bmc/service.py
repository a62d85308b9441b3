"""The Redfish service of a BMC: a request and the time in, a reply out.

Faults act around a request: before the service acts, and on its reply's way back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from unbounded_lab.bmc.actions import ACTIONS, LOGIN
from unbounded_lab.bmc.device import BmcExchange, SimulatedBmc
from unbounded_lab.bmc.redfish import JSON, ROOT, BmcRequest, Body, RedfishProblem, error_body
from unbounded_lab.bmc.replay import SYSTEMS, BmcRecording, current_body
from unbounded_lab.bmc.resources import OPEN, RESOURCES, SSE, metadata, system
from unbounded_lab.http import OK, Delivery, LabReply

SESSIONS: Final = f"{ROOT}/SessionService"
ERROR_DOCUMENT: Final = msgspec.json.encode(error_body("InternalError"))
METADATA: Final = f"{ROOT}/$metadata"
LINK_KEYS: Final = frozenset({"@odata.id", "target", "@Redfish.ActionInfo", "TaskMonitor"})
LIVE: Final = (SESSIONS, f"{ROOT}/TaskService", SSE, METADATA)
"""Resources that are never replayed, with those below them."""
COMMON_HEADERS: Final = {"odata-version": "4.0", "cache-control": "no-cache"}


@dataclass(frozen=True, slots=True)
class BmcAdmission:
    """Treatment of a request before the service acts."""

    wait_s: float = 0.0
    dropped: bool = False  # the connection is closed; the service does not act


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
    if bmc.faults.slashes == "redirected" and path == request.path and path.startswith(ROOT):
        return LabReply(308, headers={"location": f"{path}/"})
    method = "GET" if request.method == "HEAD" else request.method
    if (method, path) != LOGIN and not (method == "GET" and _is_open(bmc, path)):
        bmc.access.admit(request, now, bmc.faults)
    if method == "GET" and path == METADATA:
        return LabReply(200, metadata(), {"content-type": "application/xml"})
    reply = _show(bmc, path, now) if method == "GET" else None
    return _with_slashes(bmc, reply or _act(bmc, method, path, request, now))


def _is_open(bmc: SimulatedBmc, path: str) -> bool:
    """Return whether a path can be read without a log-in."""
    is_closed = bmc.recording is not None and not bmc.recording.open_root
    return path in OPEN and not (is_closed and path == ROOT)


def _show(bmc: SimulatedBmc, path: str, now: float) -> LabReply | None:
    """Return the resource at a path with its ETag; None when there is none."""
    if bmc.recording is not None and not path.startswith(LIVE):
        return _replay(bmc, bmc.recording, path, now)
    found = RESOURCES.find(path)
    if found is None:
        return None
    render, ids = found
    body = render(bmc, ids, now)
    if body is None:
        raise RedfishProblem("ResourceMissingAtURI", path)
    if bmc.faults.empty_in_transition and render is system and _in_transition(bmc, ids[0], now):
        return LabReply(200, b"", {"content-type": JSON})
    return _tagged(bmc, body)


def _replay(bmc: SimulatedBmc, recording: BmcRecording, path: str, now: float) -> LabReply:
    """Return the recorded answer at a path; a path that was not read is missing."""
    found = recording.resources.get(path)
    if found is None:
        raise RedfishProblem("ResourceMissingAtURI", path)
    if found.status == OK and found.body is not None:
        return _tagged(bmc, _body_at(bmc, path, now) or {})
    return LabReply(found.status, found.encoded, {"content-type": found.content_type or JSON})


def _body_at(bmc: SimulatedBmc, path: str, now: float) -> Body | None:
    """Return the present body of the resource at a path."""
    if bmc.recording is not None and path in bmc.recording.resources:
        parent, _, name = path.rpartition("/")
        own = bmc.system(name) if parent == SYSTEMS else None
        power = own.power_state(now, bmc.faults) if own else None
        return current_body(bmc.recording, path, own.host if own else None, power)
    found = RESOURCES.find(path)
    return found[0](bmc, found[1], now) if found else None


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
        RedfishProblem: it is missing, not accepted, or differs from the resource's ETag.
    """
    given = request.headers.get("if-match")
    if method == "POST" and given is not None and bmc.faults.if_match_on_post == "refused":
        raise RedfishProblem("PreconditionFailed")
    if method != "PATCH":
        return
    if given is None:
        if bmc.faults.if_match_on_patch == "required":
            raise RedfishProblem("PreconditionRequired")
        return
    if bmc.faults.if_match_on_patch == "refused":
        raise RedfishProblem("PreconditionFailed")
    if given != "*" and bmc.faults.etags != "none":
        body = _body_at(bmc, path, now)
        if body and given != _etag(bmc, msgspec.json.encode(body)):
            raise RedfishProblem("PreconditionFailed")


def _etag(bmc: SimulatedBmc, encoded: bytes) -> str:
    """Return the ETag as the resource has it, and as If-Match must repeat it."""
    digest = hashlib.blake2b(encoded, digest_size=8).hexdigest()
    return f'W/"{digest}"' if bmc.faults.etags == "weak" else f'"{digest}"'


def _tagged(bmc: SimulatedBmc, body: Mapping[str, Any]) -> LabReply:
    encoded = msgspec.json.encode(body)
    if bmc.faults.etags == "none":
        return LabReply(200, encoded, {"content-type": JSON})
    etag = _etag(bmc, encoded)
    header = f'"{etag}"' if bmc.faults.etags == "double-quoted" else etag
    tag = b',"@odata.etag":' + msgspec.json.encode(etag) + b"}"
    return LabReply(200, encoded[:-1] + tag, {"content-type": JSON, "etag": header})


def _with_slashes(bmc: SimulatedBmc, reply: LabReply) -> LabReply:
    """Return the reply with a slash at the end of all paths, for a BMC that redirects those without."""
    if bmc.faults.slashes != "redirected":
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


def admission(bmc: SimulatedBmc, request: BmcRequest) -> BmcAdmission:
    """Decide how a request reaches the service. Each call uses up a count."""
    if _changes(request) and bmc.spend("lost_before"):
        return BmcAdmission(dropped=True)
    if bmc.faults.stall_then == "acts-after" and bmc.spend("stalls"):
        return BmcAdmission(wait_s=bmc.faults.stall_s)
    return BmcAdmission()


def busy(bmc: SimulatedBmc, now: float) -> RedfishProblem | None:
    """Return the 503 of a BMC that is not up yet or is overloaded."""
    if now < bmc.available_at:
        left_s = str(max(1, round(bmc.available_at - now)))
        return RedfishProblem("ServiceTemporarilyUnavailable", left_s, headers={"retry-after": left_s})
    limit = bmc.faults.busy_above_per_s
    if limit is None:
        return None
    while bmc.recent and bmc.recent[0] <= now - 1.0:
        bmc.recent.popleft()
    bmc.recent.append(now)
    if len(bmc.recent) > limit:
        return RedfishProblem("ServiceTemporarilyUnavailable", "1", headers={"retry-after": "1"})
    return None


def apply_faults(bmc: SimulatedBmc, request: BmcRequest, reply: LabReply) -> LabReply:
    """Return the reply as it arrives at the client."""
    faults = bmc.faults
    if _changes(request) and bmc.spend("lost_after"):
        return replace(reply, fate=Delivery.DROPPED)
    if request.method == "GET" and reply.status == OK and reply.body:
        reply = _damage_body(bmc, reply)
    hold_s = bmc.rng.uniform(*faults.slow_s)
    if faults.stall_then == "acted-before" and bmc.spend("stalls"):
        hold_s += faults.stall_s
    headers = dict(reply.headers)
    if reply.body and headers.get("content-type", "").startswith("application/json"):
        headers["content-type"] = faults.content_type
    return replace(reply, headers=headers, hold_s=hold_s, close=faults.closes)


def _damage_body(bmc: SimulatedBmc, reply: LabReply) -> LabReply:
    if bmc.spend("truncated"):
        return replace(reply, body=reply.body[: len(reply.body) // 2])
    if bmc.spend("cut_off"):
        return replace(reply, fate=Delivery.CUT_OFF)
    if bmc.spend("doubled"):
        return replace(reply, body=ERROR_DOCUMENT + b"\n" + reply.body)
    return reply


def _changes(request: BmcRequest) -> bool:
    """Return whether the loss of this request's reply leaves its client in doubt about a host."""
    return request.method in ("POST", "PATCH") and not request.path.startswith(SESSIONS)
