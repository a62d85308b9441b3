"""Console output of boots: recorded while an operation boots a host, and kept in a Secret if the operation fails.

A recording reads the console that the BMC offers, shares it with the user of `machine serial`, and never delays or ends
its operation. Only the last output of each host is in memory, as the console has printed it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from base64 import b64encode
from dataclasses import dataclass, field
from typing import Final

from unbounded.api.core import SECRETS
from unbounded.api.failures import Failure, Rejected
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MachineOperation, OperationKind, OperationPhase
from unbounded.api.serial_console import (
    ANNOTATION_OPERATION,
    CONSOLE_KEY,
    CONSOLE_SECRET_TYPE,
    show_kept_command,
)
from unbounded.join.boot_secrets import boot_secrets
from unbounded.kube.api import ApiError, Conflict, NotFound
from unbounded.kube.cache import Cache
from unbounded.kube.clock import Backoff, loop_time, rfc3339
from unbounded.kube.events import event_sink
from unbounded.kube.logs import Log
from unbounded.kube.process import Runtime
from unbounded.kube.status_writer import StatusWriter
from unbounded.metalman.bmc_access import BmcAccess, binding_of, redfish_of
from unbounded.metalman.console_text import redacted
from unbounded.metalman.redfish.bmc_interface import ConsoleOffers, SshOffer
from unbounded.metalman.redfish.pool import BmcPool
from unbounded.metalman.shared_consoles import SharedConsoles

KEPT_BYTES: Final = 64 * 1024
MARGIN_BYTES: Final = 16 * 1024  # before them, so that a secret that begins there is known as one
BYTES_PER_S: Final = 256 * 1024  # ten times what a serial line at 230,400 baud can carry
OPENINGS: Final = 8  # in a row without output, until a recording gives up
AGAIN: Final = Backoff(base_s=2.0, max_s=60.0)
SAVINGS: Final = 4
REFUSED_S: Final = 6 * 3600.0  # a console that refused the account is not tried again for so long
MOST_SECRETS: Final = 2000  # to search for in one output; user data with more are not searched for in time
BOOTS: Final = frozenset(
    {
        OperationKind.HOST_REBOOT,
        OperationKind.HOST_POWER_ON,
        OperationKind.HOST_REPLACE,
        OperationKind.HOST_INSPECT,
        OperationKind.HOST_ERASE,
        OperationKind.HOST_RESCUE,
    }
)
GAP: Final = b"\r\n[metalman: the console was closed here, and opened again]\r\n"

log = Log("metalman.serial")


@dataclass(slots=True)
class LastOutput:
    """The last output of a console; `dropped` bytes of it are only there to recognize a secret."""

    data: bytearray = field(default_factory=bytearray)
    is_cut: bool = False

    def add(self, data: bytes) -> None:
        self.data += data[-(KEPT_BYTES + MARGIN_BYTES) :]
        if len(self.data) > KEPT_BYTES + 2 * MARGIN_BYTES:
            del self.data[: -(KEPT_BYTES + MARGIN_BYTES)]
            self.is_cut = True

    @property
    def dropped(self) -> int:
        return max(len(self.data) - KEPT_BYTES, MARGIN_BYTES if self.is_cut else 0)


@dataclass(slots=True)
class ConsoleRecording:
    """The recording of one operation."""

    machine: str
    offers: ConsoleOffers
    output: LastOutput = field(default_factory=LastOutput)
    secrets: set[str] = field(default_factory=set)
    task: asyncio.Task[None] | None = None


class ConsoleRecorder:
    """Recorder of the boots of running operations.

    Args:
        machines, operations: those that the caller runs.
    """

    def __init__(
        self,
        runtime: Runtime,
        machines: Cache[Machine],
        operations: Cache[MachineOperation],
        access: BmcAccess,
        pool: BmcPool,
        consoles: SharedConsoles,
    ) -> None:
        self._runtime = runtime
        self._machines = machines
        self._operations = operations
        self._access = access
        self._pool = pool
        self._consoles = consoles
        self._status = StatusWriter(runtime.api, MACHINES, fields=("consoleOutput",))
        self._emit = event_sink(runtime.events)
        self._tasks: asyncio.TaskGroup | None = None
        self._offers: dict[str, ConsoleOffers] = {}  # until the recording begins, by UID of the operation
        self._recordings: dict[str, ConsoleRecording] = {}  # by UID of the operation
        self._refused: dict[str, float] = {}  # until when, by BMC and system

    async def run(self) -> None:
        """Work until cancelled; recordings of running operations are lost with it."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                with self._operations.subscribed(self._changed):
                    await asyncio.Event().wait()
            finally:
                self._tasks = None

    def observed(self, operation: MachineOperation, machine: Machine, offers: ConsoleOffers) -> None:
        """Note the consoles that a BMC offers, and begin the recording of a claimed operation that boots its host."""
        uid = operation.metadata.uid
        usable = tuple(one for one in offers.usable if _may_open(one, machine))
        if usable and operation.spec.operation_kind in BOOTS and not operation.terminal and uid not in self._recordings:
            self._offers[uid] = ConsoleOffers(usable)
            self._begin(operation, machine)

    def _begin(self, operation: MachineOperation, machine: Machine | None) -> None:
        uid = operation.metadata.uid
        if self._tasks is None or machine is None or not operation.claimed or uid not in self._offers:
            return
        offers = self._offers.pop(uid)
        if self._refused.get(binding_of(machine), 0.0) <= loop_time():
            recording = self._recordings[uid] = ConsoleRecording(machine.name, offers)
            recording.task = self._tasks.create_task(self._record(recording), name=f"recording of {machine.name}")

    def _changed(self, old: MachineOperation | None, new: MachineOperation | None) -> None:
        if new is not None and not new.terminal:
            self._begin(new, self._machines.get(new.spec.machine_ref or ""))
        elif (ended := new or old) is not None:
            self._end(ended, is_failed=new is not None and new.status.phase == OperationPhase.FAILED)

    def _end(self, operation: MachineOperation, *, is_failed: bool) -> None:
        self._offers.pop(operation.metadata.uid, None)
        recording = self._recordings.pop(operation.metadata.uid, None)
        if recording is None or recording.task is None:
            return
        recording.task.cancel()
        if is_failed and self._tasks is not None:
            self._tasks.create_task(self._keep(recording, operation), name=f"console output of {recording.machine}")

    # Recording

    async def _record(self, recording: ConsoleRecording) -> None:
        """Read the console, and open it again when it ends."""
        failures = 0
        while failures < OPENINGS:
            if (machine := self._machines.get(recording.machine)) is None:
                return
            try:
                is_read = await self._read(recording, machine)
            except Rejected as error:
                if not isinstance(error, ApiError):
                    self._refused[binding_of(machine)] = loop_time() + REFUSED_S
                log.info("cannot record serial console", machine=machine.name, error=error)
                return
            except Failure as error:
                is_read = False
                log.debug("cannot record serial console yet", machine=machine.name, error=error)
            except Exception:
                log.exception("cannot record serial console", machine=machine.name)
                return
            failures = 1 if is_read else failures + 1
            await asyncio.sleep(AGAIN.after(failures))

    async def _read(self, recording: ConsoleRecording, machine: Machine) -> bool:
        """Read the console until it ends; return whether there was output."""
        is_read = False
        recording.secrets |= await self._secrets(machine)
        async with self._consoles.join(machine, recording.offers) as console:
            log.debug("recording serial console", machine=machine.name, over=console.over)
            while data := await console.read():
                if not is_read and recording.output.data:
                    recording.output.add(GAP)
                is_read = True
                recording.output.add(data)
                if console.is_alone:  # a user reads as fast as they want
                    await asyncio.sleep(len(data) / BYTES_PER_S)
        self._pool.release_soon(redfish_of(machine).url)
        return is_read

    async def _secrets(self, machine: Machine) -> set[str]:
        """Return the secrets of a boot that this process knows by value.

        Raises:
            Failure: they cannot be read.
        """
        account = await self._access.of(machine)
        known = {account.password, account.next_password} | await boot_secrets(self._runtime.api, machine)
        return known - {""}

    # Keeping

    async def _keep(self, recording: ConsoleRecording, operation: MachineOperation) -> None:
        """Store the output of a boot that has failed; nothing where there is none."""
        if not recording.output.data:
            return
        for attempt in range(1, SAVINGS + 1):
            machine = self._machines.get(recording.machine)
            execution = operation.status.execution
            if machine is None or execution is None or execution.machine_uid != machine.metadata.uid:
                return
            try:
                await self._store(recording, machine, operation)
            except Rejected as error:
                log.warning("cannot keep console output", machine=machine.name, error=error)
                return
            except Failure as error:
                log.info("cannot keep console output yet", machine=machine.name, error=error)
            except Exception:
                log.exception("cannot keep console output", machine=machine.name)
                return
            else:
                return
            await asyncio.sleep(AGAIN.after(attempt))
        log.warning("console output is lost", machine=recording.machine, operation=operation.name)

    async def _store(self, recording: ConsoleRecording, machine: Machine, operation: MachineOperation) -> None:
        secrets = recording.secrets | await self._secrets(machine)
        if len(secrets) > MOST_SECRETS:
            raise Rejected(f"its user data have {len(secrets)} possible secrets; {MOST_SECRETS} can be searched for")
        data, dropped = bytes(recording.output.data), recording.output.dropped
        text = await asyncio.to_thread(redacted, data, secrets, dropped=dropped)
        name = kept_console_name(machine.name)
        await self._remove(name)
        await self._runtime.api.create(SECRETS, console_secret(name, text, machine, operation), namespace=NAMESPACE)
        kept = {"secret": name, "operation": operation.name, "at": rfc3339(self._runtime.now())}
        await self._status.merge(machine.name, {"consoleOutput": kept}, uid=machine.metadata.uid)
        said = f"Secret {NAMESPACE}/{name} has the last console output of {operation.name}, which has failed"
        self._emit(machine, "Normal", "ConsoleOutputKept", f"{said}: {show_kept_command(machine.name)}")
        log.info("console output kept", machine=machine.name, operation=operation.name, secret=name)

    async def _remove(self, name: str) -> None:
        """Remove the output of an earlier boot. A Secret of another type is left, so that the creation fails."""
        with contextlib.suppress(NotFound):
            old = await self._runtime.api.get(SECRETS, name, namespace=NAMESPACE)
            if old.type == CONSOLE_SECRET_TYPE:
                with contextlib.suppress(Conflict):
                    await self._runtime.api.delete(SECRETS, name, namespace=NAMESPACE, uid=old.metadata.uid)


