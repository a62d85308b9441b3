"""Hosts that are reached over SSH, without a socket: what goes wrong is a dial. For virtual time too.

`packages/unbounded/tests/machina/ssh/test_contract.py` holds them to what the real client does with real servers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from unbounded.machina.ssh import failures
from unbounded.machina.ssh.keys import read_key, unusable
from unbounded.machina.ssh.model import (
    FirstUse,
    Hop,
    Shell,
    SshCommandResult,
    SshReason,
    SshRejected,
    SshRoute,
    SshUncertain,
)

OURS = "SHA256:of-our-key"  # of every key that is offered, whatever it is

Answer = Callable[[str, bytes], SshCommandResult]
"""What a command, with its stdin, comes to."""


def done(_command: str, _stdin: bytes) -> SshCommandResult:
    return SshCommandResult(0, b"", b"")


@dataclass
class FakeHost:
    """A host or a bastion; its dials may be turned at any time.

    Attributes:
        fingerprint: of the key that it shows.
        down: what who knocks meets, such as Trouble.REFUSED.
        closed: what who logs in meets, where its port answers.
        refused: versions of Secrets whose keys it refuses.
        slow_s: before each of its answers.
        silent: it takes commands, and nothing comes back.
        reads_keys: who logs in opens the key first, as the real client does; otherwise any text is one.
        answer: what commands come to.
        lines: of a command that is followed, with the seconds before each.
        logins: the users that were logged in, as user@secret version.
        offered: how often a key was offered to it, refused or not.
        commands: what was sent, with its stdin.
        open: connections right now.
    """

    fingerprint: str = "SHA256:made-up"
    down: SshReason | None = None
    closed: SshReason | None = None
    refused: set[str] = field(default_factory=set)
    slow_s: float = 0.0
    silent: bool = False
    reads_keys: bool = False
    answer: Answer = done
    lines: list[tuple[float, bytes]] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    offered: int = 0
    commands: list[tuple[str, bytes]] = field(default_factory=list)
    open: int = 0
    _cut: asyncio.Event = field(default_factory=asyncio.Event)

    def cut(self) -> None:
        """All connections to it break."""
        self._cut.set()
        self._cut = asyncio.Event()


class FakeSsh:
    """The `Ssh` of those hosts, by `str(HostPort)`; an unknown address refuses connections.

    Attributes:
        probes: addresses that were probed, in order.
    """

    def __init__(self, hosts: dict[str, FakeHost] | None = None) -> None:
        self.hosts = hosts if hosts is not None else {}
        self.probes: list[str] = []

    async def probe(self, route: SshRoute, *, on_first_use: FirstUse) -> None:
        self.probes.append(str(route.host.at))
        if route.bastion is not None:
            await self._log_in(route.bastion, on_first_use)
        await self._knock(route.host)

    @asynccontextmanager
    async def login(self, route: SshRoute, *, on_first_use: FirstUse) -> AsyncIterator[Shell]:
        if route.bastion is not None:
            await self._log_in(route.bastion, on_first_use)
        host = await self._log_in(route.host, on_first_use)
        host.open += 1
        try:
            yield FakeShell(route.host, host)
        finally:
            host.open -= 1

    @property
    def connections(self) -> int:
        return sum(host.open for host in self.hosts.values())

    async def close(self) -> None:
        """Nothing is kept."""

    async def _knock(self, hop: Hop) -> FakeHost:
        host = self.hosts.get(str(hop.at))
        if host is None:
            raise failures.failure(
                SshReason.REFUSED, hop.name, f"{failures.hop_text(hop.name, hop.at)}: connection refused"
            )
        await asyncio.sleep(host.slow_s)
        if host.down is not None:
            raise _failure(host.down, hop)
        return host

    async def _log_in(self, hop: Hop, on_first_use: FirstUse) -> FakeHost:
        host = await self._knock(hop)
        if hop.pins.keys:
            raise NotImplementedError("pin the fingerprint of a made-up host")
        if hop.pins.fingerprint not in (None, host.fingerprint):
            raise failures.host_key_changed(hop, shown=host.fingerprint, desired=str(hop.pins.fingerprint))
        if host.closed is not None:
            raise _failure(host.closed, hop)
        if host.reads_keys:
            _read(hop)
        if hop.pins.fingerprint is None:
            await on_first_use(hop.name, host.fingerprint)
        host.offered += 1
        if hop.identity.version in host.refused:
            raise _failure(SshReason.LOGIN, hop)
        host.logins.append(f"{hop.user}@{hop.identity.version}")
        return host


class FakeShell:
    """The `Shell` of a made-up host."""

    def __init__(self, hop: Hop, host: FakeHost) -> None:
        self._hop = hop
        self._host = host
        self._cut = host._cut

    async def run(self, command: str, *, stdin: bytes = b"", limit_s: float, keep: int = 65536) -> SshCommandResult:
        self._send(command, stdin)
        await self._pass(None if self._host.silent else self._host.slow_s, limit_s)
        ended = self._host.answer(command, stdin)
        before = max(0, len(ended.stdout) - keep) + max(0, len(ended.stderr) - keep)
        last = -keep if keep else None
        return SshCommandResult(ended.status, ended.stdout[last:], ended.stderr[last:], before) if before else ended

    async def follow(self, command: str, *, limit_s: float, silence_s: float) -> AsyncIterator[bytes]:
        self._send(command, b"")
        end = asyncio.get_running_loop().time() + limit_s
        for after_s, line in list(self._host.lines):
            left_s = end - asyncio.get_running_loop().time()
            await self._pass(None if self._host.silent else self._host.slow_s + after_s, min(left_s, silence_s))
            yield line
        if self._host.silent:
            await self._pass(None, min(end - asyncio.get_running_loop().time(), silence_s))

    def _send(self, command: str, stdin: bytes) -> None:
        if self._cut.is_set():
            place = failures.hop_text(self._hop.name, self._hop.at)
            raise failures.failure(SshReason.LOST, self._hop.name, f"{place}: the connection broke")
        self._host.commands.append((command, stdin))

    async def _pass(self, seconds: float | None, limit_s: float) -> None:
        """Let time pass until the host answers, which it never does with None."""
        place = failures.hop_text(self._hop.name, self._hop.at)
        try:
            async with asyncio.timeout(limit_s if seconds is None else min(seconds, limit_s)):
                await self._cut.wait()
        except TimeoutError:
            if seconds is None or seconds > limit_s:
                raise SshUncertain(f"{place}: the command took too long") from None
            return
        raise SshUncertain(f"{place}: the connection broke during a command")


def _read(hop: Hop) -> None:
    """Open a key, in the loop's own thread: time may be virtual."""
    try:
        read_key(hop.identity)
    except ValueError as error:
        raise unusable(hop.identity, hop.name, error) from None


def _failure(trouble: SshReason, hop: Hop) -> Exception:
    if trouble == SshReason.LOGIN:
        words = f"{failures.hop_text(hop.name, hop.at)}: rejects the key {OURS}"
        return SshRejected(trouble, hop.name, words, fingerprint=OURS)
    return failures.failure(trouble, hop.name, f"{failures.hop_text(hop.name, hop.at)}: {trouble}")
