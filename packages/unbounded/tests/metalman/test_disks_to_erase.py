"""The disks that a HostErase erases: the named ones, or each local disk, and never one that is not clearly meant."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from unbounded.api.hardware import DiskFacts, DiskState
from unbounded.api.machine_status import DiskErasureRecord, ErasureState, merge_erasures
from unbounded.metalman.disk_choice import AwaitedDisk, DiskRefused
from unbounded.metalman.disks_to_erase import (
    ErasurePlan,
    choose_erasures,
    erasures_text,
    is_begun,
    not_blank,
)

ALL: Final = ("All",)


def disk(name: str = "sda", **facts: Any) -> DiskFacts:
    serial = f"S-{name}"
    known: dict[str, Any] = {"serial_number": serial, "transport": "sas", "state": DiskState.BLANK, "size_bytes": 1}
    return DiskFacts(name=name, **{**known, **facts})


def record(name: str, state: str, **more: Any) -> DiskErasureRecord:
    return DiskErasureRecord(serial_number=f"S-{name}", name=name, state=state, **more)


def planned(disks: list[DiskFacts], requested: tuple[str, ...], *before: DiskErasureRecord) -> ErasurePlan:
    plan = choose_erasures(disks, requested, before, final=True)
    assert isinstance(plan, ErasurePlan), plan
    return plan


def refused(disks: list[DiskFacts], requested: tuple[str, ...] = ALL, *before: DiskErasureRecord) -> str:
    plan = choose_erasures(disks, requested, before, final=True)
    assert isinstance(plan, DiskRefused), plan
    return plan.message


def test_named_disks_alone_are_erased() -> None:
    plan = planned([disk("sda"), disk("sdb"), disk("sdc")], ("S-sdc", "S-sda"))
    assert plan.names == ("sdc", "sda")
    assert [one.state for one in plan.records] == ["Untouched", "Untouched"]


def test_what_was_on_a_disk_is_in_its_record() -> None:
    disks = [disk("sda", state=DiskState.FOREIGN, contents="LVM"), disk("sdb", state=DiskState.OWN), disk("sdc")]
    contents = [one.contents for one in planned(disks, ALL).records]
    assert contents == ["LVM", "this Machine's earlier install", "blank"]


@pytest.mark.parametrize("transport", ["pcie", "ata", "sas", "usb", "virtio", "mmc", "raid"])
def test_all_means_local_disks(transport: str) -> None:
    assert planned([disk(transport=transport)], ALL).names == ("sda",)


@pytest.mark.parametrize("transport", ["fc", "fcoe", "iscsi", "tcp", "rdma", "loop"])
def test_all_means_no_disk_of_a_san_and_says_so(transport: str) -> None:
    plan = planned([disk(), disk("sdb", transport=transport)], ALL)
    assert (plan.names, plan.left_out) == (("sda",), f"sdb: its transport is {transport}")
    assert planned([disk(), disk("sdb", transport=transport)], ("S-sdb",)).names == ("sdb",)


def test_all_refuses_a_disk_that_may_or_may_not_be_local() -> None:
    text = refused([disk(), disk("sdb", transport=None)])
    assert text.startswith("it is not known whether disk sdb is local: spec.parameters.disks All does not mean it")
    assert planned([disk(), disk("sdb", transport=None)], ("S-sdb",)).names == ("sdb",)


@pytest.mark.parametrize(
    "paths",
    [
        [disk("sdb", wwn="0x1", serial_number="X"), disk("sdc", wwn="0x1", serial_number="X")],
        [disk("sdb", multipath=True)],
    ],
)
def test_all_means_no_disk_with_several_paths(paths: list[DiskFacts]) -> None:
    plan = planned([disk(), *paths], ALL)
    assert plan.names == ("sda",)
    assert plan.left_out == "; ".join(f"{one.name}: it has several paths" for one in paths)


def test_a_named_disk_with_several_paths_is_erased_by_one() -> None:
    paths = [disk("sdb", wwn="0x1", serial_number="X"), disk("sdc", wwn="0x1", serial_number="X")]
    assert planned(paths, ("X",)).names == ("sdb",)


def test_different_disks_with_one_serial_number_are_refused() -> None:
    twins = [disk("sda", serial_number="X", wwn="1"), disk("sdb", serial_number="X", wwn="2")]
    assert refused(twins, ("X",)) == "spec.parameters.disks names X, the serial number of several disks: sda, sdb"
    assert refused(twins) == "several disks have the serial number X"
    nameless = [disk("sda", serial_number="X"), disk("sdb", serial_number="X")]
    assert "several disks" in refused(nameless, ("X",))


def test_a_disk_without_a_serial_number_is_refused() -> None:
    assert refused([disk(serial_number=None)]) == "disk sda has no serial number, and is erased by no HostErase"


@pytest.mark.parametrize(
    ("disks", "requested", "words"),
    [
        ([disk()], ("S-sdb",), "spec.parameters.disks names S-sdb, which is no disk here: the serial numbers here are"),
        ([], ALL, "there is no local disk"),
        ([disk(transport="fc")], ALL, "there is no local disk"),
    ],
)
def test_a_missing_disk_is_awaited_and_then_refused(
    disks: list[DiskFacts], requested: tuple[str, ...], words: str
) -> None:
    plan = choose_erasures(disks, requested, (), final=False)
    assert isinstance(plan, AwaitedDisk)
    assert plan.message.startswith(words)
    assert refused(disks, requested) == plan.message


def test_all_misses_a_disk_of_the_first_report_of_its_boot() -> None:
    assert refused([disk()], ALL, record("sdb", ErasureState.ERASING)) == "disk S-sdb is gone"


def test_nothing_named_erases_nothing() -> None:
    assert "names no disk" in refused([disk()], ())


def test_a_second_start_of_the_installer_erases_what_is_left() -> None:
    before = [record("sda", ErasureState.ERASED, method="Discard"), record("sdb", ErasureState.ERASING)]
    plan = planned([disk("sda"), disk("sdb"), disk("sdc")], ALL, *before)
    assert plan.names == ("sdb", "sdc")
    assert [one.state for one in plan.records] == ["Erased", "Erasing", "Untouched"]
    assert planned([disk("sda")], ("S-sda",), before[0]).names == ()


STATES: Final = st.sampled_from(ErasureState)


@given(st.lists(st.tuples(st.sampled_from("abc"), STATES), max_size=12))
def test_a_disk_that_was_begun_is_never_untouched_again_and_an_erased_one_stays(
    reports: list[tuple[str, ErasureState]],
) -> None:
    records: tuple[DiskErasureRecord, ...] = ()
    for name, state in reports:
        was = {one.serial_number: one.state for one in records}
        records = merge_erasures(records, (record(name, state),))
        now = {one.serial_number: one.state for one in records}
        assert is_begun(records) == any(one != ErasureState.UNTOUCHED for one in now.values())
        for serial, before in was.items():
            assert before != ErasureState.ERASED or now[serial] == ErasureState.ERASED
            assert before == ErasureState.UNTOUCHED or now[serial] != ErasureState.UNTOUCHED


def test_a_report_keeps_what_was_on_the_disk_and_since_when() -> None:
    old = record("sda", ErasureState.ERASING, contents="LVM", started_at="1", size_bytes=7)
    (new,) = merge_erasures((old,), (record("sda", ErasureState.FAILED, started_at="2", failure="worn out"),))
    assert (new.contents, new.started_at, new.size_bytes, new.failure) == ("LVM", "1", 7, "worn out")


@pytest.mark.parametrize(("method", "state"), [("Discard", ErasureState.FAILED), (None, ErasureState.ERASING)])
def test_only_a_permission_follows_a_failure(method: str | None, state: str) -> None:
    failed = record("sda", ErasureState.FAILED, method="Discard", failure="worn out")
    (now,) = merge_erasures((failed,), (record("sda", ErasureState.ERASING, method=method),))
    assert now.state == state


def test_the_message_says_what_is_erased_begun_and_untouched() -> None:
    records = [
        record("sda", ErasureState.ERASED, method="Discard"),
        record("sdb", ErasureState.ERASING, method="Overwrite", percent=12, seconds=34),
        record("sdc", ErasureState.UNTOUCHED),
        record("sdd", ErasureState.FAILED, failure="worn out"),
    ]
    assert erasures_text(records) == (
        "erased: S-sda (Discard); not erased: S-sdd (worn out); begun: S-sdb (Overwrite 12 %, 34 s); untouched: S-sdc"
    )
    assert erasures_text([]) == ""
    many = [record(f"sd{number}", ErasureState.UNTOUCHED) for number in range(20)]
    assert erasures_text(many).endswith("S-sd7 and 12 more")


def test_an_erased_disk_that_holds_something_is_named() -> None:
    erased = record("sda", ErasureState.ERASED)
    assert not_blank([disk()], [erased]) == ""
    held = replace(disk(), state=DiskState.FOREIGN, contents="LVM")
    assert not_blank([held], [erased]) == "disk S-sda was erased, and holds LVM"
    assert not_blank([held], [record("sda", ErasureState.FAILED)]) == ""
