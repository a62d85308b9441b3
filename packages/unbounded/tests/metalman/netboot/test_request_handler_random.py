"""Any order of what can happen around one Machine: nothing goes out that should not, and what is over stays over."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.metalman.support.netboot_objects import ADDRESS, MAC, REDFISH, lease, machine_body
from tests.metalman.support.netboot_site import World, netboot_site
from tests.metalman.support.reservations import asked, pxe
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.api.machine import MACHINES
from unbounded.metalman.dhcp import packet as opt
from unbounded.metalman.dhcp import reply_or_drop as dhcp
from unbounded.metalman.dhcp.model import Arrival, DhcpReply
from unbounded.metalman.dhcp.packet import MessageType
from unbounded.metalman.http.boot_service import OnDisk, ProgressReport, Rendered
from unbounded.metalman.netboot.model import milestone_rank
from unbounded.metalman.replace_table import BOOT_STAGES, RETURN_STAGES

STAGES = ("WaitingImage", "ShuttingDown", "WaitingOn", "WaitingLoader", "WaitingRepave", "WaitingReturn", "WaitingNode")
STRANGER = "10.0.0.99"
STEPS = (
    *(f"stage {stage}" for stage in STAGES),
    *("boot", "install", "disable", "stranger", "thief", "rival", "no rival", "end"),
)


@dataclass
class Model:
    """The expected state: derived from the steps alone."""

    world: World
    stage: str = ""
    over: bool = False  # the operation has ended
    written: bool = False
    contested: bool = False
    rival: bool = False
    prefix: str = ""
    milestones: list[int] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        return self.stage in BOOT_STAGES and not (self.over or self.written or self.contested)

    @property
    def has_prefix(self) -> bool:
        finishing = self.stage in RETURN_STAGES or (self.stage in BOOT_STAGES and self.written)
        return self.is_open or (finishing and not self.over and not self.contested)

    async def step(self, name: str) -> None:
        if name.startswith("stage ") and not self.over:
            self.stage = name.removeprefix("stage ")
            await self.world.stage(self.stage)
        elif name == "end":
            self.over = True
            await self.world.stage(self.stage or "WaitingImage", phase="Failed")
        elif name in ("rival", "no rival"):
            await self._rival(there=name == "rival")
        elif name == "boot" and not self.rival:
            await self._boot()
        elif name in ("install", "disable", "stranger") and self.prefix:
            await self._report(name)
        elif name == "thief" and not self.rival and self.is_open:
            self.world.macs[ADDRESS] = "66:66:00:00:00:01"
            assert await self.gets("vmlinuz", None) is False
            self.world.macs[ADDRESS] = MAC
            self.contested = True
        await self.world.site.flush("m1")
        await self.world.caught_up()

    async def _rival(self, *, there: bool) -> None:
        if there != self.rival:
            self.rival = there
            leases = [lease(ADDRESS, "52:54:00:00:00:02")] if there else []
            await self.world.api.patch(MACHINES, "m2", {"spec": {"pxe": {"dhcpLeases": leases}}})

    async def _boot(self) -> None:
        """The host starts: what it gets decides how far it comes."""
        for path in ("shimx64.efi", "grub/grub.cfg", "vmlinuz"):
            assert await self.gets(path, None) is self.is_open
        if self.is_open:
            self.prefix = self.world.prefix()

    async def _report(self, name: str) -> None:
        site, client = self.world.site, STRANGER if name == "stranger" else ADDRESS
        had, finishing = self.has_prefix, self.has_prefix and not self.is_open
        if name == "disable":
            assert (await site.disable(client, self.prefix)).code == (200 if had else 404)
            self.written = self.written or had
            return
        code = (await site.progress(client, self.prefix, ProgressReport(stage="Starting"))).code
        if name == "stranger" and had:
            # An installed system may have an address of its own; then it is the one with that of the lease that is not.
            self.contested = code == 409
            assert self.contested or finishing
        elif had and code == 409:
            assert finishing
            self.contested = True
        else:
            assert code == (200 if had else 404)

    async def gets(self, path: str, prefix: str | None, client: str = ADDRESS) -> bool:
        found = await self.world.site.file(client, prefix, path)
        if not isinstance(found, OnDisk | Rendered):
            return False
        await self.world.site.served(client, prefix, path)
        return True

    async def check(self) -> None:
        """Check the invariants."""
        answer = dhcp.answer(asked(MessageType.DISCOVER, pxe(7)), Arrival(), self.world.site.reservations)
        if self.rival:
            assert not isinstance(answer, DhcpReply)
        else:
            assert isinstance(answer, DhcpReply)
            assert (opt.BOOT_FILE in answer.packet.options) is self.is_open
        assert await self.gets("vmlinuz", None, STRANGER) is False
        assert await self.gets("vmlinuz", "a" * 32) is False
        for path in ("cloud-init/meta-data", "disk.img.gz", "metadata.yaml"):
            assert await self.gets(path, None) is False
        seen = (await self.world.api.get(MACHINES, "m1")).status.netboot
        self.milestones.append(milestone_rank(None if seen is None else seen.milestone))
        assert self.milestones == sorted(self.milestones)
        assert (self.milestones[-1] == milestone_rank("Contested")) is self.contested
        assert [reason for _, reason, _ in self.world.told] == ["BootContested"] * self.contested


@pytest.mark.slow
@given(st.lists(st.sampled_from(STEPS), max_size=14))
def test_whatever_happens_in_whatever_order(steps: list[str]) -> None:
    async def main(folder: Path) -> None:
        async with netboot_site(folder, api=MemoryApi(now=virtual_now), now=virtual_now) as world:
            await world.machine(machine_body("m1", pxe={"redfish": REDFISH}))
            await world.machine(machine_body("m2", leases=[]))
            await world.replace(stage="WaitingImage")
            model = Model(world, stage="WaitingImage")
            for step in steps:
                await model.step(step)
                await model.check()

    with TemporaryDirectory() as folder:
        run_virtual(main(Path(folder)))
