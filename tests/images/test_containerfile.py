"""The Containerfile of host-ubuntu2404, read as a builder would read it, and held against what it copies and what the
installer needs. It cannot be built in tests: there is no container engine, and no archive of Ubuntu."""

from __future__ import annotations

import re
import shlex
import subprocess

from tests.images.support import TOP

FOLDER = TOP / "images" / "host-ubuntu2404"
AGENT = {"build/agent/unbounded-agent", "build/agent/unbounded-agent.sha256"}  # made before, by scripts/agent-release
INSTRUCTIONS = {"ARG", "FROM", "ENV", "RUN", "WORKDIR", "COPY"}


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^\s*#.*\n", "", (FOLDER / "Containerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines if line.strip()]


def test_every_line_is_an_instruction_and_every_command_is_shell() -> None:
    for name, rest in instructions():
        assert name in INSTRUCTIONS
        if name == "RUN":
            ran = subprocess.run(["sh", "-n", "-c", rest], capture_output=True, text=True, check=False)
            assert ran.returncode == 0, ran.stderr


def test_stages_are_defined_before_use_and_the_last_is_scratch() -> None:
    stages: list[str] = []
    for name, rest in instructions():
        words = shlex.split(rest)
        if name == "FROM":
            assert words[0] in {"${UBUNTU}", "scratch", *stages}
            stages.append(words[2] if len(words) == 3 else words[0])
        elif name == "COPY" and words[0].startswith("--from="):
            assert words[0].removeprefix("--from=") in stages[:-1]
    assert stages == ["packages", "disk", "netboot", "scratch"]
    assert instructions()[-1] == ("COPY", "--from=netboot /build/disk/ /disk/")


def test_what_is_copied_is_there_and_so_is_what_is_run() -> None:
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from="):
            for source in shlex.split(rest)[:-1]:
                assert (TOP / source).exists() or source in AGENT, source
        for path in re.findall(r"/source/(\S+)", rest) if name == "RUN" else ():
            assert (TOP / path.rstrip("/.")).exists(), path


def test_what_is_downloaded_is_checked() -> None:
    (download,) = [rest for name, rest in instructions() if name == "RUN" and "curl" in rest and "apt-get" not in rest]
    assert "sha256sum --check --strict" in download
    assert ("ARG", "CLOUD_IMAGE_SHA256") in instructions()  # no default: it has to be given


def test_its_script_is_shell() -> None:
    path = FOLDER / "make-netboot"
    assert path.stat().st_mode & 0o111
    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0


def test_the_image_has_all_that_the_templates_and_the_metadata_name() -> None:
    text = (FOLDER / "Containerfile").read_text()
    for name in ("shimx64.efi", "grubx64.efi", "undionly.kpxe", "ipxe.efi", "metadata.yaml", "disk.img.zst.sha256"):
        assert name in text
    assert "boot.ipxe" in text
    assert (TOP / "images/host-debian12/netboot/boot.ipxe.tmpl").exists()
