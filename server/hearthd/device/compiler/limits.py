"""Limits of a compile, and the refusals of a compile that exceeded them or whose compiler crashed."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from hearth_proto.reasons import Reason, Refusal

_SMALLER_SOURCE = "make the source smaller: fewer template instantiations, less unrolling, smaller tables"


class CompilerEnded(Exception):
    """The compiler was ended by the signal `number`, instead of reporting an error; `log` is its output until then."""

    def __init__(self, number: int, log: str = "") -> None:
        super().__init__(signal_name(number))
        self.number = number
        self.log = log


def internal_failure(error: Exception) -> Refusal:
    """Returns the refusal (INTERNAL) of a compile that an unexpected error ended; it fails the module only."""
    return Refusal(Reason.INTERNAL, f"the compiler failed: {type(error).__name__}: {error}")


@dataclass(frozen=True)
class CompileLimits:
    """Limits of one compile.

    These are wall-clock seconds, bytes of address space, and bytes of the largest file that the compile writes.
    """

    seconds: float
    memory: int
    file_bytes: int = 256 << 20

    def out_of_time(self) -> Refusal:
        """Returns the refusal (COMPILE_LIMIT) of a compile that exceeded `seconds`."""
        return self._exceeded(
            "time", self.seconds, f"took longer than its limit of {self.seconds:g} s", "compile.timeout"
        )

    def out_of_memory(self) -> Refusal:
        """Returns the refusal (COMPILE_LIMIT) of a compile that exceeded `memory`."""
        event = f"needed more memory than its limit of {self.memory} bytes"
        return self._exceeded("memory", self.memory, event, "compile.memory")

    def too_large(self) -> Refusal:
        """Returns the refusal (COMPILE_LIMIT) of a compile that wrote a file larger than `file_bytes`."""
        return Refusal(
            Reason.COMPILE_LIMIT,
            f"The compile wrote a file of more than {self.file_bytes} bytes, and was stopped.",
            fix="put large tables into buffers that are filled at run time",
            details={"limit": "file", "allowed": self.file_bytes, "log": ""},
        )

    def ended_by_signal(self, number: int, log: str = "") -> Refusal:
        """Returns the refusal of a compile whose compiler was ended by the signal `number`.

        `log` is the compiler's last output.
        """
        if number == signal.SIGXCPU:
            return self.out_of_time()
        if number == signal.SIGXFSZ:
            return self.too_large()
        name = signal_name(number)
        return Refusal(
            Reason.COMPILE_FAILED,
            f"The compiler crashed on this source ({name}); nothing else is affected.",
            fix="simplify unusual constructs in the source",
            details={"signal": name, "log": log},
        )

    @staticmethod
    def _exceeded(limit: str, allowed: float, event: str, setting: str) -> Refusal:
        return Refusal(
            Reason.COMPILE_LIMIT,
            f"The compile {event}, and was stopped.",
            fix=f"{_SMALLER_SOURCE}; or raise {setting} in the daemon's configuration",
            details={"limit": limit, "allowed": allowed, "log": ""},
        )


def signal_name(number: int) -> str:
    """Returns the name of a signal, such as "SIGSEGV", or "signal 99" if it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
