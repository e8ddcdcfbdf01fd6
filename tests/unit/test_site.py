"""The documents as a site: built, linked, as the code has it, and readable without the internet."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
GENERATOR = ROOT / "scripts" / "lib" / "reference.py"
# What a reader's browser loads by itself; what he may click is no matter.
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


def run(*words: str | Path) -> str:
    """What a command says; it must succeed."""
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages. --strict: every link, anchor and page of the navigation is there."""
    folder = tmp_path_factory.mktemp("site")
    run("-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder)
    return folder


class _Loads(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if named.get("rel") not in ("canonical", "next", "prev", "edit"):
            self.found.append(named.get(LOADED.get(tag, ""), "") or "")


def test_the_site_is_built_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        loads = _Loads()
        loads.feed(page.read_text())
        assert [one for one in loads.found if re.match(r"(https?:)?//", one)] == [], page.name
        # Of this the theme would fetch a library from a network of its own.
        assert 'class="mermaid"' not in page.read_text(), page.name


def test_the_search_finds_a_key(site: Path) -> None:
    assert "max_resizes_per_hour" in (site / "search" / "search_index.json").read_text()


def test_the_reference_is_as_the_code_has_it(tmp_path: Path) -> None:
    run(GENERATOR, "--to", tmp_path)
    fresh = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.md")}
    kept = DOCS / "reference"
    committed = {path.relative_to(kept): path.read_text() for path in kept.rglob("*.md")}
    assert fresh == committed, "run scripts/reference"


def test_every_command_has_a_manual_page_without_a_fault(tmp_path: Path) -> None:
    run(GENERATOR, "--man", tmp_path)
    pages = {page.stem for page in tmp_path.glob("*.1")}
    assert {"onesctl", "onesctl-job", "onesd", "ones-agent", "ones-release", "ones-run"} <= pages
    assert "How many times as fast" in (tmp_path / "onesctl-demo.1").read_text()
    if shutil.which("groff") is None:
        pytest.skip("no groff to read them with")
    for page in sorted(tmp_path.glob("*.1")):
        told = subprocess.run(
            ["groff", "-man", "-Tascii", "-ww", "-z", page],
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.stderr == "", page.name


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_of_the_documents_beside_the_site_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / name).read_text())
    for link in links:
        path, _, anchor = link.partition("#")
        if re.match(r"https?:|mailto:", link):
            continue
        target = ROOT / path if path else ROOT / name
        assert target.exists(), f"{name}: {link}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}
            assert anchor in slugs, f"{name}: {link}"


def test_what_code_and_documents_say_of_files_below_docs_is_true() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    for name in listed:
        path = ROOT / name
        if not path.is_file() or path.suffix in (".png", ".svg", ".woff2"):
            continue
        for told in re.findall(r"docs/[\w/.-]*\.md", path.read_text(errors="replace")):
            assert (ROOT / told).is_file(), f"{name} names {told}"
