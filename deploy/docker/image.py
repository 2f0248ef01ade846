"""Builds the stages of a Dockerfile as overlays on this machine's root, and runs each step unchanged."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import dockerfile
from pathspec import PathSpec

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_PASSED = re.compile(r"(?i)pip_|ssl_|(https?|no|all)_proxy")
"""Variables that a build inherits from this process, as an engine passes HTTP_PROXY on."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH of every base image; the directory of this Python precedes it."""


class Failed(Exception):
    """A step has failed. The text names the step, and contains its output."""


@dataclass
class Image:
    """The result of a build stage."""

    root: Path
    """Mount point of its file system."""
    layers: list[Path]
    """Directories with the changes of the stage and of its parents, newest first."""
    env: dict[str, str]
    args: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    workdir: str = "/"
    volumes: list[str] = field(default_factory=list)
    ports: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health_check: list[str] = field(default_factory=list)
    stop_signal: str = "SIGTERM"

    def size(self) -> int:
        """Returns the size without the base, in bytes."""
        files = (path for layer in self.layers for path in layer.rglob("*"))
        return sum(path.lstat().st_size for path in files if not path.is_symlink() and path.is_file())


class Builder:
    """Builds the Dockerfile in the directory `context`.

    `environment`: variables of RUN in addition to those of the image, by stage; the key "" applies to all stages.
    `shared`: directories of this machine, by their path in every stage. `without`: system packages that the base images
    do not have; a step that needs one must install it.
    """

    def __init__(self, context: Path, scratch: Path, arguments: Mapping[str, str]) -> None:
        self.context = context
        self.shared: dict[str, str] = {}
        self.without: list[str] = []
        self.environment = {"": {name: value for name, value in os.environ.items() if _PASSED.match(name)}}
        self._scratch = scratch
        self._arguments = dict(arguments)
        self._stages: dict[str, Image] = {}
        self._steps = dockerfile.parse_file(str(context / "Dockerfile"))
        ignored = (context / ".dockerignore").read_text().splitlines()
        self._ignored = PathSpec.from_lines("gitignore", ignored)

    def build(self) -> Image:
        """Builds all stages, and returns the last one. Raises `Failed`."""
        outside: dict[str, str] = {}
        stage: Image | None = None
        for step in self._steps:
            name, values = step.cmd.upper(), list(step.value)
            if name == "FROM":
                stage = self._begin(self._expand(values, outside), outside)
            elif stage is None:
                outside |= self._arguments_of(values, {})
            elif name == "ARG":
                stage.args |= self._arguments_of(values, outside)
            else:
                if name not in ("RUN", "HEALTHCHECK", "ENTRYPOINT", "CMD"):
                    values = self._expand(values, {**stage.args, **stage.env})
                self._step(stage, name, values, step)
        unknown = set(self._arguments) - set(outside) - {name for each in self._stages.values() for name in each.args}
        if stage is None or unknown:
            raise Failed(f"no ARG of the Dockerfile is called {', '.join(sorted(unknown)) or '(it has no stage)'}")
        return stage

    def _arguments_of(self, values: Sequence[str], outside: Mapping[str, str]) -> dict[str, str]:
        pairs = (value.partition("=") for value in values)
        return {name: self._arguments.get(name, default or outside.get(name, "")) for name, _, default in pairs}

    @staticmethod
    def _expand(values: Sequence[str], names: Mapping[str, str]) -> list[str]:
        return [_VARIABLE.sub(lambda m: names.get(m[1] or m[2], ""), value.strip('"')) for value in values]

    def _begin(self, values: Sequence[str], outside: Mapping[str, str]) -> Image:
        """Begins a stage on another stage, or on this machine's root."""
        parent = self._stages.get(values[0])
        name = values[2] if len(values) == 3 else str(len(self._stages))
        place = self._scratch / "stages" / name
        for part in ("changes", "work", "root"):
            (place / part).mkdir(parents=True)
        below = parent.layers if parent else []
        lower = ":".join([*map(str, below), "/"])
        options = f"lowerdir={lower},upperdir={place / 'changes'},workdir={place / 'work'}"
        _run(["mount", "-t", "overlay", "overlay", "-o", options, str(place / "root")])
        for shared in ("dev", "sys"):
            _run(["mount", "--rbind", f"/{shared}", str(place / "root" / shared)])
        _run(["mount", "-t", "tmpfs", "tmpfs", str(place / "root" / "tmp")])
        for inside, folder in self.shared.items():
            (place / "root" / inside.strip("/")).mkdir(parents=True, exist_ok=True)
            _run(["mount", "--bind", folder, str(place / "root") + inside])
        env = dict(parent.env) if parent else {"PATH": f"{sys.base_prefix}/bin:{_PATH}"}
        stage = self._stages[name] = Image(place / "root", [place / "changes", *below], env)
        if parent is None:
            if not Path(sys.base_prefix, "bin", "python").exists():  # Debian's Python has the name python3 only
                (stage.root / "usr/local/bin/python").symlink_to(Path(sys.executable).resolve())
            self._open(stage, Path(sys.base_prefix))
            self._uninstall(stage)
        return stage

    def _uninstall(self, stage: Image) -> None:
        """Removes the packages in `without`, and all packages that depend on them."""
        there = [name for name in self.without if (stage.root / f"var/lib/dpkg/info/{name}.list").exists()]
        if there:
            line = " ".join(["DEBIAN_FRONTEND=noninteractive apt-get", "purge", "-y", *there])
            self._execute(stage, line, 0)

    def _open(self, stage: Image, python: Path) -> None:
        """Makes this Python, which may be in a home directory, accessible to all users of the stage."""
        for folder in (python, *python.parents):
            inside = stage.root / folder.relative_to("/")
            mode = inside.stat().st_mode
            if mode & 0o005 != 0o005:
                inside.chmod(mode | 0o055)

    def _step(self, stage: Image, name: str, values: list[str], step: dockerfile.Command) -> None:
        if name == "RUN":
            self._execute(stage, values[0], step.start_line)  # the shell expands the variables
        elif name == "COPY":
            self._copy(stage, values, step.flags)
        elif name == "ENV":
            stage.env |= dict(zip(values[::2], values[1::2], strict=True))
        elif name == "LABEL":
            stage.labels |= dict(zip(values[::2], values[1::2], strict=True))
        elif name == "WORKDIR":
            stage.workdir = values[0]
            (stage.root / values[0].lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif name == "HEALTHCHECK":
            stage.health_check = values[1:]
        elif name in ("USER", "STOPSIGNAL"):
            setattr(stage, {"USER": "user", "STOPSIGNAL": "stop_signal"}[name], values[0])
        elif name in ("VOLUME", "EXPOSE", "ENTRYPOINT", "CMD"):
            places = {"VOLUME": "volumes", "EXPOSE": "ports", "ENTRYPOINT": "entrypoint", "CMD": "command"}
            setattr(stage, places[name], values)
        else:
            raise Failed(f"Dockerfile:{step.start_line}: {name} is not supported here")

    def _execute(self, stage: Image, line: str, number: int) -> None:
        name = next(name for name, each in self._stages.items() if each is stage)
        passed = {**self.environment[""], **self.environment.get(name, {})}
        env = {"HOME": "/root", **passed, **stage.args, **stage.env}
        inside = ["unshare", "--pid", "--fork", "--kill-child=KILL", f"--root={stage.root}", f"--wd={stage.workdir}"]
        done = subprocess.run(
            [*inside, "--mount-proc", "/bin/sh", "-c", line], env=env, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if done.returncode:
            raise Failed(f"Dockerfile:{number}: RUN ended with {done.returncode}:\n{done.stdout}")

    def _copy(self, stage: Image, values: Sequence[str], flags: Sequence[str]) -> None:
        source = next((flag.removeprefix("--from=") for flag in flags if flag.startswith("--from=")), "")
        base = self._stages[source].root if source else self.context
        *names, last = values
        target = stage.root / os.path.normpath(os.path.join(stage.workdir, last)).lstrip("/")  # noqa: PTH118
        for name in names:
            path = base / name.lstrip("/")
            into = target / path.name if path.is_file() and (last.endswith("/") or len(names) > 1) else target
            into.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                ignore = None if source else self._left_out
                shutil.copytree(path, into, symlinks=True, ignore=ignore, dirs_exist_ok=True)
            elif not source and self._ignored.match_file(name):
                raise Failed(f"COPY {name}: .dockerignore excludes it")
            elif path.is_file():
                shutil.copy2(path, into)
            else:
                raise Failed(f"COPY {name}: there is no such file")

    def _left_out(self, folder: str, names: list[str]) -> set[str]:
        inside = Path(folder).relative_to(self.context)
        return {name for name in names if self._ignored.match_file(inside / name)}


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(command)}: {done.stderr.strip()}")
