"""Make a release: `python -m scripts.release [--key KEY.pem] [--arch ARCH]... OUT`, or `make release`, to which
RELEASE_KEY names the key, and ARCH the architectures of images.

    unbounded-V-py3-none-any.whl        the control plane and the command line (kubectl-unbounded)
    unbounded_apiserver-V-…, unbounded_lab-V-…    the API server of `unbounded up`, and the lab
    requirements.txt                    the packages that the first needs, with their hashes; requirements-clouds.txt
                                        with the SDKs of clouds, requirements-up.txt with those and the API server's
    unbounded-agent-linux-ARCH.tar.gz   the host agent; unbounded-agent is the same in one file
    NAME-V.oci.tar                      images of machina, machine-ops-controller, metalman, container-cloud, unbounded
    unbounded-chart-V.tgz               the Helm chart
    unbounded-kustomize-V.tar.gz        deploy/, for kustomize
    SHA256SUMS                          of all these
    *.sig                               with a key: signatures of SHA256SUMS and of the agent's files

The key is an EC key on the curve P-256, in PEM. The signatures are ECDSA over SHA-256 in DER, which `openssl dgst
-sha256 -verify KEY.pub -signature FILE.sig FILE` checks with any OpenSSL that a host may have; Ed25519 needs OpenSSL 3.
Equal commits make equal files, but for the signatures: ECDSA has a random part.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from scripts import agent_release, packages
from scripts.deploy_files import PLAIN, ROOT, WITH_ALL, WITH_CLOUDS
from scripts.release_images import IMAGES, PLATFORMS, build

SUMS: Final = "SHA256SUMS"
REQUIREMENTS: Final = {
    PLAIN: "requirements.txt",
    WITH_CLOUDS: "requirements-clouds.txt",
    WITH_ALL: "requirements-up.txt",
}
PARTS: Final = ("python", "agent", "manifests", "images")
SIGNED: Final = (SUMS, agent_release.NAME, f"{agent_release.NAME}-linux-*.tar.gz")


def main() -> int:
    parser = argparse.ArgumentParser(prog="release", description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="a new folder")
    parser.add_argument("--key", type=Path, metavar="FILE", help="sign with this key: PEM, EC, curve P-256")
    parser.add_argument("--part", action="append", choices=PARTS, help="make these parts alone")
    parser.add_argument("--arch", action="append", choices=sorted(PLATFORMS), help="of images; default: amd64")
    args = parser.parse_args()
    key = None if args.key is None else private_key(args.key)
    args.out.mkdir(parents=True, exist_ok=True)
    if any(args.out.iterdir()):
        parser.error(f"{args.out} is not empty")
    architectures = list(dict.fromkeys(args.arch or ["amd64"]))
    make(args.out.resolve(), args.part or PARTS, epoch=commit_time(), architectures=architectures)
    if key is None:
        print("release: not signed: RELEASE_KEY= (or --key) names no key", file=sys.stderr)
    else:
        sign(args.out, key)
    for path in sorted(args.out.iterdir()):
        print(path)
    return 0


def make(out: Path, parts: Sequence[str], *, epoch: int, architectures: Sequence[str] = ("amd64",)) -> None:
    """Make the parts and their sums.

    Args:
        architectures: of images.
    """
    with tempfile.TemporaryDirectory(prefix=".release-", dir=out) as folder:
        work = Path(folder)
        wheels = make_wheels(work, epoch)
        if "python" in parts:
            for wheel in wheels.values():
                shutil.copy(wheel, out)
            for file, name in REQUIREMENTS.items():
                shutil.copy(ROOT / "deploy" / "images" / file, out / name)
        if "manifests" in parts:
            for path, content in manifests(packages.version(), work):
                (out / path).write_bytes(content)
        if "agent" in parts:
            base = agent_release.runtime(agent_release.RUNTIMES)
            list(agent_release.pack(agent_release.assemble(work, base, packages.version()), out))
        if "images" in parts:
            for name in IMAGES:
                build(name, wheels, out, work, epoch=epoch, architectures=architectures)
    write_sums(out)


def commit_time() -> int:
    """Return the time of the commit, or SOURCE_DATE_EPOCH."""
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(epoch)
    git = shutil.which("git") or "git"
    log = subprocess.run(  # noqa: S603
        [git, "-C", str(ROOT), "log", "-1", "--format=%ct"], check=True, capture_output=True, text=True
    )
    return int(log.stdout)


def make_wheels(work: Path, epoch: int) -> dict[str, Path]:
    """Build the wheel of each package."""
    return {package: make_wheel(work / "wheels" / package, epoch, package) for package in packages.PACKAGES}


def make_wheel(folder: Path, epoch: int, package: str = packages.PRODUCT) -> Path:
    """Build the wheel of one package into a folder."""
    hatchling = Path(sys.executable).with_name("hatchling")
    subprocess.run(  # noqa: S603  # of the project's environment
        [str(hatchling), "build", "--target", "wheel", "--directory", str(folder)],
        cwd=packages.folder(package),
        check=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
        stdout=subprocess.DEVNULL,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def manifests(version: str, work: Path) -> Iterator[tuple[str, bytes]]:
    """Pack the folder for kustomize and the chart, each by its name."""
    deploy = work / "kustomize"
    shutil.copytree(ROOT / "deploy", deploy, ignore=shutil.ignore_patterns("images", "chart"))
    yield f"unbounded-kustomize-{version}.tar.gz", agent_release.tarball(deploy, 9, name="deploy")
    chart = ROOT / "deploy" / "chart"
    if chart.is_dir():
        yield f"unbounded-chart-{version}.tgz", agent_release.tarball(chart, 9, name="unbounded")


def write_sums(out: Path) -> None:
    """Write SHA256SUMS of all files of a folder."""
    lines = []
    for path in sorted(path for path in out.iterdir() if path.is_file() and path.name != SUMS):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    (out / SUMS).write_text("".join(lines))


def private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read the signing key; exit with a message if it is invalid."""
    expected = "expected an EC key on the curve P-256 in PEM (openssl ecparam -name prime256v1 -genkey -noout)"
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SystemExit(f"release: RELEASE_KEY {path}: {error}: {expected}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise SystemExit(f"release: RELEASE_KEY {path}: {expected}")
    return key


def sign(out: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Sign the files that a user verifies by themselves: the sums, and the agent's files."""
    for path in sorted({path for pattern in SIGNED for path in out.glob(pattern)}):
        path.with_name(f"{path.name}.sig").write_bytes(key.sign(path.read_bytes(), ec.ECDSA(hashes.SHA256())))


if __name__ == "__main__":
    sys.exit(main())
