"""Build the agent's release: `python -m scripts.agent_release [--version X] [--runtimes DIR] OUT`.

    OUT/unbounded-agent-linux-ARCH.tar.gz   one directory, `unbounded-agent/`, with the executable `unbounded-agent`
    OUT/unbounded-agent                     the same in one file, which unpacks itself (scripts/agent_file.sh)

and the sha256 of each beside it. A host needs no Python, and a glibc no older than that of the build system.

The build has two parts: a runtime (Python, its standard library and the packages that the agent imports, by
PyInstaller), and the agent's own modules, compiled. The runtime only changes with the imports, and later builds reuse
it. Equal sources make equal files.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import hashlib
import importlib.util
import io
import json
import os
import platform
import py_compile
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from scripts import packages
from unbounded.agent.build import NOT_SHIPPED, SHIPPED, STAMP

TOP: Final = Path(__file__).resolve().parents[1]
SOURCES: Final = packages.sources() / "unbounded"
RUNTIMES: Final = TOP / ".venv" / "tools" / "agent-release" / "runtimes"
HEAD: Final = TOP / "scripts" / "agent_file.sh"
NAME: Final = "unbounded-agent"
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
LEAVE_OUT: Final = (  # optional dependencies of packages, and modules without a use on a host
    *("bcrypt", "backports", "dotenv", "gunicorn", "h2", "hpack", "hyperframe", "hypothesis", "markdown_it", "mypy"),
    *("google", "opentelemetry", "pip", "pydantic", "pydantic_core", "pygments", "pytest", "rich", "setuptools"),
    "sortedcontainers",
    *("curses", "doctest", "multiprocessing", "pdb", "pydoc", "readline", "sqlite3", "tkinter"),
    *("unittest", "xmlrpc", "zstandard._cffi"),
)
HOOKS: Final = ("pyi_rth_inspect", "pyi_rth_multiprocessing")  # of PyInstaller: they delay each start by 40 ms
STAMP_FILE: Final = f"_internal/{STAMP}"
CODECS: Final = ("_codecs_cn", "_codecs_hk", "_codecs_iso2022", "_codecs_jp", "_codecs_kr", "_codecs_tw")  # 1 MB
ENTRY: Final = "import sys\nfrom unbounded.agent.main import main\nsys.exit(main())\n"
SPEC: Final = """\
a = Analysis([{entry!r}], hiddenimports={names!r}, excludes={excludes!r}, pathex=[])
a.scripts = [one for one in a.scripts if one[0] not in {hooks!r}]
a.pure = [one for one in a.pure if one[0].partition(".")[0] != "unbounded"]
exe = EXE(PYZ(a.pure), a.scripts, name={name!r}, exclude_binaries=True, strip={strip!r}, upx=False)
COLLECT(exe, a.binaries, a.datas, name={name!r}, strip={strip!r}, upx=False)
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="agent-release", description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--version", default=packages.version(), help="default: %(default)s, that of the project")
    parser.add_argument(
        "--runtimes", type=Path, default=RUNTIMES, metavar="DIR", help="folder of built runtimes (%(default)s)"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".release-", dir=args.out) as work:
        release = assemble(Path(work), runtime(args.runtimes), args.version)
        for made in pack(release, args.out):
            print(made)
    return 0


def own_modules() -> list[Path]:
    """Return the paths of the agent's modules, relative to SOURCES and sorted."""
    found = [Path("__init__.py")]
    for package in SHIPPED:
        found += [path.relative_to(SOURCES) for path in (SOURCES / package).rglob("*.py")]
    return sorted(path for path in found if _module(path) not in NOT_SHIPPED)


def _module(path: Path) -> str:
    return ".".join(["unbounded", *path.with_suffix("").parts])


def digest_of(parts: Iterable[bytes]) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()


def sources_digest() -> str:
    """Return the digest of a release's inputs, without its version."""
    mine = [Path(__file__).read_bytes(), HEAD.read_bytes(), (TOP / "requirements.lock").read_bytes()]
    texts = (str(path).encode() + b"\0" + (SOURCES / path).read_bytes() for path in own_modules())
    return digest_of([*mine, sys.version.encode(), *texts])


# The runtime


def imported_names() -> list[str]:
    """Return the names of the modules outside unbounded that the agent imports anywhere, sorted."""
    names: set[str] = set()
    for path in own_modules():
        for node in ast.walk(ast.parse((SOURCES / path).read_text())):
            names |= set(_names_of(node))
    return sorted(name for name in names if name.partition(".")[0] != "unbounded" and _is_module(name))


