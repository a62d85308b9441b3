"""Bindings of service account tokens: to their account, and to a Secret, Pod or Node if the request names one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from unbounded_apiserver import status
from unbounded_apiserver.builtin import NODES, SECRETS, SERVICE_ACCOUNTS
from unbounded_apiserver.store import Store
from unbounded_apiserver.types import Object, Resource
from unbounded_apiserver.workloads.pods import PODS

GONE_AFTER: Final = timedelta(seconds=60)  # an object that is being deleted may use its token to clean up
BINDABLE: Final[Mapping[str, Resource]] = {resource.kind: resource for resource in (SECRETS, PODS, NODES)}
_EXTRA: Final = "authentication.kubernetes.io"

Claim = Mapping[str, Any]  # namespace, serviceaccount, and optionally secret, pod, node: each with name and uid


class TokenBindings:
    """Bindings of tokens to the objects of one store."""

    def __init__(self, store: Store, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now

    def bind(self, namespace: str, account: str, reference: Mapping[str, str] | None) -> Object:
        """Return the claim of a new token. Raises StatusError (400, 404, 409)."""
        about: Object = {"namespace": namespace, "serviceaccount": self._claim(SERVICE_ACCOUNTS, namespace, account)}
        if reference is None:
            return about
        kind = reference.get("kind", "")
        resource = BINDABLE.get(kind) if reference.get("apiVersion", "v1") == "v1" else None
        if resource is None:
            shown = f"{reference.get('apiVersion', '')}, Kind={kind}"
            raise status.bad_request(f"cannot bind token to object of type {shown}")
        name = reference.get("name", "")
        about[kind.lower()] = claim = self._claim(resource, namespace, name)
        if resource is PODS:
            self._check_pod(namespace, account, name, about)
        if reference.get("uid", "") not in {"", claim["uid"]}:
            why = (
                f"the UID in the bound object reference ({reference['uid']}) does not match the UID in record. "
                "The object might have been deleted and then recreated"
            )
            raise status.conflict("", resource.plural, name, why)
        return about

    def _check_pod(self, namespace: str, account: str, name: str, about: Object) -> None:
        """Require that the account is the Pod's, and add the Pod's node to the claim."""
        spec = (self._get(PODS, namespace, name) or {}).get("spec") or {}
        if spec.get("serviceAccountName", "") != account:
            why = f'cannot bind token for serviceaccount "{account}" to pod running with different serviceaccount name.'
            raise status.bad_request(why)
        if node := spec.get("nodeName"):
            known = self._get(NODES, "", node)
            about["node"] = {"name": node} | ({"uid": known["metadata"]["uid"]} if known else {})

    def are_valid(self, about: Claim) -> bool:
        """Return whether all objects that a token is bound to still exist."""
        namespace = about["namespace"]
        bound = [(SERVICE_ACCOUNTS, about["serviceaccount"])]
        bound += [(SECRETS, about["secret"])] if "secret" in about else []
        if "pod" in about:  # a Pod's node is information, and no condition
            bound.append((PODS, about["pod"]))
        elif "node" in about:
            bound.append((NODES, about["node"]))
        return all(self._is_there(resource, namespace, claim) for resource, claim in bound)

    def _is_there(self, resource: Resource, namespace: str, claim: Mapping[str, str]) -> bool:
        found = self._get(resource, namespace, claim["name"])
        if found is None or found["metadata"]["uid"] != claim["uid"]:
            return False
        deleted = found["metadata"].get("deletionTimestamp")
        return deleted is None or self._now() < datetime.fromisoformat(deleted) + GONE_AFTER

    def _claim(self, resource: Resource, namespace: str, name: str) -> dict[str, str]:
        found = self._get(resource, namespace, name)
        if found is None:
            raise status.not_found("", resource.plural, name)
        return {"name": name, "uid": found["metadata"]["uid"]}

    def _get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        record = self._store.get(resource.name, resource.key(namespace, name))
        return record.decode() if record is not None else None


def user_extra(about: Claim) -> dict[str, tuple[str, ...]]:
    """Return the extra fields of a token's user."""
    bound = ((kind, key, value) for kind in ("node", "pod") for key, value in about.get(kind, {}).items())
    return {f"{_EXTRA}/{kind}-{key}": (value,) for kind, key, value in bound}
