"""The service of an Oracle cloud, and its calls by Oracle's names: a request and the time in, a reply out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from email.utils import formatdate
from typing import Final
from urllib.parse import parse_qsl, unquote

from unbounded_lab.cloud.frontend import CloudCall, CloudRateLimit, TokenBuckets
from unbounded_lab.cloud.history import CloudHistory
from unbounded_lab.cloud.oci import reads, writes
from unbounded_lab.cloud.oci.authentication import OciAccess
from unbounded_lab.cloud.oci.errors import ERRORS, RETRY_LATER, OciProblem, problem_named
from unbounded_lab.cloud.oci.misbehaviours import OciFaults
from unbounded_lab.cloud.oci.reads import json_reply
from unbounded_lab.cloud.oci.tenancy import Tenancy
from unbounded_lab.http import LabReply, LabRequest, Routes

VERSION: Final = "/20160918"
FEDERATION: Final = "/v1/x509"
WORKLOAD: Final = "/resourcePrincipalSessionTokens"
IN_AD: Final = ("availabilityDomain",)
NAMED: Final = ("displayName", "lifecycleState")
INSTANCES: Final = reads.many(
    lambda t: t.instances, filters=(*IN_AD, *NAMED, "capacityReservationId", "computeClusterId")
)
UNKNOWN: Final = "Unknown"
LOGIN: Final = "Login"
LIMITS: Final[Mapping[bool, CloudRateLimit]] = {
    False: CloudRateLimit(burst=1000, per_s=100),
    True: CloudRateLimit(burst=200, per_s=10),
}
"""Of a tenancy, for reads and for changes. Oracle publishes no figures: that of changes is Azure's, reads get more."""
Login = Callable[[LabRequest, float], LabReply]
"""Issues a token for a valid credential, by the time of clients that sign requests; raises OciProblem."""


@dataclass(frozen=True, slots=True)
class OciCall:
    """A call: its name, and the function that executes it."""

    name: str
    read: reads.Read | None = None
    write: writes.Write | None = None


CALLS: Final[Mapping[str, Mapping[str, OciCall]]] = {
    "GET": {
        "/instances": OciCall("ListInstances", INSTANCES),
        "/instances/*": OciCall("GetInstance", reads.one(lambda t: t.instances)),
        "/vnicAttachments": OciCall(
            "ListVnicAttachments",
            reads.many(lambda t: t.vnic_attachments, filters=(*IN_AD, "instanceId", "vnicId")),
        ),
        "/vnics/*": OciCall("GetVnic", reads.one(lambda t: t.vnics)),
        "/subnets/*": OciCall("GetSubnet", reads.one(lambda t: t.subnets)),
        "/subnets": OciCall("ListSubnets", reads.many(lambda t: t.subnets, filters=(*NAMED, "vcnId"))),
        "/bootVolumeAttachments": OciCall(
            "ListBootVolumeAttachments",
            reads.many(
                lambda t: t.boot_volume_attachments,
                filters=(*IN_AD, "instanceId", "bootVolumeId"),
                needed=("availabilityDomain", "compartmentId"),
            ),
        ),
        "/volumeAttachments": OciCall(
            "ListVolumeAttachments",
            reads.many(lambda t: t.volume_attachments, filters=(*IN_AD, "instanceId", "volumeId")),
        ),
        "/bootVolumes": OciCall(
            "ListBootVolumes", reads.many(lambda t: t.boot_volumes, filters=(*IN_AD, "volumeGroupId"))
        ),
        "/bootVolumes/*": OciCall("GetBootVolume", reads.one(lambda t: t.boot_volumes)),
        "/volumes": OciCall(
            "ListVolumes",
            reads.many(lambda t: t.volumes, filters=(*IN_AD, *NAMED, "volumeGroupId", "clusterPlacementGroupId")),
        ),
        "/volumes/*": OciCall("GetVolume", reads.one(lambda t: t.volumes)),
        "/images": OciCall("ListImages", reads.images),
        "/images/*": OciCall("GetImage", reads.one(lambda t: t.images)),
        "/shapes": OciCall("ListShapes", reads.shapes),
        "/availabilityDomains": OciCall("ListAvailabilityDomains", reads.availability_domains),
        "/workRequests": OciCall("ListWorkRequests", reads.work_requests),
        "/workRequests/*": OciCall("GetWorkRequest", reads.work_request),
        "/workRequests/*/errors": OciCall("ListWorkRequestErrors", reads.work_request_errors),
    },
    "POST": {
        "/instances": OciCall("LaunchInstance", write=writes.launch_instance),
        "/instances/*": OciCall("InstanceAction", write=writes.instance_action),
    },
    "PUT": {"/instances/*": OciCall("UpdateInstance", write=writes.update_instance)},
    "DELETE": {
        "/instances/*": OciCall("TerminateInstance", write=writes.terminate_instance),
        "/bootVolumes/*": OciCall("DeleteBootVolume", write=writes.delete_boot_volume),
    },
}

