"""A C++ compiler that did not fail but was ended: by a limit, or by its own fault."""

from __future__ import annotations

import re
import signal

from hearthd.device.compiler.limits import CompilerEnded
from hearthd.device.cpu.toolchain import Completed

# gcc's driver, and the compiler proper in its last words, name the signal as strsignal(3) does; clang's driver, too.
_ENDED = re.compile(
    r"(?:internal compiler error: |unable to execute command: |fatal error: (?=.* signal terminated program))"
    r"([A-Z][\w ]*?)(?: signal terminated program.*| \(.*\).*)?$",
    re.MULTILINE,
)
_EXHAUSTED = re.compile(
    r"out of memory allocating|virtual memory exhausted|LLVM ERROR: out of memory|std::bad_alloc"
    r"|[Cc]annot allocate memory|memory exhausted|error: OutOfMemory"
)
_SIGNALS = {signal.strsignal(number): int(number) for number in signal.valid_signals()}


def check_crash(done: Completed) -> None:
    """Raises MemoryError or CompilerEnded; nothing where the compiler ended by itself."""
    if _EXHAUSTED.search(done.log):
        raise MemoryError
    named = [_SIGNALS[match[1]] for match in _ENDED.finditer(done.log) if match[1] in _SIGNALS]
    number = named[-1] if named else max(0, -done.status)
    if number:
        raise CompilerEnded(number, done.log)
