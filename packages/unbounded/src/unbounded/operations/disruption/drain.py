"""The pods of a drain: those that stay, those to evict, and those that block. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from unbounded.api.core import Pod
from unbounded.api.disruption import MAX_BLOCKERS, DrainBlocker, DrainProgress, DrainSettings, DrainTimeout
from unbounded.api.meta import LabelSelector
from unbounded.kube.clock import rfc3339, seconds_since
from unbounded.kube.selectors import SelectorError, label_test, selector_text

RETRY_S: Final = 5.0  # after a budget refused an eviction
MIRROR: Final = "kubernetes.io/config.mirror"
FINISHED: Final = frozenset({"Succeeded", "Failed"})
_BUDGET: Final = re.compile(r"disruption budget ([a-z0-9][-a-z0-9.]*) ")


@dataclass(frozen=True)
class DrainRules:
    """The settings of a drain, each with a value."""

    enabled: bool = True
    timeout_s: int = 3600
    delete_empty_dir_data: bool = True
    evict_unmanaged: bool = False
    skips: tuple[LabelSelector, ...] = ()
    stuck_s: int = 300
    proceeds: bool = False
    min_ready_s: float = 10.0


def rules_of(settings: DrainSettings | None, base: DrainRules | None = None) -> DrainRules:
    """Return the rules of a drain; settings that are absent are those of `base`, or the defaults."""
    base = base or DrainRules()
    if settings is None:
        return base
    given: dict[str, Any] = {
        "timeout_s": settings.timeout_seconds,
        "delete_empty_dir_data": settings.delete_empty_dir_data,
        "evict_unmanaged": settings.evict_unmanaged,
        "skips": None if settings.skip_pod_selector is None else (settings.skip_pod_selector,),
        "stuck_s": settings.stuck_pod_seconds,
        "proceeds": None if settings.on_timeout is None else settings.on_timeout == DrainTimeout.PROCEED,
    }
    return replace(base, **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True)
class EvictionRefusal:
    """The answer of the server that it evicts a pod not now.

    Args:
        retry_at: the loop time of the next attempt.
    """

    why: str
    held_by: str | None
    retry_at: float


def refusal(pod: Pod, message: str, causes: Sequence[str], now: float) -> EvictionRefusal:
    """Return the refusal that an answer to an eviction is; it names the budget where the answer does.

    Args:
        causes: the messages of the causes in the answer.
    """
    text = causes[0] if causes else message
    found = _BUDGET.search(text)
    held_by = f"PodDisruptionBudget {pod.metadata.namespace}/{found[1]}" if found else None
    return EvictionRefusal(text, held_by, now + RETRY_S)


@dataclass(frozen=True)
class DrainStep:
    """The next step of a drain.

    Args:
        evict: the pods to evict now.
        retry_s: seconds until a refused or stuck pod is due again; None where only an event changes the step.
    """

    evict: tuple[Pod, ...]
    progress: DrainProgress
    retry_s: float | None


def plan_drain(
    pods: Sequence[Pod],
    rules: DrainRules,
    refusals: Mapping[str, EvictionRefusal],
    before: Sequence[DrainBlocker],
    *,
    now: datetime,
    loop_time: float,
    lost: bool,
) -> DrainStep:
    """Return the pods to evict now, and the pods that block.

    Args:
        refusals: by the UID of the pod.
        before: the blockers that were known.
        lost: the Node is not Ready, and its host was observed Off: what ran there has ended.
    """
    skipping = [_skips(one) for one in rules.skips]
    since = {(one.pod, one.held_by): one.since for one in before}
    evict: list[Pod] = []
    blockers: list[DrainBlocker] = []
    retries: list[float] = []
    left = 0

    def block(pod: Pod, why: str, held_by: str | None) -> None:
        held_by = None if held_by is None else held_by[:512]
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        begin = since.get((name, held_by)) or rfc3339(now)
        blockers.append(DrainBlocker(pod=name, why=why[:1024], held_by=held_by, since=begin))

    for pod in sorted(pods, key=lambda one: (one.metadata.namespace or "", one.metadata.name)):
        if stays(pod) or any(skips(pod) for skips in skipping):
            continue
        if pod.metadata.deletion_timestamp:
            stuck_in_s = rules.stuck_s - seconds_since(pod.metadata.deletion_timestamp, now)
            if stuck_in_s <= 0 and lost:
                continue
            if stuck_in_s <= 0:
                block(pod, f"terminating since {pod.metadata.deletion_timestamp}", _stuck_by(pod))
            else:
                retries.append(stuck_in_s)
        elif (why := _unevictable(pod, rules)) is not None:
            block(pod, why, f"Pod {pod.metadata.namespace}/{pod.metadata.name}")
        else:
            refused = refusals.get(pod.metadata.uid)
            if refused is not None:
                block(pod, refused.why, refused.held_by)
            if refused is None or refused.retry_at <= loop_time:
                evict.append(pod)
            else:
                retries.append(refused.retry_at - loop_time)
        left += 1
    progress = DrainProgress(left=left, blockers=tuple(blockers[:MAX_BLOCKERS]))
    return DrainStep(tuple(evict), progress, min(retries, default=None))


def stays(pod: Pod) -> bool:
    """Return whether a pod stays on a drained Node: a finished, a mirror, or a DaemonSet pod."""
    owners = pod.metadata.owner_references
    return (
        pod.status.phase in FINISHED
        or MIRROR in pod.metadata.annotations
        or any(owner.controller and owner.kind == "DaemonSet" for owner in owners)
    )


def _unevictable(pod: Pod, rules: DrainRules) -> str | None:
    if not rules.evict_unmanaged and not any(owner.controller for owner in pod.metadata.owner_references):
        return "no controller would create it again: delete it, or set drain.evictUnmanaged"
    if not rules.delete_empty_dir_data and any(volume.empty_dir is not None for volume in pod.spec.volumes):
        return "its emptyDir volume would be lost: delete it, or set drain.deleteEmptyDirData"
    return None


def _stuck_by(pod: Pod) -> str:
    finalizers = ", ".join(pod.metadata.finalizers)
    return f"finalizers {finalizers}" if finalizers else f"kubelet of Node {pod.spec.node_name}"


def _skips(selector: LabelSelector) -> Callable[[Pod], bool]:
    if not (selector.match_labels or selector.match_expressions):
        return lambda _pod: False
    try:
        test = label_test(selector_text(selector))
    except SelectorError:  # the server validates selectors, an older definition did not
        return lambda _pod: False
    return lambda pod: test(pod.metadata.labels)
