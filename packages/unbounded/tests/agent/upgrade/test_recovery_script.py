"""The way back, run by sh: on real links, with a systemctl that records its calls."""

from __future__ import annotations

import fcntl
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.agent.upgrade.making import host_with, place_release, version_in_use
from unbounded.agent.paths import DAEMON_UNIT, RECOVERY_TIMER, HostPaths
from unbounded.agent.upgrade.releases import Colour, ReleaseSlots
from unbounded.agent.upgrade.trial import RollbackNote, TrialStore
from unbounded.agent.upgrade.units import MOST_STARTS, install_units

pytestmark = pytest.mark.slow

SYSTEMCTL = """\
#!/bin/sh
case $1 in
show) cat {folder}/state ;;
*) echo "$@" >>{folder}/asked; [ ! -e {folder}/refuses ] || { rm {folder}/refuses; exit 1; } ;;
esac
"""

JOURNALCTL = """\
#!/bin/sh
case "$*" in
--sync) exit 1 ;;
*"_SYSTEMD_INVOCATION_ID=i1"*) cat {folder}/journal ;;
esac
"""


class ScriptedHost:
    """Folders with two releases, the second one on trial, and the script between them."""

    def __init__(self, root: Path, *, state: str = "active") -> None:
        self.paths = host_with(root / "host", "1")
        self.releases = ReleaseSlots(self.paths)
        self.store = TrialStore(self.paths)
        install_units(self.paths)
        self.tools = root / "tools"
        self.tools.mkdir()
        (self.tools / "state").write_text(f"{state}\n")
        for name, text in (("systemctl", SYSTEMCTL), ("journalctl", JOURNALCTL)):
            (self.tools / name).write_text(text.replace("{folder}", shlex.quote(str(self.tools))))
            (self.tools / name).chmod(0o755)

    def put_on_trial(self) -> None:
        self.releases.switch(place_release(self.releases, "2"))

    def run(self, mode: str, **environment: str) -> subprocess.CompletedProcess[str]:
        settings = {
            "PATH": f"{self.tools}:{os.environ['PATH']}",
            "UNBOUNDED_AGENT_RECOVERY_TRIES": "0 0",
            "UNBOUNDED_AGENT_RECOVERY_PAUSE": "0",
        }
        return subprocess.run(
            [self.paths.recovery_script, mode],
            env=settings | environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )

    @property
    def asked(self) -> list[str]:
        path = self.tools / "asked"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def host(tmp_path: Path) -> ScriptedHost:
    return ScriptedHost(tmp_path)


@pytest.fixture
def failed(tmp_path: Path) -> ScriptedHost:
    return ScriptedHost(tmp_path, state="failed")


ARMED = f"restart --no-block {RECOVERY_TIMER}"
RESTARTED = [f"reset-failed {DAEMON_UNIT}", f"restart --no-block {DAEMON_UNIT}"]


def test_a_crash_loop_is_taken_back_with_its_cause(failed: ScriptedHost) -> None:
    failed.put_on_trial()
    failed.run("start")
    failed.run("stopped", SERVICE_RESULT="exit-code", EXIT_STATUS="3")
    failed.run("recover")
    assert version_in_use(failed.paths) == "1"
    assert failed.asked == [ARMED, *RESTARTED]
    assert failed.store.rollback_note() == RollbackNote("green", "it failed again and again; it ended with status 3")


def test_timed_out_trial_is_rolled_back_with_its_problem(host: ScriptedHost) -> None:
    host.put_on_trial()
    host.store.record_problem("the API server gave\nno answer")
    host.run("recover")
    assert version_in_use(host.paths) == "1"
    assert host.asked == RESTARTED
    assert host.store.rollback_note() == RollbackNote(
        "green", "it was not proven in time; the API server gave no answer"
    )


