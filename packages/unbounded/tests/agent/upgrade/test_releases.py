"""Blue and green: which slot is free, what a link may mean, and that a cut anywhere leaves an agent that works."""

from __future__ import annotations

import itertools
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agent.upgrade.making import host_with, make_release, place_release, version_in_use
from unbounded.agent.paths import BINARY, HostPaths
from unbounded.agent.upgrade.releases import (
    Colour,
    ReleaseInfo,
    ReleaseLinks,
    ReleaseSlots,
    content_digest,
    copy_running,
)
from unbounded.api.failures import Rejected, Transient

BLUE, GREEN = Colour.BLUE, Colour.GREEN


def test_the_first_release_is_in_use_and_the_last_good_one(tmp_path: Path) -> None:
    paths = host_with(tmp_path, "1")
    assert ReleaseSlots(paths).selection() == ReleaseLinks(BLUE, BLUE)
    ran = subprocess.run([paths.command, "version"], capture_output=True, text=True, check=True)
    assert ran.stdout == "unbounded-agent 1\n"


def test_links_are_relative_so_that_they_hold_wherever_the_root_is_mounted(tmp_path: Path) -> None:
    paths = host_with(tmp_path, "1")
    assert os.readlink(paths.current) == "../lib/unbounded-agent/blue/unbounded-agent"
    assert os.readlink(paths.command) == "unbounded-agent-current"


def test_an_absolute_link_of_the_host_means_the_same(tmp_path: Path) -> None:
    paths = host_with(tmp_path, "1")
    paths.current.unlink()
    paths.current.symlink_to("/usr/local/lib/unbounded-agent/blue/unbounded-agent")
    assert ReleaseSlots(paths).selection().current is BLUE


def test_a_link_that_leads_elsewhere_means_no_slot(tmp_path: Path) -> None:
    paths = host_with(tmp_path, "1")
    paths.current.unlink()
    paths.current.symlink_to("/opt/other/unbounded-agent")
    assert ReleaseSlots(paths).selection() == ReleaseLinks(None, BLUE)


def test_a_trial_ends_with_the_new_release_as_the_last_good_one(tmp_path: Path) -> None:
    paths = host_with(tmp_path, "1")
    releases = ReleaseSlots(paths)
    releases.switch(place_release(releases, "2"))
    assert releases.selection() == ReleaseLinks(GREEN, BLUE)
    assert version_in_use(paths) == "2"
    releases.prove(GREEN)
    assert releases.selection() == ReleaseLinks(GREEN, GREEN)
    assert releases.about(releases.free()).version == "1"


def test_going_back_uses_the_last_good_release(tmp_path: Path) -> None:
    paths = host_with(tmp_path, "1")
    releases = ReleaseSlots(paths)
    releases.switch(place_release(releases, "2"))
    releases.roll_back(GREEN)
    assert releases.selection() == ReleaseLinks(BLUE, BLUE)
    assert releases.free() is GREEN


def test_what_was_taken_back_cannot_be_proven(tmp_path: Path) -> None:
    releases = ReleaseSlots(host_with(tmp_path, "1"))
    releases.switch(place_release(releases, "2"))
    releases.roll_back(GREEN)
    with pytest.raises(Transient, match="it was rolled back"):
        releases.prove(GREEN)
    assert releases.selection() == ReleaseLinks(BLUE, BLUE)


def test_what_is_proven_is_not_taken_back(tmp_path: Path) -> None:
    releases = ReleaseSlots(host_with(tmp_path, "1"))
    releases.switch(place_release(releases, "2"))
    releases.prove(GREEN)
    releases.roll_back(GREEN)
    assert releases.selection() == ReleaseLinks(GREEN, GREEN)


def test_no_slot_is_free_while_a_release_is_on_trial(tmp_path: Path) -> None:
    releases = ReleaseSlots(host_with(tmp_path, "1"))
    releases.switch(place_release(releases, "2"))
    with pytest.raises(Transient, match="on trial"):
        place_release(releases, "3")
    for colour in Colour:
        with pytest.raises(Transient):
            releases.clear(colour)
    assert releases.about(BLUE).version == "1"
    assert releases.about(GREEN).version == "2"


def test_a_release_that_cannot_be_started_is_not_switched_to(tmp_path: Path) -> None:
    releases = ReleaseSlots(host_with(tmp_path, "1"))
    place_release(releases, "2")
    releases.executable(GREEN).chmod(0o644)
    with pytest.raises(Rejected, match="no executable release"):
        releases.switch(GREEN)
    assert releases.selection() == ReleaseLinks(BLUE, BLUE)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        pytest.param(lambda tree: (tree / BINARY).unlink(), "does not contain", id="none"),
        pytest.param(lambda tree: (tree / BINARY).chmod(0o644), "not executable", id="not-executable"),
    ],
)
def test_what_is_no_release_is_not_placed(tmp_path: Path, spoil: Callable[[Path], None], words: str) -> None:
    paths = host_with(tmp_path, "1")
    releases = ReleaseSlots(paths)
    with releases.scratch() as scratch:
        make_release(scratch, "2")
        spoil(scratch)
        with pytest.raises(Rejected, match=words):
            releases.place(scratch, ReleaseInfo())
    assert [path.name for path in paths.releases.iterdir()] == ["blue"]


