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
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from scripts import packages

from tests.support.paths import ROOT

COMPONENTS = ("machina", "machine-ops-controller", "container-cloud", "unbounded-console", "metalman", "unbounded")
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


@dataclass(frozen=True)
class Packages:
    """Names of packages.

    Attributes:
        here: on this platform, which is that of the images.
        elsewhere: on other platforms alone, by their markers.
    """

    here: set[str]
    elsewhere: set[str]


def names_in(file: str) -> Packages:
    text = (ROOT / "deploy" / "images" / file).read_text()
    found = re.findall(r"^([a-z0-9-]+==\S+(?: ; .*)?) \\$", text, flags=re.MULTILINE)
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", text)) >= len(found)
    listed = [Requirement(one) for one in found]
    here = {one.name for one in listed if one.marker is None or one.marker.evaluate()}
    return Packages(here, {one.name for one in listed} - here)


def needed_by(*roots: str) -> Packages:
    """Return what requirements need, with their extras, by the metadata of the installed packages, and so on."""
    left = [Requirement(one) for one in roots]
    here, elsewhere, done = set[str](), set[str](), set[tuple[str, str]]()
    while left:
        one = left.pop()
        name = canonicalize_name(one.name)
        here.add(name)
        for extra in {"", *one.extras} - {extra for of, extra in done if of == name}:
            done.add((name, extra))
            for inner in map(Requirement, required_by(name)):
                if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                    left.append(inner)
                elif "extra" not in str(inner.marker):
                    elsewhere.add(canonicalize_name(inner.name))
    return Packages(here - set(packages.PACKAGES), elsewhere - here)


def required_by(name: str) -> list[str]:
    """Return the requirements of a package; of our own those of pyproject.toml, as they are installed in place."""
    if name not in packages.PACKAGES:
        return requires(name) or []
    own = packages.project(name)
    extras = own.get("optional-dependencies", {})
    return [*own["dependencies"], *(f"{one} ; extra == '{extra}'" for extra in extras for one in extras[extra])]


BUILD: Final = tomllib.loads((packages.folder() / "pyproject.toml").read_text())["build-system"]["requires"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "roots"),
    [
        ("requirements.txt", ["unbounded[otel]"]),
        ("cloud-requirements.txt", ["unbounded[azure,oci,otel]"]),
        ("console-requirements.txt", ["unbounded[azure,console,oci]"]),
        ("up-requirements.txt", ["unbounded[azure,console,oci,otel,up]"]),
        ("build-requirements.txt", BUILD),
    ],
)
def test_the_packages_are_those_that_the_project_needs_and_no_others(file: str, roots: list[str]) -> None:
    listed, needed = names_in(file), needed_by(*roots)
    assert listed.here == needed.here
    assert listed.elsewhere <= needed.elsewhere


@pytest.mark.slow
def test_needed_packages_follow_extras_and_markers() -> None:
    plain, whole = needed_by("uvicorn"), needed_by("uvicorn[standard]")
    assert {"click", "h11"} <= plain.here
    assert whole.here - plain.here >= {"httptools", "uvloop", "watchfiles", "websockets"}
    assert "h2" in needed_by("httpx2", "httpx2[http2]").here - needed_by("httpx2").here
    assert needed_by("httpx2").elsewhere >= {"httpx2-jsfetch"}
    assert needed_by("unbounded[console]").here >= {"nicegui", "uvicorn", "uvloop", "authlib", "cryptography"}


@pytest.mark.parametrize("component", COMPONENTS)
def test_the_packages_of_clouds_are_in_the_images_that_serve_them(component: str) -> None:
    copied = next(rest for name, rest in instructions(component) if name == "COPY")
    runs = " ".join(rest for name, rest in instructions(component) if name == "RUN")
    (installed,) = re.findall(r"--requirement ((?!build-)\S+)", runs)
    assert f"deploy/images/{installed} " in copied
    more = {
        "machine-ops-controller": "cloud-requirements.txt",
        "unbounded-console": "console-requirements.txt",
        "unbounded": "up-requirements.txt",
    }
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
