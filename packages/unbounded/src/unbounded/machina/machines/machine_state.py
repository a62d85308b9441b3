"""State of each Machine in this process between passes: by the monotonic clock, and empty at the start of each term."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta

from unbounded.api.machine import Machine, ProvisioningStatus
from unbounded.kube.clock import Backoff, WallClock, rfc3339
from unbounded.machina.machines.model import Prerequisites, Probe
from unbounded.machina.ssh.model import SshRejected, SshTransient


@dataclass(frozen=True)
class AttemptCredentials:
    """Credentials of an attempt. If one of them changes, a failed attempt is retried at once."""

    pins: tuple[str | None, ...]
    key: str
    bastion: str
    token: str | None


@dataclass(frozen=True)
class ProbeInput:
    """Input of a probe: the generation of the Machine, and the Secret of the bastion's key; empty without one."""

    generation: int
    version: str = ""


@dataclass
class MachineState:
    """State of one Machine.

    Args:
        probing: input of the running probe.
        probed: input of the last completed probe.
        failed: name of the failed attempt that `retry_at` and `tried` belong to.
        retry_at_text: `retry_at` by the wall clock, for display only.
        own: the last attempt that this process has started.
        deleted_at: time of the first observation of the deletion, delayed by the time that the reset was queued.
        queued_at: start of the wait in that queue.
    """

    uid: str
    probed_at: float | None = None
    probe_error: SshTransient | SshRejected | None = None
    probed: ProbeInput = ProbeInput(0)
    probing: ProbeInput | None = None
    probe_task: asyncio.Task[None] | None = None
    failed: str = ""
    retry_at: float = 0.0
    retry_at_text: str = ""
    tried: AttemptCredentials | None = None
    own: str = ""
    deleted_at: float | None = None
    queued_at: float | None = None

    def probe(self, machine: Machine, now: float) -> Probe | None:
        """Return the last probe; None if it was of an earlier generation of the Machine."""
        if self.probed_at is None or self.probed.generation != machine.metadata.generation:
            return None
        return Probe(now - self.probed_at, self.probe_error, self.probed.version)

    def is_probing(self, machine: Machine) -> bool:
        return self.probing is not None and self.probing.generation == machine.metadata.generation

    def probe_over(self, error: SshTransient | SshRejected | None, now: float) -> None:
        """Store the result of the running probe."""
        self.probed, self.probed_at, self.probe_error = self.probing or self.probed, now, error
        self.probing = self.probe_task = None

    def give_up_probe(self) -> None:
        """Cancel the running probe."""
        if self.probe_task is not None:
            self.probe_task.cancel()
        self.probing = self.probe_task = None

    def deleted_s(self, now: float) -> float | None:
        """Return how long a deletion has been blocked, without the time in the queue."""
        if self.deleted_at is None:
            return None
        return (now if self.queued_at is None else self.queued_at) - self.deleted_at

    def queued(self, now: float, *, waits: bool) -> None:
        """Record whether the reset waits for its first turn."""
        if waits and self.queued_at is None:
            self.queued_at = now
        if not waits and self.queued_at is not None and self.deleted_at is not None:
            self.deleted_at, self.queued_at = self.deleted_at + now - self.queued_at, None

    def retry_s(self, before: ProvisioningStatus | None, retry: Backoff, now: float, wall: WallClock) -> float | None:
        """Return the seconds until a failed attempt may be retried.

        The backoff of an attempt from before this process starts from its first step, as its end is unknown.
        """
        if before is None or before.ended_at is None or before.failure is None:
            return None
        if before.attempt != self.failed:
            self.failed = before.attempt
            known = before.attempt == self.own
            self.tried = self.tried if known else None
            after_s = retry.after(before.failures if known else 1)
            self.retry_at, self.retry_at_text = now + after_s, rfc3339(wall() + timedelta(seconds=after_s))
        return self.retry_at - now

    def changed_since(self, machine: Machine, needs: Prerequisites | None) -> bool:
        """Return whether a possible cause of the failure has changed since."""
        before = machine.status.provisioning
        if before is None or before.failure is None or needs is None:
            return False
        if before.generation != machine.metadata.generation:
            return True
        now = credentials_used(machine, needs)
        if self.tried is None or _first_used(self.tried, now):
            self.tried = now
        return now != self.tried


def credentials_used(machine: Machine, needs: Prerequisites) -> AttemptCredentials:
    return AttemptCredentials(_pins(machine), needs.key_version, needs.bastion_version, needs.token_id)


def _pins(machine: Machine) -> tuple[str | None, ...]:
    """Return the host keys trusted on first use: a user who removes one wants the next one to be trusted."""
    ssh = machine.status.ssh
    return (ssh.fingerprint, ssh.bastion_fingerprint) if ssh is not None else (None, None)


def _first_used(before: AttemptCredentials, now: AttemptCredentials) -> bool:
    """Return whether the only change is that keys were trusted on first use, which is not a change by a user."""
    is_unchanged = all(old in (None, new) for old, new in zip(before.pins, now.pins, strict=True))
    return is_unchanged and replace(before, pins=now.pins) == now
