"""Texts that attack a browser, and objects that have them in each field that takes any text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final

from playwright.async_api import TimeoutError

from tests.console.browser import Tab
from tests.console.served import (
    bmc_spec,
    cluster_body,
    create_namespace,
    created,
    execution_on,
    host_body,
    lock_of,
    set_status,
)
from unbounded.api.conditions import ConditionType
from unbounded.api.configuration import MACHINE_CONFIGURATIONS
from unbounded.api.container_cloud.cluster import CLUSTERS
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS
from unbounded.api.core import EVENTS
from unbounded.api.machine import MACHINES
from unbounded.api.names import ANNOTATION_PAUSED, GROUP, LABEL_SITE, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.manifests import KINDS, install_container_cloud
from unbounded.kube.api import ApiError
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import rfc3339

SET: Final = "window.hurt=1"
PAYLOADS: Final = (
    f"<script>{SET}</script>",
    f"</script><script>{SET}</script>",
    f"<img src=x onerror={SET}>",
    f"<svg/onload={SET}>",
    f"<iframe srcdoc='<script>parent.{SET}</script>'>",
    f"`+({SET})+`",
    f"${{{SET}}}",
    f"{{{{constructor.constructor('{SET}')()}}}}",
    f"\\`-({SET})//",
    f"' autofocus onfocus={SET} x='",
    f'"><a href="javascript:{SET}">press</a>',
    f"&lt;script&gt;{SET}&lt;/script&gt;",
    f"&#60;script&#62;{SET}&#60;/script&#62;",
    f"<!--</script><script>{SET}//-->",
    f"]]><script>{SET}</script>",
    "\u202e<b>backwards\u2028",
)
NAME: Final = "hostile"  # of the Machine, its site, operation, host, namespace and Cluster

_ARE_SHOWN: Final = "([part, texts]) => texts.every(one => document.querySelector(part).textContent.includes(one))"
_MADE: Final = "main :is(script, img, iframe, svg, b), main :is([onerror], [onload], [onfocus], [href^=javascript])"

# fields that each page shows, and that have all payloads; those with room for one payload are staged, too
SHOWN: Final = {
    "/": ("update",),
    "/rollouts": ("update", "holder", "failed update"),
    f"/machine/{NAME}": (
        *("message", "paused", "disk serial", "disk model", "disk contents", "disk health"),
        *("NIC name", "NIC driver", "LLDP switch", "LLDP port", "BMC part", "BMC health"),
        *("condition", "boot", "history"),
    ),
    f"/site/{NAME}": ("boot", "lease", "image"),
    f"/operation/{NAME}": (
        *("operation", "reason", "evidence", "source", "answer", "loss", "consequence"),
        *("stage", "attempt"),
    ),
    "/hosts": ("host error",),
    f"/host/{NAME}/{NAME}": (
        *("host error", "host disk", "host disk serial", "host disk model", "host NIC", "host NIC address"),
        "host condition",
    ),
    f"/cluster/{NAME}/{NAME}": ("cluster reason", "cluster condition"),
}
PLANNED: Final = ("paused", "lease", "image")  # fields that the plan of a replacement of the Machine shows


def texts(field: str) -> list[str]:
    """Return the texts of a field, which no other field has."""
    return [f"{payload} {field}" for payload in PAYLOADS]


def _all(field: str) -> str:
    return "\n".join(texts(field))


def _each(**fields: str) -> list[dict[str, Any]]:
    """Return an item for each payload, which is in these fields."""
    return [dict(zip(fields, one, strict=True)) for one in zip(*map(texts, fields.values()), strict=True)]


async def check_texts(found: Tab, expected: Sequence[str], where: str, *, part: str = "main") -> None:
    """Wait until a part of a page shows these texts; nothing of them may be an element, or run.

    Args:
        part: its selector.
    """
    with suppress(TimeoutError):  # the texts that are missing are named below
        await found.page.wait_for_function(_ARE_SHOWN, arg=[part, expected])
    shown = await found.page.locator(part).text_content() or ""
    assert [text for text in expected if text not in shown] == [], where
    await check_nothing_ran(found, where)


async def check_nothing_ran(found: Tab, where: str) -> None:
    assert await found.page.evaluate("window.hurt") is None, where
    assert await found.page.locator(_MADE).count() == 0, where
    assert found.errors == [], where  # nothing was left to the Content-Security-Policy


@asynccontextmanager
async def hostile_objects(api: HttpApi) -> AsyncIterator[None]:
    """A Machine of a site, its operation and Event, updates, a host and a Cluster, each with these texts.

    They are deleted at the end, as other tests would count them.
    """
    await install_container_cloud(api)
    for namespace in (NAMESPACE, NAME):
        await create_namespace(api, namespace)
    now = rfc3339()
    async with AsyncExitStack() as stack:
        await _stage_machine(api, stack, now)
        await _stage_updates(api, stack, now)
        await _stage_host(api, stack, now)
        await _stage_cluster(api, stack)
        yield


@asynccontextmanager
async def hostile_policy(api: HttpApi) -> AsyncIterator[None]:
    """The server refuses changes of the Machine, with these texts."""
    rule = {"apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["machines"]}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "hostile", "expression": f"object.metadata.name == '{NAME}'"}],
        "validations": [{"expression": "false", "message": " ".join(texts("refusal"))}],
    }
    binding = {"policyName": NAME, "validationActions": ["Deny"]}
    async with (
        created(api, KINDS["ValidatingAdmissionPolicy"], {"metadata": {"name": NAME}, "spec": spec}),
        created(api, KINDS["ValidatingAdmissionPolicyBinding"], {"metadata": {"name": NAME}, "spec": binding}),
    ):
        async with asyncio.timeout(60):
            while not await _is_refused(api):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        yield


async def _is_refused(api: HttpApi) -> bool:
    try:
        await api.patch(MACHINES, NAME, {"spec": {"maintenance": None}}, dry_run=True)
    except ApiError:
        return True
    return False


def _condition(kind: str, message: str, now: str) -> dict[str, Any]:
    return {"type": kind, "status": "False", "reason": "Hostile", "message": message, "lastTransitionTime": now}


def _history(now: str) -> dict[str, Any]:
    attempt = {"stage": "ShuttingDown", "action": "Hostile", "completedAt": now, "reply": "NotDone"}
    messages = texts("attempt")
    return {
        "stages": [{"startedAt": now, "completedAt": now, **one} for one in _each(name="stage")],
        "attempts": [
            {**attempt, "number": number, "message": "\n".join(messages[number : number + 2])}  # there is room for two
            for number in range(0, len(messages), 2)
        ],
    }


async def _stage_machine(api: HttpApi, stack: AsyncExitStack, now: str) -> None:
    spec = {**bmc_spec(99), "maintenance": {"enabled": True, "reason": f"{PAYLOADS[2]} maintenance"}}
    metadata = {"name": NAME, "labels": {LABEL_SITE: NAME}, "annotations": {ANNOTATION_PAUSED: _all("paused")}}
    made = await stack.enter_async_context(created(api, MACHINES, {"metadata": metadata, "spec": spec}))
    request = {"metadata": {"name": NAME}, "spec": {"operationKind": "HostReboot", "machineRef": NAME}}
    operation = await stack.enter_async_context(created(api, MACHINE_OPERATIONS, request))
    disks = _each(serialNumber="disk serial", model="disk model", contents="disk contents", health="disk health")
    nics = _each(name="NIC name", driver="NIC driver")
    neighbours = _each(systemName="LLDP switch", portID="LLDP port")
    parts = _each(name="BMC part", health="BMC health")
    hardware = {
        "source": "Installer",
        "at": now,
        "digest": "0" * 64,
        "system": {"product": f"{PAYLOADS[0]} product"},
        "disks": [{"name": f"sd{number}", **one} for number, one in enumerate(disks)],
        "nics": [{**nic, "lldp": neighbour} for nic, neighbour in zip(nics, neighbours, strict=True)],
        "bmc": {"at": now, "parts": [{"kind": "disk", **one} for one in parts]},
    }
    ended = {"uid": "u", "kind": "HostReboot", "phase": "Failed"}
    await set_status(
        api,
        NAME,
        phase="Failed",
        message=_all("message"),
        hardware=hardware,
        netboot={"boot": operation.metadata.uid, "milestone": "ImageWriting", "message": _all("boot"), "at": now},
        agent={
            "version": f"{PAYLOADS[0]} agent",
            "host": {
                "hostname": f"{PAYLOADS[1]} name",
                "addresses": [{"interface": "e", "address": one[:64]} for one in PAYLOADS],
                "hardware": {"disks": [{"name": "vda", "model": f"{PAYLOADS[0]} agent disk"}]},
            },
        },
        activeOperation=lock_of(operation, f"metalman/{NAME}", now),
        conditions=[
            _condition(ConditionType.NETBOOT_SERVED, _all("lease"), now),
            _condition(ConditionType.NETBOOT_IMAGE_READY, _all("image"), now),
            _condition("Hostile", _all("condition"), now),
        ],
        recentOperations=[{**ended, "name": "ended", "message": _all("history")}],
    )
    answer = {
        "reply": "Refused",
        "message": _all("answer"),
        "cause": {"code": "Hostile", "about": {"keys": PAYLOADS[0]}},
    }
    status = {
        "phase": "InProgress",
        "message": _all("operation"),
        "reason": _all("reason"),
        "cause": {"code": "Hostile", "about": dict(zip(PAYLOADS[:8], PAYLOADS, strict=False))},
        "startedAt": now,
        "targets": [
            {
                "machineRef": NAME,
                "phase": "InProgress",
                "stage": "ShuttingDown",
                "attempts": 1,
                "message": _all("target"),
            }
        ],
        "execution": {**execution_on(made, f"metalman/{NAME}", now), "answer": answer},
        "evidence": [{"at": now, **one} for one in _each(what="evidence", where="source")],
        "losses": _each(field="loss", consequence="consequence"),
        "history": _history(now),
    }
    await api.patch(MACHINE_OPERATIONS, NAME, {"status": status}, subresource="status")
    event = {
        "metadata": {"name": NAME},
        "involvedObject": {"kind": "Machine", "name": NAME, "uid": made.metadata.uid},
        "reason": "Hostile",
        "type": "Warning",
        "message": _all("event"),
    }
    await stack.enter_async_context(created(api, EVENTS, event, namespace="default"))


async def _stage_updates(api: HttpApi, stack: AsyncExitStack, now: str) -> None:
    failed = [{"machine": f"failed-{number}", **one} for number, one in enumerate(_each(message="failed update"))]
    waiting = {"reason": "Hostile", "heldBy": _all("holder"), "since": now}
    for name, rollout in (
        ("halted", {"phase": "Halted", "message": _all("update"), "waiting": waiting}),
        ("failing", {"phase": "InProgress", "failed": failed}),
    ):
        body = {"metadata": {"name": name}, "spec": {"template": {}}}
        status = {"rollout": {"version": 1, **rollout}}
        await stack.enter_async_context(created(api, MACHINE_CONFIGURATIONS, body, status=status))


async def _stage_host(api: HttpApi, stack: AsyncExitStack, now: str) -> None:
    body = host_body(NAME, description=f"{PAYLOADS[3]} description")
    hardware = {
        "systemVendor": {"productName": f"{PAYLOADS[1]} host product"},
        "storage": _each(name="host disk", serialNumber="host disk serial", model="host disk model"),
        "nics": _each(name="host NIC", ip="host NIC address"),
    }
    status = {
        "operationalStatus": "error",
        "errorMessage": _all("host error"),
        "hardware": hardware,
        "conditions": [_condition("Hostile", _all("host condition"), now)],
    }
    await stack.enter_async_context(created(api, BARE_METAL_HOSTS, body, namespace=NAME, status=status))


async def _stage_cluster(api: HttpApi, stack: AsyncExitStack) -> None:
    conditions = [
        {"type": f"Hostile{number}", "ready": False, **one}
        for number, one in enumerate(_each(reason="cluster reason", message="cluster condition"))
    ]
    status = {"providerStatus": {"conditions": conditions}}
    await stack.enter_async_context(created(api, CLUSTERS, cluster_body(NAME), namespace=NAME, status=status))
