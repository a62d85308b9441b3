"""Azure Resource Manager: authentication, throttling and dispatch of a request; the headers of its reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import parse_qsl, unquote
from uuid import uuid5

import msgspec

from unbounded_lab.cloud.azure import model, request_checks, views
from unbounded_lab.cloud.azure.errors import ERRORS, LOGIN_ERRORS, AzureProblem, LoginProblem, json_reply, retry_after
from unbounded_lab.cloud.azure.login import LoginEndpoint
from unbounded_lab.cloud.azure.misbehaviours import AzureFaults
from unbounded_lab.cloud.azure.request_checks import CountedRequest as Counted
from unbounded_lab.cloud.azure.request_checks import Throttling
from unbounded_lab.cloud.azure.resources import NAMESPACE, AzureResources, not_found
from unbounded_lab.cloud.frontend import CloudCall
from unbounded_lab.cloud.history import CloudHistory
from unbounded_lab.http import LabReply, LabRequest, Routes

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
            Problem: it is none.
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
        action, place = request_checks.required_action(call.name, request.method, request.path)
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
            request_checks.check_scope(self.estate, row.name, names, query)
            reply = row.act(self, ResourceManagerRequest(names, query, request, client, now))
        except LoginProblem as problem:
            return problem.reply()
        except AzureProblem as problem:
            reply = problem.reply()
        return self._with_headers(reply, counted, now)

    def _counted(self, row: AzureCall, request: LabRequest, names: tuple[str, ...], client: str) -> Counted:
        kind = {"GET": "reads", "DELETE": "deletes"}.get(request.method, "writes")
        resource = ""
        if row.name == "Operations.Get":
            operation = self.estate.operations.get(names[2])
            resource = "" if operation is None else operation.subject.key
        elif row.policy is not None and len(names) > 2:
            resource = model.ResourceId(names[0], names[1], model.MACHINES, names[2]).key
        return Counted(names[0], client, kind, row.policy, resource)

    def _with_headers(self, reply: LabReply, counted: Counted | None, now: float) -> LabReply:
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