@pytest.mark.parametrize(
    ("result", "status", "words"),
    [
        pytest.param("watchdog", "ABRT", "it hung: the watchdog killed it", id="watchdog"),
        pytest.param("timeout", "TERM", "it was not ready in time", id="timeout"),
        pytest.param("signal", "SEGV", "it was killed by SIGSEGV", id="signal"),
        pytest.param("core-dump", "ABRT", "it was killed by SIGABRT", id="core-dump"),
        pytest.param("success", "0", "it ended with status 0", id="success"),
        pytest.param("oom-kill", "KILL", "it ended with oom-kill", id="other"),
    ],
)
def test_how_the_daemon_ended_becomes_part_of_the_cause(
    host: ScriptedHost, result: str, status: str, words: str
) -> None:
    host.put_on_trial()
    host.run("start")
    host.run("stopped", SERVICE_RESULT=result, EXIT_STATUS=status)
    host.run("recover")
    assert host.store.rollback_note() == RollbackNote("green", f"it was not proven in time; {words}")


def crashed(host: ScriptedHost, journal: str) -> str:
    """Return the cause for the stderr of a release that crashed."""
    (host.tools / "journal").write_text(journal)
    host.put_on_trial()
    host.run("start")
    host.run("stopped", SERVICE_RESULT="exit-code", EXIT_STATUS="1", INVOCATION_ID="i1")
    host.run("recover")
    back = host.store.rollback_note()
    assert back is not None
    return back.cause.partition("; it ended with status 1")[2]


def test_what_the_daemon_wrote_last_becomes_part_of_the_cause(failed: ScriptedHost) -> None:
    trace = 'Traceback (most recent call last):\n  File "main.py", line 3, in <module>\n\timport nöthing\n'
    said = crashed(failed, "one\n" * 200 + trace + "ModuleNotFoundError: No module named 'n'\n")
    assert said.startswith("; it wrote last: one one Traceback (most recent call last): File")
    assert said.endswith("import nthing ModuleNotFoundError: No module named 'n'")


def test_rollback_cause_has_only_the_end_of_the_daemon_output(failed: ScriptedHost) -> None:
    said = crashed(failed, "".join(f"{number} {'x y ' * 100}\n" for number in range(9)))
    assert 290 < len(said.removeprefix("; it wrote last: ")) <= 300
    assert said.endswith("x y")


@pytest.mark.parametrize(
    "secret",
    [
        "abcdef.0123456789abcdef",
        "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJub2RlIn0.c2lnbmF0dXJl",
        "https://user:hunter2@mirror/x",
        "https://blob.example/agent.tar.gz?sv=1&sig=hunter2",
        "Authorization: Bearer hunter2",
        'Authorization": "Basic hunter2"',
        "password=hunter2",
        '{"token": "hunter2"}',
        "clientSecret: hunter2",
        "-----BEGIN EC PRIVATE KEY----- hunter2",
        "MHcCAQEEIBn/hunter2+" + "x" * 40,
    ],
)
def test_credentials_in_what_the_daemon_wrote_are_hidden(failed: ScriptedHost, secret: str) -> None:
    said = crashed(failed, f"before\n{secret}\nafter {secret}\nend\n" if "+" not in secret else f"{secret}\nend\n")
    assert said.endswith("end")
    for part in ("hunter2", "0123456789abcdef", "c2lnbmF0dXJl"):
        assert part not in said
    for path in (failed.paths.upgrade_notes / "stderr", failed.paths.upgrade_signal):
        assert "hunter2" not in path.read_text()
        assert path.stat().st_mode & 0o777 == 0o600


def test_without_a_journal_the_cause_says_the_rest(failed: ScriptedHost) -> None:
    (failed.tools / "journalctl").write_text("#!/bin/sh\nexit 1\n")
    assert crashed(failed, "") == ""


def test_output_of_an_earlier_trial_is_not_reported_for_a_later_one(failed: ScriptedHost) -> None:
    failed.paths.upgrade_notes.mkdir(parents=True)
    (failed.paths.upgrade_notes / "stderr").write_text("of another release\n")
    failed.put_on_trial()
    failed.run("start")
    failed.run("recover")
    assert failed.store.rollback_note() == RollbackNote("green", "it failed again and again")


def test_daemon_exit_before_the_trial_is_no_cause_of_the_rollback(host: ScriptedHost) -> None:
    host.put_on_trial()
    host.run("stopped", SERVICE_RESULT="timeout", EXIT_STATUS="KILL")
    host.run("recover")
    assert host.store.rollback_note() == RollbackNote("green", "it was not proven in time")


