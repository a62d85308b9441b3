"""The files of an upgrade: those that are read back, and those of a later agent, which stay unread."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.agent.upgrade.making import host_with, place_release
from unbounded.agent.paths import HostPaths
from unbounded.agent.upgrade.releases import Colour, ReleaseSlots
from unbounded.agent.upgrade.trial import FailedRelease, RollbackNote, Trial, TrialProgress, TrialStore
from unbounded.api.failures import Rejected

TRIAL = Trial(
    progress=TrialProgress.STAGED, release=Colour.GREEN, operation="up", uid="u1", sha256="ab" * 32, window_s=9
)


@pytest.fixture
def store(tmp_path: Path) -> TrialStore:
    return TrialStore(HostPaths(tmp_path))


def test_what_is_written_is_read_back(store: TrialStore, tmp_path: Path) -> None:
    assert store.read() is None
    store.write(TRIAL)
    assert store.read() == TRIAL
    assert HostPaths(tmp_path).upgrade.stat().st_mode & 0o777 == 0o600
    store.forget()
    assert store.read() is None


def test_trial_file_of_a_later_agent_is_rejected_and_unchanged_during_trial(store: TrialStore, tmp_path: Path) -> None:
    releases = ReleaseSlots(host_with(tmp_path, "1"))
    releases.switch(place_release(releases, "2"))
    store.write(TRIAL)
    path = HostPaths(tmp_path).upgrade
    later = json.dumps({"format": 2, "progress": {"whatever": 1}})
    path.write_text(later)
    for call in (store.read, lambda: store.write(TRIAL)):
        with pytest.raises(Rejected, match=r"agent-upgrade\.json has format 2, but this version supports 1"):
            call()
    assert path.read_text() == later


def test_trial_file_of_a_later_agent_is_overwritten_after_its_trial(store: TrialStore, tmp_path: Path) -> None:
    host_with(tmp_path, "1")
    store.write(TRIAL)
    HostPaths(tmp_path).upgrade.write_text(json.dumps({"format": 2, "progress": {"whatever": 1}}))
    store.write(TRIAL)
    assert store.read() == TRIAL


def test_fields_of_a_later_agent_in_a_known_format_do_no_harm(store: TrialStore, tmp_path: Path) -> None:
    store.write(TRIAL)
    path = HostPaths(tmp_path).upgrade
    path.write_text(json.dumps(json.loads(path.read_text()) | {"more": True}))
    assert store.read() == TRIAL


@pytest.mark.parametrize(
    "trash", ["", "{", "[]", '{"format":1,"progress":"Nonsense"}'], ids=["empty", "cut", "list", "word"]
)
def test_invalid_trial_file_is_rejected_and_may_be_replaced(store: TrialStore, tmp_path: Path, trash: str) -> None:
    store.write(TRIAL)
    HostPaths(tmp_path).upgrade.write_text(trash)
    with pytest.raises(Rejected, match=r"agent-upgrade\.json"):
        store.read()
    store.write(TRIAL)
    assert store.read() == TRIAL


@pytest.mark.parametrize(
    ("text", "back"),
    [
        pytest.param("1 green it hung\n", RollbackNote("green", "it hung"), id="whole"),
        pytest.param("1 green\n", RollbackNote("green", "the recovery script reports no cause"), id="no-cause"),
        pytest.param(
            "2 x y\n",
            RollbackNote("", "the recovery script of another version rolled it back; its log has the cause"),
            id="later",
        ),
        pytest.param(
            "",
            RollbackNote("", "the recovery script of another version rolled it back; its log has the cause"),
            id="empty",
        ),
    ],
)
def test_rollback_note_is_read_from_each_writer(
    store: TrialStore, tmp_path: Path, text: str, back: RollbackNote
) -> None:
    store.write(TRIAL)
    assert store.rollback_note() is None
    HostPaths(tmp_path).upgrade_signal.write_text(text)
    assert store.rollback_note() == back


def test_failed_releases_are_remembered_until_they_work(store: TrialStore) -> None:
    store.add_failed("ab" * 32, FailedRelease(version="2", cause="it hung"))
    store.add_failed("", FailedRelease(cause="no digest is known"))
    assert dict(store.failed()) == {"ab" * 32: FailedRelease(version="2", cause="it hung")}
    store.clear_failed("ab" * 32)
    store.clear_failed("ab" * 32)
    assert dict(store.failed()) == {}


@pytest.mark.slow
def test_only_the_last_failed_releases_are_kept(store: TrialStore) -> None:
    for number in range(70):
        store.add_failed(f"{number:064}", FailedRelease(cause="x"))
    assert len(store.failed()) == 64
    assert f"{69:064}" in store.failed()
    assert f"{5:064}" not in store.failed()


def test_failed_releases_of_a_later_agent_are_left_alone(store: TrialStore, tmp_path: Path) -> None:
    store.add_failed("ab" * 32, FailedRelease(cause="x"))
    path = HostPaths(tmp_path).failed_digests
    path.write_text('{"format":7}')
    assert dict(store.failed()) == {}
    with pytest.raises(Rejected, match="format 7"):
        store.add_failed("cd" * 32, FailedRelease(cause="x"))
    assert path.read_text() == '{"format":7}'
