"""Pages of documentation, executed as a reader would: files are written, programs and commands are run, and their
output must match the output that the page shows.

The fences of a page are processed in order, in a folder of the page:

- ``python``: a program. A ``text`` fence directly after it is its output.
- any language with ``file=NAME``: is written to that file, and not run.
- ``console``: lines that begin with ``$`` are commands (``>``: continued), the other lines are their output. A command
  that ends with ``&`` runs until the page ends. A command that fails fails the page, unless its failure is shown: ``$
  false  # exit status 1``.
- with ``untested="WHY"``: is not run, and states the reason.
- ``text``, ``json``, ``proto`` and fences without a language are not run.

In expected output ``...`` matches any text within a line; a line that consists of it matches any lines. A comment
``<!-- daemons=2 devices=2 -->`` at the head of a page states its requirements; ``HEARTH_TARGET`` names the first
daemon, ``HEARTH_SECOND`` the second.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

from tests.support.installed import alone

TIMEOUT_S = 100.0
_SHOWN = ("", "text", "json", "proto", "toml", "yaml")
_STATUS = re.compile(r"\s+# exit status (\d+)$")


class Fence(NamedTuple):
    """A fence of a page, with the number of its first line."""

    language: str
    options: Mapping[str, str]
    text: str
    line: int


class Command(NamedTuple):
    """A command of a console fence, with its exit status and its output."""

    text: str
    status: int
    output: list[str]


def fences(page: str) -> list[Fence]:
    """Returns all fences of a page."""
    page_fences = []
    for token in MarkdownIt().parse(page):
        if token.type == "fence":
            language, *options = shlex.split(token.info) or [""]
            pairs = dict(option.partition("=")[::2] for option in options)
            assert token.map is not None
            page_fences.append(Fence(language, pairs, token.content, token.map[0] + 1))
    return page_fences


def needs(page: str) -> dict[str, int]:
    """Returns the settings in the comment at the head of the page."""
    head = re.match(r"<!--(.*?)-->", page, re.DOTALL)
    return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", head.group(1))} if head else {}


def commands(text: str) -> Iterator[Command]:
    """Yields the commands of a console fence."""
    command, output = "", list[str]()
    for line in [*text.splitlines(), "$ "]:
        if line.startswith("$ ") or line == "$":
            if command:
                shown = _STATUS.search(command)
                yield Command(_STATUS.sub("", command), int(shown.group(1)) if shown else 0, output)
            command, output = line[2:], []
        elif line.startswith("> ") and not output:
            command += f"\n{line[2:]}"
        else:
            output.append(line)


def same(expected: list[str], lines: list[str]) -> bool:
    """Returns whether `lines` matches the shown output."""
    pattern = "".join(
        r"(?:.*\n)*" if line.strip() == "..." else ".*".join(map(re.escape, line.split("..."))) + r"[ ]*\n"
        for line in expected
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines)) is not None


class Reader:
    """Runs the fences of a page in `folder`, with `python`, its commands, and this environment's `hearthd`."""

    def __init__(self, name: str, folder: Path, environment: Mapping[str, str], python: Path) -> None:
        self._name = name
        self._folder = folder
        self._python = python
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = alone({**environment, "PATH": path, "PYTHONUNBUFFERED": "1"}, python)
        self._background: list[subprocess.Popen[str]] = []

    def read(self, page: str) -> None:
        """Runs the whole page. Raises `AssertionError` with the line at which the result differs from the page."""
        page_fences = fences(page)
        for fence, next_fence in zip(page_fences, [*page_fences[1:], None], strict=False):
            if "untested" in fence.options:
                continue
            if "file" in fence.options:
                path = self._folder / fence.options["file"]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(fence.text)
            elif fence.language == "python":
                shown = (
                    next_fence.text.splitlines() if next_fence is not None and next_fence.language == "text" else None
                )
                self._check(fence.line, [str(self._python), "-c", fence.text], 0, shown)
            elif fence.language == "console":
                for command in commands(fence.text):
                    self._run(fence.line, command)
            else:
                assert fence.language in _SHOWN, f"{self._name}:{fence.line}: no runner for {fence.language}"

    def _run(self, line: int, command: Command) -> None:
        if command.text.rstrip().endswith("&"):
            arguments = ["bash", "-c", f"exec {command.text.rstrip()[:-1]}"]
            self._background.append(
                subprocess.Popen(arguments, cwd=self._folder, env=self._environment, start_new_session=True, text=True)
            )
            return
        self._check(line, ["bash", "-c", command.text], command.status, command.output or None)

    def _check(self, line: int, arguments: list[str], status: int, shown: list[str] | None) -> None:
        done = subprocess.run(
            arguments,
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        location = f"{self._name}:{line}: {arguments[-1]}"
        assert done.returncode == status, f"{location}\nended with {done.returncode}:\n{done.stdout}"
        if shown is not None:
            assert same(shown, done.stdout.splitlines()), f"{location}\nprinted:\n{done.stdout}"

    def close(self) -> None:
        """Ends the commands that run in the background."""
        for process in self._background:
            process.send_signal(signal.SIGTERM)
        for process in self._background:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
