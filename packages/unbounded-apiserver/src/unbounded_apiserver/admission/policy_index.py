"""The policies of a store, indexed by the resources that they match, and the review of requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from unbounded_apiserver import status
from unbounded_apiserver.admission import expressions, params
from unbounded_apiserver.admission.environment import BUDGET
from unbounded_apiserver.admission.policy_types import BINDINGS, GROUP, POLICIES, POLICY_RESOURCES
from unbounded_apiserver.admission.requests import AdmissionRequest, RequestMatch
from unbounded_apiserver.builtin_resources import NAMESPACES
from unbounded_apiserver.cel import Meter
from unbounded_apiserver.collection import ObjectChange
from unbounded_apiserver.resource_model import Object, Resource
from unbounded_apiserver.served_resources import Catalog
from unbounded_apiserver.status import StatusError
from unbounded_apiserver.store import Store

FAILURE: Final = "validation.policy.admission.k8s.io/validation_failure"
MAX_ANNOTATION_BYTES: Final = 10 * 1024
_CODES: Final = {"Forbidden": 403, "Invalid": 422, "RequestEntityTooLarge": 413}
_UNGUARDED: Final = frozenset({GROUP, "authentication.k8s.io", "authorization.k8s.io"})

Part = Mapping[str, Any]


@dataclass(frozen=True)
class PolicyBinding:
    """A binding in the index."""

    name: str
    match: RequestMatch | None
    actions: tuple[str, ...]
    param_ref: Part | None


@dataclass(frozen=True)
class IndexedPolicy:
    """A policy with bindings. Its code is compiled on the first match, and cached until the policy changes."""

    name: str
    match: RequestMatch
    param_kind: Part | None
    bindings: tuple[PolicyBinding, ...]
    code: Callable[[], expressions.CompiledPolicy]


@dataclass
class PolicyReview:
    """The result of all policies for one request."""

    denial: StatusError | None = None
    warnings: list[str] = field(default_factory=list)
    annotations: dict[str, str] = field(default_factory=dict)


class PolicyIndex:
    """An index of all policies, which is rebuilt after any of them has changed."""

    def __init__(self, store: Store, catalog: Catalog) -> None:
        self._store = store
        self._catalog = catalog
        self._policies: tuple[IndexedPolicy, ...] | None = None
        self._by_resource: dict[tuple[str, str], tuple[IndexedPolicy, ...]] = {}
        self._code: dict[
            str, tuple[tuple[str, int], expressions.CompiledPolicy]
        ] = {}  # by name, with uid and generation
        for resource in POLICY_RESOURCES:
            store.listen(self._invalidate, resource.name)

    def policies_for(self, resource: Resource) -> tuple[IndexedPolicy, ...]:
        """Return the policies that may match requests for a resource; usually none."""
        key = (resource.group, resource.plural)
        found = self._by_resource.get(key)
        if found is None:
            guarded = () if resource.group in _UNGUARDED else self._current()
            found = tuple(policy for policy in guarded if policy.match.may_match(*key))
            self._by_resource[key] = found
        return found

    def review(self, admission: AdmissionRequest, decide: expressions.Decide) -> PolicyReview:
        """Apply all matching policies to a request."""
        review = PolicyReview()
        denied: list[_Denial] = []
        versions = [r.version for r in self._catalog.versions_of(admission.resource)]
        namespace = _once(lambda: self._namespace(admission.namespace))
        for policy in self.policies_for(admission.resource):
            version = policy.match.version(admission, versions, namespace)
            if version is not None:
                case = _Case(admission, policy, version, versions, namespace, decide)
                denied += self._apply_policy(case, review)
        if denied:
            review.denial = _denied(admission, denied[0])
        return review

    def _apply_policy(self, case: _Case, review: PolicyReview) -> list[_Denial]:
        """Apply one policy to a request, by each of its bindings."""
        policy, denied, noted = case.policy, [], _Annotations()
        if policy.param_kind is not None and params.resource_of(self._catalog, policy.param_kind) is None:
            shown = params.kind_text(policy.param_kind)
            why = f"failed to configure policy: failed to find resource referenced by paramKind: '{shown}'"
            return [_Denial(policy.name, "", why)] if policy.code().fail_closed else []
        for binding in policy.bindings:
            match = binding.match
            if match is not None and match.version(case.admission, case.versions, case.namespace) is None:
                continue
            try:
                given = self._params(policy, binding, case.admission)
            except params.ParamsUnavailable as error:
                if policy.code().fail_closed:
                    denied.append(_Denial(policy.name, binding.name, f"failed to configure binding: {error}"))
                continue
            for one in given:
                verdict = case.evaluate(one)
                denied += _apply_actions(policy.name, binding, verdict, review)
                noted.add(verdict)
        review.annotations.update(noted.of(policy.name))
        return denied

    def _params(
        self, policy: IndexedPolicy, binding: PolicyBinding, admission: AdmissionRequest
    ) -> list[Object] | list[None]:
        """Return each of the parameters; one None if there are none. Raises params.Unusable."""
        kind, reference = policy.param_kind, binding.param_ref
        resource = None if kind is None else params.resource_of(self._catalog, kind)
        if resource is None or reference is None:
            return [None]
        return params.collect(self._store, resource, reference, admission.namespace)

    def _namespace(self, name: str) -> Object | None:
        record = self._store.get(NAMESPACES.name, name) if name else None
        return None if record is None else record.decode()

    def _invalidate(self, _change: ObjectChange) -> None:
        self._policies = None
        self._by_resource.clear()

    def _current(self) -> tuple[IndexedPolicy, ...]:
        if self._policies is None:
            self._policies = self._read()
        return self._policies

    def _read(self) -> tuple[IndexedPolicy, ...]:
        bindings: dict[str, list[PolicyBinding]] = {}
        for record in self._store.snapshot(BINDINGS.name).with_prefix(""):
            spec = record.decode()["spec"]
            bindings.setdefault(spec["policyName"], []).append(_binding(record.name, spec))
        policies = []
        for record in self._store.snapshot(POLICIES.name).with_prefix(""):
            if record.name in bindings:
                obj = record.decode()
                match = RequestMatch.read(obj["spec"]["matchConstraints"])
                kind = obj["spec"].get("paramKind")
                bound = tuple(bindings[record.name])
                policies.append(IndexedPolicy(record.name, match, kind, bound, self._code_of(obj)))
        self._code = {policy.name: self._code[policy.name] for policy in policies if policy.name in self._code}
        return tuple(policies)

    def _code_of(self, policy: Object) -> Callable[[], expressions.CompiledPolicy]:
        meta = policy["metadata"]
        name, state = meta["name"], (meta["uid"], meta.get("generation", 1))

        def code() -> expressions.CompiledPolicy:
            compiled = self._code.get(name)
            if compiled is None or compiled[0] != state:
                compiled = self._code[name] = (state, expressions.compile_policy(policy["spec"]))
            return compiled[1]

        return code


@dataclass(frozen=True)
class _Case:
    """A request that matches a policy, in the version in which it does."""

    admission: AdmissionRequest
    policy: IndexedPolicy
    version: str
    versions: list[str]
    namespace: Callable[[], Object | None]
    decide: expressions.Decide

    def evaluate(self, given: Object | None) -> expressions.PolicyVerdict:
        code, budget = self.policy.code(), Meter(BUDGET)
        around = self.namespace if self.admission.resource is not NAMESPACES else lambda: None

        def values(decide: expressions.Decide | None, budget: Meter) -> expressions.RequestValues:
            return expressions.RequestValues(
                self.admission, self.version, given, around, decide, code.variables, budget
            )

        return code.evaluate(values(self.decide, budget), budget, partial(values, None))


@dataclass(frozen=True)
class _Denial:
    policy: str
    binding: str
    message: str
    reason: str = "Invalid"


class _Annotations:
    """The audit annotations of one policy, each value once for its key."""

    def __init__(self) -> None:
        self._found: dict[str, list[str]] = {}

    def add(self, verdict: expressions.PolicyVerdict) -> None:
        for key, value in verdict.annotations:
            cut = value.encode()[:MAX_ANNOTATION_BYTES].decode(errors="ignore")
            values = self._found.setdefault(key, [])
            if cut not in values:
                values.append(cut)

    def of(self, policy: str) -> dict[str, str]:
        return {f"{policy}/{key}": ", ".join(values) for key, values in self._found.items()}


def _apply_actions(
    policy: str, binding: PolicyBinding, verdict: expressions.PolicyVerdict, review: PolicyReview
) -> list[_Denial]:
    """Add warnings and annotations as the binding requires; return the denials."""
    denied = []
    for failure in verdict.failures:
        for action in binding.actions:
            match action:
                case "Deny":
                    denied.append(_Denial(policy, binding.name, failure.message, failure.reason))
                case "Warn":
                    whose = f"ValidatingAdmissionPolicy '{policy}' with binding '{binding.name}'"
                    review.warnings.append(f"Validation failed for {whose}: {failure.message}")
                case "Audit":
                    review.annotations[FAILURE] = _failure_text(policy, binding, failure)
    return denied + [_Denial(policy, binding.name, why) for why in verdict.unusable]


def _failure_text(policy: str, binding: PolicyBinding, failure: expressions.ValidationFailure) -> str:
    detail = {
        "message": failure.message,
        "policy": policy,
        "binding": binding.name,
        "expressionIndex": failure.index,
        "validationActions": list(binding.actions),
    }
    return json.dumps([detail], separators=(",", ":"))


def _denied(admission: AdmissionRequest, denial: _Denial) -> StatusError:
    resource, name = admission.resource, admission.shown_name
    through = f" with binding '{denial.binding}'" if denial.binding else ""
    message = f"ValidatingAdmissionPolicy '{denial.policy}'{through} denied request: {denial.message}"
    refused = status.forbidden(resource.group, resource.plural, name, message, [{"message": message}])
    refused.code, refused.reason = _CODES[denial.reason], denial.reason
    return refused


def _binding(name: str, spec: Part) -> PolicyBinding:
    given = spec.get("matchResources")
    match = None if given is None else RequestMatch.read(given)
    return PolicyBinding(name, match, tuple(spec["validationActions"]), spec.get("paramRef"))


def _once(find: Callable[[], Object | None]) -> Callable[[], Object | None]:
    found: list[Object | None] = []

    def get() -> Object | None:
        if not found:
            found.append(find())
        return found[0]

    return get
