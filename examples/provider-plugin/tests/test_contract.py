"""The contract of a provider, run against this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from unbounded_process_provider import PROVIDER, machines
from unbounded_process_provider.provider import LocalProcess

from unbounded.machineops.provider import AuthMode, Login, Power
from unbounded.machineops.testing import ProviderContract, Subject, Trouble


@dataclass
class Folder:
    """A folder of machines, and another one beside it: each is what an account would be."""

    path: Path
    provider: LocalProcess = PROVIDER
    login: Login = field(default_factory=lambda: Login("local", AuthMode.WORKLOAD_IDENTITY))
    numbers: Iterator[int] = field(default_factory=count)
    restart: Callable[[Path], int] = machines.restart

    @property
    def missing(self) -> str:
        return f"process://{self.path}/nobody"

    async def make(self) -> str:
        return self._make(self.path / f"machine-{next(self.numbers)}")

    async def make_namesake(self, provider_id: str) -> str:
        return self._make(self.path / "other" / Path(provider_id).name)

    def _make(self, path: Path) -> str:
        machines.make(path, machines.Record())
        machines.start(path)
        return f"process://{path}"

    async def instances(self) -> Mapping[str, Power]:
        return {
            f"process://{path}": Power.RUNNING if machines.runs(machine) else Power.STOPPED
            for path, machine in self.there().items()
        }

    def there(self) -> Mapping[Path, machines.Record]:
        return machines.all_in(self.path) | machines.all_in(self.path / "other")

    async def boots(self, provider_id: str) -> int:
        machine = machines.record_of(Path(provider_id.removeprefix("process://")))
        return machine.boots if machine is not None else 0

    async def set_trouble(self, trouble: Trouble | None) -> None:
        """A restart that does nothing shows that what `follow` calls done is more than that it was asked for."""
        if trouble not in (None, Trouble.IGNORED):
            raise NotImplementedError(f"there is nothing by which a folder could be {trouble}")
        setattr(machines, "restart", _next_boot if trouble else self.restart)  # noqa: B010  # it is a function's name

    async def user_data(self, provider_id: str) -> str | None:
        return (Path(provider_id.removeprefix("process://")) / "user-data").read_text()


def _next_boot(path: Path) -> int:
    """The number that the boot would have had."""
    record = machines.record_of(path)
    assert record is not None
    return record.boots + 1


class TestLocalProcess(ProviderContract):
    within_s = 20.0

    @pytest.fixture
    def subject(self, tmp_path: Path) -> Iterator[Subject]:
        folder = Folder(tmp_path)
        yield folder
        for path in folder.there():
            machines.remove(path)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nobody"
    for act in (machines.start, machines.stop, machines.restart):
        with pytest.raises(FileNotFoundError) as raised:
            act(path)
        assert raised.value.filename == str(path)


def test_a_process_of_another_pid_is_not_taken_for_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "m"
    machines.make(path, machines.Record())
    machines.start(path)
    record = machines.record_of(path)
    assert record is not None
    try:
        assert machines.runs(record)
        assert not machines.runs(machines.Record(pid=record.pid, started=record.started + 1))
    finally:
        machines.remove(path)
