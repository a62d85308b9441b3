"""Commands with which an administrator lets metalman rotate the password in one Secret."""

from __future__ import annotations

from unbounded.api.machine_spec import SecretKeySelector
from unbounded.api.names import NAMESPACE


def grant_commands(reference: SecretKeySelector) -> tuple[str, str]:
    """Return the commands that create the role and its binding."""
    namespace, secret, role = reference.namespace, reference.name, f"metalman-{reference.name}"
    return (
        f"kubectl -n {namespace} create role {role} --verb=get,patch --resource=secrets --resource-name={secret}",
        f"kubectl -n {namespace} create rolebinding {role} --role={role} --serviceaccount={NAMESPACE}:metalman",
    )
