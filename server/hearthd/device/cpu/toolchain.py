"""The C++ compiler of this machine, and the results that it produces once: the precompiled prelude and libraries."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cpu.cache import build_once, default_cache_dir, private_dir
from hearthd.device.cpu.libraries import EXCHANGE, RUNTIME, recipe
from hearthd.device.cpu.translation.collisions import PreludeNames
from hearthd.device.platform.sandbox import reap_group
from hearthd.shared import disk

INCLUDE = Path(__file__).parent / "include"
PRELUDE = "hearth_prelude.h"
NAMES = "names.json"
PRELUDES = "preludes"
"""Subdirectory of the cache directory for preludes, separate from compiled code."""

# Precompiled headers are only valid for the options that they were made with, so every step uses the same options.
# Signed overflow wraps and pointers may be cast freely, as programs for GPUs expect; multiply and add are fused, as a
# GPU's compiler does by default. Functions with large frames touch every page, so that none skips the guard page below
# a stack.
_OPTIONS = (
    "-O3", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-fno-exceptions", "-fno-strict-aliasing",
    "-fwrapv", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fno-semantic-interposition", "-pthread",
    "-fstack-clash-protection", "-UNDEBUG", "-g0", "-w",
)  # fmt: skip
_SUBDIRECTORIES = ("bin", "include", "lib", "lib32", "lib64", "libexec")
"""Subdirectories of an installation that hold a compiler, its headers and its libraries. The whole prefix is not used,
because it may be a home directory."""

_F_SETSIG = 10
_GCC_OPTIONS = ("-fno-gnu-unique",)  # process-wide unique symbols would link modules to each other
RACECHECK = "HEARTH_CPU_RACECHECK"
"""Environment variable that makes kernels be compiled with checks for races in shared memory (runtime/racecheck.h)."""

# Few optimizations are enabled, so that the accesses are those of the source. Functions of the headers are inlined, so
# that the debug information leads from an atomic function to the line that calls it.
_RACECHECK_OPTIONS = ("-fsanitize=thread", "-DHEARTH_RACECHECK=1", "-g1", "-gdwarf-4", "-gz=none")
_RACECHECK_GCC = ("-O1", "-finline-functions", "-finline-small-functions")
_RACECHECK_CLANG = ("-O2", "-fno-vectorize", "-fno-slp-vectorize")
_RACECHECK_LINK = ("-g1", "-Wl,--wrap=memcpy", "-Wl,--wrap=memmove", "-Wl,--wrap=memset")


def _files_digest() -> str:
    digest = hashlib.sha256()
    package = Path(__file__).parent
    files = [path for root in (INCLUDE, RUNTIME, EXCHANGE) for path in root.rglob("*") if path.is_file()]
    files += [*package.rglob("*.py"), *(package.parent / "compiler" / name for name in ("elf.py", "options.py"))]
    for path in sorted(files):
        digest.update(str(path.relative_to(package.parent)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


BUILD = _files_digest()
"""Digest of the backend's own files when this module was imported. The forkserver imports it before it forks, so that
all processes of a daemon have the same digest, also if the files are replaced later."""


@dataclass(frozen=True)
class Completed:
    """Result of a compiler run."""

    status: int
    output: bytes
    log: str


@dataclass(frozen=True)
class Toolchain:
    """A working C++ compiler of this machine."""

    command: tuple[str, ...]
    version: str
    is_clang: bool
    cache_dir: Path
    racecheck: bool = False
    build: str = BUILD
    """Digest of the backend's own files in the process that found the compiler. Names and marks every result."""

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, Any]) -> Toolchain:
        """Returns the toolchain that another process's `recipe` describes."""
        values = {field.name: recipe[field.name] for field in fields(cls)}
        return cls(**{**values, "command": tuple(recipe["command"]), "cache_dir": Path(recipe["cache_dir"])})

    def recipe(self) -> Mapping[str, Any]:
        """Returns the fields as values that JSON can carry, from which `from_recipe` creates an equal toolchain."""
        return {**asdict(self), "cache_dir": str(self.cache_dir)}

    def sandbox_paths(self) -> tuple[Sequence[str], Sequence[str]]:
        """Returns the paths that a compile reads, and the paths that it writes.

        The first are those of the compiler with its headers and libraries, and of the preludes.
        """
        program = Path(self.command[0]).resolve()
        prefixes = {Path("/usr"), Path("/usr/local"), program.parent.parent}
        reads = [str(INCLUDE), str(self.cache_dir / PRELUDES), str(program)]
        if self._is_zig:
            reads.append(str(program.parent))
            # a sandbox only allows paths that exist when it is entered
            self._zig_cache.mkdir(mode=0o700, exist_ok=True)
        for prefix in prefixes:
            reads += [str(prefix / part) for part in _SUBDIRECTORIES]
            reads += [str(path) for path in prefix.glob(f"{platform.machine()}-*")]
        return reads, [str(self._zig_cache)] if self._is_zig else []

    @property
    def _is_zig(self) -> bool:
        return Path(self.command[0]).name == "zig"

    @property
    def _zig_cache(self) -> Path:
        return self.cache_dir / "zig"

    def identity(self) -> bytes:
        """Returns 32 bytes that change whenever the same source could give a different image.

        They depend on the compiler, the processor and the backend's own files.
        """
        digest = hashlib.sha256()
        for part in (*self.command, self.version, platform.machine(), _processor(), *self._kernel_options()):
            digest.update(part.encode() + b"\0")
        digest.update(self.build.encode())
        return digest.digest()

    def abi(self) -> int:
        """Returns the number that a module and the runtime must share."""
        return int.from_bytes(hashlib.sha256((self.build + self.version).encode()).digest()[:8], "little") | 1

    def check_files(self) -> None:
        """Raises Refusal(NO_COMPILER) if the backend's own files have been replaced since `build` was computed.

        What was compiled meanwhile may be of either version, so it must not be stored under `identity`.
        """
        try:
            replaced = _files_digest() != self.build
        except OSError:  # they are being replaced
            replaced = True
        if replaced:
            raise Refusal(
                Reason.NO_COMPILER,
                "The daemon's own files have been replaced since it started, so it can only load code that it has "
                "compiled before.",
                fix="Restart the daemon: `systemctl restart hearthd`.",
                details={"files": str(Path(__file__).parent)},
            )

    def _options(self) -> list[str]:
        native = ["-march=native"] if platform.machine() == "x86_64" else ["-mcpu=native"]
        return [*_OPTIONS, *(() if self.is_clang else _GCC_OPTIONS), *native]

    def _kernel_options(self) -> list[str]:
        if not self.racecheck:
            return self._options()
        return [*self._options(), *_RACECHECK_OPTIONS, *(_RACECHECK_CLANG if self.is_clang else _RACECHECK_GCC)]

    def link_options(self) -> Sequence[str]:
        """Returns the options that link an object file to a module."""
        return ("-shared", *(_RACECHECK_LINK if self.racecheck else ("-s",)))

    def compile_options(self, standard: str) -> list[str]:
        """Returns the options for every step of a kernel's compile."""
        options = [*self._kernel_options(), f"-std={standard}", f"-DHEARTH_ABI_HASH={self.abi()}ull"]
        options += ["-I", str(INCLUDE)]  # before the compiler's own headers, one or two of which it replaces
        return options

    def prelude(self, standard: str) -> list[str]:
        """Returns the options that include the precompiled prelude, which is built if necessary."""
        options = self.compile_options(standard)
        name = self._prelude_name(standard)

        def build(scratch: Path) -> None:
            header = scratch / PRELUDE
            header.write_text("#pragma once\n#include <hearth/shim.h>\n")
            arguments = [*options, "-x", "c++-header", PRELUDE, "-o", PRELUDE + ".gch"]
            if self.is_clang:  # clang stores the header's path, so the header must not be in the scratch directory
                header = INCLUDE / "hearth" / "shim.h"
                arguments = [*options, "-Xclang", "-fno-pch-timestamp", "-x", "c++-header", str(header)]
                arguments += ["-o", PRELUDE + ".pch"]
            self._build(arguments, scratch)
            header = scratch / "names.cpp"  # under another name, so that the precompiled one is not used
            header.write_text("#include <hearth/shim.h>\n")
            output = self._build([*options, "-E", "-dD", header.name], scratch)
            names = PreludeNames.read(output.decode(errors="replace"), INCLUDE)
            (scratch / NAMES).write_text(names.dump())

        parent = self.preludes()
        directory = build_once(parent, name, build)
        with contextlib.suppress(OSError):
            os.utime(parent)  # marks it as in use, so that it is not removed
        if self.is_clang:
            return [*options, "-include-pch", str(directory / (PRELUDE + ".pch"))]
        return [*options, "-isystem", str(directory), "-include", PRELUDE]

    def _prelude_name(self, standard: str) -> str:
        return f"prelude-{standard.replace('+', 'x')}-{self.identity().hex()[:24]}"

    def prelude_names(self, standard: str) -> PreludeNames:
        """Returns the names that the prelude declares. `prelude` must have been called before."""
        return PreludeNames.load((self.preludes() / self._prelude_name(standard) / NAMES).read_text())

    def preludes(self) -> Path:
        """Returns the directory of precompiled preludes."""
        return private_dir(self.cache_dir / PRELUDES)

    def library(self, name: str) -> Path:
        """Implements `LibraryMaker`.

        The sources are compiled as one text, so that headers, which cost the most, are read only once.
        """
        folder, sources, extra = recipe(name)

        def build(scratch: Path) -> None:
            text = "".join(f'#include "{source}"\n' for source in sources)
            options = [*self._options(), "-std=gnu++17", "-fvisibility=default", f"-DHEARTH_ABI_HASH={self.abi()}ull"]
            options += [*extra, "-I", str(folder), "-shared", "-x", "c++", "-", "-o", f"{name}.so"]
            self._build(options, scratch, text.encode())

        # the same library serves modules with and without the race check
        identity = replace(self, racecheck=False).identity()
        return build_once(self.cache_dir, f"{name}-{identity.hex()[:24]}", build) / f"{name}.so"

    def _build(self, arguments: Sequence[str], directory: Path, text: bytes = b"") -> bytes:
        """Returns the compiler's output for the backend's own sources, unless they were replaced. Raises Refusal.

        The compiler ends with this process.
        """
        with lifeline() as reader:
            completed = self.run(arguments, directory, text, lifeline=reader)
        self.check_files()
        if completed.status == 0:
            return completed.output
        if disk.says_full(completed.log):
            raise disk.refusal(str(self.cache_dir), "the CPU backend's own libraries", "cache.dir")
        raise Refusal(
            Reason.NO_COMPILER,
            f"The C++ compiler {shlex.join(self.command)} cannot compile the CPU backend's own sources.",
            fix="Use g++ 9 or newer, clang++ 10 or newer, or `pip install ziglang`; set CXX to choose.",
            details={"log": completed.log[-4000:], "version": self.version.splitlines()[0]},
        )

    def run(
        self, arguments: Sequence[str], cwd: Path, text: bytes = b"", timeout_s: float | None = None, lifeline: int = -1
    ) -> Completed:
        """Runs the compiler. Raises subprocess.TimeoutExpired if it takes longer than `timeout_s` seconds.

        `lifeline`: a descriptor from the context manager of this name, for callers that have no process group with
        which the compiler is stopped.
        """
        environment = {**os.environ, "LC_ALL": "C", "LANG": "C", "CCACHE_DISABLE": "1"}
        own_session = timeout_s is not None or lifeline >= 0
        if self._is_zig:
            environment |= {"ZIG_GLOBAL_CACHE_DIR": str(self._zig_cache), "ZIG_LOCAL_CACHE_DIR": str(self._zig_cache)}
        # With a time limit, the compiler gets a separate session, because the driver's children must be stopped with
        # it. Without a limit, it stays in its caller's process group and is stopped with that.
        process = subprocess.Popen(
            [*self.command, *arguments],
            cwd=cwd,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=own_session,
            pass_fds=(lifeline,) if lifeline >= 0 else (),
        )
        if lifeline >= 0:
            fcntl.fcntl(lifeline, fcntl.F_SETOWN, -process.pid)
        try:
            output, log = process.communicate(text, timeout=timeout_s)
        finally:
            if process.returncode is None:
                if own_session:
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.kill()
                for pipe in (process.stdin, process.stdout, process.stderr):
                    if pipe is not None:
                        with contextlib.suppress(OSError):
                            pipe.close()  # no process reads the remaining data
                process.wait()
            if own_session:
                reap_group(process.pid)
        return Completed(process.returncode, output, log.decode(errors="replace"))


