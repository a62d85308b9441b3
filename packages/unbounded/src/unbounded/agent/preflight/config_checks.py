"""Checks of the services that the configuration names: from their answers to findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from unbounded.agent.node.sandbox import ARCHIVE
from unbounded.agent.node_spec.from_config import NO_IMAGE
from unbounded.agent.preflight.observations import HostObservation, NetworkFault, ServiceAnswer
from unbounded.agent.preflight.report import PreflightFinding, Severity, error, fine, warning
from unbounded.join.agent_config import AgentConfig

ARTIFACTS: Final[Mapping[str, tuple[str, ...]]] = {
    "kubernetes-artifacts": ("kubelet", "kubectl", "kube-proxy"),
    "cri-artifacts": ("containerd", "runc", "crictl", "sandbox"),
    "cni-artifacts": ("cni",),
}
_REFUSED: Final = (401, 403)


def api_server(reached: ServiceAnswer) -> PreflightFinding:
    """Accept any answer but a 5xx as that of an API server: before the host has joined, 401 and 403 are expected."""
    name = "api-server-reachable"
    if reached.trouble:
        return error(name, reached.key, _said(reached))
    if reached.status >= 500:
        return error(name, reached.key, f"it answers {reached.status}: it is not ready")
    return fine(name, reached.key, f"it answers {reached.status}")


def image(reached: ServiceAnswer | None, *, debootstrap: bool) -> PreflightFinding:
    """Report a rejected login as a warning: `start` reads the cluster's Secrets later, when the host has joined.

    Args:
        reached: None where the configuration names no image.
    """
    name = "oci-image-reachable"
    if reached is None and not debootstrap:
        return warning(name, "OCIImage", f"not checked, as the Machine may name one: {NO_IMAGE}")
    if reached is None:
        return fine(name, "OCIImage", "not needed: the root file system comes from debootstrap")
    if reached.status in _REFUSED:
        later = "start reads the logins of containerd.pullSecrets when the host has joined"
        return warning(name, reached.what, f"{_said(reached)} ({_named(reached)}); {later}")
    return _artifact(name, reached)


def artifact(reached: ServiceAnswer) -> PreflightFinding:
    """Check a file of a release; `what` begins with its name."""
    own = reached.what.partition(" ")[0]
    return _artifact(next(name for name, artifacts in ARTIFACTS.items() if own in artifacts), reached)


def sandbox(reached: ServiceAnswer | None, *, has_image: bool) -> PreflightFinding:
    """Check the archive of the sandbox image, which a node image may contain.

    Args:
        reached: None where no mirror is named for it.
        has_image: the root file system comes from a node image, whose files are unknown until it is unpacked.
    """
    name = "cri-artifacts"
    if reached is None:
        named = "no mirror is configured for it (Downloads.Sandbox)"
        if has_image:
            return fine(name, "sandbox", f"{named}: the node image must contain {ARCHIVE}")
        return error(name, "sandbox", f"{named}, and debootstrap does not provide it")
    found = artifact(reached)
    if has_image and found.severity is Severity.ERROR and reached.status in (403, 404, 410):
        return warning(name, found.target, f"{found.message}; the node image must contain {ARCHIVE}")
    return found


def _artifact(name: str, reached: ServiceAnswer) -> PreflightFinding:
    if not reached.kept and (reached.trouble or not 200 <= reached.status < 300):
        authority = ": CaBundle must contain its authority" if reached.trouble is NetworkFault.UNTRUSTED else ""
        return error(name, reached.what, f"{_said(reached)}{authority} ({_named(reached)})")
    there = "it is on this host" if reached.kept else "available"
    if reached.unchecked:
        remedy = (
            "publish it there" if name == "kubernetes-artifacts" else f"publish it there, or set {reached.key}.SHA256"
        )
        return warning(name, reached.what, f"{there}, but unverified: no sha256 is published beside it; {remedy}")
    return fine(name, reached.what, there)


def _named(reached: ServiceAnswer) -> str:
    """Return the configuration keys that name the service."""
    return f"{reached.key}, through {reached.proxy}" if reached.proxy else reached.key


def _said(reached: ServiceAnswer) -> str:
    if reached.trouble:
        return reached.trouble.value
    if reached.status in (404, 410):
        return f"it does not exist: {reached.status}"
    if reached.status in _REFUSED:
        return f"this host has no permission: {reached.status}"
    return f"the answer is {reached.status}"


def configuration(config: AgentConfig, unknown_keys: Iterable[str], *, joined: bool) -> Iterator[PreflightFinding]:
    """Yield findings about a valid configuration.

    Args:
        joined: the host has a certificate of its own.
    """
    name, odd = "agent-config", False
    for words in unknown_keys:
        odd = True
        yield warning(name, "configuration", words)
    if config.kubelet.auth.exec_credential is not None and not joined:
        odd = True
        by_hand = "kubectl certificate approve NAME"
        yield warning(
            name,
            "Kubelet.Auth.ExecCredential",
            f"machina approves only requests of bootstrap tokens: start waits until an administrator runs `{by_hand}`",
        )
    if not odd:
        yield fine(name, "configuration", "no errors")


def attestation(
    config: AgentConfig, host: HostObservation, reached: ServiceAnswer | None
) -> Iterator[PreflightFinding]:
    """Yield findings about attestation; none where a token or a program is configured."""
    name = "attestation"
    if not config.attest.url:
        return
    if not host.tpm:
        yield error(name, "TPM", "/dev/tpmrm0 does not exist: enable the TPM 2.0 in the firmware, or configure a token")
    if reached is not None:
        told = (
            error if reached.trouble in (NetworkFault.WRONG, NetworkFault.UNTRUSTED, NetworkFault.NO_TLS) else warning
        )
        if reached.trouble:
            yield told(name, reached.key, f"{_said(reached)}; the URL exists only during a replacement of the host")
        elif host.tpm:
            yield fine(name, reached.key, f"it answers {reached.status}")


def not_checked(names: Iterable[str]) -> Iterator[PreflightFinding]:
    """Yield findings for checks that need a configuration, where there is no valid one."""
    for name in names:
        yield warning(name, "configuration", "not checked: the configuration is invalid")
