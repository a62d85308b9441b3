"""Faults around a request: before the service acts, and with its reply on the way back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import msgspec

from unbounded_lab.bmc.device import SimulatedBmc
from unbounded_lab.bmc.http import BmcRequest, RedfishProblem, error_body
from unbounded_lab.bmc.resources import ROOT
from unbounded_lab.http import OK, Delivery, LabReply

SESSIONS: Final = f"{ROOT}/SessionService"
ERROR_DOCUMENT: Final = msgspec.json.encode(error_body("InternalError"))


@dataclass(frozen=True, slots=True)
class BmcAdmission:
    """Treatment of a request before the service acts."""

    wait_s: float = 0.0
    dropped: bool = False  # the connection is closed; the service does not act


def admission(bmc: SimulatedBmc, request: BmcRequest) -> BmcAdmission:
    """Decide how a request reaches the service. Each call uses up a count."""
    if _changes(request) and bmc.spend("lost_before"):
        return BmcAdmission(dropped=True)
    if bmc.dials.stall_then == "acts-after" and bmc.spend("stalls"):
        return BmcAdmission(wait_s=bmc.dials.stall_s)
    return BmcAdmission()


def busy(bmc: SimulatedBmc, now: float) -> RedfishProblem | None:
    """Return the 503 of a BMC that is not up yet or is overloaded."""
    if now < bmc.available_at:
        left_s = str(max(1, round(bmc.available_at - now)))
        return RedfishProblem("ServiceTemporarilyUnavailable", left_s, headers={"retry-after": left_s})
    limit = bmc.dials.busy_above_per_s
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
    dials = bmc.dials
    if _changes(request) and bmc.spend("lost_after"):
        return replace(reply, fate=Delivery.DROPPED)
    if request.method == "GET" and reply.status == OK and reply.body:
        reply = _damage_body(bmc, reply)
    hold_s = bmc.rng.uniform(*dials.slow_s)
    if dials.stall_then == "acted-before" and bmc.spend("stalls"):
        hold_s += dials.stall_s
    headers = dict(reply.headers)
    if reply.body and headers.get("content-type", "").startswith("application/json"):
        headers["content-type"] = dials.content_type
    return replace(reply, headers=headers, hold_s=hold_s, close=dials.closes)


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
