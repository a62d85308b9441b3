"""docs/screenshots/*.svg: each is made by the command that it shows. `make screenshots` writes them anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.text import Text

from tests.cli.running import KUBECTL
from tests.docs.command_pictures import (
    COMPLETION,
    FOLDER,
    HOST_PICTURES,
    PICTURES,
    CommandPicture,
    CompletionPicture,
    check_pictures,
    drawn,
    make,
    make_completion,
    missing_entries,
    outdated,
)
from tests.docs.runner import DOCS
from tests.e2e.plane import plane

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300, func_only=True),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]


async def test_each_command_prints_what_its_picture_shows(tmp_path: Path) -> None:
    made: dict[CommandPicture | CompletionPicture, str] = {}
    async with plane(tmp_path / "data", "--lab", "2", "--container-cloud") as it:
        await it.running.says(r"operation lab-01-host-reboot-\S+: Complete")
        for picture in PICTURES:
            made[picture] = await make(it.shell, picture)
        made[COMPLETION] = await make_completion(it.shell, COMPLETION)
    check_pictures(made)


def test_times_and_ports_of_a_picture_may_differ_and_words_may_not() -> None:
    output = "a-20261130-101811  Ready  5s  https://127.0.0.1:443, since 2026-11-30T10:18:27Z, hash 368b8e76fd0a8bd2\n"
    later = output.replace("101811", "235959").replace("5s", "1m40s").replace(":443", ":32768").replace("bd2", "000")
    shown = picture_of(f"{output}b  a Machine that pins …\n")
    assert outdated(shown, picture_of(f"{later}b  a Machine that …\n")) == []
    assert outdated(shown, picture_of(f"{later}b  a Machine that claims …\n")) == [
        "'b a Machine that pins …' is now 'b a Machine that claims …'"
    ]
    assert outdated(shown, picture_of(output)) == ["'b a Machine that pins …' is now ''"]
    assert len(outdated(shown, picture_of(output.replace("Ready", "Failed")))) == 2


def test_log_entries_keep_their_words_in_any_order_and_among_others() -> None:
    first = "2026-11-30T22:46:36+0000 host-a agent[498]: 22:46:36 INFO    node registered  machine=a version=0.1.0\n"
    second = "2026-11-30T22:46:36+0000 host-a systemd[1]: Started.\n"
    shown = picture_of(f"==> agent <==\n{first}{second}")
    later = picture_of(f"==> agent <==\n{second}{second.replace('Started', 'Other')}{first.replace('498', '49812')}")
    assert missing_entries(shown, later) == []
    assert missing_entries(later, shown) == ["a systemd[PID]: Other."]
    changed = picture_of(f"==> agent <==\n{second}{first.replace('registered', 'lost')}")
    assert missing_entries(shown, changed) == ["a agent[PID]: TIME INFO node registered machine=a version=VERSION"]
    assert len(missing_entries(shown, picture_of(f"==> other <==\n{first}{second}"))) == 1


def picture_of(output: str) -> str:
    return drawn((Text("kubectl unbounded tree a"), output))


def test_each_picture_is_shown_by_a_guide() -> None:
    names = {f"{picture.name}.svg" for picture in (*PICTURES, *HOST_PICTURES, COMPLETION)}
    assert {path.name for path in FOLDER.glob("*.svg")} == names
    guides = "".join(path.read_text() for path in DOCS.glob("*.md"))
    assert [name for name in names if f"(screenshots/{name})" not in guides] == []
