"""Hooks of MkDocs for the documentation's site: pages from outside `docs/`, and links between files of the repository.

In the repository, a link of a page is a path relative to the page's file. The site has other paths: `site_path` maps a
path of the repository to one of the site. A source file that a page links to is copied to the site as plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]

PAGES = {
    "README.md": "index.md",
    "docs/index.md": "contents.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "deploy/prometheus/METRICS.md": "metrics.md",
    "tests/bench/README.md": "benchmarks.md",
    "tests/CONFORMANCE.md": "conformance.md",
}
"""Pages that have another path on the site than in `docs/`."""
_REPOSITORY = {site: path for path, site in PAGES.items()}

_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)#\s]+)(#[^)\s]*)?\)")
_OPTIONS = re.compile(r"^```(\w+) .*$", re.MULTILINE)
_FILE = re.compile(r" file=(\S+)")


def site_path(path: str) -> str:
    """Returns the path on the site of a file of the repository; for a directory, that of its `__init__.py`.

    Empty: there is no such file.
    """
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        path += "/__init__.py"
    return f"source/{path}.txt" if (ROOT / path).is_file() else ""


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages of `PAGES`."""
    for path, site in PAGES.items():
        if (present := files.get_file_from_path(site)) is not None:
            files.remove(present)
        files.append(File.generated(config, site, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrites the links of a page, and removes the options of its code blocks, which only the tests use."""
    here = page.file.src_uri
    folder = posixpath.dirname(_REPOSITORY.get(here, f"docs/{here}"))

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        if re.match(r"[a-z]+:", target):
            return found[0]
        site = site_path(posixpath.normpath(posixpath.join(folder, target)))
        if not site:
            return text[1:-1]
        if site.startswith("source/") and files.get_file_from_path(site) is None:
            source = ROOT / site.removeprefix("source/").removesuffix(".txt")
            files.append(File.generated(config, site, abs_src_path=str(source)))
        return f"{text}({posixpath.relpath(site, posixpath.dirname(here))}{anchor})"

    def plain(found: re.Match[str]) -> str:
        named = _FILE.search(found[0])
        return f'```{found[1]} title="{named[1]}"' if named else f"```{found[1]}"

    parts = _CODE.split(markdown)
    parts[::2] = [_LINK.sub(link, part) for part in parts[::2]]
    return _OPTIONS.sub(plain, "".join(parts))
