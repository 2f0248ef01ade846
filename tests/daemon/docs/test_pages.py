"""Pages of the documentation run as shown; see `pages.py` for their markup."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hearth_proto.reasons import Reason
from tests.support.daemon.harness import DaemonProcess, StartDaemon, environment, on_cpu
from tests.support.daemon.pages import Command, Reader, commands, fences, needs, same
from tests.support.folders import ROOT

PAGES = sorted((ROOT / "docs").rglob("*.md"))
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@on_cpu
@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_a_page(
    path: Path,
    daemon: DaemonProcess,
    start_daemon: StartDaemon,
    reader_python: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    page = path.read_text()
    asked = needs(page)
    first = daemon
    more = {}
    if asked.get("own") or asked.get("daemons", 1) > 1:
        first = start_daemon(cpu_count=asked.get("devices", 2))
    if asked.get("daemons", 1) > 1:
        more["HEARTH_SECOND"] = start_daemon(cpu_count=asked.get("devices", 2)).unix
    env = environment(HEARTH_TARGET=first.unix, HEARTH_HTTP=f"http://{first.http}", **more)
    reader = Reader(str(path.relative_to(ROOT)), tmp_path, env, reader_python(page))
    try:
        reader.read(page)
    finally:
        reader.close()


@pytest.mark.parametrize("path", [*PAGES, ROOT / "README.md"], ids=[*NAMES, "README.md"])
def test_files_and_links_of_a_page_exist(path: Path) -> None:
    page = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", re.sub(r"`[^`\n]*`", "", page)):
        if not re.match(r"[a-z]+:", target):
            assert (path.parent / target).exists(), target
    for named in set(re.findall(r"`((?:deploy|proto|tests|server|client|docs)/[\w./-]*\w)`", page)):
        assert (ROOT / named).exists(), named


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_untested_fences_state_a_reason(path: Path) -> None:
    for fence in fences(path.read_text()):
        assert fence.options.get("untested", "why") != "", f"line {fence.line}"


# ---- how pages are read ----


def test_commands_and_their_output() -> None:
    text = "$ one\nfirst\n\n$ two \\\n> more  # exit status 3\n$ three &\n"
    assert list(commands(text)) == [
        Command("one", 0, ["first", ""]),
        Command("two \\\nmore", 3, []),
        Command("three &", 0, []),
    ]


def test_expected_output() -> None:
    assert same(["a", "b ... d"], ["a", "b c d"]) and same(["a", "...", "z"], ["a", "b", "c", "z"])
    assert same(["...", "z"], ["z"]) and same(["x.y"], ["x.y"])
    assert not same(["x.y"], ["xzy"]) and not same(["a"], ["a", "b"]) and not same(["a b"], ["a  b"])


@pytest.mark.parametrize(
    "page",
    [
        "```python\nprint(1)\n```\n```text\n2\n```",
        "```python\nraise SystemExit(1)\n```",
        "```console\n$ echo 1\n2\n```",
        "```console\n$ false\n```",
        "```console\n$ true  # exit status 1\n```",
        "```ruby\nputs 1\n```",
    ],
)
def test_a_page_that_is_wrong(page: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="page:1:"):
        Reader("page", tmp_path, environment(), Path(sys.executable)).read(page)


def test_every_reason_is_explained() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| `([A-Z_]+)` \| ([A-Z_]+) \|", page, re.MULTILINE)
    assert dict(rows) == {reason.value: reason.code.name for reason in Reason}
    assert len(rows) == len(Reason)


def test_messages_of_a_failed_start_are_quoted_as_the_daemon_prints_them() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    section = page.partition("## When it does not start\n")[2].partition("\n## ")[0]
    quoted = re.findall(r"\*([^*]+)\*", re.sub(r"`[^`]*`", "", " ".join(section.split())))
    code = "".join(path.read_text() for path in (ROOT / "server" / "hearthd").rglob("*.py"))
    literals = re.sub(r'"\s*\n\s*f?"', "", code)  # texts that continue on the next line
    missing = [text for text in quoted if not re.search(r"[^\n]*".join(map(re.escape, text.split("..."))), literals)]
    assert not missing and len(quoted) == 5
