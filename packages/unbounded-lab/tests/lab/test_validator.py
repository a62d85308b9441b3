"""The service against DMTF's own schemas, with DMTF's redfish-service-validator."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.paths import ROOT
from unbounded_lab.bmc import HostPower, LabBmc
from unbounded_lab.bmc.events import BmcEvent, event_body
from unbounded_lab.bmc.faults import IDEAL

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
    async with LabBmc(profile="sends-events+serial-console") as bmc:
        bmc.bmc.events.open_stream(bmc.clock.now())
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
    validated = {each.path for each in bmc.bmc.journal if each.status == 200}
    assert {"/redfish/v1/EventService", "/redfish/v1/EventService/Subscriptions/1"} <= validated


@pytest.mark.skipif(not SCHEMAS.is_dir(), reason="DMTF's schemas are not beside the checkout")
@pytest.mark.parametrize("power", list(HostPower))
def test_events_have_only_the_properties_of_the_schema_and_all_that_it_requires(power: HostPower) -> None:
    body = event_body(BmcEvent(1, 1_700_000_000.0, "/redfish/v1/Systems/1", power), IDEAL)
    for kind, found in (("Event", body), ("EventRecord", body["Events"][0])):
        known, required = _properties(kind)
        names = {name for name in found if "@" not in name}
        assert names <= known
        assert required <= names
    assert body["@odata.type"] == "#Event.v1_13_0.Event"


def _properties(kind: str) -> tuple[set[str], set[str]]:
    """Return the properties of a type of the Event schema with those that it inherits, and the required ones."""
    edm = "{http://docs.oasis-open.org/odata/ns/edm}"
    known, required = {"Id", "Name", "Description"}, {"Id", "Name"}
    if kind == "EventRecord":  # a ReferenceableMember
        known, required = {"MemberId"}, {"MemberId"}
    for entity in ElementTree.parse(SCHEMAS / "Event_v1.xml").iter(f"{edm}EntityType"):
        if entity.get("Name") != kind:
            continue
        for each in (*entity.iter(f"{edm}Property"), *entity.iter(f"{edm}NavigationProperty")):
            known.add(each.get("Name", ""))
            if each.find(f"{edm}Annotation[@Term='Redfish.Required']") is not None:
                required.add(each.get("Name", ""))
    return known, required
