"""An attacker on the segment, who reads, holds and changes every packet between the installer and metalman.

The installer has the public key of the site, as in a signed image. It is the real one, on loop devices, and so is
metalman's HTTP side. An attack succeeds if a disk gets a byte that metalman's image does not put there, or if the
installer goes on after a wrong answer: it has to make the same request again, as often as it tries, and then to stop.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import random
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client import CollectorRegistry

from tests.images.content import MIB, packed
from tests.images.disk_set_host import BLOCK, ENDS_S, NetbootedHost, content, netbooted
from tests.images.disk_sets import DiskSet, SetDisk
from tests.images.loops import system
from tests.images.support import OWN_MOUNTS, TOP, Host, needed
from tests.metalman.support.fixed_boots import PREFIX, FixedBoots
from tests.metalman.support.netboot_objects import lease, machine_body
from tests.metalman.support.netboot_site import put
from tests.support.seeds import first_seed
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.metalman.http.response_signing import NONCE_FIELD, STATEMENT_FIELD, StatementKey, statement
from unbounded.metalman.http.server import HttpServer, HttpServerSettings
from unbounded.metalman.netboot.model import BootImages, NetbootImage

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="loop devices and mounts need root"),
]

SOAK_TRIES: Final = 1000  # of each kind
AT_ONCE: Final = 250
MARK_BLOCK: Final = MIB // 2
MAC: Final = "52:54:00:00:00:01"
DISKS: Final = DiskSet(
    seed=0,
    disks=(
        SetDisk("sda", 64 * MIB, "nothing", "S1", ("wwn-0x1",), "pci-1"),
        SetDisk("sdb", 64 * MIB, "LVM", "S2", ("wwn-0x2",), "pci-2"),
    ),
    target="/dev/sda",
)
STATEMENTS: Final = (
    "unbounded.serve_url={{.ServeURL}} unbounded.machine={{.Machine.Name}} unbounded.machine_uid={{.Machine.UID}}"
    "{{range .Machine.Spec.PXE.DHCPLeases}} unbounded.lease={{.MAC}},{{.IPv4}},{{.SubnetMask}},{{.Gateway}}{{end}}\n"
)
INIT: Final = """
for part in base report http lldp network; do . $INSTALLER/$part.sh; done
listen_for_neighbours() { :; }
sleep() { net_try=60; } # no card comes late
take_statement && bring_up_network || exit 1
. $INSTALLER/install
"""
"""The steps of images/installer/init behind the start of udev."""


@dataclass(frozen=True)
class Asked:
    """A request of the installer."""

    method: str
    path: str
    fields: dict[str, str]
    body: bytes

    @property
    def name(self) -> str:
        return re.sub(r"^/(boot/[^/]+/)?", "", self.path)

    @property
    def what(self) -> tuple[str, str]:
        return self.name, self.fields.get("range", "")

    def repeats(self, other: Asked | None) -> bool:
        """Return whether it differs from another request in nothing but its number."""
        return other is not None and (self.method, self.body, self.what) == (other.method, other.body, other.what)


@dataclass(frozen=True)
class Answered:
    """What the installer gets; `more` follows it in the same connection, which ends `lacks` bytes too early."""

    code: int
    fields: dict[str, str]
    body: bytes
    more: bytes = b""
    lacks: int = 0

    @property
    def wire(self) -> bytes:
        fields = {**self.fields, "content-length": str(len(self.body) + self.lacks)}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"HTTP/1.1 {self.code} Said\r\n{lines}\r\n".encode() + self.body + self.more


Attack = Callable[["Attacker", Asked], Awaitable[Answered]]
Wishes = Callable[[random.Random], dict[str, str]]


def wish(chance: random.Random) -> dict[str, str]:
    """Return what an attacker would answer to a report of the hardware."""
    write = {"status": "ok", "action": "Write", "disk": chance.choice(("/dev/sdb", "/dev/disk/by-id/wwn-0x2"))}
    return chance.choice(
        (
            write | {"erase": chance.choice(("S2", f"S{chance.randrange(100)},S2"))},
            {"status": "ok", "action": "Erase", "disks": chance.choice(("sdb", "sda sdb", "sdb sda"))},
            {"status": "ok", "action": "Layout", "layout": chance.randbytes(32).hex()},
        )
    )


@dataclass
class Attacker:
    """Holds the connections of the installer, and attacks those requests that `applies` says.

    Args:
        passes: how many of them get metalman's own answer in the end.
        forges: wrong answers before that one.
        hits: wrong answers so far.
        believed: what the installer requested instead of the same once more, and what was wrong before.
        tries: how often it makes a request, at most.
        others: the prefix of another machine's boot.
        earlier: answers of an earlier boot.
    """

    port: int
    chance: random.Random
    attack: Attack | None = None
    applies: Callable[[Asked], bool] = lambda _asked: False
    passes: int = 0
    forges: int = 0
    tries: int = 1
    others: str = ""
    asked: list[Asked] = field(default_factory=list)
    earlier: dict[tuple[str, str], Answered] = field(default_factory=dict)
    hits: int = 0
    believed: list[str] = field(default_factory=list)
    wishes: Wishes = wish
    _under: Asked | None = None  # attack
    _wrong: int = 0  # answers to it

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            asked = await request_of(reader)
            self.asked.append(asked)
            if attack := self._attack_on(asked):
                answered = await attack(self, asked)
                self.hits += 1
                self._wrong += 1
            else:
                answered = await self.genuine(asked)
                self.earlier.setdefault(asked.what, answered)
            writer.write(answered.wire)
            await writer.drain()
        writer.close()

    def forget(self) -> None:
        """Forget the requests of an installer that has ended."""
        self.asked.clear()
        self._under, self._wrong = None, 0

    def _attack_on(self, asked: Asked) -> Attack | None:
        if not asked.repeats(self._under):
            if self._under is not None and 0 < self._wrong < self.tries:
                self.believed.append(f"{asked.method} {asked.path} after {self._wrong} to {self._under.name}")
            self._under, self._wrong = asked, 0
        if self.attack is None or not self.applies(asked):
            return None
        if self.passes <= 0 or self._wrong < self.forges:
            return self.attack
        self.passes -= 1
        self._under = None
        return None

    async def genuine(self, asked: Asked, *, source: str = "127.0.0.1") -> Answered:
        """Return what metalman answers to this request."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(source, 0))
        fields = {**asked.fields, "connection": "close"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"{asked.method} {asked.path} HTTP/1.1\r\n{lines}\r\n".encode() + asked.body)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        first, *rest = head.decode().split("\r\n")
        found = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
        return Answered(int(first.split()[1]), found, body)

    def changed(self, asked: Asked, answered: Answered) -> Answered:
        """Return what the attacker would have the installer believe."""
        if asked.name == "hardware":
            return replace(answered, body=json.dumps(self.wishes(self.chance)).encode(), code=200)
        if asked.name.endswith(".sha256"):
            return replace(answered, body=self.chance.randbytes(32).hex().encode())
        if asked.name.startswith("cloud-init/") or not answered.body:
            user = f"attacker{self.chance.randrange(1 << 32)}"
            return replace(answered, body=f"#cloud-config\nusers: [{user}]\n".encode(), code=200)
        body = bytearray(answered.body)
        body[self.chance.randrange(len(body))] ^= 1 << self.chance.randrange(8)
        return replace(answered, body=bytes(body))


