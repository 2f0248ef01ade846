"""The record of a device process that has ended: the cause, and the sessions that are blamed."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from hearth_proto import descriptors
from hearthd.front.links.fd_passing import Descriptors
from hearthd.front.links.link import DeviceLink
from hearthd.front.supervisor.crash import CrashFile, explain
from hearthd.front.supervisor.exit_cause import LABELS, ExitCause, signal_name
from hearthd.front.supervisor.fault_policy import culprit
from hearthd.shared import crash_record
from hearthd.shared.crash_record import Crash, CrashRecord, RunningKernel

SEGV = ExitCause("signal", "its process was killed by SIGSEGV", details={"signal": "SIGSEGV"})
A, B = RunningKernel("wild", "a"), RunningKernel("endless", "b")


def blamed(cause: ExitCause) -> str | None:
    return culprit(cause.label, cause.details, {"a", "b", "c"})


@pytest.mark.parametrize(
    ("last", "text", "kernels", "whom"),
    [
        (CrashRecord(), "", (), None),
        (
            CrashRecord((A, B), Crash(signal.SIGSEGV, A, 0x10, (1, 2, 3))),
            " in kernel wild at address 0x10, block (1, 2, 3)", ("wild",), "a",
        ),
        (
            CrashRecord((A, B), Crash(signal.SIGSEGV, A, message="it says so")),
            " in kernel wild, block (0, 0, 0): it says so", ("wild",), "a",
        ),
        (
            CrashRecord((A, B), Crash(signal.SIGSEGV, None, 0x10)),
            " outside of all kernels while kernels wild, endless were running", ("wild", "endless"), None,
        ),
        (
            CrashRecord((A,), Crash(signal.SIGSEGV, None, 0x10)),
            " outside of all kernels while kernel wild was running", ("wild",), "a",
        ),
        (CrashRecord((A,)), " while kernel wild was running", ("wild",), "a"),
        (CrashRecord((A, B)), " while kernels wild, endless were running", ("wild", "endless"), None),
        (CrashRecord((A, RunningKernel("x", ""))), " while kernels wild, x were running", ("wild", "x"), None),
        (
            CrashRecord((A,), Crash(signal.SIGSEGV, None, sender=7)),
            ", sent by process 7 while kernel wild was running", ("wild",), None,
        ),
        # A record of another signal than the one that ended the process is ignored.
        (CrashRecord((A, B), Crash(signal.SIGFPE, A)), " while kernels wild, endless were running",
         ("wild", "endless"), None),
    ],
)  # fmt: skip
def test_report_and_attribution_of_a_crash(
    last: CrashRecord, text: str, kernels: tuple[str, ...], whom: str | None
) -> None:
    cause = explain(SEGV, last)
    assert (cause.label, cause.text, cause.kernels) == ("signal", SEGV.text + text, kernels)
    assert blamed(cause) == whom
    refusal = cause.refusal(0, 1)
    assert refusal.details["signal"] == "SIGSEGV" and "sessions" not in refusal.details
    assert refusal.details.get("kernels", "") == ", ".join(kernels)


def test_kernel_of_several_sessions_is_named_once_and_attributed_to_none() -> None:
    cause = explain(SEGV, CrashRecord((RunningKernel("k", "a"), RunningKernel("k", "b"))))
    assert cause.kernels == ("k",) and "kernel k was running" in cause.text and blamed(cause) is None


@pytest.mark.parametrize("label", sorted(LABELS - {"signal"}))
def test_other_exits_are_attributed_to_no_session(label: str) -> None:
    cause = ExitCause(label, "it ended")
    explained = explain(cause, CrashRecord((A,), Crash(signal.SIGSEGV, A)))
    own = label in ("fault", "abandoned", "restart")
    assert explained == cause if own else explained.kernels == ("wild",)
    assert own or blamed(explained) is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGRTMIN + 3, 10_000])
def test_every_signal_has_a_name(number: int) -> None:
    assert signal_name(number) in ("SIGKILL", f"signal {number}")


def test_the_record_of_a_process() -> None:
    """Only processes of the CPU backend have a record. It is missing if it cannot be handed over."""

    async def scenario() -> None:
        ours, theirs = descriptors.pair()
        link = DeviceLink(0, 1)
        assert CrashFile.of("cpu", link).explain(SEGV) is SEGV
        link.descriptors = Descriptors(ours, 0)
        CrashFile.of("cuda", link).close()
        with pytest.raises(BlockingIOError):
            theirs.setblocking(False)
            descriptors.receive(theirs)
        record = CrashFile.of("cpu", link)
        received = descriptors.receive(theirs)
        assert received is not None
        body, (file,) = received
        assert body == {"kind": crash_record.FILE}
        os.pwrite(file, (1).to_bytes(4, "little") * 2 + b"a".ljust(56, b"\0") + b"wild\0", 512)
        os.close(file)
        assert record.explain(SEGV).kernels == ("wild",)
        record.close()
        record.close()
        assert record.explain(SEGV) is SEGV
        theirs.close()
        link.descriptors.close()
        assert CrashFile.of("cpu", link).explain(SEGV) is SEGV

    asyncio.run(scenario())
