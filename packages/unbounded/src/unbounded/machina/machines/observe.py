"""Observation of one Machine: from caches, from the state of this process, and on demand from Secrets."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from unbounded.api.configuration import MachineConfigurationTemplate, MachineConfigurationVersion
from unbounded.api.core import ConfigMap, Node
from unbounded.api.machine import Machine
from unbounded.api.names import LABEL_MACHINE
from unbounded.api.operation import MachineOperation
from unbounded.join.bootstrap_tokens import UsableToken
from unbounded.join.cluster_facts import ClusterFacts
from unbounded.join.token_finder import FoundToken, TokenFinder
from unbounded.kube.cache import Cache
from unbounded.kube.clock import Backoff, WallClock
from unbounded.machina.configuration_versions import INDEX_CONFIGURATION
from unbounded.machina.machines.attempts import origin_fault
from unbounded.machina.machines.credentials import READ_EVERY_S, SecretReader, SshCredentials, credentials_of
from unbounded.machina.machines.eligibility import sharing_host
from unbounded.machina.machines.host_runs import HostRuns
from unbounded.machina.machines.machine_state import MachineState
from unbounded.machina.machines.model import MachineObservation, Prerequisites
from unbounded.machina.machines.nodes import configured
from unbounded.machina.machines.plan import requires_prerequisites
from unbounded.machina.settings import ProvisioningSettings
from unbounded.operations.caches import INDEX_MACHINE, pause_of

T = TypeVar("T")

# a pass that only waits counts as a success and resets the loop's backoff, so reads have their own
FAILED: Final = Backoff(0.5, 60.0)


@dataclass(frozen=True)
class _Read(Generic[T]):
    about: object
    task: asyncio.Task[T]


class BackgroundReads(Generic[T]):
    """One read for each Machine, running or completed. `close` cancels all.

    Args:
        wake: called with the Machine when its read has completed.
    """

    def __init__(self, wake: Callable[[str], None]) -> None:
        self._wake = wake
        self._reads: dict[str, _Read[T]] = {}
        self._failures: dict[str, int] = {}  # in a row

    async def get(self, machine: str, about: object, read: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """Return the result of a read, or None while it runs; the next call after its end returns it.

        Args:
            about: key of the read; a result of another key is dropped.
        Raises:
            Exception: what the read raised.
        """
        asked = self._reads.get(machine)
        if asked is None or asked.about != about:
            self._drop(machine)
            reads = self._after_failures(self._failures.get(machine, 0), read)
            asked = _Read(about, asyncio.create_task(reads, name=f"{machine}: reads prerequisites"))
            self._reads[machine] = asked
            await asyncio.wait({asked.task}, timeout=0)  # one turn of the loop suffices for a read that need not wait
            if not asked.task.done():
                asked.task.add_done_callback(lambda _: self._wake(machine))
        if not asked.task.done():
            return None
        del self._reads[machine]
        try:
            answer = asked.task.result()
        except Exception:
            self._failures[machine] = self._failures.get(machine, 0) + 1
            raise
        self._failures.pop(machine, None)
        return answer

    def forget(self, machine: str) -> None:
        """Cancel the read of a Machine."""
        self._failures.pop(machine, None)
        self._drop(machine)

    async def _after_failures(self, failures: int, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if failures:
            await asyncio.sleep(FAILED.after(failures))
        return await read()

    def _drop(self, machine: str) -> None:
        read = self._reads.pop(machine, None)
        if read is not None:
            read.task.cancel()
            read.task.add_done_callback(_retrieve_exception)

    async def close(self) -> None:
        tasks = {read.task for read in self._reads.values()}
        for machine in tuple(self._reads):
            self._drop(machine)
        if tasks:
            await asyncio.wait(tasks)


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception of a cancelled read, as asyncio logs exceptions that were never retrieved."""
    if not task.cancelled():
        task.exception()


Raw = dict[str, Any]


@dataclass(frozen=True)
class MachineCaches:
    """Caches for observations.

    Args:
        machines: indexed by INDEX_HOST.
        operations, nodes: indexed by INDEX_MACHINE.
        versions: of MachineConfigurations, indexed by INDEX_CONFIGURATION.
    """

    machines: Cache[Machine]
    nodes: Cache[Node]
    operations: Cache[MachineOperation]
    pause: Cache[ConfigMap]
    versions: Cache[Raw]


class FactsSource(Protocol):
    """Facts of the cluster."""

    @property
    def facts(self) -> ClusterFacts | None: ...
    @property
    def missing(self) -> str | None: ...


@dataclass(frozen=True)
class AttemptInputs:
    """Credentials and facts for an attempt; each None if it is missing or was not read."""

    credentials: SshCredentials | None = None
    token: UsableToken | None = None
    facts: ClusterFacts | None = None