def _may_open(offer: object, machine: Machine) -> bool:
    """Return whether a recording may open a console; a first SSH host key is not trusted where a CA proves the BMC."""
    status = machine.status.redfish
    is_pinned = status is not None and status.ssh_host_key is not None
    return not isinstance(offer, SshOffer) or is_pinned or redfish_of(machine).ca_bundle is None


def kept_console_name(machine: str) -> str:
    """Return the name of the Secret with the console output of a Machine, of 253 characters at most."""
    name = f"console-{machine}"
    return name if len(name) <= 253 else f"{name[:244]}-{hashlib.sha256(machine.encode()).hexdigest()[:8]}"


def console_secret(name: str, text: str, machine: Machine, operation: MachineOperation) -> dict[str, object]:
    """Return the Secret with a text; none can change it, and it is removed with its Machine."""
    owner = {
        "apiVersion": f"{MACHINES.group}/{MACHINES.version}",
        "kind": MACHINES.kind,
        "name": machine.name,
        "uid": machine.metadata.uid,
    }
    return {
        "metadata": {
            "name": name,
            "ownerReferences": [owner],
            "annotations": {ANNOTATION_OPERATION: operation.name},
        },
        "type": CONSOLE_SECRET_TYPE,
        "immutable": True,
        "data": {CONSOLE_KEY: b64encode(text.encode()).decode()},
    }
