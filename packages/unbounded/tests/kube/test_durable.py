"""Durable writes on a disk that forgets: whole as before or as after at any moment, as after on return, and not without
any one of their syncs."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.losing_files import Content, LosingFiles, PowerLost, State
from unbounded.kube import durable_files

FOLDER, ELSEWHERE = Path("/etc/agent"), Path("/var/partial")
OLD = Content(b"old one", 0o600)
NEW = Content(b"new text", 0o640)
LINK_OLD, LINK_NEW = Content(target="blue/agent"), Content(target="green/agent")


@dataclass(frozen=True)
class Case:
    """One function: what it does to the file `it`, and what that has to be before and after."""

    work: Callable[[LosingFiles], object]
    before: Content | None
    after: Content | None


def _write(_files: LosingFiles) -> None:
    durable_files.write_durably(FOLDER / "it", NEW.data, mode=NEW.mode)


def _link(_files: LosingFiles) -> None:
    durable_files.link_durably(FOLDER / "it", LINK_NEW.target or "")


def _remove(_files: LosingFiles) -> bool:
    return durable_files.remove_durably(FOLDER / "it")


def _place(files: LosingFiles) -> None:
    fresh = ELSEWHERE / "fresh"
    descriptor = files.open(fresh, os.O_RDWR | os.O_CREAT, 0o640)
    files.fchmod(descriptor, NEW.mode)
    files.write(descriptor, NEW.data[:3])
    files.write(descriptor, NEW.data[3:6])
    files.write(descriptor, NEW.data[6:])
    durable_files.place_durably(descriptor, fresh, FOLDER / "it")
    files.close(descriptor)


CASES = {
    "a new file": Case(_write, None, NEW),
    "a file over another": Case(_write, OLD, NEW),
    "a file over a link": Case(_write, LINK_OLD, NEW),
    "a new link": Case(_link, None, LINK_NEW),
    "a link over another": Case(_link, LINK_OLD, LINK_NEW),
    "a link over a file": Case(_link, OLD, LINK_NEW),
    "a file taken away": Case(_remove, OLD, None),
    "a link taken away": Case(_remove, LINK_OLD, None),
    "a new file from elsewhere": Case(_place, None, NEW),
    "a file from elsewhere over another": Case(_place, OLD, NEW),
}
# The syncs that each needs: of the content, and of the folder. A third one, of the folder that a file came from, only
# spares the next start a name too many.
SYNCS = {name: 2 if case.work in (_write, _place) else 1 for name, case in CASES.items()}
REMOVED = [(name, number) for name, count in SYNCS.items() for number in range(count)]


@pytest.fixture
def put_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[LosingFiles], None]:
    return lambda files: monkeypatch.setattr(durable_files, "os", files)


def _disk(case: Case, **how: object) -> LosingFiles:
    files = LosingFiles(**how)  # type: ignore[arg-type]
    files.make(FOLDER, **({} if case.before is None else {"it": case.before}), other=OLD)
    files.make(ELSEWHERE)
    return files


def _violations(case: Case, put_in: Callable[[LosingFiles], None], ignored: frozenset[int]) -> Iterator[str]:
    """Everything that the power could do to the promise: at each call, and after the return."""
    whole = _disk(case, ignored=ignored)
    put_in(whole)
    case.work(whole)
    for state in whole.after_loss(FOLDER):
        if state.get("it") != case.after:
            yield f"returned, and {state}"
    for cut in range(whole.calls):
        files = _disk(case, cut_before=cut, ignored=ignored)
        put_in(files)
        with pytest.raises(PowerLost):
            case.work(files)
        yield from (f"cut before call {cut}: {state}" for state in files.after_loss(FOLDER) if not _sound(state, case))


def _sound(state: State, case: Case) -> bool:
    return state.get("it") in (case.before, case.after) and state.get("other") == OLD


@pytest.mark.parametrize("name", CASES)
def test_durable_change_is_atomic_and_survives_power_loss_after_return(
    name: str, put_in: Callable[[LosingFiles], None]
) -> None:
    assert next(_violations(CASES[name], put_in, frozenset()), None) is None


@pytest.mark.parametrize(("name", "number"), REMOVED, ids=[f"{name}, sync {number}" for name, number in REMOVED])
def test_without_any_one_of_its_syncs_the_promise_is_broken(
    name: str, number: int, put_in: Callable[[LosingFiles], None]
) -> None:
    assert next(_violations(CASES[name], put_in, frozenset({number})), None) is not None


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.work is not _place])
def test_repeated_work_after_a_kill_is_durable(name: str, put_in: Callable[[LosingFiles], None]) -> None:
    """A kill loses nothing that was written, and what the killed one did not sync is still open to a loss of power."""
    case = CASES[name]
    whole = _disk(case)
    put_in(whole)
    case.work(whole)
    for cut in range(whole.calls):
        files = _disk(case, cut_before=cut)
        put_in(files)
        with pytest.raises(PowerLost):
            case.work(files)
        files.restart()
        case.work(files)
        left = [state for state in files.after_loss(FOLDER) if state.get("it") != case.after]
        assert not left, (cut, left[0])


@pytest.mark.slow
def test_power_loss_model_produces_torn_writes(
    put_in: Callable[[LosingFiles], None],
) -> None:
    """The model is as bad as described: without both syncs of a write, halves and holes are under the new name."""
    case = CASES["a file over another"]
    files = _disk(case, ignored=frozenset({0, 1}))
    put_in(files)
    case.work(files)
    found = {content.data for state in files.after_loss(FOLDER) if (content := state.get("it")) is not None}
    assert {b"old one", b"new text", b"", b"new", b"\0\0\0 te"} <= found


@pytest.mark.parametrize("call", ["write", "fchmod", "fsync", "replace"])
def test_a_call_that_fails_leaves_what_was_there_and_nothing_beside_it(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept"
    durable_files.write_durably(path, b"old")

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space"):
        durable_files.write_durably(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["kept"]


def test_durable_removal_also_removes_unfinished_copies_of_that_file_only(tmp_path: Path) -> None:
    left = (".unfinished-kept0a1b2c3d", ".unfinished-keptffffffff")
    others = (
        ".unfinished-kept.sum0a1b2c3d",
        ".unfinished-kept",
        ".unfinished-keptsomebody",
        "kept0a1b2c3d",
        "other",
    )
    for name in ("kept", *left, *others):
        (tmp_path / name).touch()
    assert durable_files.remove_durably(tmp_path / "kept")
    assert sorted(os.listdir(tmp_path)) == sorted(others)


def test_durable_functions_on_a_real_disk_match_the_model(tmp_path: Path) -> None:
    durable_files.write_durably(tmp_path / "file", b"x" * 100_000, mode=0o640)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
    durable_files.link_durably(tmp_path / "link", "file")
    durable_files.link_durably(tmp_path / "link", "other")
    assert os.readlink(tmp_path / "link") == "other"
    (tmp_path / "folder").mkdir()
    durable_files.move_durably(tmp_path / "file", tmp_path / "folder" / "moved")
    assert (tmp_path / "folder" / "moved").read_bytes() == b"x" * 100_000
    assert durable_files.remove_durably(tmp_path / "link")
    assert not durable_files.remove_durably(tmp_path / "link")
    assert sorted(os.listdir(tmp_path)) == ["folder"]
