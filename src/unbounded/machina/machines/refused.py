"""Keys that a host or a bastion has refused: they are not offered again before something is another one."""

from __future__ import annotations

from unbounded.api.machine import Machine, SSHHop


def is_refused(machine: Machine, hop: SSHHop, version: str) -> bool:
    """Whether this key was refused, and neither its Secret nor the Machine's spec is another one since."""
    known = machine.status.ssh.refused if machine.status.ssh is not None else ()
    return any(
        one.hop == hop and one.secret_version == version and one.generation == machine.metadata.generation
        for one in known
    )


def refused_words(hop: str) -> str:
    until = "they are not offered again before the Secret or the Machine's spec changes"
    return f"the {hop} refused user name and key; {until}"


def known_refusal(machine: Machine, key_version: str, bastion_version: str) -> str:
    """Who on the way to a host has refused its key, in words; empty where nobody has."""
    hops = ((SSHHop.HOST, key_version), (SSHHop.BASTION, bastion_version))
    return next((refused_words(hop) for hop, version in hops if version and is_refused(machine, hop, version)), "")