def test_release_with_too_many_starts_is_rolled_back_before_the_next(host: ScriptedHost) -> None:
    host.put_on_trial()
    for number in range(1, MOST_STARTS + 1):
        host.run("start")
        assert host.store.starts() == number
        assert version_in_use(host.paths) == "2"
    host.run("stopped", SERVICE_RESULT="exit-code", EXIT_STATUS="1")
    host.run("start")
    assert version_in_use(host.paths) == "1"
    assert host.asked == [ARMED], "the unit is being started: it must not be restarted from within"
    cause = f"it was started {MOST_STARTS} times without being proven; it ended with status 1"
    assert host.store.rollback_note() == RollbackNote("green", cause)


def test_interrupted_rollback_is_completed_at_the_next_start(host: ScriptedHost) -> None:
    host.put_on_trial()
    host.paths.upgrade_signal.parent.mkdir(parents=True, exist_ok=True)
    host.paths.upgrade_signal.write_text("1 green it failed again and again\n")
    host.run("start")
    assert version_in_use(host.paths) == "1"
    assert host.store.rollback_note() == RollbackNote("green", "it failed again and again")


def test_starts_of_a_proven_release_are_not_counted(host: ScriptedHost) -> None:
    for _ in range(MOST_STARTS + 2):
        host.run("start")
    assert host.store.starts() == 0
    assert version_in_use(host.paths) == "1"


def test_late_recovery_timer_ignores_a_proven_release(host: ScriptedHost) -> None:
    host.run("recover")
    assert host.asked == []
    assert host.store.rollback_note() is None


def test_a_proven_release_that_failed_is_started_again(failed: ScriptedHost) -> None:
    failed.run("recover")
    assert failed.asked == RESTARTED
    assert failed.store.rollback_note() is None


def test_nothing_is_taken_back_when_the_last_good_release_is_gone(host: ScriptedHost) -> None:
    host.put_on_trial()
    host.releases.executable(Colour.BLUE).unlink()
    host.run("recover")
    assert version_in_use(host.paths) == "2"


def test_a_restart_that_is_refused_is_tried_again(failed: ScriptedHost) -> None:
    failed.put_on_trial()
    (failed.tools / "refuses").touch()
    failed.run("recover")
    assert failed.asked[-1] == RESTARTED[-1]
    assert version_in_use(failed.paths) == "1"


@pytest.mark.parametrize("trash", ["", "many\n", "7x\n", "-3\n"], ids=["empty", "words", "mixed", "negative"])
def test_a_count_that_cannot_be_read_begins_anew(host: ScriptedHost, trash: str) -> None:
    host.put_on_trial()
    host.paths.upgrade_notes.mkdir(parents=True)
    (host.paths.upgrade_notes / "starts").write_text(trash)
    host.run("start")
    assert host.store.starts() == 1


def test_what_a_note_says_cannot_become_more_than_words(host: ScriptedHost, tmp_path: Path) -> None:
    host.put_on_trial()
    host.store.record_problem(f"$(touch {tmp_path}/owned) `touch {tmp_path}/owned` \x1b[31m'\"; touch {tmp_path}/owned")
    host.run("recover")
    assert not (tmp_path / "owned").exists()
    assert "\x1b" not in host.paths.upgrade_signal.read_text()
    assert "$(touch" in host.paths.upgrade_signal.read_text()


def test_a_folder_with_blanks_and_quotes_in_its_name_is_no_trouble(tmp_path: Path) -> None:
    host = ScriptedHost(tmp_path / "a b'c")
    host.put_on_trial()
    host.run("recover")
    assert version_in_use(host.paths) == "1"


def test_the_script_is_what_posix_calls_sh(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    install_units(paths)
    for shell in ("sh", "bash"):
        subprocess.run([shell, "-n", paths.recovery_script], check=True)


def test_stopped_lock_holder_does_not_prevent_the_rollback(host: ScriptedHost) -> None:
    host.put_on_trial()
    with host.paths.release_lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        script = host.paths.recovery_script
        script.write_text(script.read_text().replace("flock -w 10", "flock -w 0"))
        host.run("recover")
    assert version_in_use(host.paths) == "1"
