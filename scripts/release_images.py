"""The OCI images of a release, made from a base, the project's wheel and locked packages, without a daemon.

An image has two layers: the base of `scripts/release-tools`, and /opt/unbounded with only the modules that its program
imports, directly or not. Equal inputs make equal files: names are sorted, times are the commit's or those of Debian's
packages, compiled modules have no time.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scripts import packages
from scripts.deploy_files import ROOT, locked
from unbounded.console.pages import PAGES

BASES: Final = ROOT / ".venv" / "tools" / "release" / "base"
PREFIX: Final = "opt/unbounded"
MEDIA: Final = "application/vnd.oci.image"
SITE: Final = f"{PREFIX}/lib/python3.11/site-packages"
NOBODY: Final = 65532
PLATFORMS: Final = {"amd64": "x86_64-manylinux_2_28", "arm64": "aarch64-manylinux_2_28"}
DISTRIBUTIONS: Final = {
    "yaml": "pyyaml",
    "re2": "google-re2",
    "azure": "azure-mgmt-compute azure-identity",
    "opentelemetry": "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
}
WITH: Final = {"asyncssh": "bcrypt", "aiohttp": "aiohappyeyeballs"}  # optional dependencies of packages
# The imports of the provider, and those of the SDK itself
OCI_SERVICES: Final = frozenset({"auth", "core", "dns", "object_storage", "work_requests"})
SOURCES: Final = {packages.module_name(one): packages.sources(one) for one in packages.PACKAGES}
PROVIDERS: Final = ("unbounded.machineops.providers.azure", "unbounded.machineops.providers.oci")


@dataclass(frozen=True)
class Image:
    """A container image.

    Args:
        modules: the first imports; empty for all modules of the wheels, with all packages that they can use.
        programs: the executables, by `module:function`.
        built: the packages of the workspace in the image.
    """

    programs: dict[str, str]
    command: list[str]
    ports: list[str]
    modules: tuple[str, ...] = ()
    user: int = NOBODY
    data: bool = False
    env: dict[str, str] = field(default_factory=dict)
    built: tuple[str, ...] = (packages.PRODUCT,)


IMAGES: Final = {
    "machina": Image(
        {"machina": "unbounded.machina.main:main", "unbounded-explain": "unbounded.explain_api.main:main"},
        ["controller"],
        ["8080/tcp", "8081/tcp", "8082/tcp", "8443/tcp"],
        ("unbounded.machina.main", "unbounded.explain_api.server"),
    ),
    "machine-ops-controller": Image(
        {"machine-ops-controller": "unbounded.machineops.main:main"},
        ["controller"],
        ["8080/tcp", "8081/tcp"],
        ("unbounded.machineops.main", *PROVIDERS),
    ),
    "container-cloud": Image(
        {"container-cloud": "unbounded.containercloud.main:main"},
        ["controller"],
        ["8080/tcp", "8081/tcp"],
        ("unbounded.containercloud.main",),
    ),
    "unbounded-console": Image(
        {"unbounded-console": "unbounded.console.main:main"},
        [],
        ["8082/tcp", "8443/tcp"],
        ("unbounded.console.main", *(page.show.partition(":")[0] for page in PAGES), *PROVIDERS),
    ),
    "metalman": Image(
        {"metalman": "unbounded.metalman.main:main"},
        ["serve-pxe"],
        ["67/udp", "69/udp", "8880/tcp", "8081/tcp"],
        ("unbounded.metalman.main",),
        user=0,
    ),
    "unbounded": Image(
        {"unbounded": "unbounded.cli.main:main", "kubectl-unbounded": "unbounded.cli.plugin.main:main"},
        ["up", "--data", "/data", "--bind", "0.0.0.0", "--port", "6443"],  # noqa: S104  # of a container
        ["6443/tcp"],
        data=True,
        env={"HOME": "/data"},
        built=(packages.PRODUCT, packages.API_SERVER),
    ),
}


def build(
    name: str,
    wheels: Mapping[str, Path],
    out: Path,
    work: Path,
    *,
    epoch: int,
    architectures: Sequence[str] = ("amd64",),
) -> Path:
    """Make an image for each architecture; return the archive of their OCI layout."""
    image, layout = IMAGES[name], work / f"{name}.oci"
    (layout / "blobs" / "sha256").mkdir(parents=True)
    version = wheels[packages.PRODUCT].name.split("-")[1]
    made = []
    for architecture in architectures:
        tree = work / f"{name}-{architecture}"
        _install(image, wheels, tree, architecture)
        layers = [_base_layer(layout, architecture), _layer(tree, _blobs(layout), epoch=epoch)]
        made.append(_manifest(layout, layers, _config(name, image, version, layers, epoch, architecture)))
        shutil.rmtree(tree)
    _write_index(layout, made, version)
    archive = out / f"{name}-{version}.oci.tar"
    with archive.open("wb") as file:
        _tar(layout, file, epoch=epoch)
    return archive


# ---- the content of an image


def _install(image: Image, wheels: Mapping[str, Path], tree: Path, architecture: str) -> None:
    site = tree / SITE
    site.mkdir(parents=True)
    names, modules = _contents(image)
    _packages(site, names, architecture)
    for package in image.built:
        _own_modules(wheels[package], site, modules)
    prefix = tree / PREFIX
    (prefix / "bin").mkdir()
    (prefix / "bin" / "python3").symlink_to("/usr/bin/python3.11")
    (prefix / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11\n")
    for program, where in image.programs.items():
        module, _, function = where.partition(":")
        script = prefix / "bin" / program
        script.write_text(
            f"#!/{PREFIX}/bin/python3\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
        )
        script.chmod(0o755)
    command = [sys.executable, "-I", "-S", "-m", "compileall", "-q", "-j", "1", "--invalidation-mode", "unchecked-hash"]
    subprocess.run(  # noqa: S603  # our own interpreter
        [*command, "-s", str(tree), "-p", "/", str(site)], check=True, env={"PYTHONHASHSEED": "0"}
    )
    if image.data:
        (tree / "data").mkdir(mode=0o700)


def _contents(image: Image) -> tuple[set[str], set[str] | None]:
    """Return the distributions to install, and the own modules; None for all."""
    if not image.modules:
        return packages.requirements("azure", "console", "oci", "otel", "up"), None
    own, others = closure(*image.modules)
    others |= {WITH[one] for one in others & WITH.keys()}
    return {name for one in others for name in DISTRIBUTIONS.get(one, one.replace("_", "-")).split()}, own


def closure(*seeds: str) -> tuple[set[str], set[str]]:
    """Return the project's modules that these import, directly or not, and the packages that all of them import."""
    own: set[str] = set()
    others: set[str] = set()
    left = list(seeds)
    while left:
        module = left.pop()
        top = module.partition(".")[0]
        if top not in SOURCES:
            others.add(top)
        elif module not in own and (path := _source(module)) is not None:
            own.add(module)
            left += [*_imports(path), *filter(None, [module.rpartition(".")[0]])]
    return own, {one for one in others if one and one not in sys.stdlib_module_names}


