"""PodDisruptionBudget: the number of Pods of a group that must stay available during evictions.

No controllers of workloads are served. The Pods that a budget selects are therefore all that it expects: a percentage
and maxUnavailable refer to the number of those that have not ended.

An eviction that a budget grants adds the Pod to `disruptedPods`, in the same write that checks the budget. From then on
the Pod counts as unavailable, until its deletion shows and for at most two minutes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from unbounded_apiserver import field_errors, metadata, selectors, type_descriptor_parser
from unbounded_apiserver.builtin_resources import BuiltInType
from unbounded_apiserver.collection import StoredObject
from unbounded_apiserver.columns import AGE, NAME
from unbounded_apiserver.resource_model import Object, Resource, Subresource, TableColumn, keep_all_but_status
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.status import StatusError
from unbounded_apiserver.store import Store
from unbounded_apiserver.workloads.pods import ENDED, PODS

GROUP: Final = "policy"
ALLOWED: Final = "DisruptionAllowed"
WOULD_VIOLATE: Final = "Cannot evict pod as it would violate the pod's disruption budget."
SEVERAL: Final = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
COUNTS: Final = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")
POLICIES: Final = ["AlwaysAllow", "IfHealthyBudget"]
GRANT_LASTS: Final = timedelta(minutes=2)
RETRY_S: Final = 10
_PERCENT: Final = re.compile(r"[0-9]+%")
_BAD_PERCENT: Final = (
    "a valid percent string must be a numeric string followed by an ending '%' "
    "(e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
)
TYPES: Final = type_descriptor_parser.read(
    """
PodDisruptionBudget: A limit on the evictions, and other voluntary disruptions, that a group of pods has at one time.
  spec PodDisruptionBudgetSpec!  The desired behaviour of the budget.
  status PodDisruptionBudgetStatus!  The most recently observed state of the budget.
PodDisruptionBudgetSpec: The pods of a budget, and how many of them have to stay available.
  maxUnavailable port*  The most pods that may be unavailable after an eviction, as a number or a percentage.
  minAvailable port*  The fewest pods that must be available after an eviction, as a number or a percentage.
  selector LabelSelector*=  Labels of the pods. An empty selector selects all pods of the namespace, null none.
  unhealthyPodEvictionPolicy string*  Evictions of pods that run and are not ready: IfHealthyBudget or AlwaysAllow.
PodDisruptionBudgetStatus: The state of a budget. It can lag behind its pods for a moment.
  conditions [Condition]type  DisruptionAllowed: whether the budget allows an eviction now.
  currentHealthy int32!  The current number of healthy pods.
  desiredHealthy int32!  The minimum number of healthy pods.
  disruptedPods {time}  Pods with a granted eviction that is not observed yet, and its time; removed after two minutes.
  disruptionsAllowed int32!  The number of disruptions that are allowed now.
  expectedPods int32!  The number of pods that the budget counts.
  observedGeneration int64  The generation of the budget that this status is about.
""",
    package="io.k8s.api.policy.v1",
)


def _decide(obj: Object, old: Object | None) -> None:
    if old is None:
        obj["status"] = dict.fromkeys(COUNTS, 0)
        return
    obj["status"] = old["status"]
    if obj["spec"] != old["spec"]:
        obj["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1


def _rules(obj: Object, _old: Object | None) -> list[FieldError]:
    spec = obj["spec"]
    errors = []
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        errors.append(field_errors.invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set"))
    for name in ("minAvailable", "maxUnavailable"):
        if (value := spec.get(name)) is not None:
            errors += _amount(value, f"spec.{name}")
    errors += selectors.check_object(spec.get("selector") or {}, "spec.selector")
    policy = spec.get("unhealthyPodEvictionPolicy")
    if policy is not None and policy not in POLICIES:
        errors.append(field_errors.unsupported("spec.unhealthyPodEvictionPolicy", policy, POLICIES))
    return errors


def _status_rules(obj: Object, _old: Object) -> list[FieldError]:
    status = obj.get("status") or {}
    errors = list(field_errors.check_conditions(status.get("conditions") or (), "status.conditions"))
    counts = ((f"status.{name}", status.get(name, 0)) for name in COUNTS)
    negative = "must be greater than or equal to 0"
    return [*errors, *(field_errors.invalid(where, count, negative) for where, count in counts if count < 0)]


def _amount(value: Any, where: str) -> Iterator[FieldError]:
    if isinstance(value, int):
        if value < 0:
            yield field_errors.invalid(where, value, "must be greater than or equal to 0")
    elif not _PERCENT.fullmatch(value):
        yield field_errors.invalid(where, value, _BAD_PERCENT)
    elif int(value[:-1]) > 100:
        yield field_errors.invalid(where, value, "must not be greater than 100%")


def selects(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector matches these labels; None matches nothing, an empty one everything."""
    return selector is not None and selectors.labels_match(selectors.from_object(selector), labels)


