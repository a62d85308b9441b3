"""Host keys that are trusted on first use: stored in the Machine before a user key is offered."""

from __future__ import annotations

from typing import Final

from unbounded.api.failures import Rejected, Stale, Transient
from unbounded.api.machine import MACHINES, Machine, SSHHop
from unbounded.kube.cache import Cache
from unbounded.kube.errors import Conflict
from unbounded.kube.port import Api
from unbounded.kube.status_writer import StatusWriter
from unbounded.machina.ssh.model import FirstUse, SshReason, SshRejected
from unbounded.operations.announcing import EventSink
from unbounded.operations.reasons import CRD_OUTDATED_TEXT

_TRIES: Final = 10


class PinWriter:
    """Writer of pins for one process; if another process pins first, its pin counts."""

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