def _source(module: str) -> Path | None:
    path = SOURCES[module.partition(".")[0]].joinpath(*module.split("."))
    package = path / "__init__.py"
    return (
        package
        if package.is_file()
        else next(iter([path.with_suffix(".py")] if path.with_suffix(".py").is_file() else []), None)
    )


def _imports(path: Path) -> Iterator[str]:
    """Yield the imports anywhere in a module, except those for a type checker."""
    tree = ast.parse(path.read_text())
    typing = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and isinstance(branch.test, ast.Name) and branch.test.id == "TYPE_CHECKING"
        for part in branch.body
        for node in ast.walk(part)
    }
    for node in ast.walk(tree):
        if id(node) in typing:
            continue
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)


def _packages(site: Path, names: set[str], architecture: str) -> None:
    lock = (ROOT / "requirements.lock").read_text()
    requirements = site.parent / "requirements.txt"
    requirements.write_text(locked(lock, *names))
    uv = Path(sys.executable).with_name("uv")
    subprocess.run(  # noqa: S603  # of the project's environment
        [
            *(str(uv), "pip", "install", "--quiet", "--no-config", "--no-deps", "--require-hashes"),
            *("--only-binary", ":all:", "--python", sys.executable, "--python-version", "3.11"),
            *("--python-platform", PLATFORMS[architecture]),
            *("--target", str(site), "--requirement", str(requirements)),
        ],
        check=True,
    )
    requirements.unlink()
    shutil.rmtree(site / "bin", ignore_errors=True)
    (site / ".lock").unlink(missing_ok=True)
    for info in site.glob("*.dist-info"):
        for name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"):
            (info / name).unlink(missing_ok=True)
    _prune_oci(site / "oci")


def _prune_oci(sdk: Path) -> None:
    """Delete the services that the provider does not call: 150 of them, which the SDK imports on their first use."""
    if not sdk.is_dir():
        return
    names = re.search(r"__all__ = \[(.*?)\]", (sdk / "__init__.py").read_text(), re.DOTALL)
    if names is None:
        raise SystemExit(f"release: {sdk}/__init__.py does not list its services in __all__ any more")
    for service in re.findall(r'"(\w+)"', names[1]):
        folder = sdk / service
        if service not in OCI_SERVICES and next(folder.glob("*_client.py"), None):
            shutil.rmtree(folder)


def _own_modules(wheel: Path, site: Path, modules: set[str] | None) -> None:
    """Unpack the wheel's modules, and the data files that lie in their packages."""
    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            path = Path(name)
            if ".dist-info/" in name:
                needed = path.name != "RECORD"
            elif modules is None:
                needed = True
            elif path.suffix == ".py":
                needed = _module_of(path) in modules
            else:
                needed = any(_module_of(parent / "__init__.py") in modules for parent in list(path.parents)[:-2])
            if needed:
                packed.extract(name, site)


def _module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


# ---- the files of an image


