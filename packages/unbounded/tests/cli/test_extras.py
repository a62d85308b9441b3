"""Commands whose package is not installed name the extra to install, and change nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from unbounded.cli.main import main as unbounded

UP, LAB = "unbounded[up]", "unbounded[lab]"
COMMANDS = [
    ("unbounded_apiserver", ["up", "--data", "data"], UP),
    ("unbounded_apiserver", ["backup", "--data", "data", "file"], UP),
    ("unbounded_apiserver", ["restore", "--data", "data", "file"], UP),
    ("unbounded_apiserver", ["migrate", "--data", "data", "--to", "kubeconfig"], UP),
    ("unbounded_lab", ["up", "--lab", "1", "--data", "data"], LAB),
    ("unbounded_lab", ["up", "--lab", "1", "--lab-cloud", "oci", "--data", "data"], LAB),
    ("unbounded_lab", ["lab", "bmc"], LAB),
    ("unbounded_lab", ["lab", "cloud", "azure"], LAB),
]


@pytest.mark.parametrize(("module", "arguments", "extra"), COMMANDS, ids=str)
def test_an_absent_package_is_named_with_its_extra(
    module: str,
    arguments: list[str],
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(SystemExit) as ended:
        unbounded(arguments)
    assert ended.value.code == 2
    assert f"{module.replace('_', '-')}, which is not installed: pip install '{extra}'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