class _Metadata(msgspec.Struct, rename="camel"):
    labels: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class _Condition(msgspec.Struct):
    type: str
    status: str


class _Status(msgspec.Struct):
    phase: str = ""
    conditions: list[_Condition] | None = None


class _Pod(msgspec.Struct):
    metadata: _Metadata
    status: _Status = msgspec.field(default_factory=_Status)


_pods: Final = msgspec.json.Decoder(_Pod)


@dataclass(frozen=True)
class PodFacts:
    """The fields of a Pod that budgets need.

    Args:
        deleting: the Pod is being deleted.
    """

    name: str
    labels: Mapping[str, str]
    phase: str
    ready: bool
    deleting: bool

    @classmethod
    def of(cls, record: StoredObject) -> PodFacts:
        pod = _pods.decode(record.bare)
        ready = any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions or ())
        deleting = pod.metadata.deletion_timestamp is not None
        return cls(record.name, pod.metadata.labels or {}, pod.status.phase, ready, deleting)

    @property
    def ended(self) -> bool:
        return self.phase in ENDED

    @property
    def healthy(self) -> bool:
        return self.ready and not self.deleting

    @property
    def begins(self) -> bool:
        """True if the Pod has not begun: no budget guards it, as long as that is so."""
        return self.phase == "Pending" and not self.deleting

    @property
    def guarded(self) -> bool:
        """False if no budget prevents the eviction: the Pod has ended, has not begun, or is being deleted."""
        return not (self.deleting or self.ended or self.begins)


def affects_budget(selector: Object | None, *states: PodFacts | None) -> bool:
    """Return whether a change of a Pod can affect the status of a budget.

    Args:
        states: of the Pod before and after; None if it does not exist.
    """
    before, after = (
        (one.ended, one.healthy, one.deleting) if one is not None and selects(selector, one.labels) else None
        for one in states
    )
    return before != after


def observed_status(budget: Object, pods: Iterable[PodFacts], now: datetime) -> Object:
    """Return the status of a budget for the Pods that it selects."""
    found = list(pods)
    expected, desired = _amounts(budget["spec"], found)
    granted = budget["status"].get("disruptedPods") or {}
    oldest = metadata.format_time(now - GRANT_LASTS)
    leaving = {
        pod.name: granted[pod.name] for pod in found if not pod.deleting and (granted.get(pod.name) or "") > oldest
    }
    healthy = sum(pod.healthy and pod.name not in leaving for pod in found)
    allowed = max(0, healthy - desired) if expected else 0
    generation = budget["metadata"].get("generation", 0)
    result = {
        "disruptionsAllowed": allowed,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "observedGeneration": generation,
        **({"disruptedPods": leaving} if leaving else {}),
    }
    return result | {"conditions": _conditions(budget["status"].get("conditions") or [], allowed, generation, now)}


def _conditions(before: list[Object], allowed: int, generation: int, now: datetime) -> list[Object]:
    """Set DisruptionAllowed among the conditions; lastTransitionTime follows the status."""
    state, reason = ("True", "SufficientPods") if allowed else ("False", "InsufficientPods")
    old = next((one for one in before if one["type"] == ALLOWED), {})
    moment = old["lastTransitionTime"] if old.get("status") == state else metadata.format_time(now)
    new = {"type": ALLOWED, "status": state, "observedGeneration": generation, "lastTransitionTime": moment}
    new |= {"reason": reason, "message": ""}
    return [new if one is old else one for one in before] if old else [*before, new]


def _amounts(spec: Object, pods: list[PodFacts]) -> tuple[int, int]:
    """Return the Pods that are expected, and those that must be healthy; a percentage is rounded up, as in Kubernetes.

    A fixed minimum counts all Pods. Otherwise ended Pods do not count, as the scale of a workload does not count them.
    """
    least, most_gone = spec.get("minAvailable"), spec.get("maxUnavailable")
    if isinstance(least, int):
        return len(pods), least
    expected = sum(not pod.ended for pod in pods)
    if most_gone is not None:
        return expected, max(0, expected - _of(most_gone, expected))
    return (0, 0) if least is None else (expected, _of(least, expected))


def _of(amount: int | str, expected: int) -> int:
    return amount if isinstance(amount, int) else math.ceil(int(amount[:-1]) * expected / 100)


