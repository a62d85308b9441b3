"""Trusted host keys, requested algorithms, and valid bytes from outside: without a server."""

from __future__ import annotations

import base64
from typing import Any, cast

import asyncssh
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded.machina.ssh import keys
from unbounded.machina.ssh.failures import GREETING_BYTES, Greeting, greeting, printable
from unbounded.machina.ssh.keys import KINDS, HostKey
from unbounded.machina.ssh.model import HostKeyPins, HostPort, host_port
from unbounded.machina.ssh.shell import LINE_BYTES, QUEUE_BYTES, FollowSession, LineBuffer, Tail

KEYS = [asyncssh.generate_private_key(kind) for kind in ("ssh-ed25519", "ssh-ed25519", "ecdsa-sha2-nistp256")]
ED25519, OTHER, ECDSA = (HostKey(key.get_algorithm(), key.public_data) for key in KEYS)


def line(key: HostKey) -> str:
    """Return the key in the form of a .pub file."""
    return f"{key.kind} {base64.b64encode(key.blob).decode()}"


def test_a_fingerprint_is_the_one_that_openssh_prints() -> None:
    assert [key.fingerprint for key in (ED25519, OTHER, ECDSA)] == [key.get_fingerprint() for key in KEYS]


def test_keys_of_the_spec_count_alone_then_the_pinned_one_then_any() -> None:
    pinned = ED25519.fingerprint
    assert keys.is_trusted(HostKeyPins((f"{line(ED25519)} root@host",), OTHER.fingerprint), ED25519)
    assert not keys.is_trusted(HostKeyPins((line(ED25519),), OTHER.fingerprint), OTHER)
    assert keys.is_trusted(HostKeyPins(fingerprint=pinned), ED25519)
    assert keys.is_trusted(HostKeyPins(fingerprint=pinned + "="), ED25519)
    assert not keys.is_trusted(HostKeyPins(fingerprint=pinned), OTHER)
    assert keys.is_trusted(HostKeyPins(), OTHER)
    pins = (HostKeyPins(), HostKeyPins((line(OTHER),)), HostKeyPins(fingerprint=pinned))
    assert [keys.is_first_use(one) for one in pins] == [True, False, False]


@pytest.mark.parametrize("bad", ["ssh-ed25519 AAAA", "ssh-dss AAAA", f"ssh-rsa {'A' * 40}", "nonsense", ""])
def test_unparsable_host_keys_trust_no_server(bad: str) -> None:
    pins = HostKeyPins((bad,))
    assert not keys.is_trusted(pins, ED25519)
    assert not keys.is_first_use(pins)
    assert keys.other_algorithms(pins, shown=[ED25519.kind], has=None) == ()


def test_pinned_host_key_algorithms_are_requested_first() -> None:
    everything = {name for names in KINDS.values() for name in names}
    both = HostKeyPins((line(ECDSA), line(ED25519)))
    assert keys.algorithms(both)[:2] == (ECDSA.kind, ED25519.kind)
    assert set(keys.algorithms(both)) == everything
    assert keys.algorithms(HostKeyPins(fingerprint="SHA256:x"), known_kind="ssh-rsa")[:2] == KINDS["ssh-rsa"]
    assert keys.other_algorithms(both, shown=[ECDSA.kind], has=None) == (ED25519.kind,)
    assert keys.other_algorithms(both, shown=[ECDSA.kind], has=["rsa-sha2-256"]) == ()
    by_fingerprint = HostKeyPins(fingerprint="SHA256:x")
    assert keys.other_algorithms(by_fingerprint, shown=["ssh-ed25519"], has=["ssh-ed25519", "rsa-sha2-256"]) == (
        "rsa-sha2-256",
    )
    assert keys.other_algorithms(by_fingerprint, shown=list(KINDS), has=None) == ()
    assert keys.other_algorithms(HostKeyPins(), shown=["ssh-ed25519"], has=None) == ()
    assert "ssh-rsa" not in everything  # it signs with SHA-1


@given(st.binary(max_size=64))
def test_no_bytes_break_what_reads_a_key(blob: bytes) -> None:
    kind = keys.key_type(blob)
    assert kind is None or len(kind) <= len(blob)


