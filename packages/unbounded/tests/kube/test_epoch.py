"""Epochs: which processes are known to have ended, and how an epoch is written.

A process knows of the one before it on its machine that it has ended, and then alone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual
from unbounded.api.core import LEASES
from unbounded.cli.servers import EpochFile
from unbounded.kube.lease import LeaderElection
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.process import Runtime
from unbounded.kube.process_epoch import SYSTEM, Epoch, Predecessor, ProcessEpoch, parse_epoch, runtime_folder

THIRD = ProcessEpoch(Epoch("line-a", 3))
HOLDS = """
import sys, time
from pathlib import Path
from unbounded.kube.process_epoch import Predecessor
one = Predecessor(Path(sys.argv[1]), "l")
print(repr(one.succeed("first")), flush=True)
time.sleep(60)
"""


def test_only_earlier_epochs_of_the_same_line_have_ended() -> None:
    assert THIRD.has_ended(ProcessEpoch(Epoch("line-a", 2)).identity)
    for other in (THIRD, ProcessEpoch(Epoch("line-a", 4)), ProcessEpoch(Epoch("line-b", 1)), ProcessEpoch()):
        assert not THIRD.has_ended(other.identity)
    for foreign in ("", "host_0b7c", "line-a.1.2_x", "line-a.1x_y", "line-a_1"):
        assert not THIRD.has_ended(foreign)
    assert not ProcessEpoch().has_ended(THIRD.identity)


def test_epoch_round_trips_and_identities_are_unique() -> None:
    assert parse_epoch(str(THIRD.epoch)) == THIRD.epoch
    assert THIRD.identity != ProcessEpoch(THIRD.epoch).identity
    with pytest.raises(ValueError, match=r"write LINE\.NUMBER"):
        parse_epoch("line")


def test_epoch_file_increments_and_starts_a_new_line_when_corrupt(tmp_path: Path) -> None:
    first, second = EpochFile(tmp_path).next(), EpochFile(tmp_path).next()
    assert (second.line, second.number) == (first.line, first.number + 1)
    (tmp_path / "epoch").write_text("garbage")
    assert EpochFile(tmp_path).next().line != first.line


def test_each_lease_term_is_an_epoch_that_ends_earlier_ones() -> None:
    async def main() -> None:
        api, epochs = MemoryApi(), list[ProcessEpoch]()

        async def lead(epoch: ProcessEpoch) -> None:
            epochs.append(epoch)
            await asyncio.Event().wait()

        async def run(identity: str, until_s: float) -> None:
            election = LeaderElection(api, name="l", namespace="unbounded-kube", identity=identity)
            task = asyncio.create_task(election.run(lead))
            await asyncio.sleep(until_s)
            assert epochs[-1].acts_until() > asyncio.get_running_loop().time()
            task.cancel()
            await asyncio.wait({task})
            assert epochs[-1].acts_until() < asyncio.get_running_loop().time()

        for identity in ("a", "b", "b"):  # the last one takes again what it has given back
            await run(identity, 30)
        first, second, third = epochs
        assert second.has_ended(first.identity)
        assert third.has_ended(second.identity)
        assert not first.has_ended(second.identity)
        await api.delete(LEASES, "l", namespace="unbounded-kube")
        await run("a", 5)
        assert not epochs[-1].has_ended(third.identity), "another Lease is another line"

    run_virtual(main())


def test_killed_predecessor_has_ended_and_live_one_has_not(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "''", "there was none before it"
        assert Predecessor(tmp_path, "l").succeed("second") == ""
        assert Predecessor(tmp_path, "another").succeed("second") == ""
        process.send_signal(signal.SIGKILL)
        process.wait()
    heir = Predecessor(tmp_path, "l")
    assert heir.succeed("second") == "first"
    assert heir.succeed("third") == "second", "its own term before"


@pytest.mark.parametrize("place", ["file", "link"])
def test_a_folder_that_cannot_be_used_tells_nothing(tmp_path: Path, place: str) -> None:
    if place == "file":
        (tmp_path / "run").write_text("no folder")
        assert Predecessor(tmp_path / "run", "l").succeed("a") == ""
    else:
        (tmp_path / "elsewhere").write_text("kept")
        (tmp_path / "l.lease").symlink_to(tmp_path / "elsewhere")
        assert Predecessor(tmp_path, "l").succeed("a") == ""
        assert (tmp_path / "elsewhere").read_text() == "kept"


def test_users_have_a_folder_of_their_own() -> None:
    assert runtime_folder({}) == SYSTEM
    own = runtime_folder({"XDG_RUNTIME_DIR": "/run/user/1000"})
    assert own == (SYSTEM if os.geteuid() == 0 else Path("/run/user/1000/unbounded"))


@pytest.mark.parametrize(("ended", "at_most_s"), [("dead", 1.0), ("somebody", 13.0)])
def test_the_lease_of_one_that_has_ended_is_free_at_once(ended: str, at_most_s: float) -> None:
    async def main() -> float:
        api, began = MemoryApi(), asyncio.get_running_loop().time()
        spec = {"holderIdentity": "dead", "leaseDurationSeconds": 10, "leaseTransitions": 4}
        await api.create(LEASES, {"metadata": {"name": "l"}, "spec": spec}, namespace="unbounded-kube")
        leading: asyncio.Future[ProcessEpoch] = asyncio.get_running_loop().create_future()

        async def lead(epoch: ProcessEpoch) -> None:
            leading.set_result(epoch)

        await LeaderElection(api, name="l", namespace="unbounded-kube", identity="heir", ended=ended).run(lead)
        epoch = (await leading).epoch
        assert epoch is not None
        assert epoch.number == 5
        return asyncio.get_running_loop().time() - began

    took_s = run_virtual(main())
    assert took_s <= at_most_s
    assert (took_s < 5) is (ended == "dead")


def test_a_process_that_leads_shows_its_term_and_no_longer_leads_after_it() -> None:
    def of(metrics: ControllerMetrics, name: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"lease": "l"})

    async def main() -> None:
        elected, alone = ControllerMetrics(), ControllerMetrics()

        async def lead(epoch: ProcessEpoch) -> None:
            assert epoch.epoch is not None
            assert (of(elected, "unbounded_leading"), of(elected, "unbounded_epoch")) == (1, epoch.epoch.number)

        api = MemoryApi()
        await api.create(
            LEASES, {"metadata": {"name": "l"}, "spec": {"leaseTransitions": 4}}, namespace="unbounded-kube"
        )
        await LeaderElection(api, name="l", namespace="unbounded-kube", identity="a", metrics=elected).run(lead)
        assert (of(elected, "unbounded_leading"), of(elected, "unbounded_epoch")) == (0, 5)

        async def work(_epoch: ProcessEpoch) -> None:
            pass

        await Runtime(MemoryApi(), alone, epoch=ProcessEpoch(Epoch("data", 7))).lead("l", work)
        assert (of(alone, "unbounded_leading"), of(alone, "unbounded_epoch")) == (1, 7)

    run_virtual(main())