async def request_of(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    method, path, _ = first.split()
    return Asked(method, path, fields, await reader.readexactly(int(fields.get("content-length", "0"))))


def signed(asked: Asked, answered: Answered, key: Ed25519PrivateKey) -> Answered:
    digest = hashlib.sha256(answered.body).hexdigest()
    span = answered.fields.get("content-range")
    nonce = asked.fields.get(NONCE_FIELD.lower(), "")
    text = statement(asked.method, asked.path, nonce, asked.body, code=answered.code, content_range=span, digest=digest)
    mine = base64.b64encode(key.sign(text)).decode()
    return replace(answered, fields={**answered.fields, STATEMENT_FIELD.lower(): mine})


# The attacks


async def forged(by: Attacker, asked: Asked) -> Answered:
    """Sign what the installer is to believe with a key of one's own."""
    return signed(asked, by.changed(asked, await by.genuine(asked)), Ed25519PrivateKey.generate())


async def unsigned(by: Attacker, asked: Asked) -> Answered:
    """Send no signature, or what is none."""
    genuine = by.changed(asked, await by.genuine(asked))
    fields = {name: value for name, value in genuine.fields.items() if name != STATEMENT_FIELD.lower()}
    if by.chance.randrange(2):
        fields[STATEMENT_FIELD.lower()] = base64.b64encode(by.chance.randbytes(by.chance.randrange(100))).decode()
    return replace(genuine, fields=fields)


async def swapped(by: Attacker, asked: Asked) -> Answered:
    """Keep metalman's signature, for another content."""
    return by.changed(asked, await by.genuine(asked))


async def replayed(by: Attacker, asked: Asked) -> Answered:
    """Send the signed answer of an earlier boot, which had an older image, or else that to another request."""
    return by.earlier.get(asked.what) or by.chance.choice(list(by.earlier.values()))


async def of_another_machine(by: Attacker, asked: Asked) -> Answered:
    """Have metalman sign what it says to another machine that boots, for the number of this request."""
    path = re.sub(r"^/boot/[^/]+", f"/boot/{by.others}", asked.path)
    return await by.genuine(replace(asked, path=path), source="127.0.0.2")


async def of_another_report(by: Attacker, asked: Asked) -> Answered:
    """Have metalman choose a disk by the attacker's own report, for the number of this request."""
    body = asked.body.replace(b'"sda"', b'"sdx"').replace(b"Foreign", b"Blank")
    return await by.genuine(replace(asked, body=body, fields={**asked.fields, "content-length": str(len(body))}))


async def of_another_file(by: Attacker, asked: Asked) -> Answered:
    other = by.chance.choice([name for name in OTHERS if name != asked.name])
    return await by.genuine(replace(asked, path=asked.path.replace(asked.name, other)))


async def of_another_part(by: Attacker, asked: Asked) -> Answered:
    """Have metalman sign another part of the image."""
    first, last = (int(number) for number in asked.fields["range"].removeprefix("bytes=").split("-"))
    off = by.chance.randrange(1, min(1000, last - first + 1))
    return await by.genuine(replace(asked, fields={**asked.fields, "range": f"bytes={first + off}-{last}"}))


async def with_another_number(by: Attacker, asked: Asked) -> Answered:
    nonce = by.chance.randbytes(32).hex()
    return await by.genuine(replace(asked, fields={**asked.fields, NONCE_FIELD.lower(): nonce}))


async def truncated(by: Attacker, asked: Asked) -> Answered:
    genuine = await by.genuine(asked)
    return replace(genuine, body=genuine.body[: by.chance.randrange(len(genuine.body))])


async def longer(by: Attacker, asked: Asked) -> Answered:
    genuine = await by.genuine(asked)
    return replace(genuine, body=genuine.body + by.chance.randbytes(by.chance.randrange(1, 5000)))


async def denied(by: Attacker, asked: Asked) -> Answered:
    """Answer that there is no such file, so that the installer goes on without it."""
    return replace(await by.genuine(asked), code=by.chance.choice((404, 403, 204, 200, 206)), body=b"")


async def cut_off(by: Attacker, asked: Asked) -> Answered:
    """End the connection within an answer that there is no such file."""
    body = by.chance.randbytes(by.chance.randrange(20))
    return Answered(by.chance.choice((404, 403, 200, 206)), {}, body, lacks=by.chance.randrange(1, 1000))


async def redirected(by: Attacker, asked: Asked) -> Answered:
    genuine = await by.genuine(asked)
    place = f"http://10.0.0.{by.chance.randrange(2, 255)}/{asked.name}"
    return replace(genuine, code=by.chance.choice((301, 302, 307, 308)), fields=genuine.fields | {"location": place})


async def doubled(by: Attacker, asked: Asked) -> Answered:
    """Send the wrong answer and then the right one, with the header fields of both."""
    genuine = await by.genuine(asked)
    return replace(by.changed(asked, genuine), more=genuine.wire)


async def other_total(by: Attacker, asked: Asked) -> Answered:
    """Shorten the image by its Content-Range."""
    genuine = await by.genuine(asked)
    part, _, total = genuine.fields["content-range"].partition("/")
    shorter = f"{part}/{by.chance.randrange(1, int(total))}"
    return replace(genuine, fields=genuine.fields | {"content-range": shorter})


def is_part(asked: Asked) -> bool:
    return "range" in asked.fields


def is_believed(asked: Asked) -> bool:
    """Return whether the installer needs the answer before it has written all."""
    return asked.method == "GET" or asked.name == "hardware"


def has_body(asked: Asked) -> bool:
    return is_believed(asked) and asked.name not in (
        "unbounded-agent.sha256",
        "disk.img.4k.zst",
        "cloud-init/network-config",
    )


OTHERS: Final = ("cloud-init/meta-data", "cloud-init/vendor-data", "cloud-init/user-data", "statement")
ATTACKS: Final[dict[str, tuple[Attack, Callable[[Asked], bool]]]] = {
    "forged": (forged, is_believed),
    "unsigned": (unsigned, is_believed),
    "swapped": (swapped, is_believed),
    "replayed": (replayed, is_believed),
    "of another machine": (of_another_machine, lambda asked: is_believed(asked) and asked.name != "statement"),
    "statement of another machine": (of_another_machine, lambda asked: asked.name == "statement"),
    "of another report": (of_another_report, lambda asked: asked.name == "hardware"),
    "of another file": (of_another_file, has_body),
    "of another part": (of_another_part, is_part),
    "with another number": (with_another_number, is_believed),
    "truncated": (truncated, has_body),
    "longer": (longer, is_believed),
    "denied": (denied, is_believed),
    "cut off": (cut_off, is_believed),
    "redirected": (redirected, is_believed),
    "doubled": (doubled, is_believed),
    "other total": (other_total, is_part),
}


@dataclass
class Attacked:
    """The machine, metalman, and the attacker between them."""

    at: NetbootedHost
    attacker: Attacker
    image: bytes
    key: Path
    genuine: list[Asked] = field(default_factory=list)  # the requests of an install that is not attacked
    boots: int = 0
    printed: str = ""

    def story(self) -> str:
        """Return what the installer said, and asked, for people."""
        asked = [f"{one.method} {one.path}" for one in self.attacker.asked]
        return "\n".join([self.at.host.host.said()[-3000:], self.printed[-3000:], *asked])

    async def install(self, tries: int = 1, *, media_of: str = "") -> int:
        """Boot once more; return the exit code of the installer, which makes a request so often.

        Args:
            media_of: a Machine, whose words of virtual media the installer has, with the network of this one.
        """
        if self.boots:
            await self.at.world.stage("WaitingLoader", name=f"replace-{self.boots}", phase="Complete")
            await self.at.world.api.delete(MACHINE_OPERATIONS, f"replace-{self.boots}")
        self.boots += 1
        await self.at.world.replace(name=f"replace-{self.boots}")
        self.at.host.start(self.at.disks)
        self.attacker.forget()
        nic = self.at.host.host.root / "sys/class/net/eth0"
        (nic / "device").mkdir(parents=True, exist_ok=True)
        (nic / "address").write_text(f"{MAC}\n")
        (nic / "carrier").write_text("1\n")
        self.at.host._show_partitions()
        process = await self.at.host.host.started(
            INIT,
            INSTALLER=str(self.at.host._lib),
            UPTIME=str(self.at.host.clock),
            LATER=str(self.at.host._later),
            STATEMENT_KEY=str(self.key),
            DISKS_SINCE="-1000",
            TRIES=str(tries),
            PAUSE_S="0",
            STATEMENT_TRIES="1",
            MEDIA_WORDS=str(self._media(media_of)),
            CHUNK_BYTES="500000",
            REPORT_EVERY_S="100",
        )
        try:
            async with asyncio.timeout(ENDS_S):
                self.printed = (await process.communicate())[0].decode()
                return process.returncode or 0
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()

    def _media(self, machine: str) -> Path:
        path = self.at.host.host.root / "boot.cred"
        path.unlink(missing_ok=True)
        if machine:
            url = f"http://metalman/boot/{self.at.world.prefix(machine)}"
            path.write_text(f"unbounded.serve_url={url} unbounded.lease={MAC},127.0.0.1,255.255.255.0,127.0.0.254\n")
        return path

    def disks(self) -> list[dict[int, bytes]]:
        return [content(device, self.at.host.file(device)) for device in self.at.host.devices]

    def wipe(self) -> None:
        subprocess.run([needed("blkdiscard"), "--force", str(self.at.host.devices[0])], check=True)

    def is_harmless(self, before: list[dict[int, bytes]]) -> None:
        """Check that nothing is on the disks but what was there, and of metalman's image."""
        chosen, other = self.disks()
        assert other == before[1]
        for at, block in chosen.items():
            if at == MARK_BLOCK:
                assert f"\nmachine={self.at.uid}\n".encode() in block
            else:
                assert self.image[at : at + BLOCK].startswith(block.rstrip(b"\0")), at  # the last one in part
        assert not any(at < MARK_BLOCK for at in chosen), "the disk starts"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """Two disk images, the older one first, of several parts each."""
    for tool in ("blkid", "zstd", "mke2fs", "openssl", "blkdiscard"):
        needed(tool)
    needed("nc.openbsd", "scripts/net-tools gets it")
    made = []
    for number in range(2):
        folder = tmp_path_factory.mktemp("image")
        put(folder / "root", {"usr/filled": random.Random(number).randbytes(2 * MIB)})
        made.append(system(folder))
    return made[0], made[1]


@pytest.fixture(scope="module")
def site_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    subprocess.run([str(TOP / "images/site-keys"), str(folder)], check=True)
    return folder


@asynccontextmanager
async def attacked(images: tuple[bytes, bytes], keys: Path, folder: Path, seed: int) -> AsyncIterator[Attacked]:
    """A machine that was installed once with the older image, without an attack."""

    async def key() -> StatementKey:
        return StatementKey((keys / "statement.key").read_bytes())

    async with netbooted(DISKS, images[0], folder, key) as at:
        # Else a namespace that another test makes during the mount keeps the file system: its superblock comes later.
        at.host.host.within = OWN_MOUNTS
        put(folder / "site/netboot/disk", {"statement.tmpl": STATEMENTS})
        here = {"gateway": "127.0.0.254"}
        await at.world.api.patch(MACHINES, "m1", {"spec": {"pxe": {"dhcpLeases": [lease("127.0.0.1", MAC) | here]}}})
        await at.world.machine(machine_body("m2", leases=[lease("127.0.0.2", "52:54:00:00:00:02") | here]))
        await at.world.replace("m2", name="replace-m2")
        attacker = Attacker(at.server.port, random.Random(seed), others=at.world.prefix("m2"))
        async with await asyncio.start_server(attacker.answer, "127.0.0.1") as server:
            port = server.sockets[0].getsockname()[1]
            command(at, "nc.openbsd", f"exec {needed('nc.openbsd')} -w 60 127.0.0.1 {port}")
            command(at, "udhcpc", 'echo http://10.0.0.1:8880/installer.efi >"$T/boot_url"')
            command(at, "ifconfig", "exit 0")
            command(at, "route", "exit 0")
            made = Attacked(at, attacker, images[0], keys / "statement.pub")
            assert (await made.install(), at.recorder.failures) == (0, []), made.story()
            made.genuine = list(attacker.asked)
            made.wipe()
            serve(at, folder / "newer", images[1])
            made.image = images[1]
            yield made


def command(at: NetbootedHost, name: str, script: str) -> None:
    path = at.host.host.command(name)
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def serve(at: NetbootedHost, folder: Path, image: bytes) -> None:
    whole = packed(image, "zst")
    disk = NetbootImage(put(folder, {"disk.img.zst": whole}), "sha256:3")
    said = at.world.images.said
    assert isinstance(said, BootImages)
    at.world.images.said = replace(said, disk=disk, disk_sha256=hashlib.sha256(whole).hexdigest())


async def try_attacks(it: Attacked, name: str, tries: int, *, most_passed: int = 1000, forges: int = 4) -> None:
    """Send so many wrong answers of a kind, in as many boots as that takes; each boot ends under a lasting attack."""
    attack, applies = ATTACKS[name]
    attacker = it.attacker
    targets = min(sum(applies(asked) for asked in it.genuine), most_passed)
    attacker.attack, attacker.applies, attacker.forges, attacker.hits = attack, applies, forges, 0
    attacker.tries = 5 * forges
    while (hits := attacker.hits) < tries:
        attacker.passes = passes = attacker.chance.randrange(targets)
        before = it.disks()
        try:
            assert await it.install(attacker.tries) != 0
            assert attacker.believed == []
            assert attacker.hits > hits
            it.is_harmless(before)
        except AssertionError as error:
            error.add_note(f"boot after {hits} tries of {name!r}, which passed {passes} requests\n{it.story()}")
            raise
        it.wipe()
    attacker.attack = None


async def installs(it: Attacked, image: bytes) -> None:
    """Check an install that is not attacked, of a machine that was."""
    before = it.disks()
    it.at.recorder.failures.clear()
    assert (await it.install(), it.at.recorder.failures) == (0, []), it.story()
    assert it.disks()[1] == before[1]
    with it.at.host.devices[0].open("rb") as disk:
        start = disk.read(MIB)
    assert start[:MARK_BLOCK] == image[:MARK_BLOCK]
    assert f"machine={it.at.uid}\nname=m1\nstate=installed\n".encode() in start


async def test_attacks_change_no_disk_and_the_next_boot_installs_it(
    images: tuple[bytes, bytes], site_keys: Path, tmp_path: Path
) -> None:
    async with attacked(images, site_keys, tmp_path, first_seed()) as it:
        for name in ATTACKS:
            await try_attacks(it, name, 1, most_passed=3, forges=1)
        await installs(it, images[1])


async def test_virtual_media_of_another_machine_changes_no_disk(
    images: tuple[bytes, bytes], site_keys: Path, tmp_path: Path
) -> None:
    """Its words lead to the boot of that machine, which metalman ends, as two hosts take part in it."""
    async with attacked(images, site_keys, tmp_path, first_seed()) as it:
        before = it.disks()
        assert await it.install(media_of="m2") != 0
        assert "two hosts took part" in it.at.host.host.said(), it.story()
        assert [one.name for one in it.attacker.asked] == ["statement"]
        assert it.disks() == before
        assert await it.install(media_of="m1") == 0, it.story()
        assert it.attacker.asked[0].name == "statement"


async def status_of(keys: Path, folder: Path, attack: Attack, *header: str) -> str:
    """Return what the installer takes for the status of a file that is there, under an attack."""

    async def key() -> StatementKey:
        return StatementKey((keys / "statement.key").read_bytes())

    (folder / "files").mkdir()
    boots = FixedBoots(folder / "files")
    boots.put("user-data", b"#cloud-config\n{}\n")
    async with HttpServer(HttpServerSettings("127.0.0.1", 0), boots, CollectorRegistry(), key).serving() as server:
        attacker = Attacker(server.port, random.Random(0), attack, lambda _asked: True)
        async with await asyncio.start_server(attacker.answer, "127.0.0.1", 0) as listener:
            port = listener.sockets[0].getsockname()[1]
            host = Host(folder / "host")
            host.command("nc.openbsd").write_text(f"#!/bin/sh\nexec {needed('nc.openbsd')} -w 60 127.0.0.1 {port}\n")
            host.command("nc.openbsd").chmod(0o755)
            script = f'request GET "http://metalman/boot/{PREFIX}/user-data" "" "{"".join(header)}"; echo "$STATUS"'
            parts = ". $INSTALLER/base.sh; . $INSTALLER/http.sh;"
            _, said = await host.sh(f"{parts} {script}", STATEMENT_KEY=str(keys / "statement.pub"))
    assert attacker.hits == 1, said
    return said.split()[-1]


@pytest.mark.parametrize(
    ("asked", "sent", "believed"),
    [
        ("", "", True),
        ("", "bytes=0-9", False),
        ("", "bytes=1-", False),
        ("bytes=4-9", "bytes=4-9", True),
        ("bytes=4-99", "bytes=4-99", True),
        ("bytes=4-9", "bytes=4-8", False),
        ("bytes=4-9", "bytes=3-9", False),
        ("bytes=4-9", "bytes=4-", False),
        ("bytes=4-99", "bytes=4-8", False),
    ],
)
async def test_a_signed_part_is_believed_only_as_requested(
    site_keys: Path, tmp_path: Path, asked: str, sent: str, believed: bool
) -> None:
    """No signature covers the Range of a request, which an attacker may add or change."""

    async def with_range(by: Attacker, wanted: Asked) -> Answered:
        fields = {name: value for name, value in wanted.fields.items() if name != "range"}
        return await by.genuine(replace(wanted, fields=fields | ({"range": sent} if sent else {})))

    header = [f"Range: {asked}"] if asked else []
    status = await status_of(site_keys, tmp_path, with_range, *header)
    assert status == (("206" if asked else "200") if believed else "000")


async def test_the_status_of_an_answer_that_is_cut_off_is_not_believed(site_keys: Path, tmp_path: Path) -> None:
    """Files that a machine may lack, such as network-config, would be left out."""

    async def absent(by: Attacker, wanted: Asked) -> Answered:
        return Answered(404, {}, b"not he", lacks=2)

    assert await status_of(site_keys, tmp_path, absent) == "000"


async def test_without_the_key_of_a_site_an_attack_takes_a_disk(
    images: tuple[bytes, bytes], site_keys: Path, tmp_path: Path
) -> None:
    """The attacks are real: they succeed against an installer that believes every answer."""
    async with attacked(images, site_keys, tmp_path, 0) as it:
        it.key = tmp_path / "none"
        attacker, before = it.attacker, it.disks()
        attacker.attack, attacker.applies = swapped, lambda asked: asked.name == "hardware"
        attacker.wishes = lambda _chance: {"status": "ok", "action": "Write", "disk": "/dev/sdb", "erase": "S2"}
        assert await it.install() == 0, it.story()
        assert it.disks()[1] != before[1], it.story()


@pytest.mark.soak
@pytest.mark.timeout(7200)  # on a busy machine; alone it takes 10 s
@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("begin", range(0, SOAK_TRIES, AT_ONCE))
async def test_no_disk_changes_in_a_thousand_tries_of_an_attack(
    images: tuple[bytes, bytes], site_keys: Path, tmp_path: Path, name: str, begin: int
) -> None:
    async with attacked(images, site_keys, tmp_path, first_seed() + begin) as it:
        await try_attacks(it, name, AT_ONCE)
        await installs(it, images[1])
