"""Generated files: those in the tree are those that the code makes."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from scripts import cli_reference, generate
from scripts.api_reference import field_rows

from unbounded.api.crd import container_cloud_definitions, custom_resource_definitions


@pytest.mark.slow
def test_the_tree_holds_what_the_code_generates() -> None:
    assert dict(generate.differences(generate.ROOT)) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "definitions"),
    [("deploy/crd", custom_resource_definitions()), ("deploy/crd/container-cloud", container_cloud_definitions())],
    ids=["all", "container-cloud"],
)
def test_the_yaml_is_the_definition(folder: str, definitions: tuple[dict[str, Any], ...]) -> None:
    read = [
        yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
        for path in (generate.ROOT / folder).glob("*.yaml")
        if path.name != "kustomization.yaml"
    ]
    assert sorted(read, key=_name) == sorted(definitions, key=_name)


def _name(crd: dict[str, Any]) -> str:
    return str(crd["metadata"]["name"])


def test_a_default_is_shown_as_a_manifest_has_it() -> None:
    fields = {
        "word": ("string", "PXE"),
        "truth": ("boolean", True),
        "count": ("integer", 0),
        "none": ("string", None),
        "object": ("object", {"type": "OnDelete", "fast": True}),
    }
    schema = {"properties": {name: {"type": kind, "default": value} for name, (kind, value) in fields.items()}}
    shown = {name: default for name, _, _, default, _ in field_rows(schema)}
    assert shown == {
        "`word`": "`PXE`",
        "`truth`": "`true`",
        "`count`": "`0`",
        "`none`": "",
        "`object`": "`{type: OnDelete, fast: true}`",
    }


def test_help_is_shown_with_its_defaults_in_place() -> None:
    (page,) = cli_reference.files().values()
    assert "%(" not in page
    assert "| `--namespace NAME` | Set the namespace; no other is supported (default unbounded-kube). |" in page


@pytest.mark.slow
def test_a_file_that_differs_or_is_missing_is_found_and_written(tmp_path: Path) -> None:
    everything = generate.generated()
    assert sorted(generate.write(tmp_path)) == sorted(everything)
    page = tmp_path / "docs/reference/api.md"
    page.write_text(page.read_text().replace("azureuser", "root"))
    (found,) = generate.differences(tmp_path)
    assert found[0] == "docs/reference/api.md"
    assert "-| `spec.ssh.username` | string |  | `root` |" in found[1]
    assert generate.write(tmp_path) == ["docs/reference/api.md"]
    assert list(generate.differences(tmp_path)) == []


@pytest.mark.slow
def test_check_reports_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert generate.main(["--check"]) == 1
    assert "unbounded-cloud.io_machines.yaml is out of date" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
