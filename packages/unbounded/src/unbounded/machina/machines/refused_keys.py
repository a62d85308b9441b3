"""Keys that a host or a bastion refused, which are not offered again, and host keys that are not trusted."""

from __future__ import annotations

from typing import Any

import msgspec

from unbounded.api.machine import Machine, SSHHop


def is_refused(machine: Machine, hop: SSHHop, version: str) -> bool:
    """Return whether this key was refused, and neither its Secret nor the Machine's spec has changed since."""
    known = machine.status.ssh.refused if machine.status.ssh is not None else ()
    return any(
        one.hop == hop and one.secret_version == version and one.generation == machine.metadata.generation
        for one in known
    )


def refused_message(hop: str) -> str:
    until = "machina does not offer them again until the Secret or the Machine's spec changes"
    return f"the {hop} rejected user name and key; {until}"


def known_refusal(machine: Machine, key_version: str, bastion_version: str) -> SSHHop | None:
    """Return the server on the route that has refused its key."""
    hops = ((SSHHop.HOST, key_version), (SSHHop.BASTION, bastion_version))
    return next((hop for hop, version in hops if version and is_refused(machine, hop, version)), None)


def untrusted(machine: Machine, hop: SSHHop) -> str | None:
    """Return the fingerprint of the last key that a server showed instead of the trusted one."""
    known = machine.status.ssh.untrusted if machine.status.ssh is not None else ()
    return next((one.fingerprint for one in known if one.hop == hop), None)


def without_untrusted(machine: Machine, hop: SSHHop) -> list[dict[str, Any]]:
    """Return status.ssh.untrusted for a patch, without the key of one server."""
    known = machine.status.ssh.untrusted if machine.status.ssh is not None else ()
    return [msgspec.to_builtins(one) for one in known if one.hop != hop]
