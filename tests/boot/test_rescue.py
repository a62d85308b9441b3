"""The rescue system of a machine without a system: an SSH client looks around, and ends it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.boot.installing import ScsiDisk, installing
from tests.images.ssh_client import Client, client_key
from tests.images.support import site
from tests.support.ports import free_port
from tests.support.waiting import eventually

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

BOOTS_S: Final = 300.0
ENDS_S: Final = 120.0


async def test_a_machine_is_rescued_over_ssh_until_the_client_ends_it(tmp_path: Path) -> None:
    disk, data = ScsiDisk.made(tmp_path, "kept", size=64 << 20), b"the data of this machine"
    with disk.file.open("r+b") as file:
        file.write(data)
    port = free_port()
    async with site() as where:
        where.answers = [(200, {"status": "ok", "action": "Rescue"})]
        where.keys = client_key(tmp_path / "given")
        async with installing(where, tmp_path, (disk,), ssh_port=port) as machine:
            await eventually(lambda: len(where.rescues) > 1, within_s=BOOTS_S)  # the first one brings the keys
            client = Client(port, where.rescues[0].host_key)
            look = f"id -u; head -c {len(data)} /dev/sda; echo; cat /proc/sys/kernel/ostype"
            code, out = await client.run(tmp_path / "given", "root@127.0.0.1", look)
            assert (code, out.splitlines()[-3:]) == (0, ["0", data.decode(), "Linux"]), out
            assert (await client.run(tmp_path / "given", "root@127.0.0.1", "end-rescue"))[0] == 0
            await machine.ended(within_s=ENDS_S)
        assert where.rescues[-1].ended
        assert not any(each["failed"] for each in where.reports)
    assert disk.file.read_bytes().startswith(data)
