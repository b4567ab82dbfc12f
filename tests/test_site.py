"""`make docs` builds a site whole: every page, every link, what users import; nothing is loaded from other hosts."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec

import pytest
from browser import CHROMIUM, browser
from markdown_it import MarkdownIt
from pages import DOCS, PAGES, README, ROOT, blocks
from selectolax.lexbor import LexborHTMLParser

pytestmark = [
    pytest.mark.docs,
    pytest.mark.skipif(find_spec("mkdocs") is None, reason="the extra docs is not installed"),
]
OTHERS = [path for path in sorted(ROOT.glob("*.md")) if path != README]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    build(ROOT, folder)
    return folder


def build(checkout, folder):
    """Build a site where nothing can be fetched; a warning is an error."""
    nowhere = "http://127.0.0.1:9"
    offline = {"HTTP_PROXY": nowhere, "HTTPS_PROXY": nowhere, "http_proxy": nowhere, "https_proxy": nowhere}
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]  # with --quiet, no warning counts
    environment = os.environ | offline | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def built(site, page):
    """The parsed page of the site for a page of the checkout."""
    name = page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT).with_suffix(".html").as_posix()
    return LexborHTMLParser((site / ("index.html" if page == README else name)).read_text())


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: page.name)
def test_a_page_shows_what_it_shows_on_github(page, site):
    plain = MarkdownIt("commonmark", {"html": True}).enable("table").render(page.read_text())
    parts = ("li", "tr", "pre", "img", "h1, h2, h3, h4")
    article = built(site, page).css_first("article")
    assert {part: len(article.css(part)) for part in parts} == {
        part: len(LexborHTMLParser(plain).css(part)) for part in parts
    }


def test_every_page_is_in_the_navigation(site):
    links = {link.attributes["href"] for link in built(site, README).css("nav a")}
    assert {page.relative_to(DOCS).with_suffix(".html").as_posix() for page in PAGES[1:]} <= links


def test_what_pages_import_is_in_the_reference(site):
    imported = set()
    for page in PAGES:
        for block in blocks(page, "python"):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lovec."):
                    imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    anchors = {
        found for page in (site / "api").glob("*.html") for found in re.findall(r'id="([\w.]+)"', page.read_text())
    }
    assert len(imported) > 20 and "lovec.tagging.tag" in anchors
    assert sorted(imported - anchors) == []


def test_pages_load_nothing_from_other_hosts(site):
    for page in site.rglob("*.html"):
        tree = LexborHTMLParser(page.read_text())
        sources = [node.attributes.get("src") for node in tree.css("script, img, iframe, source")]
        sources += [node.attributes.get("href") for node in tree.css("link[rel=stylesheet], link[rel=preconnect]")]
        assert [source for source in sources if source and re.match(r"(https?:)?//", source)] == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", sheet.read_text()), sheet


@pytest.mark.slow
def test_a_broken_link_is_an_error(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "build", "dist", "runs", "site", "shipped"))
    with open(copy / "docs/glossary.md", "a") as page:
        page.write("\n[gone](tag.md#no-such-heading)\n")
    with pytest.raises(AssertionError, match="no-such-heading"):
        build(copy, tmp_path / "site")


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_the_search_finds_a_heading_and_asks_no_other_host(site, tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        with browser(tmp_path) as tab:
            tab.open(f"{address}index.html")
            tab.click("input.md-search__input")
            tab.type("keep_factual")
            tab.wait_for("document.querySelectorAll('.md-search-result__item').length > 0")
            asked = [event["params"]["request"]["url"] for event in tab.events
                     if event["method"] == "Network.requestWillBeSent"]  # fmt: skip
            assert asked and all(url.startswith((address, "data:", "blob:")) for url in asked), asked
        server.shutdown()
