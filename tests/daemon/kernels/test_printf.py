"""Output of kernels reaches the session that launched them, before the answer to a call that waited for them; otherwise
it is written to the log."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hearth
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.harness import DaemonProcess, StartDaemon, environment, on_cpu, wait_until
from tests.support.daemon.kernels import common, gated
from tests.support.daemon.raw import Raw

PRINTS = r"""
extern "C" __global__ void say(int n) { printf("%d says thread %d\n", n, threadIdx.x); }
extern "C" __global__ void half(int n) { printf("%d", n); }
extern "C" __global__ void flood(int n) { for (int i = 0; i < n; i++) printf("%0127d\n", i); }
extern "C" __global__ void bytes() { printf("caf\xc3\xa9 \xff|\n"); }
extern "C" __global__ void quiet(int* x) { *x += 1; }
__device__ volatile int gate;
extern "C" __global__ void held(int n) { while (!gate) {} printf("%d was held\n", n); }
"""


@pytest.fixture
def said(gpu: hearth.Device) -> Iterator[list[str]]:
    """Yields the output of the kernels of the test's session."""
    texts: list[str] = []
    gpu.on_output(texts.append)
    yield texts
    gpu.on_output(None)


def function(gpu: hearth.Device, name: str) -> hearth.Function:
    return gpu.RawModule(code=PRINTS).get_function(name)


def lines(texts: list[str]) -> list[str]:
    return sorted("".join(texts).splitlines())


WAITS = {
    "sync of the device": lambda gpu, stream, x: gpu.synchronize(),
    "sync of the stream": lambda gpu, stream, x: stream.synchronize(),
    "read": lambda gpu, stream, x: x.get(stream=stream),
    "large read": lambda gpu, stream, x: gpu.zeros(3 << 20, np.uint8, stream).get(stream=stream),
    "event": lambda gpu, stream, x: (stream.record().synchronize(), gpu.synchronize()),
    "end of a profile": lambda gpu, stream, x: gpu.profile(stream).__enter__().__exit__(None, None, None),
}


@pytest.mark.parametrize("how", WAITS)
def test_output_arrives_before_wait_returns(gpu: hearth.Device, said: list[str], how: str) -> None:
    say, stream, x = function(gpu, "say"), gpu.stream(), gpu.zeros(4, np.int32)
    gpu.synchronize()
    say((1,), (3,), (np.int32(7),), stream=stream)
    WAITS[how](gpu, stream, x)
    assert lines(said) == ["7 says thread 0", "7 says thread 1", "7 says thread 2"]
    gpu.synchronize()
    assert len(said) == 1, "once"


def test_kernel_output_goes_to_stdout_by_default(gpu: hearth.Device, capfd: pytest.CaptureFixture[str]) -> None:
    function(gpu, "say")((1,), (2,), (np.int32(1),))
    gpu.synchronize()
    assert sorted(capfd.readouterr().out.splitlines()) == ["1 says thread 0", "1 says thread 1"]


def test_output_of_all_launches_arrives_completely_and_in_order(gpu: hearth.Device, said: list[str]) -> None:
    half = function(gpu, "half")
    for n in range(100):
        half((1,), (1,), (np.int32(n),))
    gpu.synchronize()
    assert "".join(said) == "".join(map(str, range(100))), "the output of every launch arrives, also of repeated ones"


def test_graphs_and_dispatches_print_too(gpu: hearth.Device, said: list[str]) -> None:
    say = function(gpu, "say")
    with gpu.graph() as graph:
        say((1,), (1,), (np.int32(5),))
    graph.launch(3)
    gpu.synchronize()
    assert lines(said) == ["5 says thread 0"] * 3
    said.clear()
    gpu.dispatch(say, (1,), (1,), [np.int32(6)])
    assert lines(said) == ["6 says thread 0"]


def test_a_kernel_of_the_same_module_that_prints_nothing(gpu: hearth.Device, said: list[str]) -> None:
    x = gpu.zeros(1, np.int32)
    function(gpu, "quiet")((1,), (1,), (x,))
    assert x.item() == 1 and said == []


def test_text_with_invalid_utf8(gpu: hearth.Device, said: list[str]) -> None:
    function(gpu, "bytes")((1,), (1,), ())
    gpu.synchronize()
    assert "".join(said) == "café \ufffd|\n"


def test_sync_delivers_output_of_completed_kernels_only(gpu: hearth.Device, said: list[str]) -> None:
    module = gpu.RawModule(code=PRINTS)
    say, held = module.get_function("say"), module.get_function("held")
    gate, busy, free = module.get_global("gate", np.int32), gpu.stream(), gpu.stream()
    gate.set(np.zeros(1, np.int32), stream=free)
    free.synchronize()
    held((1,), (1,), (np.int32(1),), stream=busy, timeout=60)
    say((1,), (1,), (np.int32(2),), stream=free)
    free.synchronize()
    assert lines(said) == ["2 says thread 0"]
    gate.set(np.ones(1, np.int32), stream=free)
    busy.synchronize()
    assert lines(said) == ["1 was held", "2 says thread 0"]


def test_excess_output_is_cut_with_a_notice(gpu: hearth.Device, said: list[str]) -> None:
    function(gpu, "flood")((1,), (1,), (np.int32(100_000),))
    gpu.synchronize()
    text = "".join(said)
    # CUDA's buffer keeps the newest 1 MiB of arguments; the formatted text may be longer than the daemon's limit.
    assert len(text) <= (1 << 20) + 200
    assert "more bytes of output were dropped" in text.splitlines()[-1]
    said.clear()
    function(gpu, "say")((1,), (1,), (np.int32(3),))
    gpu.synchronize()
    assert lines(said) == ["3 says thread 0"], "none of the flood's text remains"


