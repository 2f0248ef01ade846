"""Sessions that end while one of their kernels runs endlessly: their process is ended, but if other sessions use it,
only after those have closed."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import DaemonProcess, alive, environment, wait_until
from tests.support.daemon.kernels import COMMON, saxpy_works
from tests.support.timing import LATE

ENDLESS = 'extern "C" __global__ void endless(volatile int* x) { while (x[0] == 0) __nanosleep(1000000); }'
CODE = COMMON + ENDLESS
BYTES = 64 << 20
CLIENT = f"""
import sys, hearth, numpy as np
node = hearth.connect(sys.argv[1], isolation=sys.argv[2])
gpu = node.device(0)
x = gpu.zeros({BYTES}, np.uint8)
gpu.RawModule(code={CODE!r}).get_function("endless")((1,), (1,), (x,))
gpu.flush()
print(node.session_id, flush=True)
sys.stdin.read()
"""
WAIT_S = 40.0
"""Seconds: far more than the two seconds after which a process is ended, but limited."""


@pytest.fixture(scope="module")
def node(cache: Path) -> Iterator[DaemonProcess]:
    """The module's daemon: it tolerates no faults, and ends the sessions of disconnected clients soon."""
    config = {"sessions": {"lease": "1s"}, "devices": {"max_restarts": 0, "max_faults": 0}}
    process = DaemonProcess(cache, config, 1)
    with process.connect() as connected:  # compiles the kernels
        connected.device(0).RawModule(code=CODE).compile()
    yield process
    assert process.stop() == 0
    assert '"reason": "fault"' not in process.log()
    left = process.left_behind()
    process.remove()
    assert not left


def start(connected: hearth.Node) -> None:
    """Launches a kernel of the session that never ends, and allocates memory for it."""
    gpu = connected.device(0)
    x = gpu.zeros(BYTES, np.uint8)
    gpu.RawModule(code=CODE).get_function("endless")((1,), (1,), (x,))
    gpu.flush()


def copies(gpu: hearth.Device) -> None:
    """Copies to and from the device, which work while a kernel runs; CUDA loads no module while one runs."""
    x = gpu.zeros(8, np.int32)
    x.set(np.arange(8, dtype=np.int32))
    assert x.get(timeout=WAIT_S).tolist() == [*range(8)]


def processes(node: DaemonProcess) -> list[dict[str, Any]]:
    return [each for each in node.status()["devices"][0]["processes"] if each["pid"]]


def process_of(node: DaemonProcess, session: str = "") -> dict[str, Any]:
    """Returns the description of a session's own process, or of the shared process."""
    return next(each for each in processes(node) if each["session"] == session)


def abandoned(node: DaemonProcess) -> int:
    return int(node.status()["devices"][0]["restarts"].get("abandoned", 0))


def events(node: DaemonProcess, event: str, **fields: Any) -> list[dict[str, Any]]:
    return [entry for entry in node.log_entries() if entry["event"] == event and fields.items() <= entry.items()]


def losses(node: DaemonProcess, session: str) -> list[dict[str, Any]]:
    return [each for each in events(node, "device_lost", reason="abandoned") if session in each["why"]]


def is_over(node: DaemonProcess, session: str, pid: int, before: int) -> None:
    """Checks that the session's process has ended and released its resources, that no fault is attributed to the
    session, and that other sessions are served."""
    wait_until(lambda: not alive(pid), "the end of the process", WAIT_S)
    wait_until(lambda: events(node, "session_close", session=session), "the end of the session", WAIT_S)
    (loss,) = wait_until(lambda: losses(node, session), "the log's word")
    assert loss["kernels"] == ["endless"] and loss["level"] == "warning"
    assert abandoned(node) == before + 1
    wait_until(lambda: [(each["session"], each["state"]) for each in processes(node)] == [("", "serving")], "a process")
    assert process_of(node)["memory_held_bytes"] < BYTES and not process_of(node)["stuck"]
    assert {each["reason"] for each in node.status()["faults"]} == {"abandoned"}
    assert f'hearth_device_restarts_total{{device="0",reason="abandoned"}} {before + 1}' in node.get("/metrics").body
    assert node.get("/readyz").status == 200
    with node.connect() as connected:
        saxpy_works(connected.device(0))


