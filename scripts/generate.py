"""Write the files that are generated from the code: `python -m scripts.generate [--check]`.

With `--check` it writes nothing, and exits with 1 and a summary if a file is out of date.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from scripts import (
    api_reference,
    azure_requests,
    chart_files,
    cli_reference,
    crd_files,
    dashboard_files,
    deploy_files,
    explain_api_reference,
    manifest_files,
    metric_reference,
    operation_reference,
    pictures,
)

ROOT: Final = Path(__file__).resolve().parent.parent
SHOWN_LINES: Final = 20

Files = Mapping[str, str]  # path below the root: content

GENERATORS: Final[Mapping[str, Callable[[], Files]]] = {
    "CustomResourceDefinitions": crd_files.files,
    "CustomResourceDefinitions of Container Cloud": crd_files.container_cloud_files,
    "rights and policies": manifest_files.files,
    "rights and policies of Container Cloud": manifest_files.container_cloud_files,
    "processes and images": deploy_files.files,
    "Helm chart": chart_files.files,
    "API reference": api_reference.files,
    "command reference": cli_reference.files,
    "operation reference": operation_reference.files,
    "metric reference": metric_reference.files,
    "dashboard": dashboard_files.files,
    "API of explanations": explain_api_reference.files,
    "pictures": pictures.files,
    "requests to Azure": azure_requests.files,
}


def generated() -> dict[str, str]:
    """Return the content of every generated file by its path."""
    return {path: content for generate in GENERATORS.values() for path, content in generate().items()}


def differences(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the generated files that are out of date in the tree, each with the head of its diff."""
    for path, expected in generated().items():
        place = root / path
        found = place.read_text() if place.exists() else ""
        if found != expected:
            diff = difflib.unified_diff(
                found.splitlines(), expected.splitlines(), path, "as generated", n=1, lineterm=""
            )
            yield path, "\n".join(list(diff)[:SHOWN_LINES])


def write(root: Path) -> list[str]:
    """Write the files that are out of date; return their paths."""
    changed = [path for path, _ in differences(root)]
    contents = generated()
    for path in changed:
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(contents[path])
    return changed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.generate", description=(__doc__ or "").split(":")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when a file is out of date")
    if not parser.parse_args(arguments).check:
        for path in write(ROOT):
            sys.stdout.write(f"wrote {path}\n")
        return 0
    outdated = list(differences(ROOT))
    for path, diff in outdated:
        sys.stdout.write(f"{path} is out of date; run python -m scripts.generate\n{diff}\n")
    return 1 if outdated else 0


if __name__ == "__main__":
    sys.exit(main())
