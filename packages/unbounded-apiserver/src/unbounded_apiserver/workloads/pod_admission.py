"""Complete Pods as Kubernetes' admission plugins ServiceAccount, Priority and DefaultTolerationSeconds do.

A Pod gets an account with its token, a priority, and tolerations for short outages of nodes. The volume with the token
has the content of Kubernetes, without the additions of distributions.
"""

from __future__ import annotations

from typing import Any, Final

from unbounded_apiserver import metadata, status
from unbounded_apiserver.access.node_authorizer import MIRROR, SECRETS, of_content
from unbounded_apiserver.builtin_resources import SERVICE_ACCOUNTS
from unbounded_apiserver.resource_model import Object
from unbounded_apiserver.status import StatusError
from unbounded_apiserver.store import Store
from unbounded_apiserver.workloads.defaults import FILE_MODE
from unbounded_apiserver.workloads.priorities import PREEMPT, PriorityClasses

DEFAULT_ACCOUNT: Final = "default"
ROOT_CA: Final = "kube-root-ca.crt"
TOKEN_VOLUME: Final = "kube-api-access-"  # noqa: S105 - a name
TOKEN_PATH: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path
TOKEN_S: Final = 3607  # an hour, distinguishable from a value that a user chose
TOLERATED_S: Final = 300
NOT_READY: Final = "node.kubernetes.io/not-ready"
UNREACHABLE: Final = "node.kubernetes.io/unreachable"
_NO_EXECUTE: Final = "NoExecute"


class PodAdmission:
    """Admission of the Pods of one store. Raises StatusError (403) if an account or a class does not exist."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._classes = PriorityClasses(store)

    def __call__(self, pod: Object, old: Object | None) -> None:
        spec = pod["spec"]
        if old is not None:
            for key in ("priority", "preemptionPolicy"):
                if spec.get(key) is None and key in old["spec"]:
                    spec[key] = old["spec"][key]
        elif MIRROR in (pod["metadata"].get("annotations") or {}):
            _check_mirror(pod)
            self._prioritize(pod)
        else:
            self._give_account(pod)
            self._prioritize(pod)
        _tolerate(spec)

    def _give_account(self, pod: Object) -> None:
        spec = pod["spec"]
        name = spec.get("serviceAccountName") or DEFAULT_ACCOUNT
        spec["serviceAccountName"] = spec["serviceAccount"] = name
        account = self._account(pod, name)
        wish = spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken"))
        if wish is not False:
            _mount_token(spec)
        if not spec.get("imagePullSecrets") and account.get("imagePullSecrets"):
            spec["imagePullSecrets"] = [dict(secret) for secret in account["imagePullSecrets"]]

    def _account(self, pod: Object, name: str) -> Object:
        """Return a Pod's account; the default one may not exist yet in a new namespace."""
        namespace = pod["metadata"]["namespace"]
        record = self._store.get(SERVICE_ACCOUNTS.name, f"{namespace}/{name}")
        if record is not None:
            return record.decode()
        if name == DEFAULT_ACCOUNT:
            return {}
        why = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
        raise _forbidden(pod, why)

    def _prioritize(self, pod: Object) -> None:
        spec = pod["spec"]
        given = spec.get("priorityClassName", "")
        found = self._classes.find(given) if given else self._classes.default()
        if given and found is None:
            raise _forbidden(pod, f"no PriorityClass with name {given} was found")
        value = 0 if found is None else found["value"]
        policy = PREEMPT if found is None else found.get("preemptionPolicy", PREEMPT)
        if spec.get("priority") not in {None, value}:
            why = f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; "
            raise _forbidden(
                pod, f"{why}priority admission controller computed {value} from the given PriorityClass name"
            )
        if spec.get("preemptionPolicy") not in {None, policy}:
            why = (
                f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be provided in pod spec; "
            )
            computed = f"priority admission controller computed {policy} from the given PriorityClass name"
            raise _forbidden(pod, why + computed)
        if found is not None:
            spec["priorityClassName"] = found["metadata"]["name"]
        spec["priority"], spec["preemptionPolicy"] = value, policy


def _check_mirror(pod: Object) -> None:
    """Reject a mirror Pod with references that only the API server could resolve."""
    spec = pod["spec"]
    if spec.get("serviceAccountName"):
        raise _forbidden(pod, "a mirror pod may not reference service accounts")
    if any(resource == SECRETS for resource, _ in of_content(spec)):
        raise _forbidden(pod, "a mirror pod may not reference secrets")
    sources = (s for v in spec.get("volumes", ()) for s in (v.get("projected") or {}).get("sources") or ())
    if any(source.get("serviceAccountToken") is not None for source in sources):
        raise _forbidden(pod, "a mirror pod may not use ServiceAccountToken volume projections")


def _forbidden(pod: Object, why: str) -> StatusError:
    meta = pod["metadata"]
    return status.forbidden("", "pods", meta.get("name") or meta.get("generateName", ""), why)


def _mount_token(spec: Object) -> None:
    """Mount a volume with the account's token into each container without another mount at its path."""
    own = (volume["name"] for volume in spec.get("volumes", ()) if volume["name"].startswith(TOKEN_VOLUME))
    given = next(own, "")
    name = given or metadata.generated_name(TOKEN_VOLUME)
    mounted = False
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        mounts = container.get("volumeMounts", [])
        if all(mount.get("mountPath") != TOKEN_PATH for mount in mounts):
            container["volumeMounts"] = [*mounts, {"name": name, "readOnly": True, "mountPath": TOKEN_PATH}]
            mounted = True
    if mounted and not given:
        spec["volumes"] = [*spec.get("volumes", ()), {"name": name, "projected": _token_volume()}]


def _token_volume() -> dict[str, Any]:
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    return {
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": TOKEN_S, "path": "token"}},
            {"configMap": {"name": ROOT_CA, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [namespace]}},
        ],
        "defaultMode": FILE_MODE,
    }


def _tolerate(spec: Object) -> None:
    """Tolerate a node that is not ready or not reachable for five minutes, unless the Pod has its own tolerations."""
    given = spec.get("tolerations", ())
    added = [
        {"key": key, "operator": "Exists", "effect": _NO_EXECUTE, "tolerationSeconds": TOLERATED_S}
        for key in (NOT_READY, UNREACHABLE)
        if not any(
            toleration.get("key", "") in {key, ""} and toleration.get("effect", "") in {_NO_EXECUTE, ""}
            for toleration in given
        )
    ]
    if added:
        spec["tolerations"] = [*given, *added]
