"""CUDA C++ source to the image of a module: preprocess, rewrite, compile to a shared object.

The compiler's log names the user's own file and lines (`kernel.cu(12): error: ...`), as nvcc's does. The compiler
quotes no lines itself: it would read them from whatever file a `#line` names.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.compilation import Assembly, Image, Source
from hearthd.device.cpu import collisions, image, libraries
from hearthd.device.cpu import options as compile_options
from hearthd.device.cpu.cache import default_cache_dir, private_dir
from hearthd.device.cpu.crashes import check_crash
from hearthd.device.cpu.elf import static_shared_bytes
from hearthd.device.cpu.source import translate
from hearthd.device.cpu.toolchain import INCLUDE, Completed, Toolchain, find_toolchain
from hearthd.device.cpu.unsupported import MARK, refuse
from hearthd.device.policy.includes import check_name

FILE = "kernel.cu"
OPTIONS_FILE = "<options>"
_SM90 = 900

_CLANG_QUIET = ("-fno-caret-diagnostics", "-ferror-limit=30")
_GCC_QUIET = ("-fmax-errors=30", "-fno-diagnostics-show-caret")

_CLANG_INCLUDE = re.compile(r"^[ \t]*#.*/\* clang -E -dI \*/$", re.MULTILINE)
_DIAGNOSTIC = re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+)(?::\d+)?: (?P<rest>.*)$")
_INCLUDED = re.compile(r"^\s*(?:In file included )?from (?P<file>[^:\n]+):(?P<line>\d+)")
# The lines of source that the compiler quotes are the rewritten ones; the log quotes the user's instead.
_NOISE = re.compile(r"^\s*\d*\s+\|( |$)|^\d+ (?:error|warning)s?.* generated\.$|^compilation terminated\.$")
_HIDDEN = re.compile(
    r"hearth_kernel_|(?:::)?hearth_program(?:::|_)|(?:const )?(?:::)?hearth::Here(?: hearth_here)?(?:, )?"
)


class CpuCompiler:
    """The system's C++ compiler, or the ziglang package's; the same image for every virtual device of the node."""

    light = True

    def __init__(self, cache_dir: str = "", toolchain: Toolchain | None = None) -> None:
        self._cache_dir = Path(cache_dir) if cache_dir else None
        self._toolchain = toolchain
        self._preludes = -1
        self._renewals = 0
        self._renewing = threading.Lock()

    @classmethod
    def made_from(cls, recipe: Mapping[str, Any]) -> CpuCompiler:
        """The same compiler, in another process."""
        return cls(toolchain=Toolchain.made_from(recipe))

    def toolchain(self) -> Toolchain:
        if self._toolchain is not None:
            return self._toolchain
        try:
            place = None if self._cache_dir is None else private_dir(self._cache_dir)
        except OSError:  # not to be trusted, or not to be written: what is built once goes elsewhere
            place = None
        return find_toolchain(place)

    def recipe(self) -> Mapping[str, Any]:
        """Another one each time that somebody has cleared the directory of preludes away: a worker's sandbox is open to
        the directory that was there when it started."""
        toolchain = self.toolchain()
        with self._renewing:
            path = toolchain.preludes()
            if self._preludes < 0 or not os.path.samestat(path.stat(), os.fstat(self._preludes)):
                if self._preludes >= 0:
                    os.close(self._preludes)
                # Held open, so that no later directory gets its number.
                self._preludes = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self._renewals += 1
            return {**toolchain.recipe(), "renewals": self._renewals}

    def prepare(self, source: Source) -> None:
        """The precompiled prelude; raises what is wrong with the options."""
        parsed = compile_options.parse(source.options, bool(source.headers))
        self.toolchain().prelude(parsed.standard)

    def load(self) -> None:
        self.toolchain().identity()  # reads the backend's own files, once

    def places(self) -> tuple[Sequence[str], Sequence[str]]:
        return self.toolchain().places()

    def identity(self) -> bytes:
        toolchain = self.toolchain()
        libraries.runtime(toolchain)  # built here, if at all: never when a module is loaded
        return toolchain.identity()

    def compile(self, source: Source) -> Image:
        headers = dict(source.headers)
        return Image(compile_source(self.toolchain(), source.code, source.options, source.name_expressions, headers))

    def assembly(self, code: bytes) -> Assembly | None:
        return None  # an image of its own, or what the loader refuses

    def assembler(self) -> bytes:
        raise Refusal(Reason.NO_COMPILER, "The CPU backend assembles no PTX.")

    def assemble(self, assembly: Assembly) -> Image:
        raise Refusal(Reason.NO_COMPILER, "The CPU backend assembles no PTX.")


def compile_source(
    toolchain: Toolchain,
    source: str,
    options: Sequence[str] = (),
    name_expressions: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> bytes:
    """Compile CUDA C++ to the image of a module that `CpuModule` loads.

    `options` are NVRTC's (see `options.py`), `headers` maps names as included to their text. Raises `Refusal`:
    COMPILE_FAILED with the compiler's log in `details["log"]`, UNSUPPORTED for what the CPU backend cannot run; and
    MemoryError where the compiler had too little.
    """
    if "\0" in source:
        raise Refusal(Reason.COMPILE_FAILED, "The source contains a zero byte.", details={"log": ""})
    headers = headers or {}
    parsed = compile_options.parse(options, bool(headers))
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    prelude = toolchain.prelude(parsed.standard)
    with tempfile.TemporaryDirectory(prefix="hearth-compile-") as name:
        room = Path(name)
        _write_headers(room, headers)
        include = [f"-I{_inside(directory)}" for directory in parsed.include_dirs]
        names = toolchain.prelude_names(parsed.standard)
        lines = [f'#line 1 "{OPTIONS_FILE}"', f"#define __CUDA_ARCH__ {parsed.architecture}"]
        if parsed.architecture >= _SM90:
            lines.append("#include <hearth/atomics_sm90.h>")
        hidden = collisions.hidden_macros(names, (source, *parsed.prologue), headers)
        lines += [*hidden, *parsed.prologue]
        lines.append(f'#line 1 "{FILE}"')
        text = ("\n".join(lines) + "\n" + source + "\n").encode()
        quiet = (*_CLANG_QUIET, "-dI") if toolchain.is_clang else (*_GCC_QUIET, "-fpch-preprocess")
        arguments = [*prelude, "-E", *quiet, "-I.", *include, "-x", "c++", "-"]
        done = toolchain.run(arguments, room, text, _left(deadline))
        if done.status != 0:
            raise _failure(done, source, headers, room)
        expanded = done.output.decode(errors="replace")
        if toolchain.is_clang:  # it writes the prelude out; the precompiled one is to be used instead
            expanded = expanded[expanded.index(f'# 1 "{OPTIONS_FILE}"') :]
            # It leaves no trace of headers that the prelude has included already, except for this.
            foreign = collisions.foreign_includes(names, [expanded], headers)
            expanded = _CLANG_INCLUDE.sub("", expanded)
        else:
            foreign = False  # seen by its line markers
        translation = translate(expanded, name_expressions, names.functions, str(INCLUDE), foreign)
        arguments = [*prelude, *_CLANG_QUIET, "-x", "c++"] if toolchain.is_clang else _without_include(prelude)
        arguments += ["-c", "-o", "module.o", "-"]
        text = translation.text.encode()
        if toolchain.is_clang:  # it preprocesses again, with the prelude's macros
            text = "".join(f"{line}\n" for line in hidden if line.startswith("#undef")).encode() + text
        done = toolchain.run(arguments, room, text, _left(deadline))
        if done.status == 0:
            link = [*toolchain.link_options(), "-o", "module.so", "module.o"]
            done = toolchain.run(link, room, timeout_s=_left(deadline))
        if done.status != 0:
            raise _failure(done, source, headers, room)
        return image.pack((room / "module.so").read_bytes(), static_shared_bytes((room / "module.o").read_bytes()))


def _without_include(prelude: Sequence[str]) -> list[str]:
    """For gcc's second step: the preprocessed text names the precompiled prelude itself."""
    kept = list(prelude)
    at = kept.index("-include")
    del kept[at : at + 2]
    return [*kept, "-fpreprocessed", *_GCC_QUIET, "-x", "c++"]


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.01, deadline - time.monotonic())