ROUTES: Final[Mapping[str, Routes[OciCall]]] = {
    method: Routes({f"{VERSION}{path}": known for path, known in calls.items()}) for method, calls in CALLS.items()
}


class OciService:
    """One tenancy behind its API.

    Args:
        logins: by the path of each.
        wall: the time of clients that sign requests, seconds since 1970: the tenancy may have another clock.
    """

    def __init__(
        self,
        tenancy: Tenancy,
        access: OciAccess,
        logins: Mapping[str, Login],
        wall: Callable[[], float],
    ) -> None:
        self.tenancy = tenancy
        self._access = access
        self._logins = logins
        self._wall = wall
        self._buckets = TokenBuckets()
        self._answers = 0

    @property
    def faults(self) -> OciFaults:
        return self.tenancy.faults

    @property
    def history(self) -> CloudHistory:
        return self.tenancy.history

    @property
    def error_names(self) -> Collection[str]:
        return ERRORS.keys()

    def set_faults(self, faults: OciFaults, now: float) -> None:
        self.tenancy.set_faults(faults, now)
        self._access.revoked = faults.key_revoked

    def advance(self, now: float) -> None:
        self.tenancy.advance(now)

    def call(self, request: LabRequest) -> CloudCall:
        if request.path in self._logins:
            return CloudCall(LOGIN, self.tenancy.id, is_login=True)
        known, _ = _find(request)
        name = UNKNOWN if known is None else known.name
        return CloudCall(name, self.tenancy.id, changes=known is not None and known.write is not None)

    def answer(self, request: LabRequest, call: CloudCall, now: float) -> LabReply:
        try:
            reply = self._answer(request, call, now)
        except OciProblem as problem:
            reply = _refusal(problem)
        return self._tagged(reply, request, now)

    def error(self, name: str, request: LabRequest, _call: CloudCall, now: float) -> LabReply:
        problem = problem_named(name)
        wait_s = self.faults.retry_after_s if problem.code in RETRY_LATER else None
        return self._tagged(_refusal(problem, wait_s), request, now)

    def _answer(self, request: LabRequest, call: CloudCall, now: float) -> LabReply:
        signed_at = self._wall() + self.faults.clock_ahead_s
        if call.is_login:
            return self._logins[request.path](request, signed_at)
        self._access.admit(request, signed_at)
        limit = {str(call.changes): LIMITS[call.changes]}
        if self.faults.rate_limits and self._buckets.take(limit, now) is not None:
            raise problem_named("TooManyRequests")  # without Retry-After: zoom/karpenter-oci#52
        known, ids = _find(request)
        if known is None:
            raise _unknown(request)
        query = dict(parse_qsl(request.query, keep_blank_values=True))
        if known.write is not None:
            return known.write(self.tenancy, ids, query, request, now)
        assert known.read is not None  # noqa: S101 - a call reads or writes
        return known.read(self.tenancy, ids, query, now)

    def _tagged(self, reply: LabReply, request: LabRequest, now: float) -> LabReply:
        """Add the time and the request id to a reply: the client's part and two of the service."""
        self._answers += 1
        own = hashlib.blake2b(f"{self.tenancy.id}/{self._answers}".encode(), digest_size=32).hexdigest().upper()
        given = request.headers.get("opc-request-id", "").partition("/")[0] or own[::-1][:32]
        headers = {"date": formatdate(now, usegmt=True), "opc-request-id": f"{given}/{own[:32]}/{own[32:]}"}
        return replace(reply, headers={**reply.headers, **headers})


def _refusal(problem: OciProblem, wait_s: float | None = None) -> LabReply:
    hint = None if wait_s is None else f"{wait_s:g}"
    return json_reply({"code": problem.code, "message": problem.message}, status=problem.status, retry_after=hint)


def _find(request: LabRequest) -> tuple[OciCall | None, tuple[str, ...]]:
    routes = ROUTES.get(request.method)
    found = routes.find(request.path) if routes is not None else None
    return (None, ()) if found is None else (found[0], tuple(unquote(ident) for ident in found[1]))


def _unknown(request: LabRequest) -> OciProblem:
    if any(routes.find(request.path) for routes in ROUTES.values()):
        return OciProblem("MethodNotAllowed", f"{request.method} is not allowed on {request.path}")
    return OciProblem("NotFound", f"There is no operation at {request.method} {request.path}")