class DisruptionBudgets:
    """The budgets of one store, with a cache of the Pods in namespaces that have budgets."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, dict[str, tuple[int, PodFacts]]] = {}  # by namespace, and key of the Pod

    def of_namespace(self, namespace: str) -> list[Object]:
        """Return the budgets of a namespace."""
        return [record.decode() for record in self._store.snapshot(BUDGETS.name).with_prefix(f"{namespace}/")]

    def state(self, namespace: str, budget: Object, now: datetime) -> Object:
        """Return the present status of a budget."""
        selector = budget["spec"].get("selector")
        selected = (pod for pod in self._pods(namespace) if selects(selector, pod.labels))
        return observed_status(budget, selected, now)

    def guarding(self, namespace: str, pod: PodFacts) -> Object | None:
        """Return the budget that guards a Pod. Raises StatusError (500) if there are several."""
        if not pod.guarded:
            return None
        found = [one for one in self.of_namespace(namespace) if selects(one["spec"].get("selector"), pod.labels)]
        if len(found) > 1:
            raise StatusError(500, "", SEVERAL)
        return found[0] if found else None

    def needs(self, namespace: str, budget: Object, pod: PodFacts, now: datetime) -> bool:
        """Return whether an eviction of the Pod needs the budget's grant.

        A Pod that is not ready does without it if the budget's policy says so, or if enough others are healthy.
        """
        if pod.ready:
            return True
        if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
            return False
        state = self.state(namespace, budget, now)
        return not state["currentHealthy"] >= state["desiredHealthy"] > 0

    def grant(self, namespace: str, budget: Object, pod: PodFacts, now: datetime) -> None:
        """Grant the eviction of a Pod in the budget's status, in place. Raises StatusError (429)."""
        budget["status"] = self.state(namespace, budget, now)
        if not budget["status"]["disruptionsAllowed"]:
            raise _needed(budget)
        budget["status"].setdefault("disruptedPods", {})[pod.name] = metadata.format_time(now)
        budget["status"] = self.state(namespace, budget, now)

    def _pods(self, namespace: str) -> Iterator[PodFacts]:
        """Return the Pods of a namespace; each revision of a Pod is decoded once."""
        before, now = self._known.get(namespace, {}), dict[str, tuple[int, PodFacts]]()
        for record in self._store.snapshot(PODS.name).with_prefix(f"{namespace}/"):
            known = before.get(record.key)
            if known is None or known[0] != record.revision:
                known = record.revision, PodFacts.of(record)
            now[record.key] = known
        self._known[namespace] = now
        return (facts for _, facts in now.values())


def _needed(budget: Object) -> StatusError:
    name, state = budget["metadata"]["name"], budget["status"]
    why = f"The disruption budget {name} does not allow evicting pods currently"
    if state["currentHealthy"] <= state["desiredHealthy"]:
        needs, has = state["desiredHealthy"], state["currentHealthy"]
        why = f"The disruption budget {name} needs {needs} healthy pods and has {has} currently"
    return _too_many(why)


def still_processed(budget: Object) -> StatusError:
    """Return the answer for a Pod that changed while its eviction was checked: the client tries again."""
    return _too_many(
        f"The disruption budget {budget['metadata']['name']} is still being processed by the server.", retry_s=RETRY_S
    )


def _too_many(why: str, *, retry_s: int | None = None) -> StatusError:
    details: Object = {"causes": [{"reason": "DisruptionBudget", "message": why}]}
    if retry_s is not None:
        details["retryAfterSeconds"] = retry_s
    return StatusError(429, "TooManyRequests", WOULD_VIOLATE, details=details, retry_after_s=retry_s)


BUDGETS: Final = Resource(
    GROUP,
    "v1",
    "PodDisruptionBudget",
    "poddisruptionbudgets",
    "poddisruptionbudget",
    True,
    BuiltInType(
        type_descriptor_parser.kind(TYPES, "PodDisruptionBudget"),
        generation=True,
        unconditional_update=False,
        decide=_decide,
        rules=_rules,
    ),
    short_names=("pdb",),
    subresources={"status": Subresource(keep_all_but_status, rules=_status_rules)},
    columns=(
        NAME,
        TableColumn(
            "Min Available",
            description="The minimum number of pods that must be available.",
            cell=lambda obj: str(obj["spec"].get("minAvailable", "N/A")),
        ),
        TableColumn(
            "Max Unavailable",
            description="The maximum number of pods that may be unavailable.",
            cell=lambda obj: str(obj["spec"].get("maxUnavailable", "N/A")),
        ),
        TableColumn(
            "Allowed Disruptions",
            "integer",
            description="The number of pods that may be disrupted at this time.",
            cell=lambda obj: obj["status"].get("disruptionsAllowed", 0),
        ),
        AGE,
    ),
)
