"""Serial consoles of a BMC, over a web socket and over SSH: lab BMCs and their misbehaviours, and an OpenSSH server."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

import pytest

from tests.metalman.conftest import SHORT
from tests.support.ports import free_port
from tests.support.ssh.sshd import fingerprint_of, keygen, missing, sshd_program
from unbounded.api.failures import Failure, Rejected
from unbounded.metalman.redfish.bmc_interface import (
    BmcAccount,
    BmcBusy,
    BmcUnreachable,
    ConsoleOffers,
    SerialConsole,
    SshOffer,
    Unsupported,
    WebSocketOffer,
)
from unbounded.metalman.redfish.documents import console_offers
from unbounded.metalman.redfish.pool import BmcPool
from unbounded_lab.bmc.faults import BmcFaults
from unbounded_lab.bmc.local import LabBmc

Way = Literal["websocket", "ssh"]
WAYS: Final[tuple[Way, ...]] = ("websocket", "ssh")
LIMIT_S: Final = 20.0
openssh = pytest.mark.skipif(missing() is not None, reason=f"needs {missing()}")


def account(bmc: LabBmc, **changed: Any) -> BmcAccount:
    given = {"url": bmc.url, "username": bmc.username, "password": bmc.password, "cert_fingerprint": bmc.fingerprint}
    return BmcAccount(**{**given, **changed})


class Pins:
    """The host keys that were trusted."""

    def __init__(self) -> None:
        self.trusted: list[str] = []

    async def trust(self, fingerprint: str) -> None:
        self.trusted.append(fingerprint)


@asynccontextmanager
async def opened(bmc: LabBmc, *, pin: str | None = None, pins: Pins | None = None) -> AsyncIterator[SerialConsole]:
    async with BmcPool(SHORT) as pool, pool.bmc(account(bmc)).console(pin, (pins or Pins()).trust) as console:
        yield console


async def read_until(console: SerialConsole, end: bytes) -> bytes:
    """Return the output up to and including a text."""
    output = b""
    async with asyncio.timeout(LIMIT_S):
        while end not in output:
            data = await console.read()
            assert data, f"the console ended after {output!r}"
            output += data
    return output


@pytest.mark.parametrize(
    ("console", "offers"),
    [
        (None, ConsoleOffers((), ())),
        ("text", ConsoleOffers((), ())),
        (  # openbmc/bmcweb
            {
                "MaxConcurrentSessions": 15,
                "IPMI": {"ServiceEnabled": True},
                "SSH": {"ServiceEnabled": True, "Port": 2200, "HotKeySequenceDisplay": "Press ~. to exit console"},
            },
            ConsoleOffers((SshOffer(2200, None),), ("IPMI",)),
        ),
        (
            {
                "WebSocket": {"ServiceEnabled": True, "ConsoleURI": "/console0", "Interactive": False},
                "SSH": {"ServiceEnabled": True, "Port": None, "ConsoleEntryCommand": "console 1"},
            },
            ConsoleOffers((WebSocketOffer("/console0", interactive=False),), ()),
        ),
        (
            {"SSH": {"ServiceEnabled": True, "ConsoleEntryCommand": "console 1"}, "WebSocket": {"ConsoleURI": "/c"}},
            ConsoleOffers((SshOffer(22, "console 1"),), ("WebSocket (not enabled)",)),
        ),
        (
            {"SSH": {"ServiceEnabled": False, "Port": 22}, "Telnet": {"ServiceEnabled": True, "Port": 23}},
            ConsoleOffers((), ("SSH (not enabled)", "Telnet")),
        ),
    ],
)
def test_offers_are_those_that_are_enabled_and_complete(console: Any, offers: ConsoleOffers) -> None:
    system: Mapping[str, Any] = {} if console is None else {"SerialConsole": console}
    assert console_offers(system) == offers


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_typed_arrives_and_the_output_comes_back(way: Way) -> None:
    async with LabBmc(faults=BmcFaults(console=way)) as bmc:
        async with opened(bmc) as console:
            await read_until(console, b"lab-01 login: ")
            await console.write(b"root\x00\xff\r")
            assert await read_until(console, b"lab-01 login: ") == b"root\x00\xff\r\nlab-01 login: "
        assert bmc.consoles.received == {"1": b"root\x00\xff\r"}
        assert bmc.consoles.opened == [way]
        await until_closed(bmc)


async def until_closed(bmc: LabBmc) -> None:
    async with asyncio.timeout(LIMIT_S):
        while bmc.consoles.open.total():  # noqa: ASYNC110  # a counter tells nobody
            await asyncio.sleep(0.01)


async def test_the_web_socket_is_preferred_and_uses_one_session() -> None:
    async with LabBmc(faults=BmcFaults(console="both")) as bmc:
        async with opened(bmc) as console:
            assert console.over == "a web socket"
            assert bmc.bmc.access.logins == 1
        assert bmc.consoles.opened == ["websocket"]
        assert bmc.bmc.access.sessions(0.0, bmc.bmc.faults) == []


@openssh
async def test_ssh_is_used_where_the_web_socket_cannot_be_opened() -> None:
    faults = BmcFaults(console="both", console_denied=True)
    async with LabBmc(faults=faults) as bmc, sshd(bmc) as pin, opened(bmc, pin=pin) as console:
        assert console.over.startswith("SSH (port ")


async def test_each_system_of_a_bmc_has_its_own_console() -> None:
    for way in WAYS:
        faults = BmcFaults(console=way, systems=("1", "2"))
        async with LabBmc(faults=faults) as bmc, BmcPool(SHORT) as pool:
            for device in ("1", "2"):
                system = pool.bmc(account(bmc, device_id=device))
                async with system.console(None, Pins().trust) as console:
                    await console.write(device.encode() * 3)
                    await read_until(console, device.encode() * 3)
            assert bmc.consoles.received == {"1": b"111", "2": b"222"}


async def test_the_first_ssh_host_key_is_stored_before_the_password_is_sent() -> None:
    async with LabBmc(faults=BmcFaults(console="ssh")) as bmc:
        pins = Pins()
        async with opened(bmc, pins=pins):
            pass
        (fingerprint,) = pins.trusted
        assert fingerprint.startswith("SHA256:")
        async with opened(bmc, pin=fingerprint, pins=pins):
            pass
        assert pins.trusted == [fingerprint]

        async def cannot(_fingerprint: str) -> None:
            raise Rejected("the status cannot be written")

        async with BmcPool(SHORT) as pool:
            with pytest.raises(Rejected, match="the status cannot be written"):
                async with pool.bmc(account(bmc)).console(None, cannot):
                    pass
        assert len(bmc.consoles.opened) == 2


async def test_another_ssh_host_key_gets_no_password() -> None:
    async with LabBmc(faults=BmcFaults(console="ssh")) as bmc:
        pins = Pins()
        async with opened(bmc, pins=pins):
            pass
        await bmc.set_faults(console_host_key=1)
        await bmc.set_faults(console_denied=True)  # so that a password would be counted
        before = bmc.bmc.access.refused_logins
        with pytest.raises(Rejected, match=r"presents the host key SHA256:\S+, pinned is SHA256:\S+; no password"):
            async with opened(bmc, pin=pins.trusted[0], pins=pins):
                pass
        assert bmc.bmc.access.refused_logins == before
        assert len(bmc.consoles.opened) == 1


@pytest.mark.parametrize(
    ("faults", "failure", "text"),
    [
        (BmcFaults(), Unsupported, "its SerialConsole lists: none"),
        (BmcFaults(console="disabled"), Unsupported, r"lists: IPMI, SSH \(not enabled\)"),
        (BmcFaults(console="websocket", console_sessions=0), BmcBusy, "SessionLimitExceeded|web socket: 503"),
        (BmcFaults(console="websocket", console_denied=True), Rejected, "the web socket: 403"),
        (BmcFaults(console="ssh", console_denied=True), Rejected, "rejects 'admin', whose password opens the Redfish"),
    ],
)
async def test_a_console_that_cannot_be_opened_names_the_cause(
    faults: BmcFaults, failure: type[Failure], text: str
) -> None:
    async with LabBmc(faults=faults) as bmc:
        with pytest.raises(failure, match=text):
            async with opened(bmc):
                pass
        assert bmc.consoles.open.total() == 0


async def test_a_password_that_ssh_rejects_is_offered_once() -> None:
    async with LabBmc(faults=BmcFaults(console="ssh", lockout_after=3)) as bmc:
        bmc.bmc.access.check_password = wrong(bmc)  # type: ignore[method-assign]
        with pytest.raises(Rejected):
            async with opened(bmc):
                pass
        assert bmc.bmc.access.refused_logins == 1


def wrong(bmc: LabBmc) -> Any:
    real = bmc.bmc.access.check_password

    def check(username: str, password: str, now: float, faults: BmcFaults) -> None:
        real(username, password + "x", now, faults)

    return check


@asynccontextmanager
async def sshd(bmc: LabBmc) -> AsyncIterator[str]:
    """Let an OpenSSH server with the BMC's password be its SSH service; yield the fingerprint of its host key."""
    with TemporaryDirectory(prefix="sshd-") as made:
        start, program, port = prepare(Path(made), bmc.password), sshd_program(), free_port()
        assert program is not None
        server = await asyncio.create_subprocess_exec(
            *("unshare", "--mount", "sh", "-c", start, program, f"-oListenAddress=127.0.0.1:{port}"),
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            assert server.stderr is not None
            async with asyncio.timeout(LIMIT_S):
                while b"Server listening" not in (line := await server.stderr.readline()):
                    assert line, "sshd has ended"
            bmc.bmc.access.username = "root"
            bmc.bmc.ssh_port = port
            yield fingerprint_of(Path(made) / "host_key.pub")
        finally:
            server.terminate()
            await server.communicate()


def prepare(folder: Path, password: str) -> str:
    """Write the files of a server; return the shell command that starts it, in a mount namespace with its accounts.

    root has the password, and `console N` is a command.
    """
    folder.chmod(0o755)
    (folder / "bin").mkdir()
    (folder / "bin" / "console").write_text('#!/bin/sh\necho "console $1 on $(tty)"\nexec cat\n')
    (folder / "bin" / "console").chmod(0o755)
    keygen(folder / "host_key", "ed25519")
    digest = subprocess.run(["openssl", "passwd", "-6", password], check=True, capture_output=True, text=True).stdout
    (folder / "shadow").write_text(f"root:{digest.strip()}:19000:0:99999:7:::\n")
    accounts = [line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith("sshd:")]
    (folder / "passwd").write_text("\n".join([*accounts, "sshd:x:74:65534::/run/sshd:/usr/sbin/nologin", ""]))
    lines = ["PasswordAuthentication yes", "PermitRootLogin yes", "UsePAM no", "PidFile none"]
    lines += [f"HostKey {folder}/host_key", f"SetEnv PATH={folder}/bin:/usr/bin:/bin", ""]
    (folder / "conf").write_text("\n".join(lines))
    binds = "; ".join(f"mount --bind {folder}/{name} /etc/{name}" for name in ("shadow", "passwd"))
    return f'mkdir -p /run/sshd; {binds}; exec "$0" -D -e -f {folder}/conf "$@"'


@openssh
async def test_an_openssh_server_is_a_console_with_a_terminal() -> None:
    async with LabBmc(faults=BmcFaults(console="ssh")) as bmc, sshd(bmc) as fingerprint:
        pins = Pins()
        async with opened(bmc, pins=pins) as console:
            await console.write(b"echo $((6*7))-$(tty); stty size; echo $TERM\n")
            output = await read_until(console, b"vt100\r\n")
            assert b"42-/dev/pts/" in output
            assert b"24 80" in output
        assert pins.trusted == [fingerprint]


@openssh
async def test_an_openssh_server_gets_the_command_that_enters_a_console() -> None:
    async with LabBmc(faults=BmcFaults(console="ssh", systems=("1", "2"))) as bmc, sshd(bmc), BmcPool(SHORT) as pool:
        system = pool.bmc(account(bmc, device_id="2"))
        async with system.console(None, Pins().trust) as console:
            await read_until(console, b"console 1 on /dev/pts/")


@openssh
async def test_an_openssh_server_with_another_password_rejects_the_account() -> None:
    async with LabBmc(faults=BmcFaults(console="ssh")) as bmc, sshd(bmc):
        bmc.bmc.access.password = "another"
        with pytest.raises(Rejected, match="rejects 'root', whose password opens the Redfish service"):
            async with opened(bmc):
                pass


@pytest.mark.parametrize("way", WAYS)
async def test_a_console_that_the_bmc_closes_ends(way: Way) -> None:
    async with LabBmc(faults=BmcFaults(console=way, console_drops_after=1)) as bmc, opened(bmc) as console:
        await read_until(console, b"login: ")
        await console.write(b"x")
        async with asyncio.timeout(LIMIT_S):
            while await console.read():
                pass
        assert await console.read() == b""


@pytest.mark.parametrize("way", WAYS)
async def test_a_console_ends_with_its_bmc(way: Way) -> None:
    async with LabBmc(faults=BmcFaults(console=way)) as bmc, opened(bmc) as console:
        await read_until(console, b"login: ")
        await bmc.unplug()
        async with asyncio.timeout(LIMIT_S):
            while await console.read():
                pass
        with pytest.raises(BmcUnreachable):
            await write_until_it_fails(console)


async def write_until_it_fails(console: SerialConsole) -> None:
    for _ in range(100):
        await console.write(b"x" * 1000)
        await asyncio.sleep(0.01)


async def test_a_console_without_an_answer_does_not_delay_other_calls() -> None:
    faults = BmcFaults(console="websocket", console_output="hangs")
    async with LabBmc(faults=faults) as bmc, BmcPool(SHORT) as pool:
        system = pool.bmc(account(bmc))

        async def opens() -> None:
            async with system.console(None, Pins().trust):
                pass

        await system.system()
        for _ in range(4):  # more than the silences after which no call is made
            opening = asyncio.create_task(opens())
            await bmc.consoles.hanging.wait()
            bmc.consoles.hanging.clear()
            async with asyncio.timeout(SHORT.call_s / 2):
                await system.system()
            with pytest.raises(BmcUnreachable, match="no answer to the request for a web socket in time"):
                await opening
        await system.system()


@pytest.mark.parametrize("way", WAYS)
async def test_a_flood_waits_for_its_reader(way: Way) -> None:
    faults = BmcFaults(console=way, console_output="flood")
    async with LabBmc(faults=faults) as bmc, opened(bmc) as console:
        await console.read()
        at_rest, before = 0, -1
        async with asyncio.timeout(LIMIT_S):
            while at_rest < 5:  # the BMC has stopped sending: everything between the two is full
                at_rest, before = (at_rest + 1 if before == bmc.consoles.sent else 0), bmc.consoles.sent
                await asyncio.sleep(0.05)
        assert before < 32 * 1024 * 1024
        async with asyncio.timeout(LIMIT_S):
            while bmc.consoles.sent == before:
                assert await console.read()
