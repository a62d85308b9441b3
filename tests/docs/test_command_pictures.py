"""docs/screenshots/*.svg: each is made by the command that it shows. `make screenshots` writes them anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.running import KUBECTL
from tests.docs.command_pictures import COMPLETION, PICTURES, make, make_completion
from tests.docs.runner import DOCS
from tests.e2e.plane import plane

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300, func_only=True),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]
FOLDER = DOCS / "screenshots"


async def test_each_command_prints_what_its_picture_shows(tmp_path: Path) -> None:
    folder = FOLDER if "UNBOUNDED_SCREENSHOTS" in os.environ else tmp_path
    async with plane(tmp_path / "data", "--lab", "2", "--container-cloud") as it:
        await it.running.says(r"operation lab-01-host-reboot-\S+: Complete")
        for picture in PICTURES:
            (folder / f"{picture.name}.svg").write_text(await make(it, picture))
        (folder / f"{COMPLETION.name}.svg").write_text(await make_completion(it, COMPLETION))


def test_each_picture_is_shown_by_a_guide() -> None:
    names = {f"{picture.name}.svg" for picture in (*PICTURES, COMPLETION)}
    assert {path.name for path in FOLDER.glob("*.svg")} == names
    guides = "".join(path.read_text() for path in DOCS.glob("*.md"))
    assert [name for name in names if f"(screenshots/{name})" not in guides] == []