@dataclass(frozen=True)
class Layer:
    """A layer of an image.

    Args:
        digest: of the blob, which is packed.
        content: the digest of the tar in it.
    """

    digest: str
    content: str
    size: int


def _base_layer(layout: Path, architecture: str) -> Layer:
    """Return the layer of the base; pack it once for each state of the base."""
    folder = BASES / architecture
    if not folder.is_dir():
        raise SystemExit(f"release: {folder} is missing: run scripts/release-tools {architecture} as root")
    state = hashlib.sha256((BASES / f"{architecture}.built").read_bytes()).hexdigest()[:16]
    cached = BASES / f"{architecture}.{state}.layer"
    about = BASES / f"{architecture}.{state}.json"
    if not about.exists():
        with tempfile.TemporaryDirectory(dir=BASES, prefix=".packing-") as made:
            layer = _layer(folder, Path(made), epoch=None)
            (Path(made) / layer.digest).rename(cached)
            (Path(made) / "about").write_text(json.dumps(layer.__dict__))
            (Path(made) / "about").rename(about)
    layer = Layer(**json.loads(about.read_text()))
    shutil.copyfile(cached, _blobs(layout) / layer.digest)
    return layer


class _Sums:
    """A writable file that computes the digest of its content."""

    def __init__(self, file: Any) -> None:
        self._file, self.sum = file, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.sum.update(data)
        written: int = self._file.write(data)
        return written

    def flush(self) -> None:
        self._file.flush()


def _layer(tree: Path, blobs: Path, *, epoch: int | None) -> Layer:
    path = blobs / ".layer"
    with path.open("wb") as file:
        packed = _Sums(file)
        with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0, compresslevel=6) as stream:
            content = _Sums(stream)
            _tar(tree, content, epoch=epoch)
    digest = packed.sum.hexdigest()
    path.rename(blobs / digest)
    return Layer(digest, content.sum.hexdigest(), (blobs / digest).stat().st_size)


def _tar(tree: Path, file: Any, *, epoch: int | None) -> None:
    """Write a tar with sorted names. With an epoch, all entries have that time and belong to root."""

    def normalized(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uname = entry.gname = ""
        if epoch is None:
            entry.mtime = int(entry.mtime)
            return entry
        entry.mtime, entry.uid, entry.gid = epoch, 0, 0
        if entry.name == "data":
            entry.uid, entry.gid, entry.mode = NOBODY, NOBODY, 0o700
        else:
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(tree.rglob("*")):
            tar.add(path, str(path.relative_to(tree)), recursive=False, filter=normalized)


def _config(
    name: str, image: Image, version: str, layers: list[Layer], epoch: int, architecture: str
) -> dict[str, Any]:
    from datetime import UTC, datetime  # noqa: PLC0415

    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    env = {"PATH": f"/{PREFIX}/bin:/usr/bin:/bin", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", **image.env}
    config: dict[str, Any] = {
        "User": f"{image.user}:{image.user}",
        "ExposedPorts": {port: {} for port in image.ports},
        "Env": [f"{key}={value}" for key, value in env.items()],
        "Entrypoint": [next(iter(image.programs))],
        "Cmd": image.command,
        "Labels": {
            "org.opencontainers.image.title": name,
            "org.opencontainers.image.version": version,
            "org.opencontainers.image.licenses": "Apache-2.0",
        },
    }
    if image.data:
        config["Volumes"] = {"/data": {}}
    return {
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{one.content}" for one in layers]},
        "history": [{"created": created, "created_by": "make release"} for _ in layers],
    }


def _manifest(layout: Path, layers: list[Layer], config: dict[str, Any]) -> dict[str, Any]:
    """Write the manifest of an image; return its entry for an index."""
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{MEDIA}.manifest.v1+json",
        "config": _blob(layout, config, f"{MEDIA}.config.v1+json"),
        "layers": [
            {"mediaType": f"{MEDIA}.layer.v1.tar+gzip", "digest": f"sha256:{one.digest}", "size": one.size}
            for one in layers
        ],
    }
    platform = {"architecture": config["architecture"], "os": "linux"}
    return {**_blob(layout, manifest, f"{MEDIA}.manifest.v1+json"), "platform": platform}


def _write_index(layout: Path, images: list[dict[str, Any]], version: str) -> None:
    """Write the layout's index: of one image, or of an index of several, which a registry gets as one."""
    entry = images[0]
    if len(images) > 1:
        index = {"schemaVersion": 2, "mediaType": f"{MEDIA}.index.v1+json", "manifests": images}
        entry = _blob(layout, index, f"{MEDIA}.index.v1+json")
    entry = {**entry, "annotations": {"org.opencontainers.image.ref.name": f"v{version}"}}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}, sort_keys=True))
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


def _blobs(layout: Path) -> Path:
    return layout / "blobs" / "sha256"


def _blob(layout: Path, value: dict[str, Any], media: str) -> dict[str, Any]:
    data = json.dumps(value, sort_keys=True).encode()
    digest = hashlib.sha256(data).hexdigest()
    (_blobs(layout) / digest).write_bytes(data)
    return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(data)}
