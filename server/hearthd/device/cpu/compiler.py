"""Compiler from CUDA C++ source to the image of a module: preprocesses, rewrites, and compiles to a shared object.

The compiler's log names the user's own file and lines (`kernel.cu(12): error: ...`), as nvcc's does. The C++ compiler
itself quotes no source lines, because it would read them from whatever file a `#line` names.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Assembly, Image, LinkJob, Source
from hearthd.device.compiler import image_headers
from hearthd.device.compiler.includes import check_name
from hearthd.device.compiler.limits import CompilerEnded
from hearthd.device.cpu.cache import private_dir
from hearthd.device.cpu.images import image
from hearthd.device.cpu.options import ARCHITECTURE, parse_cpu_options
from hearthd.device.cpu.toolchain import INCLUDE, Completed, Toolchain, find_toolchain
from hearthd.device.cpu.translation import collisions, warp_synchronous
from hearthd.device.cpu.translation.messages import (
    CLANG_OPTIONS,
    FILE,
    GCC_OPTIONS,
    OPTIONS_FILE,
    WARNING_OPTIONS,
    Messages,
    limited_warnings,
)
from hearthd.device.cpu.translation.mistakes import explain, first_use
from hearthd.device.cpu.translation.source import translate
from hearthd.device.cpu.translation.unsupported import MARK, refuse
from hearthd.shared import disk

_CLANG_INCLUDE = re.compile(r"^[ \t]*#.*/\* clang -E -dI \*/$", re.MULTILINE)

# gcc's driver, the last output of the compiler proper, and clang's driver name the signal as strsignal(3) does.
_SIGNAL_MESSAGE = re.compile(
    r"(?:internal compiler error: |unable to execute command: |fatal error: (?=.* signal terminated program))"
    r"([A-Z][\w ]*?)(?: signal terminated program.*| \(.*\).*)?$",
    re.MULTILINE,
)
_EXHAUSTED = re.compile(
    r"out of memory allocating|virtual memory exhausted|LLVM ERROR: out of memory|std::bad_alloc"
    r"|[Cc]annot allocate memory|memory exhausted|error: OutOfMemory"
)
_SIGNALS = {signal.strsignal(number): int(number) for number in signal.valid_signals()}


class CpuCompiler:
    """Compiler of the CPU backend, which produces the same image for every virtual device of the node.

    Uses the system's C++ compiler, or that of the ziglang package.
    """

    light = True

    def __init__(self, cache_dir: str = "", toolchain: Toolchain | None = None) -> None:
        self._cache_dir = Path(cache_dir) if cache_dir else None
        self._toolchain = toolchain
        self._preludes = -1
        self._renewals = 0
        self._renewal_lock = threading.Lock()

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, Any]) -> CpuCompiler:
        """Returns an equal compiler in another process."""
        return cls(toolchain=Toolchain.from_recipe(recipe))

    def toolchain(self) -> Toolchain:
        """Returns the C++ compiler and the directory of its results. Raises Refusal(NO_COMPILER)."""
        if self._toolchain is not None:
            return self._toolchain
        try:
            directory = None if self._cache_dir is None else private_dir(self._cache_dir)
        except OSError:  # not trusted or not writable: results that are built once are stored elsewhere
            directory = None
        return find_toolchain(directory)

    def recipe(self) -> Mapping[str, Any]:
        """Returns the recipe of the compiler.

        It changes when the directory of preludes has been deleted and created again, because a worker's sandbox allows
        access only to the directory that existed when the worker started.
        """
        toolchain = self.toolchain()
        with self._renewal_lock:
            path = toolchain.preludes()
            if self._preludes < 0 or not os.path.samestat(path.stat(), os.fstat(self._preludes)):
                if self._preludes >= 0:
                    os.close(self._preludes)
                # Held open, so that no later directory gets the same inode number.
                self._preludes = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self._renewals += 1
            return {**toolchain.recipe(), "renewals": self._renewals}

    def close(self) -> None:
        """Releases the descriptor of the directory of preludes. No other method may be called afterwards."""
        with self._renewal_lock:
            if self._preludes >= 0:
                os.close(self._preludes)
                self._preludes = -1

    def prepare(self, source: Source) -> None:
        """Builds the precompiled prelude. Raises Refusal for invalid options."""
        parsed = parse_cpu_options(source.options)
        self.toolchain().prelude(parsed.standard)

    def load(self) -> None:
        self.toolchain().identity()  # reads and caches the backend's own files

    def sandbox_paths(self) -> tuple[Sequence[str], Sequence[str]]:
        return self.toolchain().sandbox_paths()

    def identity(self) -> bytes:
        toolchain = self.toolchain()
        toolchain.library("runtime")  # built here if necessary, so that it is never built when a module is loaded
        return toolchain.identity()

    def compile(self, source: Source) -> Image:
        """Returns the image of a module that `CpuModule` loads, with the compiler's warnings.

        Raises:
            Refusal: COMPILE_FAILED with the compiler's log in `details["log"]`; UNSUPPORTED for features that cannot
                run here.
            MemoryError: The compiler had too little memory.
        """
        if "\0" in source.code:
            raise Refusal(Reason.COMPILE_FAILED, "The source contains a zero byte.", details={"log": ""})
        toolchain, headers = self.toolchain(), dict(source.headers)
        parsed = parse_cpu_options(source.options)
        prelude = toolchain.prelude(parsed.standard)
        with tempfile.TemporaryDirectory(prefix="hearth-compile-") as name:
            directory = Path(name)
            _write_headers(directory, headers)
            texts = {
                FILE: source.code.split("\n"),
                **{str(PurePosixPath(name)): text.split("\n") for name, text in headers.items()},
            }
            names = toolchain.prelude_names(parsed.standard)
            hidden = collisions.hidden_macros(names, (source.code, *parsed.prologue), headers)
            lines = [f'#line 1 "{OPTIONS_FILE}"', f"#define __CUDA_ARCH__ {ARCHITECTURE}"]
            lines += [*hidden, *parsed.prologue, f'#line 1 "{FILE}"']
            text = ("\n".join(lines) + "\n" + source.code + "\n").encode()
            extra = [*(WARNING_OPTIONS if parsed.warnings else ("-w",)), *parsed.arguments]
            preprocessing_options = (
                [*CLANG_OPTIONS, *extra, "-dI"] if toolchain.is_clang else [*GCC_OPTIONS, *extra, "-fpch-preprocess"]
            )
            base = [option for option in prelude if option != "-w"]
            completed = toolchain.run([*base, *preprocessing_options, "-E", "-I.", "-x", "c++", "-"], directory, text)
            preprocessing = Messages(completed.log, texts, str(directory))
            if completed.status != 0:
                raise _failure(completed, preprocessing)
            expanded = completed.output.decode(errors="replace")
            if toolchain.is_clang:  # clang writes the prelude out; the precompiled one is used instead
                expanded = expanded[expanded.index(f'# 1 "{OPTIONS_FILE}"') :]
                # clang's output shows headers that the prelude has already included only in this way.
                foreign = collisions.foreign_includes(names, [expanded], headers)
                expanded = _CLANG_INCLUDE.sub("", expanded)
            else:
                foreign = False  # gcc's line markers show these headers
            try:
                translation = translate(expanded, source.name_expressions, names.functions, str(INCLUDE), foreign)
            except Refusal as error:
                _quote_source_line(error, preprocessing)
                raise
            arguments = (
                [*base, *CLANG_OPTIONS, *extra, "-x", "c++"] if toolchain.is_clang else _without_include(base, extra)
            )
            arguments += ["-c", "-o", "module.o", "-"]
            text = translation.text.encode()
            if toolchain.is_clang:  # clang preprocesses again, with the prelude's macros
                text = "".join(f"{line}\n" for line in hidden if line.startswith("#undef")).encode() + text
            completed = toolchain.run(arguments, directory, text)
            compiling = Messages(completed.log, texts, str(directory))
            if completed.status != 0:
                # Only if the compiler's first error is about that: the source may have another error before.
                first = next((error.main.text for error in compiling.errors()), "")
                warp_synchronous.check(finding for finding in translation.findings if f"'{finding.name}'" in first)
                raise _failure(completed, compiling, expanded)
            log: list[str] = []
            if parsed.warnings:
                log = [*parsed.notes, *limited_warnings(preprocessing), *limited_warnings(compiling)]
                for finding in translation.findings:
                    log += [finding.log_line(), *compiling.quoted(finding.file, finding.line)]
            return Image(_link(toolchain, directory), log="\n".join(log))

    def assembly(self, code: bytes) -> Assembly | None:
        return None  # the code is an image of this backend, or code that the loader refuses

    def assembler(self) -> bytes:
        raise Refusal(Reason.NO_COMPILER, "The CPU backend assembles no PTX.")

    def assemble(self, assembly: Assembly) -> Image:
        raise Refusal(Reason.NO_COMPILER, "The CPU backend assembles no PTX.")

    def linker(self) -> bytes:
        return self.identity()

    def link(self, link: LinkJob) -> Image:
        if len(link.sources) == len(link.inputs) == 1:
            return self.compile(link.sources[0])
        binary = next((item.code for item in link.inputs if isinstance(item, Assembly)), b"")
        raise Refusal(
            Reason.UNSUPPORTED,
            f"The CPU backend links no modules; {len(link.inputs)} inputs were sent"
            + (f", one of which is {image_headers.describe(binary)}." if binary else "."),
            fix='put the sources into one, for example with headers={"part.cu": text} and #include "part.cu"; or use a '
            "device with a GPU",
            details={"feature": "linking", "inputs": len(link.inputs)},
        )


def _link(toolchain: Toolchain, directory: Path) -> bytes:
    """Links the object file in `directory`, and returns the image."""
    link = [*toolchain.link_options(), "-o", "module.so", "module.o"]
    completed = toolchain.run(link, directory)
    if completed.status != 0:
        raise _failure(completed, Messages(completed.log, {}, str(directory)))
    return image.pack((directory / "module.so").read_bytes(), (directory / "module.o").read_bytes())


def _without_include(prelude: Sequence[str], extra: Sequence[str]) -> list[str]:
    """Returns the options for gcc's second step, without those that include the prelude.

    The preprocessed text already names the prelude.
    """
    options = list(prelude)
    at = options.index("-include")
    del options[at : at + 2]
    return [*options, "-fpreprocessed", *GCC_OPTIONS, *extra, "-x", "c++"]


def _write_headers(directory: Path, headers: Mapping[str, str]) -> None:
    for name, text in headers.items():
        check_name(name)
        if name.startswith("cub/") and (INCLUDE / name).is_file():
            continue  # the backend's own header is used, even if it is included by a name in quotation marks
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _quote_source_line(error: Refusal, messages: Messages) -> None:
    """Adds the user's source line to the log of a refusal that names a line."""
    details = error.details
    if details.get("log") and details.get("line"):
        details["log"] = "\n".join((details["log"], *messages.quoted(details["file"], int(details["line"]))))


