"""Flags that describe a Machine, parsed into the descriptions of `machine_manifests`.

The functions raise BadFlag, with the flag and the expected form, before the command calls a server.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Final

from unbounded.cli.deploy import validation
from unbounded.cli.deploy.machine_manifests import MachineDescription, SshLogin, agent_fields, name_of
from unbounded.cli.deploy.validation import BadFlag, flagged
from unbounded.machina.ssh.model import host_port

LONGEST_USER: Final = 128
OF_BASTION: Final = ("bastion_ssh_username", "bastion_ssh_private_key", "bastion_ssh_secret_name", "bastion_host_key")


def description_of(args: Namespace) -> MachineDescription:
    """Return the Machine that the flags of `machine register` describe, without what the cluster supplies."""
    site = flagged("--site", validation.site, args.site)
    return MachineDescription(
        name=flagged("--name" if args.name else "--host", lambda text: name_of(site, text), args.name or args.host),
        site=site,
        login=_login("", args.host, args.ssh_username, secret_of(args), args.host_key),
        bastion=_bastion(args),
        labels=flagged("--node-label", validation.labels, args.node_label),
        taints=flagged("--register-with-taint", validation.taints, args.register_with_taint),
        agent=_agent(args),
        reset_on_delete=args.reset_on_delete,
    )


def manual_description_of(args: Namespace) -> MachineDescription:
    """Return the Machine that the flags of `machine manual-bootstrap` describe, without a login."""
    return MachineDescription(
        name=flagged("NAME", validation.machine_name, args.name),
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
    return flagged("--ssh-secret-name", validation.object_name, args.ssh_secret_name or f"ssh-{args.site}")


def bastion_secret_of(args: Namespace) -> str:
    """Return the name of the Secret with the key of the bastion: the host's, unless the bastion has its own key."""
    own = f"{secret_of(args)}-bastion" if args.bastion_ssh_private_key else secret_of(args)
    return flagged("--bastion-ssh-secret-name", validation.object_name, args.bastion_ssh_secret_name or own)


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
    host_port(text)
    if "@" in text or "/" in text or any(one.isspace() for one in text):
        raise ValueError(f"{text!r} is not a host, such as 192.0.2.10 or 192.0.2.10:2222")
    return text


def _user(text: str) -> str:
    if not 1 <= len(text) <= LONGEST_USER or not text.isprintable():
        raise ValueError(f"{text!r} is not a user name")
    return text


def _agent(args: Namespace) -> dict[str, object]:
    given = {name.replace("_", "-"): value for name, value in vars(args).items() if isinstance(value, str)}
    return agent_fields(given)