@pytest.mark.parametrize("isolation", ["dedicated", "shared"])
def test_a_client_closes(node: DaemonProcess, isolation: str) -> None:
    before, own = abandoned(node), isolation == "dedicated"
    connected = node.connect(isolation=isolation)
    start(connected)
    session = connected.session_id
    pid = process_of(node, session if own else "")["pid"]
    begin = time.monotonic()
    connected.close()
    assert time.monotonic() - begin < LATE, "close waits two seconds for running work at most"
    is_over(node, session, pid, before)


@pytest.mark.parametrize("isolation", ["dedicated", "shared"])
def test_a_client_is_killed(node: DaemonProcess, isolation: str) -> None:
    before, own = abandoned(node), isolation == "dedicated"
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, node.unix, isolation], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env=environment(),
    ) as client:  # fmt: skip
        assert client.stdout is not None
        session = client.stdout.readline().strip()
        pid = process_of(node, session if own else "")["pid"]
        client.kill()
    is_over(node, session, pid, before)


def test_new_session_gets_next_process_while_operator_ends_endless_session(node: DaemonProcess) -> None:
    before = abandoned(node)
    victim = node.connect()
    start(victim)
    pid = process_of(node)["pid"]
    running: list[int] = []
    served_at: list[float] = []

    def comes() -> None:
        with node.connect() as late:
            saxpy_works(late.device(0))
            served_at.append(time.monotonic())

    with node.connect() as operator:
        ending = threading.Thread(target=lambda: running.append(len(operator.end_session(victim.session_id))))
        began = time.monotonic()  # the grace of two seconds begins later
        ending.start()
        wait_until(lambda: victim.session_id not in [each["id"] for each in node.status()["sessions"]], "its end")
        late = threading.Thread(target=comes)
        late.start()
        wait_until(lambda: not alive(pid), "the end of the process", WAIT_S)
        assert time.monotonic() - began > 1.9, "the process is not ended before the grace period"
        for thread in (ending, late):
            thread.join(WAIT_S)
    assert running == [0] and len(served_at) == 1, "no kernel still runs, and no client saw a loss"
    assert served_at[0] - began > 1.9, "the new session waited for the grace period"
    is_over(node, victim.session_id, pid, before)
    victim.close()


def test_busy_neighbour_is_unaffected_and_resources_are_free_after_it_leaves(node: DaemonProcess) -> None:
    before = abandoned(node)
    pid = process_of(node)["pid"]
    with node.connect() as neighbour:
        gpu = neighbour.device(0)
        add_one = gpu.RawModule(code=CODE).get_function("add_one")
        x, count = gpu.zeros(8, np.int32), 0
        victim = node.connect()
        start(victim)
        session = victim.session_id
        ended: list[list[int]] = []
        with node.connect() as operator:
            ending = threading.Thread(target=lambda: ended.append(operator.end_session(session)))
            ending.start()
            while ending.is_alive():
                add_one((1,), (8,), (x, np.int32(8)))
                count += 1
                assert (x.get() == count).all()
                time.sleep(0.01)  # leaves processor time to other programs
            ending.join()
        assert ended == [[0]], "the answer names the device of the running kernel"
        (warning,) = events(node, "session_runs_on", session=session)
        assert warning["kernels"] == ["endless"] and abs(warning["closed_unix"] - time.time()) < 60
        (stuck,) = process_of(node)["stuck"]
        assert (stuck["session"], stuck["kernels"]) == (session, ["endless"]) and stuck["seconds"] > 2
        assert node.gauge("sessions_leaving") == 1
        with node.connect() as third:  # another session shares the process, and gets no track of the stuck session
            copies(third.device(0))
        assert process_of(node)["pid"] == pid and abandoned(node) == before
        add_one((1,), (8,), (x, np.int32(8)))
        assert (x.get() == count + 1).all()
        left = time.monotonic()
    is_over(node, session, pid, before)
    assert time.monotonic() - left < LATE
    victim.close()


def test_hearth_run_is_interrupted(node: DaemonProcess, tmp_path: Path) -> None:
    before, pid, launches = abandoned(node), process_of(node)["pid"], node.counter("kernel_launches")
    (tmp_path / "endless.cu").write_text(ENDLESS)
    command = ["-m", "hearth.cli.main", "run", "endless.cu", "zeros:i32[1]", "--shared"]
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env=environment(HEARTH_TARGET=node.unix),
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stdout.readline().startswith("endless<<<")
        (session,) = [each["id"] for each in node.status()["sessions"]]
        wait_until(lambda: node.counter("kernel_launches") > launches, "the launch, which follows the line")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "hearth: interrupted\n")
    is_over(node, session, pid, before)