@on_cpu
def test_a_flood_delays_no_other_session(gpu: hearth.Device, daemon: DaemonProcess, said: list[str]) -> None:
    """The text arrives while the kernel runs: the pipe is emptied continuously."""
    function(gpu, "flood")((1,), (1,), (np.int32(2_000_000),))
    with daemon.connect() as other:
        x = other.device(0).zeros(4, np.int32)
        for n in range(1, 6):
            common(other.device(0), "add_one")((1,), (4,), (x, np.int32(4)))
            assert (x.get() == n).all()
    gpu.synchronize()
    assert "dropped" in "".join(said)[-200:]


# ---- the session that gets the output ----


def test_each_session_gets_its_own_output(gpu: hearth.Device, daemon: DaemonProcess, said: list[str]) -> None:
    theirs: list[str] = []
    with daemon.connect() as node:
        other = node.device(0)
        node.on_output(theirs.append)
        function(gpu, "say")((1,), (1,), (np.int32(1),))
        gpu.synchronize()
        function(other, "say")((1,), (1,), (np.int32(2),))
        other.synchronize()
        other.synchronize()
    gpu.synchronize()
    assert lines(said) == ["1 says thread 0"] and lines(theirs) == ["2 says thread 0"]


def test_ambiguous_output_goes_to_log(lossy: DaemonProcess) -> None:
    texts: list[str] = []
    with lossy.connect() as one, lossy.connect() as two:
        for node in (one, two):
            node.on_output(texts.append)
        first, second = (function(node.device(0), "say") for node in (one, two))
        # on a GPU, the first launch of a process waits for running kernels
        for node, say in ((one, first), (two, second)):
            say((1,), (1,), (np.int32(0),))
            node.device(0).synchronize()
        texts.clear()
        with gated(one.device(0)) as gate:
            gate.hold()
            first((1,), (1,), (np.int32(1111),))  # ordered after the gate, so it is not known to have ended
            one.device(0).flush()
            second((1,), (1,), (np.int32(2222),))
            two.device(0).synchronize()
            assert texts == []
            gate.open()
        one.device(0).synchronize()
        assert lines(texts) == ["1111 says thread 0"], "only one session remained from which it could be"
        names = sorted([one.session_id, two.session_id])
    found = [line for line in lossy.log().splitlines() if "2222 says" in line]
    assert len(found) == 1 and all(name in found[0] for name in names) and "kernel_output" in found[0]


def test_output_of_single_calls_goes_to_the_log(lossy: DaemonProcess) -> None:
    with Raw(lossy.unix) as raw:
        say = raw.function(PRINTS, "say")
        launch = c.Launch(function=say, grid=c.Dim3(x=1, y=1, z=1), block=c.Dim3(x=1, y=1, z=1))
        launch.arguments.add().int32 = 4711
        raw.call("Launch", launch)
        raw.call("Sync", c.Sync())
        session = raw.opened.session_id
    (line,) = (line for line in lossy.log().splitlines() if "4711 says" in line)
    assert session in line and "kernel_output" in line


def test_output_of_a_session_that_never_waits_is_delivered_or_logged(lossy: DaemonProcess) -> None:
    texts: list[str] = []
    with lossy.connect() as node:
        node.on_output(texts.append)
        function(node.device(0), "say")((1,), (1,), (np.int32(4712),))
        node.device(0).flush()
    wait_until(lambda: texts or "4712 says" in lossy.log(), "the text")
    with lossy.connect() as node:  # the next session gets none of the text
        node.on_output(texts.append)
        node.device(0).synchronize()
    assert "".join(texts).count("4712") + lossy.log().count("4712 says") == 1


def test_kernel_output_is_not_written_to_daemon_stdout(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(cpu_count=1)
    with daemon.connect() as node:
        node.on_output(lambda text: None)
        function(node.device(0), "say")((1,), (4,), (np.int32(1),))
        node.device(0).synchronize()
    daemon.process.terminate()
    assert daemon.process.stdout is not None and daemon.process.stdout.read() == ""


# ---- the client ----


def test_failing_callback_does_not_cost_the_answer(gpu: hearth.Device) -> None:
    def broken(text: str) -> None:
        raise RuntimeError("no")

    gpu.on_output(broken)
    function(gpu, "say")((1,), (1,), (np.int32(1),))
    with pytest.warns(RuntimeWarning, match="no"):
        gpu.synchronize()
    gpu.on_output(None)
    gpu.synchronize()


def test_a_callback_may_use_the_device(gpu: hearth.Device) -> None:
    """The callback is called on the waiting thread, not on the receiving thread."""
    x, seen = gpu.full(4, 9, np.int32), []

    def read(text: str) -> None:
        seen.append((threading.current_thread(), int(x.get()[0])))

    gpu.on_output(read)
    function(gpu, "say")((1,), (1,), (np.int32(1),))
    gpu.synchronize()
    gpu.on_output(None)
    assert seen == [(threading.current_thread(), 9)]


def test_a_process_whose_stdout_is_closed(daemon: DaemonProcess, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, numpy as np, hearth\n"
        "sys.stdout.close()\n"
        f"with hearth.connect({daemon.unix!r}) as node:\n"
        f"    say = node.device(0).RawModule(code={PRINTS!r}).get_function('say')\n"
        "    say((1,), (1,), (np.int32(1),))\n"
        "    node.device(0).synchronize()\n"
        "sys.stderr.write('done')\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment(), timeout=60, check=False
    )
    assert done.returncode == 0 and done.stderr.endswith("done"), done.stderr
