"""The documentation site: built without a warning, complete, and readable from the disk without the network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

import hearth
import hearth.aio
from hearthd.front.config.settings import Config
from tests.support.daemon.browser import Browser
from tests.support.folders import ROOT

pytest.importorskip("mkdocs", reason="needs the packages of locks/docs.txt: `make docs` installs them")

CONFIG = ROOT / "docs" / "site" / "mkdocs.yml"
LINK = re.compile(r'(?:href|src)="([^"]*)"')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the site, in a separate process, because MkDocs changes the logging of its process."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", str(CONFIG), "-d", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, check=False, env=env, capture_output=True, text=True, timeout=110)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


def pages(site: Path) -> Iterator[Path]:
    return site.rglob("*.html")


@cache
def anchors(page: Path) -> frozenset[str]:
    return frozenset(re.findall(r'\bid="([^"]*)"', page.read_text()))


def test_each_public_name_is_in_the_reference(site: Path) -> None:
    found = frozenset().union(*(anchors(page) for page in (site / "reference").glob("*.html")))
    names = {f"hearth.{name}" for name in hearth.__all__ if name != "__version__"}
    names |= {f"hearth.aio.{name}" for name in hearth.aio.__all__}
    names |= {"hearth.Device.asarray", "hearth.Device.dispatch", "hearth.DeviceArray.get", "hearth.Group.all_reduce"}
    assert names - found == set()
    assert not [name for name in found if name.startswith("hearth") and re.search(r"\._\w*$", name)]


def test_each_setting_of_the_daemon_is_in_the_reference(site: Path) -> None:
    page = (site / "reference" / "configuration.html").read_text()
    found = anchors(site / "reference" / "configuration.html")
    for section, field in Config.model_fields.items():
        settings = getattr(field.annotation, "model_fields", {})
        for name in settings:
            assert f"{field.annotation.__module__}.{field.annotation.__name__}.{name}" in found, name  # type: ignore[union-attr]
        assert not settings or f">[{section}]<" in page, section


def test_arguments_results_and_errors_are_rendered(site: Path) -> None:
    page = (site / "reference" / "arrays.html").read_text()
    for heading in ("Parameters:", "Returns:", "Raises:"):
        assert f">{heading}<" in page
    assert 'href="errors.html#hearth.ArgumentError"' in page  # types are links
    assert "&gt;&gt;&gt;" in (site / "reference" / "index.html").read_text()  # examples are code


def test_each_link_leads_to_a_page_and_an_anchor(site: Path) -> None:
    for page in pages(site):
        if page.name == "404.html":  # its links begin at the root of a server
            continue
        for link in set(LINK.findall(page.read_text())):
            target, _, anchor = unquote(link).partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            leads_to = (page.parent / target).resolve() if target else page
            leads_to = leads_to / "index.html" if leads_to.is_dir() else leads_to
            assert leads_to.exists(), (page, link)
            if anchor and leads_to.suffix == ".html" and not anchor.startswith("__"):
                assert anchor in anchors(leads_to), (page, link)


def test_no_page_loads_anything_from_the_network(site: Path) -> None:
    for page in pages(site):
        loaded = re.findall(r'<(?:script|link|img|iframe)\b[^>]*(?:src|href)="([a-z]+:[^"]*)"', page.read_text())
        assert [each for each in loaded if not each.startswith("data:")] == [], page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?https?:", style.read_text()), style


def test_pages_from_the_disk_are_searched_and_fit_a_phone(site: Path, tmp_path: Path) -> None:
    with Browser(tmp_path) as browser:
        with browser.tab() as tab:
            tab.open((site / "index.html").as_uri())
            tab.until("document.readyState === 'complete'")
            query = "document.querySelector('[data-md-component=search-query]')"
            tab.js(f"{query}.focus()")
            tab.until("/^Type/.test(document.querySelector('.md-search-result__meta').innerText)")  # the index is ready
            tab.type("all_reduce")
            tab.js(f"{query}.dispatchEvent(new KeyboardEvent('keyup'))")
            tab.until("document.querySelectorAll('.md-search-result__item').length >= 3")
            assert tab.complaints == []
            assert [each for each in tab.requests if not each.startswith(("file:", "data:"))] == []
        with browser.tab(width=390, height=800) as tab:
            for page in ("index", "guide", "architecture", "reference/devices", "reference/configuration"):
                tab.open((site / f"{page}.html").as_uri())
                tab.until(f"document.readyState === 'complete' && location.pathname.endsWith('/{page}.html')")
                assert tab.js("document.documentElement.scrollWidth") <= 390, page
