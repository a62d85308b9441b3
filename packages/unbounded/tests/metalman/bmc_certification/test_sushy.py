"""The checks against another project's server: sushy-tools' emulator, with basic auth and a closed service root."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from tests.support.sushy import PASSWORD, USERNAME, sushy
from unbounded.metalman.bmc_certification.certify import certify
from unbounded.metalman.bmc_certification.grades import CheckName, Grade, Use, Verdict
from unbounded.metalman.redfish.bmc_interface import BmcAccount

pytestmark = pytest.mark.slow

WORKS = {CheckName.SYSTEM, CheckName.POWER_STATE, CheckName.RESET, CheckName.BOOT_OVERRIDE, CheckName.BOOT_PXE}


async def test_the_emulator_is_graded_and_its_override_restored(tmp_path: Path) -> None:
    async with sushy(tmp_path) as server:
        account = BmcAccount(server.url, USERNAME, PASSWORD, ca_bundle=server.ca_bundle)
        found = await certify(account, version="0", day=date(2026, 11, 29), allow_writes=True)
        changes = server.changes()
    verdicts = {result.name: result.verdict for result in found.results}
    assert {name for name in WORKS if verdicts[name] is not Verdict.WORKS} == set()
    assert verdicts[CheckName.SESSIONS] is Verdict.NOT_OFFERED
    words = {result.name: result.words for result in found.results}
    # the emulator turns Once into Continuous; a failed restoration would begin with NOT RESTORED
    assert words[CheckName.BOOT_WRITE] == "Once/Pxe was written, and Continuous/Pxe was read back"
    assert verdicts[CheckName.DISKS] is Verdict.DEVIATES  # its driver fails with 500
    assert verdicts[CheckName.MANAGER_RESET] is Verdict.NOT_OFFERED
    assert {each.use: each.grade for each in found.grades.uses}[Use.REBOOT] is Grade.B
    assert changes == []
    assert server.device_ids[0] not in found.page + found.profile
