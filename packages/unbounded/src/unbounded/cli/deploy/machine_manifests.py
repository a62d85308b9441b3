"""Manifests of the Machines that flags describe. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from unbounded.api.machine import MACHINES
from unbounded.api.names import LABEL_SITE, NAMESPACE
from unbounded.cli.deploy import validation
from unbounded.cli.deploy.ssh_keys import KEY
from unbounded.join.host_options import base_url, web_url

Raw = dict[str, Any]

# Each artifact of a node, and the flag for its version. Kubernetes' own is the version of the binaries alone.
DOWNLOADS: Final[Mapping[str, str]] = {
    "kubernetes": "kubernetes-binary-version",
    "containerd": "containerd-version",
    "runc": "runc-version",
    "cni": "cni-version",
    "crictl": "crictl-version",
    "sandbox": "sandbox-version",
}


@dataclass(frozen=True, kw_only=True)
class SshLogin:
    """A login on a host. `secret` has the key, and is in namespace unbounded-kube."""

    host: str
    username: str
    secret: str
    host_keys: Sequence[str] = ()

    def fields(self) -> Raw:
        found: Raw = {
            "host": self.host,
            "username": self.username,
            "privateKeyRef": {"name": self.secret, "namespace": NAMESPACE, "key": KEY},
        }
        if self.host_keys:
            found["hostKeys"] = list(self.host_keys)
        return found


@dataclass(frozen=True, kw_only=True)
class MachineDescription:
    """A Machine that flags describe.

    Args:
        version: of Kubernetes; empty for that of the cluster.
        labels, taints: of its Node.
        token: name of the Secret with its bootstrap token; empty for the cluster's default one.
        agent: spec.agent; empty to leave it out.
    """

    name: str
    site: str
    login: SshLogin | None = None
    bastion: SshLogin | None = None
    version: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[str] = ()
    token: str = ""
    agent: Raw = field(default_factory=dict)
    reset_on_delete: bool = False


def name_of(site: str, text: str) -> str:
    """Return SITE-NAME, or SITE-HOST where there is no name: 10.0.0.5:2222 in site rack1 is rack1-10.0.0.5-2222.

    Raises:
        ValueError: it cannot be the name of a Node.
    """
    return validation.machine_name(f"{site}-{validation.sanitised(text)}")


def manifest(described: MachineDescription) -> Raw:
    """Return the manifest of the Machine."""
    spec: Raw = {}
    if described.login is not None:
        spec["ssh"] = described.login.fields()
        if described.bastion is not None:
            spec["ssh"]["bastion"] = described.bastion.fields()
    kubernetes: Raw = {}
    if described.version:
        kubernetes["version"] = described.version
    if described.labels:
        kubernetes["nodeLabels"] = dict(described.labels)
    if described.taints:
        kubernetes["registerWithTaints"] = list(described.taints)
    if described.token:
        kubernetes["bootstrapTokenRef"] = {"name": described.token}
    spec["kubernetes"] = kubernetes
    if described.agent:
        spec["agent"] = described.agent
    if described.reset_on_delete:
        spec["resetOnDelete"] = True
    return {
        "apiVersion": MACHINES.api_version,
        "kind": MACHINES.kind,
        "metadata": {"name": described.name, "labels": {LABEL_SITE: described.site}},
        "spec": spec,
    }


def agent_fields(flags: Mapping[str, str | None]) -> Raw:
    """Return the spec.agent that flags give; empty if none of them was given.

    Args:
        flags: the flags' values, by their names without dashes.

    Raises:
        BadFlag
    """
    found: Raw = {}
    for flag, key, check in (
        ("oci-image", "image", validation.image),
        ("agent-version", "version", _text),
        ("agent-base-url", "baseURL", base_url),
        ("agent-url", "url", web_url),
        ("agent-sha256", "sha256", validation.sha256),
    ):
        if text := flags.get(flag):
            found[key] = validation.flagged(f"--{flag}", check, text)
    if sources := {name: source for name in DOWNLOADS if (source := _source(name, flags))}:
        found["downloads"] = sources
    return found


def _source(name: str, flags: Mapping[str, str | None]) -> Raw:
    found: Raw = {}
    for flag, key, check in (
        (f"{name}-base-url", "baseURL", base_url),
        (f"{name}-url", "url", web_url),
        (DOWNLOADS[name], "version", validation.release),
    ):
        if text := flags.get(flag):
            found[key] = validation.flagged(f"--{flag}", check, text)
    return found


def _text(text: str) -> str:
    if not text.isprintable() or text != text.strip() or " " in text:
        raise ValueError(f"{text!r} contains spaces or characters that are not printable")
    return text
