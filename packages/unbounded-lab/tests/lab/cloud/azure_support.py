"""A simulated Azure whose every answer is held against the SDK's models, and the SDK's own client for it."""

from __future__ import annotations

import typing
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, Final, ParamSpec

import aiohttp
import msgspec
from azure.core.credentials import AccessToken
from azure.core.pipeline.transport import AioHttpTransport
from azure.mgmt.compute import models
from azure.mgmt.compute.aio import ComputeManagementClient

from tests.lab.cloud import azure_models
from tests.lab.cloud.azure_models import fields_of
from tests.lab.cloud.strict import faults
from tests.metalman.support.swift_time import run_swiftly
from unbounded.kube.tls import client_context
from unbounded_lab.cloud.azure import AzureFaults, LabAzure, VmShape
from unbounded_lab.cloud.azure.local import GROUP
from unbounded_lab.cloud.azure.resource_manager import Azure
from unbounded_lab.cloud.azure.service import ROUTES
from unbounded_lab.cloud.frontend import CloudCall
from unbounded_lab.http import LabReply, LabRequest

P = ParamSpec("P")

POLL_S: Final = 0.5
MANY_S: Final = 86400.0

MODELS: Final[dict[str, Any]] = {
    "VirtualMachines.Get": models.VirtualMachine,
    "VirtualMachines.CreateOrUpdate": models.VirtualMachine,
    "VirtualMachines.Update": models.VirtualMachine,
    "VirtualMachines.InstanceView": models.VirtualMachineInstanceView,
    "VirtualMachines.List": list[models.VirtualMachine],
    "VirtualMachines.ListAll": list[models.VirtualMachine],
    "VirtualMachineExtensions.Get": models.VirtualMachineExtension,
    "VirtualMachineExtensions.CreateOrUpdate": models.VirtualMachineExtension,
    "VirtualMachineExtensions.List": list[models.VirtualMachineExtension],
    "Disks.Get": models.Disk,
    "Disks.List": list[models.Disk],
    "Disks.ListByResourceGroup": list[models.Disk],
    "VirtualMachineImages.Get": models.VirtualMachineImage,
    "VirtualMachineImages.List": list[models.VirtualMachineImageResource],
    "Images.Get": models.Image,
    "GalleryImageVersions.Get": models.GalleryImageVersion,
    "GalleryImageVersions.ListByGalleryImage": list[models.GalleryImageVersion],
    "SharedGalleryImageVersions.Get": models.SharedGalleryImageVersion,
    "SharedGalleryImageVersions.List": list[models.SharedGalleryImageVersion],
    "CommunityGalleryImageVersions.Get": models.CommunityGalleryImageVersion,
    "CommunityGalleryImageVersions.List": list[models.CommunityGalleryImageVersion],
    "AvailabilitySets.Get": models.AvailabilitySet,
    "NetworkInterfaces.Get": azure_models.NetworkInterface,
    "NetworkInterfaces.List": list[azure_models.NetworkInterface],
    "Operations.Get": azure_models.Operation,
    "ResourceGroups.Get": azure_models.ResourceGroup,
    "Login.Token": azure_models.Token,
    "Login.Discovery": azure_models.Discovery,
}


def model_faults(call: str, reply: LabReply) -> list[str]:
    """Return the faults of an answer."""
    body: Any = msgspec.json.decode(reply.body) if reply.body else None
    if reply.status >= 400:
        if call.startswith("Login."):
            return list(faults(body, azure_models.LoginError, fields_of))
        return list(faults(body["error"], models.ApiError, fields_of))
    if body is None:
        return []
    kind = MODELS[call]
    if typing.get_origin(kind) is list and call != "VirtualMachineImages.List":  # which has no pages
        assert body.keys() <= {"value", "nextLink"}
        body = body["value"]
    return list(faults(body, kind, fields_of))


class _Checked(Azure):
    def __init__(self, azure: Azure) -> None:
        super().__init__(azure.estate, azure.login, ROUTES)
        self.mismatches: list[str] = []

    def answer(self, request: LabRequest, call: CloudCall, now: float) -> LabReply:
        reply = super().answer(request, call, now)
        self.mismatches += [f"{call.name}: {fault}" for fault in model_faults(call.name, reply)]
        return reply


class CheckedAzure(LabAzure):
    def _begin(self, faults: AzureFaults, now: float) -> _Checked:
        azure = super()._begin(faults, now)
        assert isinstance(azure, Azure)
        self.checked = _Checked(azure)
        return self.checked


class Token:
    """A credential that has its token already."""

    def __init__(self, cloud: LabAzure) -> None:
        self._token = cloud.access_token()

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        return AccessToken(self._token, 1 << 40)

    async def close(self) -> None:
        pass

    async def __aenter__(self) -> Token:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


class Scene:
    """A cloud with one machine, `vm-1`, and a client for it that tries each request once."""

    def __init__(self, cloud: CheckedAzure, client: Any, http: aiohttp.ClientSession) -> None:
        self.cloud = cloud
        self.client = client  # untyped: to the SDK everything in an answer may be None
        self.vms = client.virtual_machines
        self._http = http

    async def get(self, name: str = "vm-1", **options: Any) -> Any:
        return await self.vms.get(GROUP, name, **options)

    async def power(self, name: str = "vm-1") -> str:
        """The power state, as the instance view has it."""
        view = await self.vms.instance_view(GROUP, name)
        return next(str(each.code) for each in view.statuses or [] if str(each.code).startswith("PowerState/"))

    async def body(self, name: str = "vm-1") -> dict[str, Any]:
        """A machine's model, as JSON, for creating another."""
        return _without_read_only(dict((await self.get(name)).as_dict(exclude_readonly=True)))

    async def ask(self, method: str, path: str, **headers: str) -> tuple[int, Any, dict[str, str]]:
        """A request that the SDK for Compute does not have; a path without a slash is of the network, in the group."""
        if not path.startswith("/"):
            base = f"/subscriptions/{self.cloud.subscription}/resourceGroups/{GROUP}/providers/Microsoft.Network"
            path = f"{base}/{path}?api-version=2024-05-01"
        named = {"authorization": f"Bearer {self.cloud.access_token()}", **headers}
        async with self._http.request(method, f"{self.cloud.url}{path}", headers=named) as answer:
            content = await answer.read()
            lowered = {name.lower(): value for name, value in answer.headers.items()}
            return answer.status, msgspec.json.decode(content) if content else None, lowered


def _without_read_only(body: dict[str, Any]) -> dict[str, Any]:
    profile = body["properties"].get("osProfile", {})
    profile.pop("requireGuestProvisionSignal", None)
    return body


@asynccontextmanager
async def scene(profile: str = "ideal", *, shape: VmShape | None = None, **settings: Any) -> AsyncIterator[Scene]:
    """At its end every answer that was given has to be as the SDK's models have it."""
    async with CheckedAzure(**settings) as cloud:
        cloud.add_machine("vm-1", shape)
        cloud.set_profile(profile)
        connector = aiohttp.TCPConnector(ssl=client_context(ca=cloud.ca))
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as http:
            transport = AioHttpTransport(session=http, session_owner=False)
            async with ComputeManagementClient(
                Token(cloud),
                cloud.subscription,
                base_url=cloud.url,
                transport=transport,
                retry_total=0,
                polling_interval=POLL_S,
            ) as client:
                yield Scene(cloud, client, http)
        assert cloud.checked.mismatches == []


def swift(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test in time that only passes while nothing is to be done."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_swiftly(test(*args, **kwargs), limit_s=MANY_S)

    return run
