"""Keys of the servers on a route: host keys, trusted on first use or not trusted, and user keys that were refused."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from unbounded.api.failures import Rejected, Stale, Transient
from unbounded.api.machine import MACHINES, Machine, SSHHop
from unbounded.kube.api import Api, Conflict
from unbounded.kube.cache import Cache
from unbounded.kube.events import EventSink
from unbounded.kube.status_writer import StatusWriter
from unbounded.machina.ssh.model import FirstUse, SshReason, SshRejected
from unbounded.operations.reasons import CRD_OUTDATED_TEXT

_TRIES: Final = 10


class PinWriter:
    """Writer of pins for one process, before a user key is offered; if another process pins first, its pin counts."""

    def __init__(self, api: Api, machines: Cache[Machine], announce: EventSink) -> None:
        self._api = api
        self._status = StatusWriter(api, MACHINES, fields=("ssh",), cache=machines)
        self._announce = announce

    def of(self, machine: Machine) -> FirstUse:
        """Return the callback that pins host keys in a login of this Machine."""

        async def first_use(hop: SSHHop, fingerprint: str) -> None:
            for _ in range(_TRIES):
                try:
                    return await self._pin(machine, hop, fingerprint)
                except Conflict:
                    continue
            raise Transient(f"Machine {machine.name} changes too often; cannot store the {hop}'s key")

        return first_use

    async def _pin(self, machine: Machine, hop: SSHHop, fingerprint: str) -> None:
        now = await self._api.get(MACHINES, machine.name)
        if now.metadata.uid != machine.metadata.uid:
            raise Stale(f"Machine {machine.name} has been replaced by another of its name")
        known = pinned(now, hop)
        if known is not None:
            return _must_be(known, fingerprint, machine, hop)
        field = "fingerprint" if hop == SSHHop.HOST else "bastionFingerprint"
        written = await self._status.write(now, {"ssh": {field: fingerprint}})
        if written is None or pinned(written, hop) != fingerprint:
            raise Rejected(CRD_OUTDATED_TEXT)
        words = (
            f"machina trusts the {hop}'s SSH key {fingerprint} from now on: it is the first one that the "
            f"{hop} presented"
        )
        self._announce(written, "Normal", "HostKeyTrusted", words)
        return None


def pinned(machine: Machine, hop: SSHHop) -> str | None:
    ssh = machine.status.ssh
    if ssh is None:
        return None
    return ssh.fingerprint if hop == SSHHop.HOST else ssh.bastion_fingerprint


def _must_be(known: str, fingerprint: str, machine: Machine, hop: SSHHop) -> None:
    if known != fingerprint:
        words = f"the {hop} of Machine {machine.name} presents the key {fingerprint}, but {known} is trusted"
        raise SshRejected(SshReason.HOST_KEY, hop, words, fingerprint=fingerprint)


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
