"""Pages of the documentation site, collected for mkdocs, which loads this module as a hook (`mkdocs.yml`).

The pages are those of the repository, in the same folders, so that a link works in both. A link to a file that is no
page, such as a test, becomes the path of that file. An entry of the navigation that ends with / stands for all pages of
that folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "build" / "site-pages"
PAGES: Final = ("*.md", "docs/**/*.md", "images/README.md", "packages/*/README.md")
ASSETS: Final = ("docs/pictures/*.svg", "docs/screenshots/*", "docs/site.css", "LICENSE")
_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_FENCE: Final = "```"
_NESTED: Final = re.compile(r"^((?:  )+)(?=[-*] )")


def sources() -> list[Path]:
    """Return the pages and assets of the site, relative to the repository."""
    return sorted(path.relative_to(ROOT) for pattern in (*PAGES, *ASSETS) for path in ROOT.glob(pattern))


def page(source: Path, known: frozenset[Path]) -> str:
    """Return a page as the site shows it."""
    lines, in_code = [], False
    for line in (ROOT / source).read_text().splitlines(keepends=True):
        in_code ^= line.startswith(_FENCE)
        lines.append(line if in_code else site_line(line, source, known))
    return "".join(lines)


def site_line(line: str, source: Path, known: frozenset[Path]) -> str:
    """Return a line of text with its links; mkdocs nests lists by four spaces, and GitHub by two as well."""
    line = _NESTED.sub(lambda indent: indent[1] * 2, line)
    return _LINK.sub(lambda link: _linked(link, source, known), line)


def _linked(link: re.Match[str], source: Path, known: frozenset[Path]) -> str:
    """Return a link, or only its path if the site has no such page."""
    target = link[3].partition("#")[0]
    if not target or "://" in target or target.startswith("mailto:"):
        return link[0]
    path = Path(os.path.normpath(source.parent / target))
    if path in known:
        return link[0]
    name = f"`{path}`"
    return name if link[2].strip("`/") in str(path) else f"{link[2]} ({name})"


def collect() -> None:
    """Write the pages and assets into FOLDER, and delete outdated ones."""
    known = frozenset(sources())
    for source in known:
        content = page(source, known).encode() if source.suffix == ".md" else (ROOT / source).read_bytes()
        place = FOLDER / source
        if not place.exists() or place.read_bytes() != content:  # mkdocs serve watches the folder
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    for place in [one for one in FOLDER.rglob("*") if one.is_file()]:
        if place.relative_to(FOLDER) not in known:
            place.unlink()


def expanded(nav: list[Any]) -> list[Any]:
    """Return the navigation with the pages of each folder that it names."""
    return [_expanded(item) for item in nav]


def _expanded(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    return {title: _entry(value) for title, value in item.items()}


def _entry(value: Any) -> Any:
    if isinstance(value, list):
        return expanded(value)
    return list(_pages_of(value)) if value.endswith("/") else value


def _pages_of(folder: str) -> Iterator[str]:
    """Return the pages of a folder; its README.md comes first."""
    pages = (path.relative_to(ROOT) for path in (ROOT / folder).glob("*.md"))
    yield from map(str, sorted(pages, key=lambda path: (path.name != "README.md", path.name)))


def on_config(config: Any) -> Any:
    """Fill the navigation, and collect the pages (called by mkdocs)."""
    config.nav = expanded(config.nav)
    collect()
    return config


def on_pre_build(config: Any) -> None:  # noqa: ARG001  # the name by which mkdocs passes it
    """Collect the pages again before each build of `mkdocs serve` (called by mkdocs)."""
    collect()
