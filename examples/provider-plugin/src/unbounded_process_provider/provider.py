"""The provider: what `machine-ops-controller` asks of machines that are processes.

A spec.providerID is `process://` and the path of the machine's folder. The folder in which it stands is the scope, as
an account would be in a cloud.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from unbounded.machineops import reasons
from unbounded.machineops.provider import (
    Action,
    AuthMode,
    Budget,
    Instance,
    Job,
    Keep,
    Login,
    Next,
    OperationKind,
    Power,
    Progress,
    Rate,
    Rates,
    Record,
    Refusal,
    ReplaceStep,
    State,
    Transient,
)
from unbounded_process_provider import machines
from unbounded_process_provider.machines import Record as Machine

T = TypeVar("T")

SCHEME = "process://"

STEPS = (
    ReplaceStep("StoppingOld", "StopOld", "the old process to be gone", "the old process has ended", 60),
    ReplaceStep("Launching", "Launch", "the new process to run", "the new process runs", 60, needs_user_data=True),
    ReplaceStep("HandingOver", "HandOver", "the Machine to name it", "the Machine names it", 300, hands_over=True),
    ReplaceStep("RemovingOld", "RemoveOld", "the old folder to be gone", "the old folder is gone", 60),
)


class LocalProcess:
    """What the controller reads of a provider; it has no login, as the folders are its own."""

    name = "LocalProcess"
    api_version = "v1"
    kinds = frozenset(kind for kind in OperationKind if kind.is_host)
    modes = frozenset({AuthMode.WORKLOAD_IDENTITY})
    secret_keys: tuple[str, ...] = ()
    rates = Rates(reads=Rate(100, 100), writes=Rate(50, 20))
    call_limit_s = 30.0
    most_user_data = 65_536
    restarts_once = False
    parameters = {
        OperationKind.HOST_REBOOT: frozenset({"force"}),  # a process is never asked to shut itself down
        OperationKind.HOST_POWER_OFF: frozenset({"force"}),
    }
    replacement = STEPS

    def instance(self, provider_id: str) -> Instance:
        path = Path(provider_id.removeprefix(SCHEME))
        if (
            not provider_id.startswith(SCHEME)
            or not path.is_absolute()
            or path.name in ("", "..")
            or ".." in path.parts
        ):
            raise ValueError(f"{provider_id!r} is not process:///FOLDER/NAME")
        path = Path("/", *path.parts[1:])  # "//" begins the same path
        return Instance(str(path), scope=str(path.parent), name=path.name)

    def connect(self, login: Login, budget: Budget) -> Processes:
        return Processes(budget)


class Processes:
    """A session. The work is done in threads, as it blocks."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    # Power

    async def look(self, instance: Instance) -> Record:
        machine = await self._read(instance, lambda: machines.record_of(Path(instance.id)))
        power = _power(machine)
        return Record(power, f"the process of {instance.name} is {power}", instance.id)

    async def ask(self, job: Job, action: Action, *, before: float) -> str | None:
        path = Path(job.instance.id)
        match action:
            case Action.RESTART:
                return str(await self._write(job, lambda: machines.restart(path), before))
            case Action.POWER_ON:
                await self._write(job, lambda: machines.start(path), before)
            case Action.POWER_OFF:
                await self._write(job, lambda: machines.stop(path), before)
        return None

    async def follow(self, job: Job, handle: str) -> Progress:
        """The handle of a restart is the number of the boot that it led to."""
        machine = await self._read(job.instance, lambda: machines.record_of(Path(job.instance.id)))
        if machine is None or machine.boots < int(handle):
            return Progress(State.FAILED, f"{job.instance.name} has not come to boot {handle}", job.instance.id)
        return Progress(State.DONE, f"{job.instance.name} is at boot {machine.boots}", job.instance.id)

    # Replacement

    async def look_replace(self, job: Job, keep: Keep) -> Next:
        """All that has to be known stands in the new machine's record, so nothing is kept."""
        folder = Path(job.instance.scope)
        there = await self._read(job.instance, lambda: machines.all_in(folder))
        new = next((path for path, machine in there.items() if machine.made_for == job.uid), None)
        old = Path(there[new].replaces) if new is not None else Path(job.instance.id)
        named = [path for path in (old, new) if path in there]
        detail = ", ".join(f"{path.name} is {_power(there[path])}" for path in named) or f"there is no {old.name}"

        def following(step: str | None, new_instance: str | None = None) -> Next:
            return Next(step, detail, str(folder), new_instance=new_instance)

        if new is None:
            if old not in there:
                raise Refusal(reasons.INSTANCE_NOT_FOUND, detail)
            _check_earlier(there, old)
            return following("StoppingOld" if machines.runs(there[old]) else "Launching")
        if not machines.runs(there[new]):
            return following("Launching")
        if job.instance.id != str(new):
            return following("HandingOver", f"{SCHEME}{new}")
        if old in there:
            return following("RemovingOld")
        told = f"{new.name} runs; {old.name} is gone, and what was in its folder was not kept"
        return Next(None, told, str(folder))

    async def act_replace(self, job: Job, step: str, keep: Keep, user_data: str, *, before: float) -> None:
        old, new = Path(job.instance.id), Path(job.instance.scope) / f"{job.machine}-{job.uid[:8]}"

        def launch() -> None:
            machines.make(new, Machine(made_for=job.uid, replaces=str(old)), user_data)
            machines.start(new)

        def remove() -> None:
            machine = machines.record_of(old)  # by now it is the new one that the Machine names
            if machine is not None and machine.made_for == job.uid:
                machines.remove(Path(machine.replaces))

        acts = {"StoppingOld": lambda: machines.stop(old), "Launching": launch, "RemovingOld": remove}
        await self._write(job, acts[step], before)

    async def close(self) -> None:
        """There is nothing to end."""

    # Calls, each within its share of the rate

    async def _read(self, instance: Instance, call: Callable[[], T]) -> T:
        await self._budget.read(instance.scope)
        return await _done(call)

    async def _write(self, job: Job, call: Callable[[], T], before: float) -> T:
        await self._budget.write(job.instance.scope, before=before)
        return await _done(call)


async def _done(call: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(call)
    except FileNotFoundError as error:
        raise Refusal(reasons.INSTANCE_NOT_FOUND, f"there is no {error.filename}") from error
    except PermissionError as error:
        raise Refusal(reasons.AUTH_REFUSED, f"{error.filename} may not be used by this process") from error
    except OSError as error:  # a full disk, a limit on processes: what was begun is gone on with
        raise Transient(f"{error.strerror or error}") from error


def _check_earlier(there: Mapping[Path, Machine], old: Path) -> None:
    """A replacement that did not come to its end may have left a machine, and another one beside that would be one too
    many. Who uses it by now is not known here, so it is not removed.
    """
    for path, machine in there.items():
        if machine.replaces == str(old) or str(path) == there[old].replaces:
            told = f"{path} is left of an earlier replacement, beside {old}: remove it, or have the Machine name it"
            raise Refusal(reasons.PROVIDER_REFUSED, f"{told}; nothing was touched")


def _power(machine: Machine | None) -> Power:
    if machine is None:
        return Power.GONE
    return Power.RUNNING if machines.runs(machine) else Power.STOPPED
