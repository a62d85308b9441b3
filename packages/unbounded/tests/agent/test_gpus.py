"""State of a host's GPUs, as a condition of its Machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from unbounded.agent.daemon.reporting import host_conditions
from unbounded.agent.node.gpus import CdiResult, cdi_result, gpus_described, read_cdi_result, write_cdi_result
from unbounded.agent.paths import HostPaths

SPECIFICATION = b"""\
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits: {deviceNodes: [{path: /dev/nvidia0}]}
- name: all
"""


@pytest.mark.parametrize(
    ("specification", "expected"),
    [
        (SPECIFICATION, CdiResult(("nvidia.com/gpu=0", "nvidia.com/gpu=all"))),
        (None, CdiResult(error="nvidia-ctk wrote no CDI specification with devices")),
        (b"devices: 7", CdiResult(error="nvidia-ctk wrote no CDI specification with devices")),
        (b"kind: nvidia.com/gpu\ndevices: []", CdiResult(error="the CDI specification names no device")),
    ],
)
def test_devices_of_a_specification_are_read(specification: bytes | None, expected: CdiResult) -> None:
    assert cdi_result(specification) == expected


def test_a_specification_that_is_no_yaml_is_an_error_in_one_line() -> None:
    told = cdi_result(b"a: [")
    assert told.error.startswith("the CDI specification is not YAML: while parsing")
    assert "\n" not in told.error


def test_what_was_recorded_is_read_by_the_daemon_and_forgotten(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    write_cdi_result(paths, CdiResult(("nvidia.com/gpu=0",)))  # before there is a state
    assert read_cdi_result(paths) is None
    paths.state.mkdir(parents=True)
    write_cdi_result(paths, CdiResult(("nvidia.com/gpu=0",)))
    assert read_cdi_result(paths) == CdiResult(("nvidia.com/gpu=0",))
    (says,) = host_conditions(paths, ())
    assert (says.status, says.reason, says.message) == ("True", "Succeeded", "CDI describes nvidia.com/gpu=0")
    write_cdi_result(paths, None)
    assert host_conditions(paths, ()) == ()
    (gone,) = host_conditions(paths, ("GPUsDescribed",))
    assert (gone.status, gone.reason) == ("False", "NotFound")


@pytest.mark.parametrize(
    ("described", "cards", "driver", "reason", "words"),
    [
        (CdiResult(tuple(f"nvidia.com/gpu={n}" for n in range(10))), 10, "550", "Succeeded", "gpu=7 and 2 more"),
        (
            CdiResult(error="status 203"),
            1,
            "550",
            "Failed",
            "CDI describes no GPU to the container runtime: status 203",
        ),
        (None, 2, "", "NoDriver", "2 NVIDIA cards on the PCI bus and no driver"),
        (None, 1, "550.1", "Failed", "driver 550.1, but no GPU in /dev"),
    ],
)
def test_the_condition_says_what_was_found_or_why_not(
    described: CdiResult | None, cards: int, driver: str, reason: str, words: str
) -> None:
    says = gpus_described(described, cards=cards, driver=driver, is_reported=False)
    assert says is not None
    assert (says.reason, says.status) == (reason, "True" if reason == "Succeeded" else "False")
    assert words in says.message
