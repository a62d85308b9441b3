"""The Containerfiles of the components, read as a builder would read them, and held against what they copy and run.
They cannot be built in tests: there is no container engine. The wheel that they install is built."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from scripts import packages

from tests.support.paths import ROOT

COMPONENTS = ("machina", "machine-ops-controller", "metalman", "unbounded")
INSTRUCTIONS = {"ARG", "FROM", "ENV", "RUN", "WORKDIR", "COPY", "USER", "EXPOSE", "ENTRYPOINT", "CMD", "VOLUME"}


def instructions(component: str) -> list[tuple[str, str]]:
    text = (ROOT / "deploy" / "images" / component / "Containerfile").read_text()
    lines = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines if line.strip()]


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_line_is_an_instruction_and_every_command_is_shell(component: str) -> None:
    for name, rest in instructions(component):
        assert name in INSTRUCTIONS
        if name == "RUN":
            ran = subprocess.run(["sh", "-n", "-c", rest], capture_output=True, text=True, check=False)
            assert ran.returncode == 0, ran.stderr
        if name in {"ENTRYPOINT", "CMD"}:
            assert all(isinstance(word, str) for word in json.loads(rest))


@pytest.mark.parametrize("component", COMPONENTS)
def test_containerfile_copies_existing_files_and_starts_a_wheel_script(component: str) -> None:
    for name, rest in instructions(component):
        if name == "COPY" and not rest.startswith("--from="):
            assert [source for source in shlex.split(rest)[:-1] if not (ROOT / source).exists()] == []
    scripts = packages.project()["scripts"]
    (entry,) = [json.loads(rest)[0] for name, rest in instructions(component) if name == "ENTRYPOINT"]
    assert entry in scripts
    users = [rest for name, rest in instructions(component) if name == "USER"]
    assert users == (["0:0"] if component == "metalman" else ["65532:65532"])


def test_a_builder_is_sent_what_is_copied_and_no_keys() -> None:
    """Everything is left out but what is named. A build in a folder with a control plane's data takes none of it."""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    let_in = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = {
        source.rstrip("/")
        for component in COMPONENTS
        for name, rest in instructions(component)
        if name == "COPY" and not rest.startswith("--from=")
        for source in shlex.split(rest)[:-1]
    }
    needed = {one for one in let_in if any(source == one or source.startswith(f"{one}/") for source in copied)}
    assert needed == let_in == {"deploy/images", "packages/unbounded", "packages/unbounded-apiserver"}
    assert [
        source for source in copied if not any(source == one or source.startswith(f"{one}/") for one in needed)
    ] == []


@pytest.mark.parametrize("component", COMPONENTS)
def test_nothing_is_installed_without_its_hash(component: str) -> None:
    for name, rest in instructions(component):
        for command in rest.split("&&") if name == "RUN" else ():
            if "pip install" in command:
                assert "--require-hashes" in command or "--no-index" in command


def names_in(file: str) -> set[str]:
    text = (ROOT / "deploy" / "images" / file).read_text()
    found = re.findall(r"^([a-z0-9-]+)==\S+( ; .*)? \\$", text, flags=re.MULTILINE)
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", text)) >= len(found)
    return {name for name, _marker in found}


def needed_by(*roots: str) -> set[str]:
    """Return the requirements of installed packages, and so on."""
    left, found = list(roots), set[str]()
    while left:
        one = Requirement(left.pop())
        name = re.sub(r"[-_.]+", "-", one.name).lower()
        if name in found or (one.marker is not None and not one.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        left += requires(name) or []
    return found


@pytest.mark.slow
def test_the_packages_are_those_that_the_project_needs_and_no_others() -> None:
    project, server = packages.project(), packages.project(packages.API_SERVER)
    own, extras = project["dependencies"], project["optional-dependencies"]
    own += extras["otel"]
    clouds = needed_by(*own, *extras["azure"], *extras["oci"])
    assert names_in("requirements.txt") == needed_by(*own)
    assert names_in("cloud-requirements.txt") == clouds
    up = clouds | names_in("console-requirements.txt") | needed_by(*server["dependencies"])
    assert names_in("up-requirements.txt") == up - set(packages.PACKAGES)
    build = tomllib.loads((packages.folder() / "pyproject.toml").read_text())["build-system"]
    assert names_in("build-requirements.txt") == needed_by(*build["requires"])


@pytest.mark.parametrize("component", COMPONENTS)
def test_the_packages_of_clouds_are_in_the_images_that_serve_them(component: str) -> None:
    copied = next(rest for name, rest in instructions(component) if name == "COPY")
    runs = " ".join(rest for name, rest in instructions(component) if name == "RUN")
    (installed,) = re.findall(r"--requirement ((?!build-)\S+)", runs)
    assert f"deploy/images/{installed} " in copied
    more = {"machine-ops-controller": "cloud-requirements.txt", "unbounded": "up-requirements.txt"}
    assert installed == more.get(component, "requirements.txt")


@pytest.mark.parametrize("component", COMPONENTS)
def test_only_the_unbounded_image_has_the_api_server_and_none_the_lab(component: str) -> None:
    copied = {rest.split()[0] for name, rest in instructions(component) if name == "COPY" and "packages/" in rest}
    server = {"packages/unbounded-apiserver/"} if component == "unbounded" else set[str]()
    assert copied == {"packages/unbounded/"} | server


@pytest.mark.slow
@pytest.mark.parametrize("package", packages.PACKAGES)
def test_the_wheel_holds_all_that_is_read_at_run_time(package: str, tmp_path: Path) -> None:
    sources = tmp_path / "source"
    shutil.copytree(packages.folder(package), sources, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    build = [str(Path(sys.executable).with_name("hatchling")), "build", "--target", "wheel", "--directory"]
    done = subprocess.run([*build, str(tmp_path / "wheel")], cwd=sources, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith(f"{packages.module_name(package)}/")}
    there = {
        str(path.relative_to(sources / "src"))
        for path in (sources / "src").rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.parts)
    }
    assert there - held == set()
