"""`python -m tests.environments [NAME...]` runs the tests that each environment concerns; without names it lists them.

    python -m tests.environments user space              # as an ordinary user, then in a folder with a space
    python -m tests.environments --whole tmpdir          # the whole suite
    python -m tests.environments --make demo user        # `make demo` there, which does its own set-up
    python -m tests.environments --python python3.13 plain --whole   # on another Python, in a new virtual environment
    python -m tests.environments all -- -k "not gpu" -n 2            # pytest's own options

Each runs on a copy of the working tree, with the virtual environment of this interpreter unless `--python` names
another one. The exit status is 0 if all tests passed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.environments.table import ENVIRONMENTS, STRANGER, WHOLE, Environment

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("client", "server", "proto", "")
LISTED = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")


def copy(target: Path) -> None:
    """Copies the working tree without the files that git ignores; a copy of a copy, which is not a repository, is
    complete."""
    done = subprocess.run(LISTED, cwd=ROOT, capture_output=True, check=False)
    for name in filter(None, done.stdout.decode().split("\0")):
        source, copied = ROOT / name, target / name
        if source.is_file():
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copied)


def prepared(environment: Environment, scratch: Path) -> tuple[Path, dict[str, str]]:
    """Prepares the copy; returns its path, and the environment variables of its tests."""
    clone, home = scratch / environment.folder, scratch / "home"
    clone.mkdir(parents=True)
    home.mkdir()
    if clone.parent != scratch:
        clone.parent.chmod(environment.mode)
    copy(clone)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("HEARTH_", "PYTEST_"))}
    variables.pop("PYTHONPATH", None)
    if environment.stranger:
        variables |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "USER": "stranger"}
    for name, value in environment.variables.items():
        variables[name] = value.format(scratch=scratch)
    if "TMPDIR" in environment.variables:
        Path(variables["TMPDIR"]).mkdir(parents=True)
    if environment.stranger:
        for path in (clone, home, *clone.rglob("*")):
            os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    return clone, variables


def hidden(path: Path) -> str:
    """Returns the outermost directory of a path that other users may not enter; empty if they may reach the path."""
    for parent in reversed((path, *path.parents)):
        if not parent.stat().st_mode & 0o001:
            return str(parent)
    return ""


@contextlib.contextmanager
def beside(count: int) -> Iterator[None]:
    """Runs `count` busy loops."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def interpreter(name: str, scratch: Path) -> Path:
    """Creates a virtual environment of another Python, with all packages that the tests need."""
    venv = scratch / "venv"
    subprocess.run([name, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin/pip"), "install", "-q", "--disable-pip-version-check"]
    extra = "dev" if shutil.which("g++") or shutil.which("clang++") else "dev,cpu"
    subprocess.run([*pip, "-e", f"{ROOT}[{extra}]"], check=True)
    return venv / "bin/python"


def run(environment: Environment, chosen: argparse.Namespace, python: Path) -> int:
    """Runs the tests in one environment; returns their exit status."""
    with tempfile.TemporaryDirectory(prefix="hearth-environment-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        scratch.chmod(0o755)
        clone, variables = prepared(environment, scratch)
        if chosen.make:
            command = ["make", f"PYTHON={Path(python).resolve()}", *chosen.make]
        else:
            variables["PYTHONPATH"] = os.pathsep.join(str(clone / source) for source in SOURCES)
            tests = WHOLE if chosen.whole else environment.tests
            picked = [] if any(Path(option.partition("::")[0]).exists() for option in chosen.options) else tests
            common = ["-q", "-p", "no:cacheprovider", "-n", str(chosen.jobs), "--dist", "loadfile"]
            command = [str(python), "-m", "pytest", *common, *environment.options, *chosen.options, *picked]
        if environment.module:
            variables["PYTHONPATH"] = os.pathsep.join(str(clone / source) for source in SOURCES)
            command = [str(python), "-m", environment.module, *command]
        if environment.stranger:
            prefix = Path(python).resolve().parents[1]
            variables |= {"STRANGER": str(STRANGER), "PREFIX": str(prefix), "HIDDEN": hidden(prefix)}
        began = time.monotonic()
        with beside(environment.beside):
            done = subprocess.run([*environment.enter, *command], cwd=clone, env=variables, check=False)
        print(f"{environment.name}: exit status {done.returncode} after {time.monotonic() - began:.0f} s", flush=True)
        return done.returncode


def divided(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Splits the arguments at `--`."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def main() -> int:
    arguments, options = divided(sys.argv[1:])
    parser = argparse.ArgumentParser(
        prog="python -m tests.environments", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="all: each of them")
    parser.add_argument("--whole", action="store_true", help="the whole suite, not only the affected tests")
    parser.add_argument("--make", action="append", metavar="TARGET", help="run this instead of tests; can be repeated")
    parser.add_argument("--python", metavar="COMMAND", help="another Python; a virtual environment is made for it")
    parser.add_argument("--jobs", "-n", type=int, default=2, help="workers of the tests (default: 2)")
    chosen = parser.parse_args(arguments)
    chosen.options = options
    known = {environment.name: environment for environment in ENVIRONMENTS}
    names = list(known) if chosen.names == ["all"] else chosen.names
    if unknown := set(names) - set(known):
        parser.error(f"there is no environment {', '.join(sorted(unknown))}")
    if not names:
        for environment in ENVIRONMENTS:
            print(f"{environment.name:10} {environment.says}")
        return 0
    failed = []
    with contextlib.ExitStack() as stack:
        python = Path(sys.executable)
        if chosen.python:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="hearth-python-"))
            Path(scratch).chmod(0o755)
            python = interpreter(chosen.python, Path(scratch))
        for name in names:
            if known[name].root and os.geteuid() != 0:
                print(f"{name}: left out, for only the superuser can enter it")
            elif run(known[name], chosen, python):
                failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