def _names_of(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (one.name for one in names)
        case ast.ImportFrom(module=str(module), names=names, level=0):
            yield module
            yield from (f"{module}.{one.name}" for one in names)


def _is_module(name: str) -> bool:
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the parent is no package
        return False


def runtime(cache: Path) -> Path:
    """Return the folder with the executable and all that it needs, except the agent's own modules.

    Args:
        cache: the folder of built runtimes; a missing runtime is built into it.
    """
    cache = cache.resolve()  # PyInstaller runs in another folder
    names = imported_names()
    lock = (TOP / "requirements.lock").read_bytes()
    recipe = repr((SPEC, ENTRY, LEAVE_OUT, HOOKS, CODECS, sys.version, names, "sorted"))
    key = digest_of([recipe.encode(), lock])
    built = cache / f"runtime-{key[:16]}"
    if not built.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".runtime-", dir=cache) as work:
            try:
                _freeze(Path(work), names).rename(built)
            except OSError:  # a concurrent build was faster
                if not built.is_dir():
                    raise
    os.utime(built)  # marks the runtime as used for a cleanup by age
    return built


def _freeze(work: Path, names: list[str]) -> Path:
    entry = work / "main.py"
    entry.write_text(ENTRY)
    spec = work / "agent.spec"
    spec.write_text(
        SPEC.format(
            entry=str(entry),
            names=names,
            excludes=[*LEAVE_OUT, *CODECS, *map(packages.module_name, packages.PACKAGES)],
            hooks=HOOKS,
            name=NAME,
            strip=shutil.which("strip") is not None,
        )
    )
    command = [sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level", "WARN"]
    subprocess.run(  # noqa: S603  # our own interpreter
        [*command, "--distpath", str(work / "dist"), "--workpath", str(work / "work"), str(spec)],
        check=True,
        cwd=work,
        env={
            **os.environ,
            "PYTHONHASHSEED": "0",
            "SOURCE_DATE_EPOCH": "0",
            "PYINSTALLER_CONFIG_DIR": str(work / "cache"),
        },
    )
    sort_archive(work / "dist" / NAME / "_internal" / "base_library.zip")
    return work / "dist" / NAME


def sort_archive(path: Path) -> None:
    """Write the entries of an archive in the order of their names; PyInstaller's order differs from run to run."""
    with zipfile.ZipFile(path) as archive:
        entries = [(info, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        for info, content in sorted(entries, key=lambda entry: entry[0].filename):
            archive.writestr(info, content)


# The release


def assemble(work: Path, base: Path, version: str) -> Path:
    """Assemble the folder `unbounded-agent` of a host."""
    release = work / NAME
    shutil.copytree(base, release, symlinks=True)
    inside = release / "_internal"
    for path in own_modules():
        target = (inside / "unbounded" / path).with_suffix(".pyc")
        target.parent.mkdir(parents=True, exist_ok=True)
        py_compile.compile(
            str(SOURCES / path),
            str(target),
            dfile=f"unbounded/{path}",
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    shutil.copy(TOP / "LICENSE", release)
    (release / STAMP_FILE).write_text(json.dumps({"version": version, "build": sources_digest()[:12]}) + "\n")
    return release


def pack(release: Path, out: Path, *, level: int = 6) -> Iterator[Path]:
    """Write the files of a release and their digests; yield their paths."""
    archive = tarball(release, level)
    packed = out / f"{NAME}-linux-{ARCHITECTURES[platform.machine()]}.tar.gz"
    packed.write_bytes(archive)
    yield from (packed, _write_digest(packed))
    one = out / NAME
    head = HEAD.read_text().replace("@DIGEST@", hashlib.sha256(archive).hexdigest())
    one.write_bytes(head.replace("@LINES@", str(head.count("\n"))).encode() + archive)
    one.chmod(0o755)
    yield from (one, _write_digest(one))


def tarball(release: Path, level: int, *, name: str = NAME) -> bytes:
    """Return a gzipped tar without user names and times."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0, compresslevel=level) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        tar.add(release, arcname=name, recursive=False, filter=_anonymous)
        for path in sorted(release.rglob("*")):
            tar.add(path, arcname=f"{name}/{path.relative_to(release)}", recursive=False, filter=_anonymous)
    return buffer.getvalue()


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = "root"
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    return entry


def _write_digest(path: Path) -> Path:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    beside = path.with_name(f"{path.name}.sha256")
    beside.write_text(f"{digest}  {path.name}\n")
    return beside


if __name__ == "__main__":
    sys.exit(main())
