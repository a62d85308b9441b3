"""Record that Kubernetes' own code accepts the definitions and policies of Container Cloud.

`scripts/kubernetes-checks` has the programs that this runs. A test compares the generated files with the recording.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parent.parent
DEFINITIONS: Final = ROOT / "deploy" / "crd" / "container-cloud"
POLICIES: Final = ROOT / "deploy" / "components" / "container-cloud" / "policy.yaml"
RECORDING: Final = ROOT / "tests" / "goldens" / "container-cloud-acceptance.json"
ABOUT: Final = (
    "Definitions and policies of Container Cloud, and what Kubernetes' own code said of them: the validation of "
    "k8s.io/apiextensions-apiserver at the creation of a CustomResourceDefinition, and the CEL compiler of "
    "k8s.io/apiserver for each expression of a ValidatingAdmissionPolicy. No server ran. A digest leaves descriptions "
    "of fields out. scripts/kubernetes-checks has the programs; python -m scripts.record_acceptance wrote this."
)


def definitions() -> dict[str, Any]:
    """Return the generated definitions by their names."""
    files = sorted(path for path in DEFINITIONS.glob("*.yaml") if path.name != "kustomization.yaml")
    return {body["metadata"]["name"]: body for path in files for body in _documents(path)}


def policies() -> dict[str, Any]:
    """Return the generated policies by their names."""
    found = _documents(POLICIES)
    return {one["metadata"]["name"]: one for one in found if one["kind"] == "ValidatingAdmissionPolicy"}


def digest(body: Any) -> str:
    """Return the SHA-256 of an object without the descriptions of fields."""
    return hashlib.sha256(json.dumps(_bare(body), sort_keys=True).encode()).hexdigest()


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _bare(inner) for key, inner in value.items() if key != "description" or not isinstance(inner, str)}
    return [_bare(inner) for inner in value] if isinstance(value, list) else value


def _documents(path: Path) -> Iterator[Any]:
    return (one for one in yaml.safe_load_all(path.read_text()) if one is not None)


def _said(program: str, *paths: Path) -> dict[str, str]:
    """Run a program on files; return its line on each object, by its name."""
    command = [program, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # the user's own
    if done.returncode != 0:
        raise SystemExit(f"{program} does not accept them:\n{done.stdout}{done.stderr}")
    lines = (line.partition(" ") for line in done.stdout.splitlines())
    return {name: rest for name, _, rest in lines}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crds", required=True, help="program of scripts/kubernetes-checks/crds.go")
    parser.add_argument("--policies", required=True, help="program of scripts/kubernetes-checks/policies.go")
    parser.add_argument("--kubernetes", required=True, help="version of the code that they were built with")
    args = parser.parse_args(arguments)
    files = sorted(path for path in DEFINITIONS.glob("*.yaml") if path.name != "kustomization.yaml")
    said = _said(args.crds, *files) | _said(args.policies, POLICIES)
    objects = definitions() | policies()
    recording = {
        "about": ABOUT,
        "kubernetes": args.kubernetes,
        "recorded": datetime.now(UTC).date().isoformat(),
        "objects": {name: {"digest": digest(body), "said": said[name]} for name, body in sorted(objects.items())},
    }
    RECORDING.write_text(json.dumps(recording, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