_MAX_LINE = 120
"""Characters of a source line in a message."""


def _failure(completed: Completed, messages: Messages, expanded: str = "") -> Refusal:
    """Returns the refusal for a failed step: usually COMPILE_FAILED.

    It is UNSUPPORTED if the backend's headers provoked the error for that purpose. `expanded` is the preprocessed
    source, which is needed to explain errors at places outside the user's files.
    """
    if disk.says_full(completed.log) or (
        completed.status == -signal.SIGBUS and disk.without_room(tempfile.gettempdir())
    ):
        return disk.temporary()
    check_crash(completed)
    unsupported = messages.unsupported(MARK)
    if unsupported is not None:
        return refuse(*unsupported)
    foreign_errors = messages.foreign_errors()
    mistakes = explain(expanded) if expanded else []
    blocks = [[f"{file}({line}): error: {text}", *messages.quoted(file, line)] for file, line, text in mistakes]
    blocks += [messages.show(error) for error in messages.errors(explained=bool(mistakes))]
    if not blocks:
        blocks = [messages.show(error, first_use(expanded, error.main.text)) for error in foreign_errors]
    log = "\n".join(line for block in blocks for line in block)
    error_block = next((block for block in blocks if any("error: " in line for line in block)), [])
    at = next((index for index, line in enumerate(error_block) if "error: " in line), 0)
    summary = error_block[at] if error_block else "the compiler gave no reason"
    line = (
        error_block[at + 1].strip() if error_block[at + 1 : at + 2] and error_block[at + 1].startswith("    ") else ""
    )
    return Refusal(
        Reason.COMPILE_FAILED,
        f"The source does not compile: {summary}" + (f", in `{line[:_MAX_LINE]}`" if line else ""),
        fix="correct the source; error.log has all messages of the compiler.",
        details={"log": log},
    )


def check_crash(completed: Completed) -> None:
    """Raises MemoryError or CompilerEnded if the C++ compiler was ended by a limit or an internal fault."""
    if _EXHAUSTED.search(completed.log):
        raise MemoryError
    signals = [_SIGNALS[match[1]] for match in _SIGNAL_MESSAGE.finditer(completed.log) if match[1] in _SIGNALS]
    number = signals[-1] if signals else max(0, -completed.status)
    if number:
        raise CompilerEnded(number, completed.log)
