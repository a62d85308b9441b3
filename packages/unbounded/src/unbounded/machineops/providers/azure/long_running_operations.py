"""Long-running operations of Azure Resource Manager: the handle of an accepted one, and its progress.

A response to a change names the URL of its status. Any process can follow it, and none waits for it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from unbounded.machineops.provider import Handle, Job, Progress, State, Transient, said
from unbounded.machineops.providers.azure import vm_properties
from unbounded.machineops.providers.azure.errors import ArmRequest
from unbounded.machineops.providers.azure.sdk_client import AzureClient, parse_error, retry_after


class _OperationStatus(msgspec.Struct):
    """Document of a long-running operation."""

    status: str = ""
    error: dict[str, Any] | None = None


def handle_of(headers: Mapping[str, str]) -> Handle | None:
    """Return the handle of an accepted change; None if the response names no status."""
    url = headers.get("azure-asyncoperation") or headers.get("location")
    return Handle(url, retry_after(headers)) if url else None


def is_ours(client: AzureClient, url: str, scope: str) -> bool:
    """Return whether the URL is one of this endpoint and subscription; no other one gets the login's token."""
    ours, given = urlsplit(client.endpoint), urlsplit(url)
    same = (given.scheme, given.netloc.lower()) == (ours.scheme, ours.netloc.lower())
    return same and given.path.lower().startswith(f"/subscriptions/{scope.lower()}/")


async def progress(client: AzureClient, job: Job, handle: str) -> Progress:
    """Read the progress of the operation with this handle."""
    if not is_ours(client, handle, job.instance.scope):
        raise Transient(f"the URL of the asynchronous operation is not one of {client.endpoint}: {said(handle)}")
    request = ArmRequest("read the asynchronous operation for VM", job.instance.name, job.instance)
    where = f"Azure, status of the asynchronous operation for {job.instance.id}"
    status, headers, content = await client.get(request, handle)
    again_s = retry_after(headers)
    if status == 404:
        return Progress(State.FORGOTTEN, "Azure has no status of the asynchronous operation any more", where)
    if status == 202:
        return Progress(State.RUNNING, "the asynchronous operation is in progress", where, again_s)
    if status >= 400:  # a followed Location answers like the call itself
        error = parse_error(status, headers, content)
        return Progress(State.FAILED, said(f"{error.code}: {error.message}"), where)
    document = msgspec.json.decode(content, type=_OperationStatus) if content else _OperationStatus("Succeeded")
    words = f"the asynchronous operation: {document.status}"
    if document.error:
        words += f", {document.error.get('code')}: {document.error.get('message')}"
    return Progress(vm_properties.progress(document.status), said(words), where, again_s)