@pytest.mark.parametrize(
    ("said", "means"),
    [
        (b"", Greeting.UNFINISHED),
        (b"SSH-2.0-Open", Greeting.UNFINISHED),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Greeting.SSH),
        (b"SSH-1.99-Cisco\n", Greeting.SSH),
        (b"Welcome\r\nSSH-2.0-x\r\n", Greeting.SSH),
        (b"SSH-1.5-x\n", Greeting.OTHER),
        (b"HTTP/1.1 400 Bad Request\r\n", Greeting.OTHER),
        (b"Exceeded MaxStartups\r\n", Greeting.TOO_MANY),
        (b"220 mail ESMTP\r\n", Greeting.UNFINISHED),
        (b"x" * GREETING_BYTES, Greeting.OTHER),
    ],
    ids=lambda value: value.name if isinstance(value, Greeting) else None,
)
def test_what_a_server_says_first(said: bytes, means: Greeting) -> None:
    assert greeting(said) is means


@given(st.binary(max_size=400))
def test_what_is_quoted_is_one_short_printable_line(said: bytes) -> None:
    assert len(printable(said)) <= 80
    assert printable(said).replace("…", "").isascii()
    assert printable(said).isprintable()


@pytest.mark.slow
@given(st.lists(st.binary(max_size=40)), st.integers(0, 30))
def test_a_tail_keeps_the_last_and_counts_the_rest(pieces: list[bytes], keep: int) -> None:
    tail = Tail(keep)
    for piece in pieces:
        tail.add(piece)
    all_of_it = b"".join(pieces)
    assert tail.end() == (all_of_it[max(0, len(all_of_it) - keep) :], max(0, len(all_of_it) - keep))


@pytest.mark.slow
@given(st.binary(max_size=200), st.lists(st.integers(0, 200)))
def test_lines_are_the_same_however_they_arrive(stream: bytes, cuts: list[int]) -> None:
    lines, found, at = LineBuffer(), [], 0
    for cut in sorted(cuts):
        found += lines.add(stream[at:cut])
        at = max(at, cut)
    found += lines.add(stream[at:])
    assert found + lines.end() == (stream.removesuffix(b"\n").split(b"\n") if stream else [])


@pytest.mark.parametrize("size", [LINE_BYTES, LINE_BYTES + 1, 3 * LINE_BYTES, 3 * LINE_BYTES + 5])
def test_a_line_that_is_too_long_comes_in_pieces(size: int) -> None:
    for step in (size, 1000):
        lines, found = LineBuffer(), []
        for at in range(0, size, step):
            found += lines.add(b"x" * min(step, size - at))
        found += lines.add(b"\nnext\n")
        assert max(map(len, found)) <= LINE_BYTES
        assert b"".join(found) == b"x" * size + b"next"
        assert found[-1] == b"next"


@pytest.mark.slow
@given(
    st.one_of(
        st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(str), st.text("a1.-", max_size=9).map("h".__add__)
    ),
    st.integers(1, 65535),
)
def test_an_address_is_read_as_it_is_written(host: str, port: int) -> None:
    assert host_port(str(HostPort(host, port))) == HostPort(host, port)
    assert host_port(host) == HostPort(host, 22)


@pytest.mark.parametrize(
    "bad", ["", ":22", "h:", "h:0", "h:65536", "h:x", "h:22:22", "[::1", "[::1]22", "[h]:22", "[::1]:", "h:²"]
)
def test_what_is_no_address_is_said(bad: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        host_port(bad)


@pytest.mark.slow
@given(st.text(max_size=30))
def test_no_text_breaks_what_reads_an_address(text: str) -> None:
    try:
        read = host_port(text)
    except ValueError:
        return
    assert read.host
    assert 1 <= read.port <= 65535


class Channel:
    """Counts how often its host was paused and resumed."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def pause_reading(self) -> None:
        self.told.append("wait")

    def resume_reading(self) -> None:
        self.told.append("go on")


async def test_a_host_that_says_more_than_is_taken_is_held_back() -> None:
    channel, session = Channel(), FollowSession()
    session.connection_made(cast(Any, channel))
    session.data_received(b"line\n" * 10, None)
    assert channel.told == []
    session.data_received(b"line\n" * (QUEUE_BYTES // 5), None)
    assert channel.told == ["wait"]
    while session.waiting:
        assert session.take() == b"line"
    assert channel.told[1] == "go on"
