"""The documentation site is built like `make docs-build`, and needs no other server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from scripts import site


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site; `--strict` refuses links and anchors that lead nowhere."""
    folder = tmp_path_factory.mktemp("site")
    site.FOLDER.mkdir(parents=True, exist_ok=True)
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder))
    ran = subprocess.run(
        command,
        cwd=site.ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_on_the_site(built: Path) -> None:
    pages = [source for source in site.sources() if source.suffix == ".md"]
    names = {page.with_name("index.html" if page.name == "README.md" else f"{page.stem}.html") for page in pages}
    assert names <= {path.relative_to(built) for path in built.rglob("*.html")}


@pytest.mark.slow
def test_pages_load_nothing_from_another_server(built: Path) -> None:
    loading = re.compile(r"<(?:script|link|img|source|iframe)\b[^>]*?(?:src|href)=\"([^\"]+)\"")
    for page in built.rglob("*.html"):
        loaded = [urlsplit(one) for one in loading.findall(page.read_text())]
        assert not [one for one in loaded if one.netloc], page
        for one in loaded:
            place = built / one.path.lstrip("/") if one.path.startswith("/") else page.parent / unquote(one.path)
            assert place.exists(), f"{page}: {one.path}"


@pytest.mark.slow
def test_nested_lists_stay_nested(built: Path) -> None:
    assert re.search(
        r"<li><strong>WaitingOff</strong>[^<]*<ul>", (built / "docs/reference/operations.html").read_text()
    )


def test_link_to_what_is_no_page_becomes_its_path() -> None:
    known = frozenset({Path("docs/a.md"), Path("README.md")})
    texts = {
        "[a](a.md#x)": "[a](a.md#x)",
        "[all](../README.md)": "[all](../README.md)",
        "[examples/](../examples)": "`examples`",
        "[this test](../tests/test_a.py)": "this test (`tests/test_a.py`)",
        "[there](https://example.com)": "[there](https://example.com)",
        "[above](#above)": "[above](#above)",
    }
    for text, shown in texts.items():
        assert site.site_line(text, Path("docs/b.md"), known) == shown
