"""Azure Resource Manager: authentication, throttling, first checks and dispatch of a request; headers of its reply.

The limits are the published ones of Resource Manager and of its Compute provider.
Resource Manager: learn.microsoft.com/azure/azure-resource-manager/management/request-limits-and-throttling, each
principal in each subscription. Compute: learn.microsoft.com/azure/virtual-machines/compute-throttling-limits, each VM
and each subscription, a minute at a time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import parse_qsl, unquote
from uuid import uuid5

import msgspec

from unbounded_lab.cloud.azure import model, views
from unbounded_lab.cloud.azure.catalog import API_VERSIONS, KNOWN, OLDER, ZONES
from unbounded_lab.cloud.azure.errors import ERRORS, LOGIN_ERRORS, AzureProblem, LoginProblem, json_reply, retry_after
from unbounded_lab.cloud.azure.login import LoginEndpoint
from unbounded_lab.cloud.azure.misbehaviours import AzureFaults
from unbounded_lab.cloud.azure.model import AVAILABILITY_SETS, COMPUTE, DISKS, EXTENSIONS, MACHINES, NICS, SCALE_SETS
from unbounded_lab.cloud.azure.resources import NAMESPACE, AzureResources, not_found
from unbounded_lab.cloud.frontend import CloudCall, CloudRateLimit, TokenBuckets
from unbounded_lab.cloud.history import CloudHistory
from unbounded_lab.http import LabReply, LabRequest, Routes

GROUPS: Final = "Microsoft.Resources/resourceGroups"
TYPES: Final[Mapping[str, str]] = {
    "VirtualMachines": MACHINES,
    "VirtualMachineScaleSets": SCALE_SETS,
    "VirtualMachineScaleSetVMs": f"{SCALE_SETS}/virtualMachines",
    "VirtualMachineExtensions": EXTENSIONS,
    "VirtualMachineImages": f"{COMPUTE}/locations/publishers",
    "Images": f"{COMPUTE}/images",
    "GalleryImageVersions": f"{COMPUTE}/galleries/images/versions",
    "SharedGalleryImageVersions": f"{COMPUTE}/locations/sharedGalleries",
    "CommunityGalleryImageVersions": f"{COMPUTE}/locations/communityGalleries",
    "Disks": DISKS,
    "AvailabilitySets": AVAILABILITY_SETS,
    "Operations": f"{COMPUTE}/locations/operations",
    "NetworkInterfaces": NICS,
    "ResourceGroups": GROUPS,
}
"""Types of resources, by the prefix of the names of their calls."""
IN_ROLES: Final[Mapping[str, str]] = {
    "VirtualMachineImages": f"{COMPUTE}/locations/publishers/artifacttypes/offers/skus/versions",
    "SharedGalleryImageVersions": f"{COMPUTE}/locations/sharedGalleries/images/versions",
    "CommunityGalleryImageVersions": f"{COMPUTE}/locations/communityGalleries/images/versions",
    "ResourceGroups": "Microsoft.Resources/subscriptions/resourceGroups",
}
"""The same in roles, where these have another name."""
RIGHTS: Final = {"GET": "read", "PUT": "write", "PATCH": "write", "DELETE": "delete", "POST": "action"}
DATED: Final = re.compile(r"\d{4}-\d{2}-\d{2}(?:-preview)?")
SUBSCRIPTION_LIMITS: Final[Mapping[str, CloudRateLimit]] = {
    "reads": CloudRateLimit(burst=250, per_s=25),
    "writes": CloudRateLimit(burst=200, per_s=10),
    "deletes": CloudRateLimit(burst=200, per_s=10),
}


def _each_minute(refill: float, capacity: float) -> CloudRateLimit:
    return CloudRateLimit(burst=capacity, per_s=refill / 60)


@dataclass(frozen=True, slots=True)
class ThrottlingPolicy:
    """The two limits of a kind of Compute call; for those on many VMs only the second."""

    resource: CloudRateLimit | None
    subscription: CloudRateLimit


POLICIES: Final[Mapping[str, ThrottlingPolicy]] = {
    "PutVM": ThrottlingPolicy(_each_minute(4, 12), _each_minute(500, 1500)),
    "UpdateVM": ThrottlingPolicy(_each_minute(4, 12), _each_minute(500, 1500)),
    "DeleteVM": ThrottlingPolicy(_each_minute(4, 12), _each_minute(500, 1500)),
    "LowCostGetVM": ThrottlingPolicy(_each_minute(12, 36), _each_minute(8000, 24000)),
    "HighCostGetVM": ThrottlingPolicy(None, _each_minute(300, 900)),
    "GetOperation": ThrottlingPolicy(_each_minute(15, 45), _each_minute(5000, 15000)),
}


@dataclass(frozen=True, slots=True)
class CountedRequest:
    """A request for the limits: its client, its kind, and its resource.

    Args:
        policy: a key of POLICIES; None where Compute has no limit for it.
        resource: the VM's key, "" for a request about no single VM.
    """

    subscription: str
    client: str
    kind: str
    policy: str | None = None
    resource: str = ""


class Throttling:
    def __init__(self) -> None:
        self._buckets = TokenBuckets()

    def admit(self, request: CountedRequest, now: float) -> None:
        """Count a request.

        Raises:
            AzureProblem: it exceeds a limit; with the time of the next attempt.
        """
        refused = self._buckets.take(_limits(request), now)
        if refused is None:
            return
        name, wait_s = refused
        seconds = math.ceil(wait_s)
        if name.startswith("arm/"):
            raise AzureProblem(
                "SubscriptionRequestsThrottled",
                retry_after_s=seconds,
                detail=request.kind.removesuffix("s"),
                subscription=request.subscription,
                client=request.client,
                seconds=str(seconds),
            )
        problem = AzureProblem("ComputeThrottled", retry_after_s=seconds)
        problem.details = [
            {
                "code": "TooManyRequests",
                "target": str(request.policy),
                "message": f'{{"operationGroup":"{request.policy}","recommendedRetryAfterSeconds":{seconds}}}',
            }
        ]
        raise problem

    def headers(self, request: CountedRequest, now: float) -> dict[str, str]:
        """Return the headers with the remaining numbers of requests."""
        shown, compute = {}, []
        for name, limit in _limits(request).items():
            left = self._buckets.left(name, limit, now)
            scope, _, what = name.partition("/")
            if scope == "arm":
                shown[f"x-ms-ratelimit-remaining-subscription-{request.kind}"] = str(left)
            else:
                compute.append(f"Microsoft.Compute/{what.partition('/')[0]};{left}")
        if compute:
            shown["x-ms-ratelimit-remaining-resource"] = ",".join(compute)
        return shown


def _limits(request: CountedRequest) -> dict[str, CloudRateLimit]:
    where = f"{request.subscription.lower()}/{request.client}"
    limits = {f"arm/{request.kind}/{where}": SUBSCRIPTION_LIMITS[request.kind]}
    if request.policy is not None:
        policy = POLICIES[request.policy]
        limits[f"compute/{request.policy}SubscriptionMaximum/{where}"] = policy.subscription
        if policy.resource is not None and request.resource:
            limits[f"compute/{request.policy}Resource/{request.resource}"] = policy.resource
    return limits


def check_scope(estate: AzureResources, call: str, names: Sequence[str], query: Mapping[str, str]) -> None:
    """Check a request's API version, subscription and resource group.

    Args:
        call: its name; not that of a login.
        names: the subscription, and the following names in the path.

    Raises:
        AzureProblem: one of them is invalid or does not exist.
    """
    kind = TYPES[call.partition(".")[0]]
    group = names[1] if len(names) > 1 and "/locations" not in kind else None
    if "api-version" not in query:
        raise AzureProblem("MissingApiVersionParameter")
    is_behind = estate.faults.older_apis and kind.startswith(f"{COMPUTE}/")
    known = OLDER if is_behind else API_VERSIONS[kind]
    if query["api-version"] not in known:
        raise _unknown_version(estate, kind, query["api-version"], known, (names[0].lower(), (group or "").lower()))
    can_be = [each.lower() for each in KNOWN.expand.get(call, ())]
    if can_be and "$expand" in query and any(each not in can_be for each in query["$expand"].lower().split(",")):
        raise AzureProblem("InvalidParameter", detail="The request URL is not valid.", target="$expand")
    if names[0].lower() not in estate.subscriptions:
        raise AzureProblem("SubscriptionNotFound", detail=names[0])
    if group is not None and (names[0].lower(), group.lower()) not in estate.groups:
        raise AzureProblem("ResourceGroupNotFound", group=group)


def required_action(call: str, method: str, path: str) -> tuple[str, str]:
    """Return the action that a request requires, as roles name it, and the resource of that right."""
    family, last = call.partition(".")[0], path.rpartition("/")[2]
    kind = IN_ROLES.get(family, TYPES[family])
    if method == "POST" or last.lower() == "instanceview":  # the action or the view follows the resource
        return f"{kind}/{last}/{RIGHTS[method]}", path.rpartition("/")[0]
    of_many = last.lower() == kind.rpartition("/")[2].lower()
    return f"{kind}/{RIGHTS[method]}", path.partition("/providers/")[0] if of_many else path


def _unknown_version(
    estate: AzureResources, kind: str, given: str, known: Sequence[str], group: tuple[str, str]
) -> AzureProblem:
    of_a_provider = kind != GROUPS and DATED.fullmatch(given)
    return AzureProblem(
        "NoRegisteredProviderFound" if of_a_provider else "InvalidApiVersionParameter",
        detail=given,
        known=", ".join(known),
        location=estate.groups.get(group, ""),
        locations=", ".join(ZONES),
        type=kind.partition("/")[2],
    )


LOGIN: Final = "Login"


@dataclass(frozen=True, slots=True)
class ResourceManagerRequest:
    """A parsed request."""

    names: tuple[str, ...]  # parts of the path at the pattern's `*`
    query: Mapping[str, str]
    request: LabRequest
    client: str
    now: float

    @property
    def subscription(self) -> str:
        return self.names[0]

    def body(self) -> dict[str, Any]:
        """Return the body, a JSON object.

        Raises:
            AzureProblem: it is none.
        """
        try:
            return msgspec.json.decode(self.request.body, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise AzureProblem("InvalidRequestContent", detail=str(error)) from error

    def resource(self, resource_type: str) -> model.ResourceId:
        return model.ResourceId(self.names[0], self.names[1], resource_type, self.names[2])

    @property
    def expand(self) -> frozenset[str]:
        return frozenset(self.query.get("$expand", "").lower().split(","))


Act = Callable[["Azure", ResourceManagerRequest], LabReply]


@dataclass(frozen=True, slots=True)
class AzureCall:
    """A call for a method and a path pattern: its name, its Compute policy, and its function."""

    name: str
    act: Act
    policy: str | None = None


class Azure:
    """One tenant with its subscriptions, behind its API."""

    error_names = (*ERRORS, *LOGIN_ERRORS)

    def __init__(self, estate: AzureResources, login: LoginEndpoint, routes: Mapping[str, Routes[AzureCall]]) -> None:
        self.estate = estate
        self.login = login
        self._routes = routes
        self.throttling = Throttling()

    @property
    def faults(self) -> AzureFaults:
        return self.estate.faults

    @property
    def history(self) -> CloudHistory:
        return self.estate.history

    def set_faults(self, faults: AzureFaults, now: float) -> None:
        if unknown := sorted(set(faults.operation_errors) - ERRORS.keys()):
            raise ValueError(f"unknown error of operations: {', '.join(unknown)}; the errors are {', '.join(ERRORS)}")
        self.advance(now)
        self.estate.set_faults(faults)

    def advance(self, now: float) -> None:
        self.estate.agenda.run(now)

    # The interface to the front

    def call(self, request: LabRequest) -> CloudCall:
        found = self._find(request)
        if found is None:
            return CloudCall("Unknown")
        row, names = found
        is_login = row.name.startswith(LOGIN)
        account = "" if is_login else names[0]
        return CloudCall(row.name, account, changes=request.method != "GET" and not is_login, is_login=is_login)

    def error(self, name: str, request: LabRequest, call: CloudCall, now: float) -> LabReply:
        if call.is_login or name in LOGIN_ERRORS:
            return LoginProblem(name if name in LOGIN_ERRORS else "temporarily_unavailable").reply()
        try:
            problem = self._problem(name, request, call, now)
        except AzureProblem as unauthenticated:
            problem = unauthenticated
        if problem.status in (429, 503):
            problem.retry_after_s = self.faults.retry_after_s
        return self._with_headers(problem.reply(), None, now)

    def _problem(self, name: str, request: LabRequest, call: CloudCall, now: float) -> AzureProblem:
        if name != "AuthorizationFailed" or self._find(request) is None:
            return AzureProblem(name, detail=request.path, subscription=call.account)
        client = self.login.client(request, now)
        action, place = required_action(call.name, request.method, request.path)
        return AzureProblem(
            name, client=client, object=str(uuid5(NAMESPACE, f"{client}/object")), detail=action, subject=place
        )

    def answer(self, request: LabRequest, call: CloudCall, now: float) -> LabReply:
        found = self._find(request)
        if found is None:
            return self._with_headers(AzureProblem("PathNotFound", detail=request.path).reply(), None, now)
        row, names = found
        query = dict(parse_qsl(request.query, keep_blank_values=True))
        counted = None
        try:
            if call.is_login:
                return row.act(self, ResourceManagerRequest(names, query, request, "", now))
            client = self.login.client(request, now)
            counted = self._counted(row, request, names, client)
            if self.faults.rate_limits:
                self.throttling.admit(counted, now)
            check_scope(self.estate, row.name, names, query)
            reply = row.act(self, ResourceManagerRequest(names, query, request, client, now))
        except LoginProblem as problem:
            return problem.reply()
        except AzureProblem as problem:
            reply = problem.reply()
        return self._with_headers(reply, counted, now)

    def _counted(self, row: AzureCall, request: LabRequest, names: tuple[str, ...], client: str) -> CountedRequest:
        kind = {"GET": "reads", "DELETE": "deletes"}.get(request.method, "writes")
        resource = ""
        if row.name == "Operations.Get":
            operation = self.estate.operations.get(names[2])
            resource = "" if operation is None else operation.subject.key
        elif row.policy is not None and len(names) > 2:
            resource = model.ResourceId(names[0], names[1], model.MACHINES, names[2]).key
        return CountedRequest(names[0], client, kind, row.policy, resource)

    def _with_headers(self, reply: LabReply, counted: CountedRequest | None, now: float) -> LabReply:
        request_id = self.estate.new_uuid()
        headers = {
            "x-ms-request-id": request_id,
            "x-ms-correlation-request-id": request_id,
            "x-ms-routing-request-id": f"LAB:{views.timestamp(now)}:{request_id}",
            "cache-control": "no-cache",
            **({} if counted is None else self.throttling.headers(counted, now)),
        }
        if reply.status == 401:
            base = f"https://login.microsoftonline.com/{self.estate.tenant}"
            headers["www-authenticate"] = f'Bearer authorization_uri="{base}", error="invalid_token"'
        return replace(reply, headers={**headers, **reply.headers})

    # Lagging reads, and accepted operations

    def read_machine(self, resource: model.ResourceId, now: float) -> model.VirtualMachine:
        machine = self.estate.machines.value_at(resource.key, now - self.faults.get_lag_s)
        if machine is None:
            raise not_found(resource)
        return machine

    def read_extensions(self, machine: model.VirtualMachine, as_of: float) -> list[model.Extension]:
        return [each for _, each in self.estate.extensions.values_at(as_of) if each.machine == machine.id]

    def accepted(
        self, call: ResourceManagerRequest, operation: model.LongRunningOperation, status: int, body: Any = None
    ) -> LabReply:
        """Return the reply to an accepted operation: the URL of its status, and the time of the first poll."""
        base = f"https://{call.request.headers.get('host', 'management.azure.com')}"
        where = f"{base}/subscriptions/{call.subscription}/providers/Microsoft.Compute/locations/{operation.location}"
        version = call.query["api-version"]
        url = f"{where}/operations/{operation.id}?api-version={version}"
        headers = {"azure-asyncoperation": url, **self.hint()}
        if status == 202:
            headers["location"] = f"{url}&monitor=true"
        return LabReply(202, b"", headers) if body is None else json_reply(body, status, headers)

    def hint(self) -> dict[str, str]:
        return retry_after(self.estate.times.poll_s) if self.faults.poll_hints else {}

    def _find(self, request: LabRequest) -> tuple[AzureCall, tuple[str, ...]] | None:
        routes = self._routes.get(request.method)
        found = routes and routes.find(request.path)
        if not found:
            return None
        row, names = found
        return row, tuple(unquote(name) for name in names)