class Observer:
    """Observer of Machines. `close` cancels its reads.

    Args:
        wake: called with a Machine when its Secrets have been read.
        fresh: names for attempts.
    """

    def __init__(
        self,
        caches: MachineCaches,
        reader: SecretReader,
        tokens: TokenFinder,
        facts: FactsSource,
        attempts: HostRuns,
        resets: HostRuns,
        settings: ProvisioningSettings,
        wake: Callable[[str], None],
        *,
        now: WallClock,
        fresh: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._caches = caches
        self._reader = reader
        self._tokens = tokens
        self._facts = facts
        self._attempts = attempts
        self._resets = resets
        self._settings = settings
        self._reads: BackgroundReads[tuple[SshCredentials, FoundToken]] = BackgroundReads(wake)
        self._wall = now
        self._fresh = fresh

    async def observe(self, machine: Machine, memory: MachineState) -> tuple[MachineObservation, AttemptInputs]:
        """Return the observation of a Machine, and the means of an attempt.

        Secrets that are not cached are read in the background; their arrival wakes the Machine.

        Raises:
            ApiError: a Secret could not be read.
        """
        observed = self._known(machine, memory)
        if not requires_prerequisites(observed):
            self.forget(machine.name)
            return observed, AttemptInputs()
        about = (machine.metadata.uid, machine.metadata.generation, machine.site)
        read = await self._reads.get(machine.name, about, lambda: self._read(machine))
        if read is None:
            return replace(observed, reading=True), AttemptInputs()
        needs, means = self._needs(machine, *read)
        changed = memory.changed_since(machine, needs)
        return replace(observed, needs=needs, changed_since_failure=changed), means

    @property
    def secrets_every_s(self) -> float:
        """Interval for observing a Machine that one of its Secrets blocks."""
        return self._reader.every_s

    def forget(self, machine: str) -> None:
        """Cancel the reads for a Machine that is gone or needs none now."""
        self._reads.forget(machine)

    async def close(self) -> None:
        await self._reads.close()

    async def credentials(self, machine: Machine) -> SshCredentials:
        """Return the current credentials, for a login."""
        return await credentials_of(machine, self._reader, max_age_s=READ_EVERY_S)

    def node(self, machine: Machine) -> Node | None:
        """Return the Node of the Machine: by its label, else by its name if no label names another Machine."""
        labelled = self._caches.nodes.by(INDEX_MACHINE, machine.name)
        if labelled:
            return min(labelled, key=lambda node: (node.metadata.name != machine.name, node.metadata.name))
        ref = machine.spec.kubernetes.node_ref if machine.spec.kubernetes is not None else None
        for name in (machine.name, *((ref.name,) if ref is not None else ())):
            node = self._caches.nodes.get(name)
            if node is not None and not node.metadata.labels.get(LABEL_MACHINE):
                return node
        return None

    def _known(self, machine: Machine, memory: MachineState) -> MachineObservation:
        now = asyncio.get_running_loop().time()
        if machine.metadata.deletion_timestamp is not None and memory.deleted_at is None:
            memory.deleted_at = now
        before = machine.status.provisioning
        return MachineObservation(
            machine=machine,
            node=self.node(machine),
            probe=memory.probe(machine, now),
            probing=memory.is_probing(machine),
            attempt=self._attempts.of(machine.name),
            pause=pause_of(self._caches.pause),
            operations=self._caches.operations.by(INDEX_MACHINE, machine.name),
            sharing=sharing_host(self._caches.machines, machine),
            template=self._template(machine),
            retry_s=memory.retry_s(before, self._settings.retry, now, self._wall),
            retry_at_text=memory.retry_at_text,
            new_attempt=self._fresh(),
            has_capacity=True,
            deleted_s=memory.deleted_s(now),
            reset=self._resets.of(machine.name),
        )

    async def _read(self, machine: Machine) -> tuple[SshCredentials, FoundToken]:
        credentials = await credentials_of(machine, self._reader)
        return credentials, FoundToken(None) if machine.spec.kubernetes is None else await self._tokens.find(machine)

    def _needs(
        self, machine: Machine, credentials: SshCredentials, found: FoundToken
    ) -> tuple[Prerequisites, AttemptInputs]:
        facts, token, fault = self._facts.facts, found.token, origin_fault(machine, self._settings)
        needs = Prerequisites(
            facts=None if facts is not None else self._facts.missing or "not read yet",
            token=found.need,
            key=credentials.key or credentials.address,
            bastion_key=credentials.bastion_key,
            source=fault.words or None,
            key_reason=credentials.key_reason,
            bastion_key_reason=credentials.bastion_key_reason,
            token_reason=found.reason,
            source_reason=fault.reason,
            key_version=credentials.key_version,
            bastion_version=credentials.bastion_version,
            token_id=token.id if token is not None else None,
        )
        return needs, AttemptInputs(credentials, token, facts)

    def _template(self, machine: Machine) -> MachineConfigurationTemplate | None:
        """Return the template of the version that the Machine is bound to."""
        ref = machine.spec.configuration_ref
        if ref is None:
            return None
        versions = self._caches.versions.by(INDEX_CONFIGURATION, ref.name)
        return configured(machine, (msgspec.convert(one, MachineConfigurationVersion) for one in versions)).template