@contextlib.contextmanager
def lifeline() -> Iterator[int]:
    """Yields a descriptor for a process and its children, whose process group the kernel kills when this process ends.

    PR_SET_PDEATHSIG would not be enough, because the driver's own children do not inherit it and would continue to run.
    """
    reader, writer = os.pipe()
    try:
        fcntl.fcntl(reader, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(reader, fcntl.F_SETFL, fcntl.fcntl(reader, fcntl.F_GETFL) | os.O_ASYNC)
        yield reader
    finally:
        fcntl.fcntl(reader, fcntl.F_SETOWN, 0)  # the process has ended: its ID may soon belong to another process
        os.close(writer)
        os.close(reader)


def find_toolchain(cache_dir: Path | None = None) -> Toolchain:
    """Returns the C++ compiler to use: `$CXX`, else g++, c++ or clang++ on PATH, else that of the `ziglang` package.

    `cache_dir` holds the precompiled prelude and the libraries (default: `default_cache_dir()`); it must be private to
    the user. Raises `Refusal` (NO_COMPILER) if there is no compiler.
    """
    directory = private_dir(cache_dir) if cache_dir is not None else default_cache_dir()
    cxx = os.environ.get("CXX", "").strip()
    return replace(_find_compiler(cxx, os.environ.get("PATH", ""), directory), racecheck=_races_are_checked())


def _races_are_checked() -> bool:
    return os.environ.get(RACECHECK, "") not in ("", "0")


@functools.lru_cache(maxsize=8)
def _find_compiler(cxx: str, search_path: str, cache_dir: Path) -> Toolchain:
    """Returns the first candidate that runs. `search_path` is the value of PATH. Raises Refusal(NO_COMPILER)."""
    candidates: list[list[str]] = [shlex.split(cxx)] if cxx else []
    candidates += [[name] for name in ("g++", "c++", "clang++")]
    zig = importlib.util.find_spec("ziglang")
    if zig is not None:  # the program in the package: a sandbox allows access to it, but not to all of Python
        candidates += [[str(Path(package) / "zig"), "c++"] for package in zig.submodule_search_locations or ()]
    for candidate in candidates:
        program = shutil.which(candidate[0], path=search_path)
        if program is None:
            continue
        command = (program, *candidate[1:])
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            probe = Toolchain(command, "", False, cache_dir).run(["--version"], cache_dir, timeout_s=60)
            version = probe.output.decode(errors="replace")
            if probe.status == 0:
                return Toolchain(command, version.strip(), "clang" in version, cache_dir)
    raise Refusal(
        Reason.NO_COMPILER,
        "The CPU backend compiles kernels with a C++ compiler, and found none ($CXX, g++, c++, clang++, ziglang).",
        fix="Install g++ or clang++, or `pip install ziglang`, or set CXX.",
        details={"PATH": search_path, "CXX": cxx},
    )


@functools.cache
def _processor() -> str:
    """Returns the processor's model and features, which `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    keys = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU implementer", "CPU part")
    lines_by_key: dict[str, str] = {}
    for line in lines:
        key = line.split(":")[0].strip()
        if key in keys:
            lines_by_key.setdefault(key, line)
    return "\n".join(lines_by_key.values())
