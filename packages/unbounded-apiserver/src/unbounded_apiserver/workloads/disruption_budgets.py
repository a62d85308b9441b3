"""PodDisruptionBudget: the number of Pods of a group that must stay available during evictions.

No controllers of workloads are served. The Pods that a budget selects are therefore all that it expects: a percentage
and maxUnavailable refer to their number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from unbounded_apiserver import field_errors, metadata, name_validation, notation
from unbounded_apiserver.builtin import BuiltInType
from unbounded_apiserver.columns import AGE, NAME
from unbounded_apiserver.records import StoredObject
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.status import StatusError
from unbounded_apiserver.store import Store
from unbounded_apiserver.types import STATUS, Object, Resource, TableColumn
from unbounded_apiserver.workloads.pods import ENDED, PODS

GROUP: Final = "policy"
ALLOWED: Final = "DisruptionAllowed"
WOULD_VIOLATE: Final = "Cannot evict pod as it would violate the pod's disruption budget."
SEVERAL: Final = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
COUNTS: Final = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")
POLICIES: Final = ["AlwaysAllow", "IfHealthyBudget"]
_PERCENT: Final = re.compile(r"[0-9]+%")
_BAD_PERCENT: Final = (
    "a valid percent string must be a numeric string followed by an ending '%' "
    "(e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
)
TYPES: Final = notation.read(
    """
PodDisruptionBudget: The number of pods that must stay available during evictions.
  spec PodDisruptionBudgetSpec!  The desired state.
  status PodDisruptionBudgetStatus!  The observed state.
PodDisruptionBudgetSpec: The pods of a budget, and how many have to stay.
  maxUnavailable port*  The maximum of missing pods, as a number or a percentage.
  minAvailable port*  The minimum of available pods, as a number or a percentage.
  selector LabelSelector*  The pods of the budget.
  unhealthyPodEvictionPolicy string*  IfHealthyBudget or AlwaysAllow, for pods that are not ready.
PodDisruptionBudgetStatus: The evictions that the budget allows now.
  conditions [Condition]type  DisruptionAllowed.
  currentHealthy int32!  Pods that are ready.
  desiredHealthy int32!  Pods that have to stay ready.
  disruptedPods {time}  Pods whose eviction was granted, and when.
  disruptionsAllowed int32!  Pods that may be evicted now.
  expectedPods int32!  Pods of the budget.
  observedGeneration int64  The generation that the status is about.
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
    errors += _selector(spec.get("selector") or {})
    policy = spec.get("unhealthyPodEvictionPolicy")
    if policy is not None and policy not in POLICIES:
        errors.append(field_errors.unsupported("spec.unhealthyPodEvictionPolicy", policy, POLICIES))
    counts = ((f"status.{name}", obj["status"].get(name, 0)) for name in COUNTS)
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


