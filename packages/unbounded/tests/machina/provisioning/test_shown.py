"""Display of a host's output: without secrets, in the words of a condition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded.kube.logs import SecretStr
from unbounded.machina.provisioning.model import (
    Finished,
    Install,
    Interrupted,
    NoRun,
    RunInProgress,
    end_of_text,
    failure_text,
    progress_text,
    redacted,
)
from unbounded.machina.provisioning.remote import TAIL_BYTES, command, parse_answer, payload, refusal_of

TOKEN = "abcdef.0123456789abcdef"
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA\nAAAA\n-----END OPENSSH PRIVATE KEY-----"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@pytest.mark.parametrize(
    ("said", "is_shown"),
    [
        (f"token {TOKEN}, then", "token [hidden], then"),
        (f"x={TOKEN}\n", "x=[hidden]\n"),
        ("a1.2.3 v1.34.0 10.0.0.1:6443", "a1.2.3 v1.34.0 10.0.0.1:6443"),
        (f"before\n{KEY}\nafter", "before\n[hidden]\nafter"),
        (f"before\n{KEY[:50]}", "before\n[hidden]"),
        (f"{KEY[40:]} after", "[hidden] after"),
        ("get https://me:pw@host/a?sig=x#y failed", "get https://host/a failed"),
        ('curl "http://h:1/p?x"', 'curl "http://h:1/p"'),
        ("Authorization: Bearer abc.def-ghi", "Authorization: Bearer [hidden]"),
        ("eyJhbGciOi.eyJpc3MiOi.c2lnbmF0dXJl ok", "[hidden] ok"),
        ("token-eyJhbGciOi.eyJpc3MiOi.c2ln, eyJ.a.b, eyJa.b", "token-[hidden], eyJ.a.b, eyJa.b"),
        ("http://a/b http://c/d?e", "http://a/b http://c/d"),
        ("\x1b[1;31mred\x1b[0m \x1b]0;title\x07 plain\x00\x08\r\nnext\rlast\u202e", "red  plain\nnext\nlast"),
        ("a bearer of news", "a bearer of news"),
    ],
    ids=[
        "token",
        "assigned",
        "versions",
        "key",
        "key begun",
        "key ended",
        "url",
        "query",
        "bearer",
        "jwt",
        "jwt in a word",
        "second url",
        "terminal",
        "word",
    ],
)
def test_what_looks_like_a_secret_is_hidden(said: str, is_shown: str) -> None:
    assert redacted(said) == is_shown


@pytest.mark.slow
@given(TEXT, st.from_regex(r"[a-z0-9]{6}\.[a-z0-9]{16}", fullmatch=True), TEXT)
def test_a_token_that_is_known_is_found_in_whatever_it_stands(before: str, token: str, after: str) -> None:
    text = redacted(before + token + after, [SecretStr(token)])
    assert token not in text
    assert token.partition(".")[2] not in text


@pytest.mark.slow
@given(st.text(st.sampled_from("abc\n -=:/.?@'\x1b[mé"), max_size=200))
def test_what_was_shown_once_is_shown_the_same_again(said: str) -> None:
    once = redacted(said)
    assert redacted(once) == once
    assert not set(once) & {"\x1b", "\r", "\0"}


def test_each_line_of_a_secret_is_hidden() -> None:
    secret = SecretStr("first line of it\nsecond line of it\nx\n")
    assert redacted("says second line of it, x", [secret]) == "says [hidden], x"


@pytest.mark.slow
@given(TEXT, st.integers(4, 100))
def test_an_end_fits_and_is_whole(text: str, most: int) -> None:
    end = end_of_text(text, most)
    assert len(end.encode()) <= most
    assert text.strip().endswith(end.removeprefix("…"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("11:02:33 INFO    progress  what='packages: systemd-container: 3 MB'", "packages: systemd-container: 3 MB"),
        ("11:02:33 INFO    progress  what=swap", "swap"),
        ("11:02:33 INFO    step started  step='node file system'", "node file system"),
        ("11:02:33 INFO    step completed  step=swap seconds=0.1", "swap: done"),
        ("11:02:33 WARNING the host waits  held_by=x", "the host waits held_by=x"),
        ("  [OK agent-config]\n", "[OK agent-config]"),
        ("11:02:33 INFO    progress  what='broken", "'broken"),
        ("", ""),
    ],
    ids=["agent", "word", "begun", "done", "warning", "check", "broken", "nothing"],
)
def test_lines_of_progress(line: str, words: str) -> None:
    assert progress_text(line) == words


def test_how_it_ended_names_the_last_complaint() -> None:
    tail = "downloading\nerror: https://u cannot be had\nerror: gave up\nfooter"
    assert failure_text(Finished("a", 1, tail)) == "the install script ended with status 1: error: gave up"
    assert failure_text(Finished("a", 3, "")) == "the install script ended with status 3"
    long = Finished("a", 1, "é" * 5000)
    assert len(failure_text(long)) < 400


@pytest.mark.parametrize(
    ("stdout", "found"),
    [
        (b"unbounded-install: none\n", NoRun()),
        (
            b"Welcome!\nunbounded-install: running ab 12\n11:00:00 INFO    progress  what=swap\n",
            RunInProgress("ab", 12, "swap"),
        ),
        (b"unbounded-install: running ab 12\n", RunInProgress("ab", 12)),
        (b"unbounded-install: finished ab 0\n", Finished("ab", 0)),
        (
            b"unbounded-install: finished ab 1\nunbounded-install: none\nx\n",
            Finished("ab", 1, "unbounded-install: none\nx"),
        ),
        (
            b"unbounded-install: interrupted ab killed\n",
            Interrupted("ab", "its process was killed before it ended"),
        ),
        (b"unbounded-install: finished ab\n", None),
        (b"unbounded-install: running ab -3\n", None),
        (b"hello\n", None),
        (b"", None),
    ],
    ids=["none", "greeting", "silent", "well", "says the same", "killed", "short", "negative", "else", "empty"],
)
def test_answers_are_read_or_not_understood(stdout: bytes, found: object) -> None:
    assert parse_answer(stdout) == found


@given(st.binary(max_size=200))
def test_no_answer_is_a_crash(stdout: bytes) -> None:
    found = parse_answer(b"unbounded-install: finished ab 1\n" + stdout)
    assert isinstance(found, Finished)
    assert (found.attempt, found.status) == ("ab", 1)
    parse_answer(stdout)


def test_a_tail_that_was_cut_begins_with_a_whole_line() -> None:
    """Its first line may begin within a token."""
    tail = b"cdef.0123456789abcdef\n" + b"x" * (TAIL_BYTES - 22)
    found = parse_answer(b"unbounded-install: finished ab 1\n" + tail)
    assert isinstance(found, Finished)
    assert set(found.tail) == {"x"}


def test_only_words_without_quotes_stand_in_a_command() -> None:
    for word in ("", "-x", "a b", "$(id)", "a'b", "../x", "a/b", "a" * 65, "a\n"):
        with pytest.raises(ValueError, match="is not allowed in a command"):
            command("observe_run.sh", word)


@pytest.mark.parametrize("name", ["A-B", "a", "", "A=B", "A B"])
def test_only_variables_are_set(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be set"):
        payload(Install("u", "a", SecretStr(""), "", {name: "x"}), limit_s=1)


def test_a_host_that_says_nothing_that_is_known_is_quoted_without_secrets() -> None:
    assert refusal_of(1, f"bad\nno: {TOKEN}\n".encode(), b"").words == "output of the host: no: [hidden]"
    assert refusal_of(1, b"", b"This account is currently not available.\n").words.startswith(
        "the user may not run commands"
    )
    assert refusal_of(7, b"", b"").words == "the command ended with status 7, without output"


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        (b"sudo: a password is required\n", "SudoRefused"),
        (b"ubuntu is not in the sudoers file.\n", "SudoRefused"),
        (b"flock is not installed on this host\n", "CommandMissing"),
        (b"tar: whole: Cannot write: No space left on device\n", "DiskFull"),
        (b"mkdir: cannot create directory: Read-only file system\n", "Failed"),
    ],
    ids=["password", "sudoers", "missing", "full", "read-only"],
)
def test_what_a_host_refuses_has_a_reason(stderr: bytes, reason: str) -> None:
    assert refusal_of(1, stderr, b"").reason == reason