def _inside(name: str) -> str:
    """A header's or directory's name, checked to stay within the room it is written to."""
    path = PurePosixPath(name)
    if path.is_absolute():
        path = path.relative_to("/")
    if ".." in path.parts or "\0" in name or not name:
        raise Refusal(
            Reason.COMPILE_FAILED,
            f"The header name {name!r} leads out of its directory.",
            fix="Name headers as the source includes them, without '..'.",
            details={"log": "", "header": name},
        )
    return str(path)


def _write_headers(room: Path, headers: Mapping[str, str]) -> None:
    for name, text in headers.items():
        check_name(name)
        if name.startswith("cub/") and (INCLUDE / name).is_file():
            continue  # the backend's own serves, also where it is included by a name in quotation marks
        path = room / _inside(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _failure(done: Completed, source: str, headers: Mapping[str, str], room: Path) -> Refusal:
    """The refusal for a failed step: UNSUPPORTED where the message is one that our headers arranged for."""
    check_crash(done)
    texts = {FILE: source.split("\n"), **{_inside(name): text.split("\n") for name, text in headers.items()}}
    raw = [line for line in done.log.replace(f"{room}/", "").replace("./", "").split("\n") if not _NOISE.match(line)]
    marked = next((number for number, line in enumerate(raw) if MARK in line and _DIAGNOSTIC.match(line)), None)
    if marked is not None:
        feature = raw[marked].split(MARK)[1].split('"')[0].strip()
        return refuse(feature, *_nearest_own_line(raw, marked, texts))
    lines: list[str] = []
    first = ""
    for line in raw:
        match = _DIAGNOSTIC.match(line)
        if match is None:
            lines.append(_HIDDEN.sub("", line))
            continue
        file, number, rest = match["file"], int(match["line"]), _HIDDEN.sub("", match["rest"])
        lines.append(f"{file}({number}): {rest}")
        if "error:" in rest:
            first = first or lines[-1]
            if file in texts and 0 < number <= len(texts[file]):
                lines.append(f"    {texts[file][number - 1].rstrip()}")
    log = "\n".join(lines).strip()
    first = first or next((line for line in lines if line.strip()), "the compiler said nothing")
    return Refusal(
        Reason.COMPILE_FAILED,
        f"The source does not compile: {first}",
        fix="The whole log is in details['log'].",
        details={"log": log},
    )


def _nearest_own_line(raw: Sequence[str], marked: int, texts: Mapping[str, Sequence[str]]) -> tuple[str, int]:
    """Which line of the user's led to the message at `marked`.

    gcc says what a template was required from before the message, clang after it; an `#error` has only the chain of
    includes before it.
    """
    chain = [_INCLUDED.match(line) for line in raw[: marked + 1]]
    for found in (
        [_DIAGNOSTIC.match(line) for line in reversed(raw[:marked])],
        [_DIAGNOSTIC.match(line) for line in raw[marked:]],
        chain,
    ):
        for match in found:
            if match is not None and match["file"] in texts:
                return match["file"], int(match["line"])
    return FILE, 0


__all__ = ["FILE", "CpuCompiler", "Toolchain", "compile_source", "default_cache_dir", "find_toolchain"]
