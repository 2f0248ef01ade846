"""CUDA C++ source to the image of a module: preprocess, rewrite, compile to a shared object.

The compiler's log names the user's own file and lines (`kernel.cu(12): error: ...`), as nvcc's does.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from hearth_proto.reasons import Reason, Refusal

from hearthd.device.cpu import options as compile_options
from hearthd.device.cpu.cache import default_cache_dir
from hearthd.device.cpu.source import translate
from hearthd.device.cpu.toolchain import Completed, Toolchain, find_toolchain
from hearthd.device.cpu.unsupported import MARK, refuse

FILE = "kernel.cu"

_DIAGNOSTIC = re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+)(?::\d+)?: (?P<rest>.*)$")
_INCLUDED = re.compile(r"^\s*(?:In file included )?from (?P<file>[^:\n]+):(?P<line>\d+)")
_HIDDEN = re.compile(r"(?:const )?(?:::)?hearth::Here(?: hearth_here)?(?:, )?")


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
    COMPILE_FAILED with the compiler's log in `details["log"]`, UNSUPPORTED for what the CPU backend cannot run.
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
        lines = [f"#define __CUDA_ARCH__ {parsed.architecture}", *parsed.prologue, f'#line 1 "{FILE}"']
        text = ("\n".join(lines) + "\n" + source + "\n").encode()
        expand = ["-E"] if toolchain.is_clang else ["-E", "-fpch-preprocess"]
        arguments = [*prelude, *expand, "-I.", *include, "-x", "c++", "-"]
        done = toolchain.run(arguments, room, text, _left(deadline))
        if done.status != 0:
            raise _failure(done, source, headers, room)
        translation = translate(done.output.decode(errors="replace"), name_expressions)
        arguments = [*prelude, "-x", "c++", "-fno-caret-diagnostics"] if toolchain.is_clang else _without_include(prelude)
        arguments += ["-shared", "-o", "module.so", "-"]
        done = toolchain.run(arguments, room, translation.text.encode(), _left(deadline))
        if done.status != 0:
            raise _failure(done, source, headers, room)
        return (room / "module.so").read_bytes()


def _without_include(prelude: Sequence[str]) -> list[str]:
    """For gcc's second step: the preprocessed text names the precompiled prelude itself."""
    kept = list(prelude)
    at = kept.index("-include")
    del kept[at : at + 2]
    return [*kept, "-fpreprocessed", "-fmax-errors=30", "-fno-diagnostics-show-caret", "-x", "c++"]


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
        path = room / _inside(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _failure(done: Completed, source: str, headers: Mapping[str, str], room: Path) -> Refusal:
    texts = {FILE: source.split("\n"), **{_inside(name): text.split("\n") for name, text in headers.items()}}
    raw = done.log.replace(f"{room}/", "").replace("./", "")
    lines: list[str] = []
    first = ""
    own_line: tuple[str, int] | None = None  # the user's line nearest to the message being read
    for line in raw.split("\n"):
        included = _INCLUDED.match(line)
        if included and included["file"] in texts:
            own_line = (included["file"], int(included["line"]))
        match = _DIAGNOSTIC.match(line)
        if match is None:
            lines.append(_HIDDEN.sub("", line))
            continue
        file, number, rest = match["file"], int(match["line"]), _HIDDEN.sub("", match["rest"])
        if file in texts:
            own_line = (file, number)
        if MARK in rest:
            place = own_line or _first_own_line(raw, texts)
            return refuse(rest.split(MARK)[1].split('"')[0].strip(), *(place or (FILE, 0)))
        lines.append(f"{file}({number}): {rest}")
        if file in texts and 0 < number <= len(texts[file]) and "error:" in rest:
            lines.append(f"    {texts[file][number - 1].rstrip()}")
        if not first and ("error:" in rest):
            first = f"{file}({number}): {rest}"
    log = "\n".join(lines).strip()
    first = first or next((line for line in lines if line.strip()), "the compiler said nothing")
    return Refusal(
        Reason.COMPILE_FAILED,
        f"The source does not compile: {first}",
        fix="The whole log is in details['log'].",
        details={"log": log},
    )


def _first_own_line(raw: str, texts: Mapping[str, Sequence[str]]) -> tuple[str, int] | None:
    for line in raw.split("\n"):
        match = _DIAGNOSTIC.match(line)
        if match is not None and match["file"] in texts:
            return match["file"], int(match["line"])
    return None


__all__ = ["FILE", "Toolchain", "compile_source", "default_cache_dir", "find_toolchain"]
