"""Admission policies applied to the writes, deletions and connections of requests."""

from __future__ import annotations

from typing import Any, Final

from unbounded_apiserver.admission.policy_index import PolicyIndex
from unbounded_apiserver.admission.requests import AdmissionRequest, Operation
from unbounded_apiserver.auth import AuthChain
from unbounded_apiserver.builtin_resources import NAMESPACES
from unbounded_apiserver.http.api_call import ApiCall
from unbounded_apiserver.options import META, DeleteOptions, first
from unbounded_apiserver.resource_model import Object, Resource

_OPTIONS: Final[dict[Operation, str]] = {
    "CREATE": "CreateOptions",
    "UPDATE": "UpdateOptions",
    "DELETE": "DeleteOptions",
}


class PolicyChecks:
    """Apply a server's admission policies to its requests."""

    def __init__(self, policies: PolicyIndex, guard: AuthChain) -> None:
        self._policies = policies
        self._guard = guard

    def applies_to(self, resource: Resource) -> bool:
        """Return whether any policy covers a resource; without one, no request has to be evaluated."""
        return bool(self._policies.policies_for(resource))

    def check_write(
        self, call: ApiCall, resource: Resource, obj: Object, old: Object | None, kind: Resource | None = None
    ) -> None:
        """Apply the policies to a creation (`old` is None) or an update. Raises StatusError.

        Args:
            kind: the kind of the object, where it is not the resource's.
        """
        if not self.applies_to(resource):
            return
        operation: Operation = "CREATE" if old is None else "UPDATE"
        self._review(call, resource, _kind(kind or resource), operation, (obj, old), _write_options(call, operation))

    def check_connect(self, call: ApiCall, resource: Resource, options: Object) -> None:
        """Apply the policies to a connection into an object, with its options. Raises StatusError."""
        if self.applies_to(resource):
            kind = (resource.group, resource.version, str(options["kind"]))
            self._review(call, resource, kind, "CONNECT", (options, None), {})

    def check_delete(self, call: ApiCall, resource: Resource, options: DeleteOptions, old: Object) -> None:
        """Apply the policies to the deletion of one object. Raises StatusError."""
        self._review(call, resource, _kind(resource), "DELETE", (None, old), _delete_options(options))

    def _review(
        self,
        call: ApiCall,
        resource: Resource,
        kind: tuple[str, str, str],
        operation: Operation,
        objects: tuple[Object | None, Object | None],
        options: dict[str, Any],
    ) -> None:
        attributes = call.attributes
        if attributes is None or not self.applies_to(resource):
            return
        obj, old = objects
        meta: Object = {} if old is None else old["metadata"]  # for a collection, the old object has the name
        name = meta.get("name") or attributes.name or call.new_name
        admission = AdmissionRequest(
            operation,
            call.user,
            resource,
            kind,
            attributes.subresource,
            name if resource is NAMESPACES else attributes.namespace or meta.get("namespace", ""),
            name,
            obj,
            old,
            "dryRun" in options,
            options,
        )
        review = self._policies.review(admission, self._guard.decide)
        call.warnings.extend(review.warnings)
        call.annotations.update(review.annotations)
        if review.denial is not None:
            raise review.denial


def _kind(resource: Resource) -> tuple[str, str, str]:
    return resource.group, resource.version, resource.kind


def _write_options(call: ApiCall, operation: Operation) -> dict[str, Any]:
    given = {name: first(call.query, name) for name in ("fieldManager", "fieldValidation")}
    return _options(operation, {"dryRun": list(call.query.get("dryRun", ())), **given})


def _delete_options(options: DeleteOptions) -> dict[str, Any]:
    desired = {"uid": options.uid, "resourceVersion": options.resource_version}
    preconditions = {key: value for key, value in desired.items() if value}
    given = {"dryRun": ["All"] if options.dry_run else [], "propagationPolicy": options.policy}
    return _options("DELETE", {**given, "preconditions": preconditions})


def _options(operation: Operation, given: dict[str, Any]) -> dict[str, Any]:
    head = {"kind": _OPTIONS[operation], "apiVersion": f"{META}/v1"}
    return head | {key: value for key, value in given.items() if value}