def test_a_copy_of_the_running_release_has_its_digest(tmp_path: Path) -> None:
    executable = make_release(tmp_path / "unpacked" / "unbounded-agent", "7")
    (tmp_path / "copy").mkdir()
    copy_running(executable, tmp_path / "copy")
    assert content_digest(tmp_path / "copy" / BINARY) == content_digest(executable)
    (tmp_path / "copy" / "_internal" / "library.so.1").write_text("another")
    assert content_digest(tmp_path / "copy" / BINARY) != content_digest(executable)


def test_the_slot_of_a_running_executable_is_known(tmp_path: Path) -> None:
    paths = host_with(tmp_path, "1")
    assert ReleaseSlots(paths).colour_of(paths.command) is BLUE
    assert ReleaseSlots(paths).colour_of(Path("/bin/sh")) is None


# Cuts

CHANGES = ("replace", "rename", "symlink", "unlink", "rmdir", "mkdir", "fsync", "open", "write")


class Cut(BaseException):
    """The power is gone."""


def _upgrade(paths: HostPaths, version: str, end: str) -> None:
    releases = ReleaseSlots(paths)
    colour = place_release(releases, version)
    releases.switch(colour)
    if end == "prove":
        releases.prove(colour)
    else:
        releases.roll_back(colour)


def _cut_after(patch: pytest.MonkeyPatch, left: int) -> None:
    """Let the call of the system that is `left` from now, and all after it, not happen."""
    count = itertools.count(1)

    def cutting(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if next(count) >= left:
                raise Cut
            return real(*arguments, **named)

        return call

    for name in CHANGES:
        patch.setattr(os, name, cutting(getattr(os, name)))


def _run_cut(paths: HostPaths, version: str, end: str, left: int) -> bool:
    """Return whether the upgrade was interrupted."""
    with pytest.MonkeyPatch.context() as patch:
        _cut_after(patch, left)
        try:
            _upgrade(paths, version, end)
        except Cut:
            return True
    return False


def _sound(paths: HostPaths, known: set[str]) -> None:
    """Whatever happened: both links lead to whole releases, and the last good one was proven."""
    releases = ReleaseSlots(paths)
    selection = releases.selection()
    assert releases.works(selection.current)
    assert releases.works(selection.last_good)
    for colour in (selection.current, selection.last_good):
        assert colour is not None
        version = releases.executable(colour).read_text().split()[-1]
        library = paths.release(colour) / "_internal" / "library.so"
        assert library.read_text() == f"library of {version}"
    assert selection.last_good is not None
    assert releases.executable(selection.last_good).read_text().split()[-1] in known


@pytest.mark.slow
@pytest.mark.parametrize("end", ["prove", "go_back"])
def test_crash_at_any_file_operation_leaves_working_links(tmp_path: Path, end: str) -> None:
    for left in itertools.count(1):
        paths = host_with(tmp_path / str(left), "1")
        cut = _run_cut(paths, "2", end, left)
        proven = {"1"} if cut and end == "go_back" else {"1", "2"}
        _sound(paths, proven)
        _recover(paths)
        _upgrade(paths, "3", "prove")
        assert version_in_use(paths) == "3"
        if not cut:
            assert left > 30, "the upgrade has more steps than this"
            return


def _recover(paths: HostPaths) -> None:
    """Do what the recovery script does."""
    releases = ReleaseSlots(paths)
    selection = releases.selection()
    if selection.on_trial and selection.current is not None:
        releases.roll_back(selection.current)


STEP = st.tuples(st.sampled_from(["prove", "go_back"]), st.integers(1, 60), st.booleans())


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=6))
def test_any_row_of_upgrades_and_cuts_keeps_a_proven_release(steps: list[tuple[str, int, bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = host_with(Path(folder), "0")
        releases = ReleaseSlots(paths)
        proven = {"0"}
        for number, (end, left, recovers) in enumerate(steps, 1):
            cut = True
            if not releases.selection().on_trial:
                cut = _run_cut(paths, str(number), end, left)
            selection = releases.selection()
            if end == "prove" and not selection.on_trial and version_in_use(paths) == str(number):
                proven.add(str(number))
            assert cut or not selection.on_trial
            _sound(paths, proven)
            if recovers:
                _recover(paths)
                assert version_in_use(paths) in proven
