"""What is about to be written or deleted, held to the admission policies."""

from __future__ import annotations

from typing import Any, Final

from unbounded.apiserver.admission.book import PolicyBook
from unbounded.apiserver.admission.request import Admission, Operation
from unbounded.apiserver.auth import Guard
from unbounded.apiserver.builtin import NAMESPACES
from unbounded.apiserver.http.call import Call
from unbounded.apiserver.options import META, DeleteOptions, first
from unbounded.apiserver.types import Object, Resource

_OPTIONS: Final[dict[Operation, str]] = {
    "CREATE": "CreateOptions",
    "UPDATE": "UpdateOptions",
    "DELETE": "DeleteOptions",
}


class Admitting:
    """The policies of a server, asked about its requests."""

    def __init__(self, policies: PolicyBook, guard: Guard) -> None:
        self._policies = policies
        self._guard = guard

    def concerns(self, resource: Resource) -> bool:
        """Whether any policy is about a resource; where none is, nothing has to be asked."""
        return bool(self._policies.concerning(resource))

    def write(
        self, call: Call, resource: Resource, obj: Object, old: Object | None, kind: Resource | None = None
    ) -> None:
        """Hold a creation (`old` is None) or an update to the policies. Raises StatusError.

        Args:
            kind: of what kind the object is, where that is not the resource's.
        """
        if not self.concerns(resource):
            return
        operation: Operation = "CREATE" if old is None else "UPDATE"
        self._hold(call, resource, _kind(kind or resource), operation, (obj, old), _write_options(call, operation))

    def connect(self, call: Call, resource: Resource, options: Object) -> None:
        """Hold a connection into an object, with its options, to the policies. Raises StatusError."""
        if self.concerns(resource):
            kind = (resource.group, resource.version, str(options["kind"]))
            self._hold(call, resource, kind, "CONNECT", (options, None), {})

    def deletion(self, call: Call, resource: Resource, options: DeleteOptions, old: Object) -> None:
        """Hold the deletion of one object to the policies. Raises StatusError."""
        self._hold(call, resource, _kind(resource), "DELETE", (None, old), _delete_options(options))

    def _hold(
        self,
        call: Call,
        resource: Resource,
        kind: tuple[str, str, str],
        operation: Operation,
        objects: tuple[Object | None, Object | None],
        options: dict[str, Any],
    ) -> None:
        asked = call.asked
        if asked is None or not self.concerns(resource):
            return
        obj, old = objects
        meta: Object = {} if old is None else old["metadata"]  # of a collection, it says which object this is
        name = meta.get("name") or asked.name or call.new_name
        admission = Admission(
            operation,
            call.user,
            resource,
            kind,
            asked.subresource,
            name if resource is NAMESPACES else asked.namespace or meta.get("namespace", ""),
            name,
            obj,
            old,
            "dryRun" in options,
            options,
        )
        review = self._policies.review(admission, self._guard.decide)
        call.warnings.extend(review.warnings)
        call.annotations.update(review.annotations)
        if review.refusal is not None:
            raise review.refusal


def _kind(resource: Resource) -> tuple[str, str, str]:
    return resource.group, resource.version, resource.kind


def _write_options(call: Call, operation: Operation) -> dict[str, Any]:
    given = {name: first(call.query, name) for name in ("fieldManager", "fieldValidation")}
    return _options(operation, {"dryRun": list(call.query.get("dryRun", ())), **given})


def _delete_options(options: DeleteOptions) -> dict[str, Any]:
    wanted = {"uid": options.uid, "resourceVersion": options.resource_version}
    preconditions = {key: value for key, value in wanted.items() if value}
    given = {"dryRun": ["All"] if options.dry_run else [], "propagationPolicy": options.policy}
    return _options("DELETE", {**given, "preconditions": preconditions})


def _options(operation: Operation, given: dict[str, Any]) -> dict[str, Any]:
    head = {"kind": _OPTIONS[operation], "apiVersion": f"{META}/v1"}
    return head | {key: value for key, value in given.items() if value}
