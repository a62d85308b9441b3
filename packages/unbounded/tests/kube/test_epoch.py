"""Epochs: which processes are known to have ended, and how an epoch is written."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual
from unbounded.api.core import LEASES
from unbounded.cli.identities import EpochFile
from unbounded.kube.epoch import Epoch, ProcessEpoch, parse_epoch
from unbounded.kube.lease import LeaderElection

THIRD = ProcessEpoch(Epoch("line-a", 3))


def test_earlier_epochs_of_the_line_have_ended_and_of_others_nothing_is_known() -> None:
    assert THIRD.has_ended(ProcessEpoch(Epoch("line-a", 2)).identity)
    for other in (THIRD, ProcessEpoch(Epoch("line-a", 4)), ProcessEpoch(Epoch("line-b", 1)), ProcessEpoch()):
        assert not THIRD.has_ended(other.identity)
    for foreign in ("", "host_0b7c", "line-a.1.2_x", "line-a.1x_y", "line-a_1"):
        assert not THIRD.has_ended(foreign)
    assert not ProcessEpoch().has_ended(THIRD.identity)


def test_an_epoch_is_read_as_it_is_written_and_identities_are_never_the_same() -> None:
    assert parse_epoch(str(THIRD.epoch)) == THIRD.epoch
    assert THIRD.identity != ProcessEpoch(THIRD.epoch).identity
    with pytest.raises(ValueError, match=r"write LINE\.NUMBER"):
        parse_epoch("line")


def test_an_epoch_file_counts_on_and_begins_another_line_where_it_cannot_be_read(tmp_path: Path) -> None:
    first, second = EpochFile(tmp_path).next(), EpochFile(tmp_path).next()
    assert (second.line, second.number) == (first.line, first.number + 1)
    (tmp_path / "epoch").write_text("garbage")
    assert EpochFile(tmp_path).next().line != first.line


def test_each_term_of_a_lease_is_an_epoch_that_ends_those_before_it() -> None:
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
