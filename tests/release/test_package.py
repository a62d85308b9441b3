"""The wheel as other projects meet it: its license, and types that `mypy --strict` of an outside provider checks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Final

import pytest
from scripts import packages
from scripts.deploy_files import ROOT
from scripts.release import make_wheel

pytestmark = pytest.mark.slow

EPOCH: Final = 1_750_000_000
SAMPLE: Final = ROOT / "examples" / "provider-plugin" / "src" / "unbounded_process_provider"
ALONE: Final = """\
import importlib, pkgutil, sys, unbounded
for module in pkgutil.walk_packages(unbounded.__path__, "unbounded."):
    if not module.name.startswith(("unbounded.cli", "unbounded.machineops.testing")):
        importlib.import_module(module.name)
import unbounded.cli.plugin.main
sys.exit(" ".join(name for name in sys.modules if name.startswith(("unbounded_apiserver", "unbounded_lab"))) or None)
"""
WRONG: Final = """\
from typing_extensions import reveal_type
from unbounded.machineops.provider import Instance, Provider, Rate, Throttled

from unbounded_process_provider.provider import LocalProcess


class Deaf(LocalProcess):
    def instance(self, provider_id: int) -> Instance:  # type: ignore[override]
        return super().instance(str(provider_id))


sound: Provider = LocalProcess()
reveal_type(sound.rates.reads)
Rate("fast", 1)
Throttled("later", after_s="soon")
deaf: Provider = Deaf()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(tmp_path_factory.mktemp("wheel"), EPOCH)


@pytest.fixture
def outside(wheel: Path, tmp_path: Path) -> Path:
    """Return a project outside of the tree: the sample provider, and an environment with the wheel and its packages."""
    project = tmp_path / "project"
    shutil.copytree(SAMPLE, project / "src" / SAMPLE.name, ignore=shutil.ignore_patterns("__pycache__"))
    environment = project / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return project


@pytest.mark.parametrize("package", packages.PACKAGES)
def test_the_wheel_holds_the_license_and_the_marker_of_its_types(package: str, tmp_path: Path) -> None:
    module = packages.module_name(package)
    wheel = make_wheel(tmp_path, EPOCH, package)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
        (text,) = [archive.read(name) for name in names if name.endswith(".dist-info/licenses/LICENSE")]
    assert f"{module}/py.typed" in names
    assert {name.partition("/")[0] for name in names} == {module, f"{module}-{packages.version()}.dist-info"}
    assert not [name for name in names if "/tests/" in name]
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert text == (ROOT / "LICENSE").read_bytes()
    assert text.split(b"\n", 3)[1:3] == [b" " * 33 + b"Apache License", b" " * 27 + b"Version 2.0, January 2004"]


def test_packages_have_one_version_and_ask_for_each_other_in_it() -> None:
    version = packages.version()
    assert {packages.project(one)["version"] for one in packages.PACKAGES} == {version}
    extras = packages.project()["optional-dependencies"]
    assert extras["up"] == [f"{packages.API_SERVER}=={version}"]
    assert extras["lab"] == [f"{packages.LAB}=={version}"]
    for one in (packages.API_SERVER, packages.LAB):
        assert f"{packages.PRODUCT}=={version}" in packages.project(one)["dependencies"]


def test_product_alone_imports_its_controllers_and_names_missing_extras(outside: Path) -> None:
    python = str(outside / ".venv" / "bin" / "python")
    ran = subprocess.run([python, "-c", ALONE], cwd=outside, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    command = [python, "-m", "unbounded.cli.main", "up", "--data", "data"]
    ran = subprocess.run(command, cwd=outside, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.endswith("unbounded-apiserver, which is not installed: pip install 'unbounded[up]'\n"), ran.stderr


def test_mypy_detects_wrong_types_in_an_external_provider_only(outside: Path) -> None:
    (outside / "src" / "wrong.py").write_text(WRONG)
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-pretty", "--hide-error-context"),
            *("--python-executable", str(outside / ".venv" / "bin" / "python")),
            *("--cache-dir", str(outside / "cache"), "--no-error-summary", "src"),
        ],
        cwd=outside,
        env={**os.environ, "MYPYPATH": "src"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line for line in ran.stdout.splitlines() if "error:" in line or "Revealed" in line]
    assert found == [
        'src/wrong.py:13: note: Revealed type is "unbounded.machineops.provider.Rate"',
        'src/wrong.py:14: error: Argument 1 to "Rate" has incompatible type "str"; expected "float"  [arg-type]',
        'src/wrong.py:15: error: Argument "after_s" to "Throttled" has incompatible type "str"; expected "float"'
        "  [arg-type]",
        'src/wrong.py:16: error: Incompatible types in assignment (expression has type "Deaf", variable has type'
        ' "Provider")  [assignment]',
    ], ran.stdout + ran.stderr
