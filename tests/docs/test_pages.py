"""All Markdown pages: lines that fit a screen, links that lead somewhere, files that they name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINE_LIMIT = 120
FOLDERS = ("bench", "deploy", "docs", "gateway", "indexer", "proto", "tests", "warmroute", "worker")


def pages() -> list[str]:
    found = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
    return sorted(str(page.relative_to(ROOT)) for page in found)


PAGES = pages()


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("name", PAGES)
def test_lines_fit(name: str) -> None:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    wide = [number for number, line in enumerate(lines, 1) if len(line) > LINE_LIMIT]
    assert wide == []


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file.read_text(encoding="utf-8")), target


@pytest.mark.parametrize("name", PAGES)
def test_files_that_are_named_exist(name: str) -> None:
    """`gateway/routing/router.py`, also with `:function` behind it; placeholders have < > or *."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for path in re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]+\.(?:py|lua|md|json|jsonl\.gz|yaml|proto|tpl))", text):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("name", ["docs/a-request.md", "docs/architecture.md"])
def test_steps_of_a_request_name_what_is_there(name: str) -> None:
    """`requests/app.py:App.serve`, below gateway/."""
    text = (ROOT / name).read_text(encoding="utf-8")
    steps = re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.py):([A-Za-z_.]+)`", text)
    assert len(steps) >= 8
    for path, qualified in steps:
        source = (ROOT / "gateway" / path).read_text(encoding="utf-8")
        for part in qualified.split("."):
            assert re.search(rf"^\s*(?:async )?(?:def|class) {part}\b", source, re.MULTILINE), (path, qualified)