def _selector(selector: Object) -> Iterator[FieldError]:
    where = "spec.selector"
    for key, value in (selector.get("matchLabels") or {}).items():
        yield from (
            field_errors.invalid(f"{where}.matchLabels", key, why) for why in name_validation.qualified_name(key)
        )
        yield from (
            field_errors.invalid(f"{where}.matchLabels", value, why) for why in name_validation.label_value(value)
        )
    for index, term in enumerate(selector.get("matchExpressions") or ()):
        at, values = f"{where}.matchExpressions[{index}]", term.get("values")
        if term["operator"] in {"In", "NotIn"} and not values:
            yield field_errors.required(f"{at}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        elif term["operator"] in {"Exists", "DoesNotExist"} and values:
            yield field_errors.forbidden(
                f"{at}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            )
        elif term["operator"] not in {"In", "NotIn", "Exists", "DoesNotExist"}:
            yield field_errors.invalid(f"{at}.operator", term["operator"], "not a valid selector operator")
        yield from (
            field_errors.invalid(f"{at}.key", term["key"], why) for why in name_validation.qualified_name(term["key"])
        )


def selects(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector matches these labels; None matches nothing, an empty one everything."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_holds(term, labels) for term in selector.get("matchExpressions") or ())


def _holds(term: Object, labels: Mapping[str, str]) -> bool:
    key, values = term["key"], term.get("values") or ()
    match term["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
    return key not in labels


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

    labels: Mapping[str, str]
    phase: str
    ready: bool
    deleting: bool

    @classmethod
    def of(cls, record: StoredObject) -> PodFacts:
        pod = _pods.decode(record.bare)
        ready = any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions or ())
        deleting = pod.metadata.deletion_timestamp is not None
        return cls(pod.metadata.labels or {}, pod.status.phase, ready, deleting)

    @property
    def counted(self) -> bool:
        return self.phase not in ENDED

    @property
    def healthy(self) -> bool:
        return self.ready and not self.deleting

    @property
    def free(self) -> bool:
        """True if no budget prevents the eviction: the Pod has ended, has not begun, or is being deleted."""
        return self.deleting or self.phase in {"Pending", *ENDED}


def affects_budget(selector: Object | None, *states: PodFacts | None) -> bool:
    """Return whether a change of a Pod can affect the counts of a budget.

    Args:
        states: of the Pod before and after; None if it does not exist.
    """
    before, after = (
        (one.counted, one.healthy) if one is not None and selects(selector, one.labels) else None for one in states
    )
    return before != after


def observed_status(budget: Object, pods: Iterable[PodFacts], now: datetime) -> Object:
    """Return the status of a budget for the Pods that it selects."""
    counted = [pod for pod in pods if pod.counted]
    healthy = sum(pod.healthy for pod in counted)
    desired = _desired(budget["spec"], len(counted))
    allowed = max(0, healthy - desired) if counted else 0
    generation = budget["metadata"].get("generation", 0)
    result = {
        "disruptionsAllowed": allowed,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": len(counted),
        "observedGeneration": generation,
    }
    before = budget["status"].get("conditions") or [{}]
    state = ("True", "SufficientPods") if allowed else ("False", "InsufficientPods")
    changed = before[0].get("status") != state[0]
    moment = metadata.format_time(now) if changed else before[0]["lastTransitionTime"]
    condition = {"type": ALLOWED, "status": state[0], "observedGeneration": generation, "lastTransitionTime": moment}
    return result | {"conditions": [condition | {"reason": state[1], "message": ""}]}


def _desired(spec: Object, expected: int) -> int:
    """Return the number of Pods that must stay; a percentage is rounded up, as in Kubernetes."""
    least, most_gone = spec.get("minAvailable"), spec.get("maxUnavailable")
    if least is not None:
        return _of(least, expected)
    return max(0, expected - _of(1 if most_gone is None else most_gone, expected))


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

    def check(self, namespace: str, name: str, now: datetime) -> None:
        """Reject the eviction of a Pod that a budget needs. Raises StatusError (429, 500)."""
        record = self._store.get(PODS.name, f"{namespace}/{name}")
        if record is None or (pod := PodFacts.of(record)).free:
            return
        budgets = [one for one in self.of_namespace(namespace) if selects(one["spec"].get("selector"), pod.labels)]
        if len(budgets) > 1:
            raise StatusError(500, "InternalError", SEVERAL)
        for budget in budgets:
            state = self.state(namespace, budget, now)
            if not _permits(budget, state, pod):
                raise _needed(budget, state)

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


def _permits(budget: Object, state: Object, pod: PodFacts) -> bool:
    if not pod.ready:
        if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
            return True
        if state["currentHealthy"] >= state["desiredHealthy"] > 0:
            return True
    return bool(state["disruptionsAllowed"])


def _needed(budget: Object, state: Object) -> StatusError:
    name = budget["metadata"]["name"]
    why = f"The disruption budget {name} does not allow evicting pods currently"
    if state["currentHealthy"] <= state["desiredHealthy"]:
        needs, has = state["desiredHealthy"], state["currentHealthy"]
        why = f"The disruption budget {name} needs {needs} healthy pods and has {has} currently"
    causes = [{"reason": "DisruptionBudget", "message": why}]
    return StatusError(429, "TooManyRequests", WOULD_VIOLATE, details={"causes": causes})


BUDGETS: Final = Resource(
    GROUP,
    "v1",
    "PodDisruptionBudget",
    "poddisruptionbudgets",
    "poddisruptionbudget",
    True,
    BuiltInType(
        notation.kind(TYPES, "PodDisruptionBudget"),
        generation=True,
        unconditional_update=False,
        decide=_decide,
        rules=_rules,
    ),
    short_names=("pdb",),
    subresources=STATUS,
    columns=(
        NAME,
        TableColumn("Min Available", cell=lambda obj: str(obj["spec"].get("minAvailable", "N/A"))),
        TableColumn("Max Unavailable", cell=lambda obj: str(obj["spec"].get("maxUnavailable", "N/A"))),
        TableColumn("Allowed Disruptions", "integer", cell=lambda obj: obj["status"].get("disruptionsAllowed", 0)),
        AGE,
    ),
)
