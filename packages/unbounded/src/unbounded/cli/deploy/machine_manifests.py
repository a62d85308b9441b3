"""Manifests of the Machines that flags describe. Pure.

The functions that parse flags raise BadFlag, with the flag and the expected form, before the command calls a server.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Any, Final

from unbounded.api.machine import MACHINES
from unbounded.api.machine_names import machine_name, name_of, object_name
from unbounded.api.machine_spec import SSH_PRIVATE_KEY
from unbounded.api.names import LABEL_SITE, NAMESPACE
from unbounded.cli.deploy import validation
from unbounded.cli.deploy.validation import BadFlag, flagged
from unbounded.join.host_options import base_url, web_url
from unbounded.machina.ssh.model import host_port

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
LONGEST_USER: Final = 128
_HOST_NAME: Final = re.compile(r"[\w.-]+")
OF_BASTION: Final = ("bastion_ssh_username", "bastion_ssh_private_key", "bastion_ssh_secret_name", "bastion_host_key")


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
            "privateKeyRef": {"name": self.secret, "namespace": NAMESPACE, "key": SSH_PRIVATE_KEY},
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


def description_of(args: Namespace) -> MachineDescription:
    """Return the Machine that the flags of `machine register` describe, without what the cluster supplies."""
    site = flagged("--site", validation.site, args.site)
    return MachineDescription(
        site=site,
        login=_login("", args.host, args.ssh_username, secret_of(args), args.host_key),
        name=flagged("--name" if args.name else "--host", lambda text: name_of(site, text), args.name or args.host),
        bastion=_bastion(args),
        labels=flagged("--node-label", validation.labels, args.node_label),
        taints=flagged("--register-with-taint", validation.taints, args.register_with_taint),
        agent=_agent(args),
        reset_on_delete=args.reset_on_delete,
    )


def manual_description_of(args: Namespace) -> MachineDescription:
    """Return the Machine that the flags of `machine manual-bootstrap` describe, without a login."""
    return MachineDescription(
        name=flagged("NAME", machine_name, args.name),
        site=flagged("--site", validation.site, args.site),
        version=flagged("--kubernetes-version", validation.release, args.kubernetes_version)
        if args.kubernetes_version
        else "",
        labels=flagged("--node-label", validation.labels, args.node_label),
        taints=flagged("--register-with-taint", validation.taints, args.register_with_taint),
        agent=_agent(args),
    )


def secret_of(args: Namespace) -> str:
    """Return the name of the Secret with the key of the host."""
    return flagged("--ssh-secret-name", object_name, args.ssh_secret_name or f"ssh-{args.site}")


def bastion_secret_of(args: Namespace) -> str:
    """Return the name of the Secret with the key of the bastion: the host's, unless the bastion has its own key."""
    own = f"{secret_of(args)}-bastion" if args.bastion_ssh_private_key else secret_of(args)
    return flagged("--bastion-ssh-secret-name", object_name, args.bastion_ssh_secret_name or own)


def _bastion(args: Namespace) -> SshLogin | None:
    if args.bastion_host:
        username = args.bastion_ssh_username or args.ssh_username
        return _login("bastion-", args.bastion_host, username, bastion_secret_of(args), args.bastion_host_key)
    for name in OF_BASTION:
        if getattr(args, name):
            raise BadFlag(f"--{name.replace('_', '-')} needs --bastion-host HOST")
    return None


def _login(whose: str, host: str, username: str, secret: str, keys: Sequence[str]) -> SshLogin:
    return SshLogin(
        host=flagged(f"--{whose}host", _host, host),
        username=flagged(f"--{whose}ssh-username", _user, username),
        secret=secret,
        host_keys=[flagged(f"--{whose}host-key", validation.host_key, key) for key in keys],
    )


def _host(text: str) -> str:
    host = host_port(text).host
    if ":" not in host and not _HOST_NAME.fullmatch(host):
        raise ValueError(f"{text!r} is not a host, such as 192.0.2.10 or 192.0.2.10:2222")
    if host.rstrip(".").rpartition(".")[2].isdecimal():  # the last part of a name is no number (RFC 3696 section 2)
        try:
            IPv4Address(host)
        except ValueError:
            raise ValueError(f"{host!r} is no IPv4 address: four numbers from 0 to 255, such as 192.0.2.10") from None
    return text


def _user(text: str) -> str:
    if not 1 <= len(text) <= LONGEST_USER or not text.isprintable():
        raise ValueError(f"{text!r} is not a user name")
    return text


def _agent(args: Namespace) -> dict[str, object]:
    given = {name.replace("_", "-"): value for name, value in vars(args).items() if isinstance(value, str)}
    return agent_fields(given)
