"""Progress of a Deployment's rollout, and the problems of its Pods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from unbounded.api.kinds import Kind
from unbounded.cli.deploy.server_side_apply import DEPLOYMENTS, PODS
from unbounded.cli.plugin.object_watch import watched_object
from unbounded.cli.plugin.wait import next_change
from unbounded.kube.errors import ApiError
from unbounded.kube.port import Api

Raw = dict[str, Any]


@dataclass(frozen=True)
class Rollout:
    """Progress of a rollout.

    Args:
        failed: it will not complete by itself.
        says: the progress as text.
    """

    done: bool
    text: str
    failed: bool = False


def rollout_of(deployment: Mapping[str, Any] | None) -> Rollout:
    """Return the progress of a rollout from the status of the Deployment."""
    if deployment is None:
        return Rollout(done=False, text="it does not exist")
    spec, status = deployment.get("spec") or {}, deployment.get("status") or {}
    if int(status.get("observedGeneration", 0)) < int(deployment["metadata"].get("generation", 0)):
        return Rollout(done=False, text="no controller of the cluster has processed it yet")
    desired = int(spec.get("replicas", 1))
    updated, available = int(status.get("updatedReplicas", 0)), int(status.get("availableReplicas", 0))
    if stuck := _condition(status, "Progressing", "False"):
        return Rollout(done=False, text=stuck, failed=True)
    if updated < desired:
        return Rollout(done=False, text=f"{updated} of {desired} Pods have this version")
    if int(status.get("replicas", 0)) > updated:
        return Rollout(done=False, text=f"{int(status['replicas']) - updated} Pods of the previous version remain")
    if available < desired:
        return Rollout(done=False, text=f"{available} of {desired} Pods are available")
    return Rollout(done=True, text=f"{available} of {desired} Pods are available")


def _condition(status: Mapping[str, Any], kind: str, value: str) -> str:
    """Return the message of the condition with this value; empty if there is none."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == kind and condition.get("status") == value:
            return str(condition.get("message") or condition.get("reason") or kind)
    return ""


def problems_of(pods: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the problems of Pods, each once: an image that cannot be pulled, no node to run on, crashes."""
    found: dict[str, None] = {}
    for pod in pods:
        status = pod.get("status") or {}
        if unscheduled := _condition(status, "PodScheduled", "False"):
            found[unscheduled] = None
        for container in status.get("containerStatuses") or ():
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                text = f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
                found[text] = None
    return tuple(found)


async def wait_rolled_out(
    api: Api, name: str, namespace: str, *, within_s: float, report: Callable[[str], None]
) -> Rollout:
    """Follow a Deployment until its Pods are available, it has failed, or the time is up; returns its last progress.

    Raises:
        Forbidden: the user may not watch it.
    """
    seen, trouble, changed = Rollout(done=False, text="it has not been read yet"), "", asyncio.Event()
    deadline = asyncio.timeout(within_s)
    try:
        async with deadline, watched_object(api, DEPLOYMENTS, name, changed, namespace=namespace) as followed:
            while True:
                if bool(followed.trouble) != bool(trouble):  # reported once for each outage
                    message = f"waiting for the API server: {followed.trouble}"
                    report(message if followed.trouble else "the API server answers again")
                trouble = followed.trouble
                before, now = seen, followed.now
                seen = rollout_of(now) if followed.synced else seen
                if seen.done or seen.failed:
                    return seen
                if seen != before:
                    report(seen.text)
                await next_change(changed)
    except TimeoutError:
        if not deadline.expired():
            raise
        return seen


async def pod_problems(api: Api, deployment: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the problems of a Deployment's Pods; none where the user may not read them."""
    selector: Mapping[str, str] = deployment["spec"]["selector"]["matchLabels"]
    labels = ",".join(f"{key}={value}" for key, value in selector.items())
    kind: Kind[Raw] = PODS
    try:
        listing = await api.list(kind, namespace=deployment["metadata"]["namespace"], labels=labels)
    except ApiError:
        return ()
    return problems_of(listing.items)
