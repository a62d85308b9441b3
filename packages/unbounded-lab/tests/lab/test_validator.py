"""The service against DMTF's own schemas, with DMTF's redfish-service-validator."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from unbounded_lab.bmc import LabBmc

VALIDATOR = Path(sys.executable).with_name("rf_service_validator")
SCHEMAS = Path(
    os.environ.get("UNBOUNDED_REDFISH_SCHEMAS", ROOT.parent / "shared" / "goldens" / "redfish-schemas" / "csdl")
)


@pytest.mark.slow
@pytest.mark.skipif(not VALIDATOR.exists(), reason="redfish-service-validator is not installed")
@pytest.mark.skipif(
    not SCHEMAS.is_dir(),
    reason="DMTF's schemas are not beside the checkout (UNBOUNDED_REDFISH_SCHEMAS names another place)",
)
@pytest.mark.parametrize("authentication", ["Basic", "Session"])
async def test_the_validator_finds_no_fault_in_the_service(tmp_path: Path, authentication: str) -> None:
    async with LabBmc() as bmc:
        logs = tmp_path / "logs"
        # fmt: off
        process = await asyncio.create_subprocess_exec(
            VALIDATOR, "-r", bmc.url, "-u", bmc.username, "-p", bmc.password, "--authtype", authentication,
            "--schema_directory", SCHEMAS, "--skipschema", "--logdir", logs,
            cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )
        # fmt: on
        async with asyncio.timeout(100):
            output, _ = await process.communicate()
        log = "\n".join(path.read_text() for path in logs.rglob("*.txt"))
    faults = [line for line in (output.decode() + log).splitlines() if re.search(r"\b(FAIL|ERROR)\b", line)]
    assert process.returncode == 0, "\n".join(faults) or output.decode()
    assert len([each for each in bmc.bmc.journal if each.status == 200]) > 20, "it looked at the whole service"
