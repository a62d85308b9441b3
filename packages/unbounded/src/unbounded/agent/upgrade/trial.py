"""Records of upgrades on disk: the release on trial, the recovery script's message, and releases that failed here.

Each file has a format number. Fields may be added under the same number: an earlier agent ignores them, and can prove
itself after an upgrade back to it. A change that an earlier agent would misread raises the number. The file then stays
unchanged while its trial lasts, and each reader reports that. An upgrade back to such an agent is rolled back. The
rollback depends on none of these files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from unbounded.agent.paths import HostPaths
from unbounded.agent.upgrade.releases import Colour, ReleaseSlots
from unbounded.api.failures import Rejected
from unbounded.kube.durable_files import remove_durably, write_durably

FORMAT: Final = 1
_MOST_FAILED: Final = 64
_MOST_WORDS: Final = 400

T = TypeVar("T")


class TrialProgress(StrEnum):
    STAGED = "Staged"  # the release is in its slot
    VERIFIED = "Verified"  # and reports its version
    SWITCHING = "Switching"  # from here on the links show the progress


class Trial(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The latest upgrade. Its record stays until the next one, so that its result can be read.

    Args:
        operation, uid: of the MachineOperation; empty where `start` brought the release.
        release, former: slots of the new version and of the one before.
        version, former_version: as these report themselves.
        sha256: of the archive.
        window_s: for which the new version has to stay healthy; overdue_s: time of its rollback, from the switch on.
    """

    progress: TrialProgress
    release: Colour
    format: int = FORMAT
    operation: str = ""
    uid: str = ""
    former: Colour | None = None
    version: str = ""
    former_version: str = ""
    sha256: str = ""
    window_s: int = 0
    overdue_s: int = 0


@dataclass(frozen=True)
class RollbackNote:
    """The recovery script's message: the slot that it took out of use, and the cause."""

    refused: str
    cause: str


class FailedRelease(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    version: str = ""
    cause: str = ""


class FailedReleases(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Releases that failed on this host.

    Args:
        releases: by the digest of their archives, the latest one last.
    """

    format: int = FORMAT
    releases: dict[str, FailedRelease] = {}


class _Numbered(msgspec.Struct):
    format: int = FORMAT


class TrialStore:
    """Record files of one host's upgrades."""

    def __init__(self, paths: HostPaths) -> None:
        self._paths = paths

    # The trial

    def read(self) -> Trial | None:
        """Return the latest trial; None without one. Raises Rejected for a file that this version cannot read."""
        return _read(self._paths.upgrade, Trial)

    def write(self, trial: Trial) -> None:
        """Write the trial. Raises Rejected instead of replacing a later version's record of an open trial."""
        try:
            self.read()
        except _Unreadable:
            pass
        except Rejected:
            if ReleaseSlots(self._paths).selection().on_trial:
                raise
        self._paths.etc.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(self._paths.upgrade, msgspec.json.encode(trial))

    def forget(self) -> None:
        """Remove the records of upgrade and rollback."""
        self._paths.etc.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (self._paths.upgrade, self._paths.upgrade_signal):
            remove_durably(path)
        self.clear_notes()

    # The rollback

    def rollback_note(self) -> RollbackNote | None:
        """Return the recovery script's message since the last switch; None without one."""
        try:
            text = self._paths.upgrade_signal.read_text(errors="replace")
        except OSError:
            return None
        number, _, rest = text.strip().partition(" ")
        colour, _, cause = rest.partition(" ")
        if not number.isdecimal() or int(number) > FORMAT:
            return RollbackNote("", "the recovery script of another version rolled it back; its log has the cause")
        return RollbackNote(colour, cause or "the recovery script reports no cause")

    # Notes for the recovery script

    def begin_trial(self) -> None:
        """Remove records of an earlier trial, so that they do not count for the next one."""
        self._paths.etc.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_durably(self._paths.upgrade_signal)
        self.clear_notes()

    def clear_notes(self) -> None:
        for name in ("starts", "ended", "stderr", "trouble"):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                remove_durably(self._paths.upgrade_notes / name)

    def starts(self) -> int:
        """Return the number of starts of the release on trial."""
        try:
            return int((self._paths.upgrade_notes / "starts").read_text())
        except (OSError, ValueError):
            return 0

    def record_problem(self, words: str) -> None:
        """Record why the release on trial is not proven; a rollback includes this in its cause."""
        line = " ".join(words.split())[:_MOST_WORDS]
        self._paths.upgrade_notes.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(self._paths.upgrade_notes / "trouble", f"{line}\n".encode())

    # Failed releases

    def failed(self) -> Mapping[str, FailedRelease]:
        """Return the releases that failed on this host, by digest; none where the file is a later version's."""
        with contextlib.suppress(Rejected):
            return (_read(self._paths.failed_digests, FailedReleases) or FailedReleases()).releases
        return {}

    def add_failed(self, sha256: str, failed: FailedRelease) -> None:
        """Record a release that failed; a second record of the same digest changes nothing.

        Raises:
            Rejected: the file is a later version's.
        """
        known = dict(self._failed_to_change())
        if not sha256 or known.get(sha256) == failed:
            return
        known.pop(sha256, None)
        known[sha256] = failed
        self._write_failed(dict(list(known.items())[-_MOST_FAILED:]))

    def clear_failed(self, sha256: str) -> None:
        """Remove the record of a release that has worked since."""
        known = dict(self._failed_to_change())
        if known.pop(sha256, None) is not None:
            self._write_failed(known)

    def _failed_to_change(self) -> Mapping[str, FailedRelease]:
        with contextlib.suppress(_Unreadable):
            return (_read(self._paths.failed_digests, FailedReleases) or FailedReleases()).releases
        return {}

    def _write_failed(self, releases: dict[str, FailedRelease]) -> None:
        self._paths.etc.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(self._paths.failed_digests, msgspec.json.encode(FailedReleases(releases=releases)))


class _Unreadable(Rejected):
    """A damaged file that no version has written, which may be replaced."""


def _read(path: Path, kind: type[T]) -> T | None:
    """Return the content; None where there is no such file.

    Raises:
        Rejected: the file is a later version's, or damaged.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        number = msgspec.json.decode(content, type=_Numbered).format
        if number > FORMAT:
            text = f"{path} has format {number}, but this version supports {FORMAT}: a later agent wrote it; it stays"
            raise Rejected(text)
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise _Unreadable(f"{path}: {error}") from error
