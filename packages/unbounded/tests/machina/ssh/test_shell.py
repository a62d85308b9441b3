"""Commands on a real host: what goes in and comes out, and that nothing is left when they are given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from tests.machina.ssh.servers import FirstUses, direct_to
from tests.support.ssh.sshd import Fleet, Server
from tests.support.waiting import eventually
from unbounded.machina.ssh.client import SshClient
from unbounded.machina.ssh.model import Shell, SshLimits, SshTransient, SshUncertain
from unbounded.machina.ssh.shell import LINE_BYTES

pytestmark = [pytest.mark.slow, pytest.mark.root]

LONG_S = 60.0


@asynccontextmanager
async def logged_in(fleet: Fleet, limits: SshLimits | None = None) -> AsyncIterator[Shell]:
    ssh = SshClient(limits)
    try:
        async with ssh.login(direct_to(fleet, fleet.servers[0]), on_first_use=FirstUses()) as shell:
            yield shell
    finally:
        await ssh.close()


def running(server: Server, command: str) -> bool:
    return bool(server.run(f"pgrep -fx '{command}'").stdout)


async def test_status_output_and_input_of_a_command(fleet: Fleet) -> None:
    async with logged_in(fleet) as shell:
        ended = await shell.run("cat; printf 'to \\377 stderr' >&2; exit 7", stdin=b"\0 in \xff", limit_s=LONG_S)
        assert (ended.status, ended.stdout, ended.stderr, ended.dropped) == (7, b"\0 in \xff", b"to \xff stderr", 0)
        assert (await shell.run("kill -9 $$", limit_s=LONG_S)).status is None
        assert (await shell.run("wc -c", stdin=bytes(3_000_000), limit_s=LONG_S)).stdout == b"3000000\n"
        assert (await shell.run("exit 0", stdin=bytes(3_000_000), limit_s=LONG_S)).status == 0


async def test_the_last_of_much_output_is_kept(fleet: Fleet) -> None:
    async with logged_in(fleet) as shell:
        much = "yes 123456789 | head -n 100000; yes | head -c 100 >&2; echo the end"
        ended = await shell.run(much, limit_s=LONG_S, keep=48)
        assert ended.stdout == b"123456789\n" * 4 + b"the end\n"
        assert ended.stderr == b"y\n" * 24
        assert ended.dropped == 1_000_008 - 48 + 100 - 48


async def test_timed_out_or_cancelled_command_is_killed_on_the_host(fleet: Fleet) -> None:
    host = fleet.servers[0]
    async with logged_in(fleet) as shell:
        with pytest.raises(SshUncertain, match=r"within 0\.5 s"):
            await shell.run("exec sleep 4321", limit_s=0.5)
        await eventually(lambda: not running(host, "sleep 4321"), lambda: host.run("ps ax").stdout)
        task = asyncio.create_task(shell.run("exec sleep 5432", limit_s=600))
        await eventually(lambda: running(host, "sleep 5432"), lambda: host.run("ps ax").stdout)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: not running(host, "sleep 5432"), lambda: host.run("ps ax").stdout)
        assert (await shell.run("echo still here", limit_s=LONG_S)).stdout == b"still here\n"


async def test_lines_are_followed_to_the_end_of_the_command(fleet: Fleet) -> None:
    async with logged_in(fleet) as shell:
        command = "printf 'one\\n\\nthree\\n'; echo aside >&2; head -c 5000 /dev/zero | tr '\\0' x; printf '\\nlast'"
        lines = [line async for line in shell.follow(command, limit_s=LONG_S, silence_s=LONG_S)]
        assert lines == [b"one", b"", b"three", b"x" * LINE_BYTES, b"x" * (5000 - LINE_BYTES), b"last"]


async def test_who_takes_lines_slowly_gets_them_all_and_little_is_held(fleet: Fleet) -> None:
    async with logged_in(fleet) as shell:
        number = 0
        async for line in shell.follow("seq 1 200000", limit_s=LONG_S, silence_s=LONG_S):
            number += 1
            assert line == b"%d" % number
            if number % 20000 == 0:
                await asyncio.sleep(0.01)
        assert number == 200000


async def test_silent_or_overlong_followed_command_is_ended(fleet: Fleet) -> None:
    host = fleet.servers[0]
    async with logged_in(fleet) as shell:
        with pytest.raises(SshUncertain, match=r"sent no output for 0\.5 s"):
            async for _ in shell.follow("exec sleep 6543", limit_s=600, silence_s=0.5):
                pass
        with pytest.raises(SshUncertain, match=r"took too long|no answer to a command within 1 s"):
            async for _ in shell.follow("while :; do echo again; sleep 0.1; done", limit_s=1, silence_s=600):
                pass
        async with aclosing(shell.follow("echo one; exec sleep 7654", limit_s=600, silence_s=600)) as lines:  # type: ignore[type-var]
            assert await anext(lines) == b"one"
    await eventually(lambda: not running(host, "sleep (6543|7654)"), lambda: host.run("ps ax").stdout)


async def test_a_connection_that_breaks_leaves_open_whether_the_command_ran(fleet: Fleet) -> None:
    host = fleet.servers[0]
    async with logged_in(fleet) as shell:
        task = asyncio.create_task(shell.run("exec sleep 8765", limit_s=600))
        await eventually(lambda: running(host, "sleep 8765"), lambda: host.run("ps ax").stdout)
        host.close_sessions()
        with pytest.raises(SshUncertain, match="the connection broke during a command"):
            await task
        with pytest.raises(SshTransient, match="the connection broke"):
            await shell.run("true", limit_s=LONG_S)
    host.run("pkill -f 'sleep 8765'")
