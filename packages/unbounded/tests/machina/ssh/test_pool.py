"""Sharing of connections to a bastion, and their close: made-up connections in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest

from tests.machina.ssh.servers import FirstUses
from tests.support.virtual_time import run_virtual
from unbounded.api.failures import Stale, Transient
from unbounded.api.machine import SSHHop
from unbounded.kube.logs import SecretStr
from unbounded.machina.ssh import failures
from unbounded.machina.ssh.client import BastionPool, HandshakeLimit
from unbounded.machina.ssh.keys import HostKey
from unbounded.machina.ssh.model import (
    FirstUse,
    Hop,
    HostKeyPins,
    HostPort,
    SshIdentity,
    SshReason,
    SshRejected,
    SshTransient,
)

KEY = HostKey("ssh-ed25519", b"\0\0\0\x0bssh-ed25519")
IDLE_S = 60.0
HOP = Hop(SSHHop.BASTION, HostPort("bastion"), "jump", SshIdentity(SecretStr("key"), "unbounded-kube/key@1"))
PINNED = replace(HOP, pins=HostKeyPins(fingerprint=KEY.fingerprint))


@dataclass(eq=False)
class MadeUp:
    hop: Hop
    host_key: HostKey = KEY
    closed: bool = False

    async def close(self) -> None:
        self.closed = True


@dataclass
class Opener:
    """Logs in after a second, or fails according to `fails`."""

    lines: list[MadeUp] = field(default_factory=list)
    tried: int = 0
    fails: Callable[[Hop], Exception] | None = None

    async def __call__(self, hop: Hop, on_first_use: FirstUse) -> MadeUp:
        self.tried += 1
        await asyncio.sleep(1)
        if self.fails is not None:
            raise self.fails(hop)
        if hop.pins.fingerprint not in (None, KEY.fingerprint):
            raise failures.host_key_changed(hop, shown=KEY.fingerprint, desired=str(hop.pins.fingerprint))
        if hop.pins.fingerprint is None:
            await on_first_use(hop.name, KEY.fingerprint)
        self.lines.append(MadeUp(hop))
        return self.lines[-1]

    @property
    def open(self) -> int:
        return sum(not line.closed for line in self.lines)


def story(report: Callable[[Opener, BastionPool[MadeUp]], Awaitable[None]]) -> None:
    async def told() -> None:
        opener = Opener()
        pool = BastionPool(opener, idle_s=IDLE_S)
        await report(opener, pool)
        await pool.close()
        assert opener.open == 0

    run_virtual(told())


async def ride(
    pool: BastionPool[MadeUp], hop: Hop = PINNED, *, for_s: float = 10, first: FirstUses | None = None
) -> MadeUp:
    async with pool.acquire(hop, first or FirstUses()) as line:
        await asyncio.sleep(for_s)
        return line


def test_all_share_one_connection_until_it_was_idle_for_its_time() -> None:
    async def tell(opener: Opener, pool: BastionPool[MadeUp]) -> None:
        await asyncio.gather(*(ride(pool) for _ in range(50)))
        await asyncio.sleep(IDLE_S - 1)
        await ride(pool)
        await asyncio.sleep(IDLE_S - 1)
        assert (opener.tried, opener.open) == (1, 1)
        await asyncio.sleep(2)
        assert (opener.tried, opener.open) == (1, 0)
        await ride(pool)
        assert opener.tried == 2

    story(tell)


def test_another_user_key_or_address_has_a_connection_of_its_own() -> None:
    async def tell(opener: Opener, pool: BastionPool[MadeUp]) -> None:
        others = (
            replace(PINNED, user="other"),
            replace(PINNED, at=HostPort("bastion", 2222)),
            replace(PINNED, identity=SshIdentity(SecretStr("other"), "unbounded-kube/key@1")),
            replace(PINNED, identity=replace(PINNED.identity, version="unbounded-kube/key@2")),
        )
        await asyncio.gather(*(ride(pool, hop) for hop in (PINNED, *others)))
        assert opener.tried == 5

    story(tell)


def test_each_first_use_pins_the_key_on_a_shared_connection() -> None:
    async def tell(opener: Opener, pool: BastionPool[MadeUp]) -> None:
        firsts = [FirstUses() for _ in range(3)]
        await asyncio.gather(ride(pool, HOP, first=firsts[0]), ride(pool, HOP, first=firsts[1]))
        await ride(pool, HOP, first=firsts[2])
        assert opener.tried == 1
        assert [first.seen for first in firsts] == [[(SSHHop.BASTION, KEY.fingerprint)]] * 3
        late = FirstUses(fails=Stale("changed"))
        with pytest.raises(Stale):
            await ride(pool, HOP, first=late)
        await asyncio.sleep(IDLE_S + 1)
        assert opener.open == 0

    story(tell)


@pytest.mark.parametrize("kind", [Stale, SshRejected], ids=["stale", "another-key"])
def test_who_cannot_pin_fails_alone_and_the_next_logs_in(kind: type[Exception]) -> None:
    async def tell(opener: Opener, pool: BastionPool[MadeUp]) -> None:
        pinned_meanwhile = SshRejected(SshReason.HOST_KEY, SSHHop.BASTION, "another key is trusted")
        cannot, can = FirstUses(fails=Stale("changed") if kind is Stale else pinned_meanwhile), FirstUses()
        ends = await asyncio.gather(
            ride(pool, HOP, first=cannot), ride(pool, HOP, first=can), ride(pool), return_exceptions=True
        )
        assert [type(end) for end in ends] == [kind, MadeUp, MadeUp]
        assert opener.tried == 2

    story(tell)


def test_unreachable_bastion_is_tried_once_for_all_waiting_logins() -> None:
    async def tell(opener: Opener, pool: BastionPool[MadeUp]) -> None:
        opener.fails = lambda hop: failures.failure(SshReason.REFUSED, hop.name, "bastion: connection refused")
        ends = await asyncio.gather(*(ride(pool) for _ in range(50)), return_exceptions=True)
        assert {type(end) for end in ends} == {SshTransient}
        assert len({id(end) for end in ends}) == 50
        assert opener.tried == 1
        opener.fails = None
        await ride(pool)

    story(tell)


def test_bastion_key_mismatch_fails_only_logins_with_that_pin() -> None:
    async def tell(opener: Opener, pool: BastionPool[MadeUp]) -> None:
        wrong = replace(HOP, pins=HostKeyPins(fingerprint="SHA256:other"))
        ends = await asyncio.gather(ride(pool, wrong), ride(pool), ride(pool, wrong), return_exceptions=True)
        assert [type(end) for end in ends] == [SshRejected, MadeUp, SshRejected]
        with pytest.raises(SshRejected):
            await ride(pool, wrong)

    story(tell)


def test_who_gives_up_the_login_leaves_it_to_the_next() -> None:
    async def tell(opener: Opener, pool: BastionPool[MadeUp]) -> None:
        first, second = asyncio.create_task(ride(pool)), asyncio.create_task(ride(pool))
        await asyncio.sleep(0.5)
        first.cancel()
        assert (await second).hop == PINNED
        assert opener.tried == 2

    story(tell)


def test_broken_bastion_connection_is_not_reused() -> None:
    async def tell(opener: Opener, pool: BastionPool[MadeUp]) -> None:
        riding = asyncio.create_task(ride(pool, for_s=100))
        await asyncio.sleep(5)
        opener.lines[0].closed = True
        assert await ride(pool) is opener.lines[1]
        await riding
        await asyncio.sleep(IDLE_S + 1)
        assert opener.open == 0

    story(tell)


def test_closing_takes_all_connections_along_also_one_that_is_being_made() -> None:
    async def tell(opener: Opener, pool: BastionPool[MadeUp]) -> None:
        riding = asyncio.create_task(ride(pool, for_s=100))
        await asyncio.sleep(5)
        making = asyncio.create_task(ride(pool, replace(PINNED, user="other")))
        await asyncio.sleep(0.5)
        await pool.close()
        with pytest.raises(Transient, match="shutting down"):
            await making
        with pytest.raises(Transient, match="shutting down"):
            await ride(pool)
        await riding
        await asyncio.sleep(1)
        assert opener.open == 0

    story(tell)


def test_handshake_limits_apply_in_total_and_per_address() -> None:
    async def told() -> None:
        turns, at_once, most = HandshakeLimit(4, 2), {"all": 0, "a": 0}, {"all": 0, "a": 0}
        ends: list[str] = []

        async def one(address: str, seconds: float) -> None:
            async with turns.acquire(address):
                for name in ("all", address):
                    at_once[name] = at_once.get(name, 0) + 1
                    most[name] = max(most.get(name, 0), at_once[name])
                await asyncio.sleep(seconds)
                for name in ("all", address):
                    at_once[name] -= 1
            ends.append(address)

        await asyncio.gather(*(one("a", 100) for _ in range(6)), *(one(f"b{number}", 1) for number in range(8)))
        assert (most["all"], most["a"]) == (4, 2)
        assert ends[:8] == [f"b{number}" for number in range(8)]

    run_virtual(told())
