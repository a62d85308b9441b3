"""What this process remembers of each Machine between looks: on its own clock, and begun anew with every term."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta

from unbounded.api.machine import Machine, ProvisioningStatus
from unbounded.kube.backoff import Backoff
from unbounded.kube.clock import WallClock, rfc3339
from unbounded.machina.machines.model import Needs, Probe
from unbounded.machina.ssh.model import SshRejected, SshTransient


@dataclass(frozen=True)
class Tried:
    """What an attempt was made with: when something of it is another one, a failed one is repeated at once."""

    pins: tuple[str | None, ...]
    key: str
    bastion: str
    token: str | None


@dataclass(frozen=True)
class Asked:
    """What a probe goes by: the Machine as it is, and the Secret with the key for a bastion; empty without one."""

    generation: int
    version: str = ""


@dataclass
class Memory:
    """Of one Machine.

    Args:
        probing: a probe is on its way.
        probed: what the last one that is over went by.
        failed: the name of the failed attempt that `retry_at` and `tried` are of.
        retry_told: `retry_at` by the wall clock, which nothing is decided by.
        own: the last attempt that this process has begun.
        told_at: when progress was last written down.
        deleted_at: when it was first seen as being deleted, and as much later as its reset has waited for its turn.
        queued_at: since when it waits for that.
    """

    uid: str
    probed_at: float | None = None
    probe_error: SshTransient | SshRejected | None = None
    probed: Asked = Asked(0)
    probing: Asked | None = None
    probe_task: asyncio.Task[None] | None = None
    failed: str = ""
    retry_at: float = 0.0
    retry_told: str = ""
    tried: Tried | None = None
    own: str = ""
    told_at: float = float("-inf")
    deleted_at: float | None = None
    queued_at: float | None = None

    def probe(self, machine: Machine, now: float) -> Probe | None:
        """The last one, of the Machine as it is: an edited one has not been looked at."""
        if self.probed_at is None or self.probed.generation != machine.metadata.generation:
            return None
        return Probe(now - self.probed_at, self.probe_error, self.probed.version)

    def is_probing(self, machine: Machine) -> bool:
        return self.probing is not None and self.probing.generation == machine.metadata.generation

    def probe_over(self, error: SshTransient | SshRejected | None, now: float) -> None:
        """Keep what was found by the one that was on its way."""
        self.probed, self.probed_at, self.probe_error = self.probing or self.probed, now, error
        self.probing = self.probe_task = None

    def give_up_probe(self) -> None:
        """Nothing will be heard of the one that is on its way."""
        if self.probe_task is not None:
            self.probe_task.cancel()
        self.probing = self.probe_task = None

    def deleted_s(self, now: float) -> float | None:
        """How long a Machine that is being deleted was held, but for the time in the queue."""
        if self.deleted_at is None:
            return None
        return (now if self.queued_at is None else self.queued_at) - self.deleted_at

    def queued(self, now: float, *, waits: bool) -> None:
        """Whether its reset waits for its first turn."""
        if waits and self.queued_at is None:
            self.queued_at = now
        if not waits and self.queued_at is not None and self.deleted_at is not None:
            self.deleted_at, self.queued_at = self.deleted_at + now - self.queued_at, None

    def retry_s(self, before: ProvisioningStatus | None, retry: Backoff, now: float, wall: WallClock) -> float | None:
        """Seconds until a failed attempt may be repeated; of one from before our time nobody knows since when it is."""
        if before is None or before.ended_at is None or before.failure is None:
            return None
        if before.attempt != self.failed:
            self.failed = before.attempt
            known = before.attempt == self.own
            self.tried = self.tried if known else None
            after_s = retry.after(before.failures if known else 1)
            self.retry_at, self.retry_told = now + after_s, rfc3339(wall() + timedelta(seconds=after_s))
        return self.retry_at - now

    def changed_since(self, machine: Machine, needs: Needs | None) -> bool:
        """Whether the failure may have come from something that is another one by now."""
        before = machine.status.provisioning
        if before is None or before.failure is None or needs is None:
            return False
        if before.generation != machine.metadata.generation:
            return True
        now = tried_with(machine, needs)
        if self.tried is None or _first_used(self.tried, now):
            self.tried = now
        return now != self.tried


def tried_with(machine: Machine, needs: Needs) -> Tried:
    return Tried(_pins(machine), needs.key_version, needs.bastion_version, needs.token_id)


def _pins(machine: Machine) -> tuple[str | None, ...]:
    """Host keys that were trusted on first use: who takes one away wants the next one to be trusted."""
    ssh = machine.status.ssh
    return (ssh.fingerprint, ssh.bastion_fingerprint) if ssh is not None else (None, None)


def _first_used(before: Tried, now: Tried) -> bool:
    """Whether keys were trusted since, which is nothing that anybody has changed."""
    kept = all(old in (None, new) for old, new in zip(before.pins, now.pins, strict=True))
    return kept and replace(before, pins=now.pins) == now
