"""A process knows of the one before it on its machine that it has ended, and then alone."""

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
from unbounded.kube.epoch import ProcessEpoch
from unbounded.kube.lease import LeaderElection
from unbounded.kube.predecessor import SYSTEM, Predecessor, runtime_folder

HOLDS = """
import sys, time
from pathlib import Path
from unbounded.kube.predecessor import Predecessor
one = Predecessor(Path(sys.argv[1]), "l")
print(repr(one.succeed("first")), flush=True)
time.sleep(60)
"""


def test_who_was_killed_is_known_to_have_ended_and_who_lives_is_not(tmp_path: Path) -> None:
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
