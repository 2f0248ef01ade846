"""Writes the lock files beside it with `uv pip compile`: `python locks/write.py [path of uv]`; `make lock` runs it.

`server.txt` is whole; the others hold what comes on top of it (`docs.txt`: on top of `dev.txt`). No package has two
versions; one whose markers are wider than below is repeated. Markers in them cover each Python from 3.11 on and each
platform.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent / "pyproject.toml"
ON_TOP = ("dev", "docs", "cpu", "cuda12", "cuda13")
"""Extras of the project, each with a lock file of that name."""
PINNED = re.compile(r"^([a-z0-9._-]+)==", re.IGNORECASE)


def compiled(uv: str, *options: str, hashes: bool = True) -> str:
    command = [uv, "pip", "compile", str(PROJECT), "--quiet", "--universal", "--python-version", "3.11"]
    command += ["--no-header", "--no-annotate", *(["--generate-hashes"] if hashes else []), *options]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def blocks(text: str) -> dict[str, str]:
    """Each package's lines, those of several versions together."""
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines(keepends=True):
        if match := PINNED.match(line):
            name = match[1]
        if name:
            found[name] = found.get(name, "") + line
    return found


def main(uv: str = "uv") -> None:
    with tempfile.TemporaryDirectory() as folder:
        everything = Path(folder) / "all.txt"
        everything.write_text(compiled(uv, "--extra", "dev", "--extra", "docs", "--extra", "cpu", hashes=False))
        together = ("--constraint", str(everything))
        server = blocks(compiled(uv, "--extra", "server", *together))
        (HERE / "server.txt").write_text("".join(server.values()))
        below = {"docs": server | blocks(compiled(uv, "--extra", "dev", *together))}
        for extra in ON_TOP:
            whole = blocks(compiled(uv, "--extra", extra, *together)).items()
            new = [text for name, text in whole if below.get(extra, server).get(name) != text]
            (HERE / f"{extra}.txt").write_text("".join(new))
        lowest = Path(folder) / "lowest.txt"
        runtime = ("--extra", "server", "--extra", "otel", "--resolution", "lowest-direct")
        lowest.write_text(compiled(uv, *runtime, hashes=False))
        (HERE / "oldest.txt").write_text(compiled(uv, "--extra", "dev", "--constraint", str(lowest), hashes=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
