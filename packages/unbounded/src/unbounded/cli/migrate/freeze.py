"""Freeze of the source: no operation is claimed there, and no Machine or operation is created or changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from unbounded.api.core import CONFIG_MAPS
from unbounded.api.names import ANNOTATION_PAUSED, CONFIGMAP_MIGRATION, CONFIGMAP_OPERATIONS, GROUP, NAMESPACE
from unbounded.cli.manifests import KINDS as POLICIES
from unbounded.kube.errors import AlreadyExists, NotFound
from unbounded.kube.port import Api

_POLICY: Final = POLICIES["ValidatingAdmissionPolicy"]
_BINDING: Final = POLICIES["ValidatingAdmissionPolicyBinding"]
# Agents act by writing to their Machine and its operations, so that one that cannot claim does not act. Two kinds of
# writes are allowed: an administrator's updates, which the hand-over itself makes, and conditions of Machines, which
# claim nothing.
_ALLOWED: Final = (
    "request.operation == 'UPDATE' && ('system:masters' in request.userInfo.groups ||"
    " (request.resource.resource == 'machines' && has(request.subResource) && request.subResource == 'status' &&"
    " (variables.status.map(k, k) + variables.before.map(k, k)).all(k, k == 'conditions' ||"
    " (k in variables.status && k in variables.before && variables.status[k] == variables.before[k]))))"
)


def policy(server: str) -> dict[str, Any]:
    """Return the admission policy.

    Args:
        server: URL of the target, for the policy's message.
    """
    return {
        "metadata": {"name": CONFIGMAP_MIGRATION},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {"apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}
                ]
            },
            "variables": [
                {"name": name, "expression": f"request.operation == 'UPDATE' && has({of}.status) ? {of}.status : {{}}"}
                for name, of in (("status", "object"), ("before", "oldObject"))
            ],
            "validations": [
                {
                    "expression": _ALLOWED,
                    "message": f"this control plane was migrated to {server}: write there",
                    "reason": "Forbidden",
                }
            ],
        },
    }


BINDING: Final[Mapping[str, Any]] = {
    "metadata": {"name": CONFIGMAP_MIGRATION},
    "spec": {"policyName": CONFIGMAP_MIGRATION, "validationActions": ["Deny"]},
}


async def pause_of(api: Api) -> str | None:
    """Return the value of the pause annotation for all operations; None where they are not paused."""
    try:
        existing = await api.get(CONFIG_MAPS, CONFIGMAP_OPERATIONS, namespace=NAMESPACE)
    except NotFound:
        return None
    return existing.metadata.annotations.get(ANNOTATION_PAUSED)


async def set_pause(api: Api, value: str | None) -> None:
    """Pause all operations with this value of the annotation; None lets them run."""
    metadata = {"name": CONFIGMAP_OPERATIONS, "namespace": NAMESPACE}
    change = {"annotations": {ANNOTATION_PAUSED: value}}
    try:
        await api.patch(CONFIG_MAPS, CONFIGMAP_OPERATIONS, {"metadata": change}, namespace=NAMESPACE)
    except NotFound:
        if value is not None:
            await api.create(CONFIG_MAPS, {"metadata": metadata | change}, namespace=NAMESPACE)


async def freeze(api: Api, server: str) -> None:
    """Pause all operations, and reject writes of agents and others. A repetition does no harm."""
    await set_pause(api, f"migrated to {server}")
    for kind, body in ((_POLICY, policy(server)), (_BINDING, BINDING)):
        try:
            await api.create(kind, body)
        except AlreadyExists:
            await api.patch(kind, CONFIGMAP_MIGRATION, {"spec": body["spec"]})


async def thaw(api: Api, paused: str | None) -> None:
    """Undo `freeze`.

    Args:
        paused: the pause of all operations before; None for none.
    """
    for kind in (_BINDING, _POLICY):
        try:
            await api.delete(kind, CONFIGMAP_MIGRATION)
        except NotFound:
            continue
    await set_pause(api, paused)
