"""`hearth run`: kernels from files, arguments from files or generated, results to files; and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from hearth.cli import main
from tests.support.daemon.harness import MARK, DaemonProcess, alive, command_of, environment, marked, on_cpu, wait_until
from tests.support.daemon.tenants import tenant, tenants

SOURCE = r"""
#include "constants.h"
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = FACTOR * a * x[i] + y[i];
}
"""
SEVERAL = r"""
extern "C" __global__ void fill(int* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 7; }
extern "C" __global__ void hello(int n) { printf("hello %d\n", n); }
extern "C" __global__ void beyond(int* x) { x[threadIdx.x + 8] = 1; }
extern "C" __global__ void endless(volatile int* x) { while (x[0] == 0) __nanosleep(1000000); }
template <typename T> __global__ void scale(T* x, T by) { x[threadIdx.x] *= by; }
"""
ENDLESS = ("several.cu", "--kernel", "endless", "--block", "1", "zeros:i32[1]")
CLOSED = "127.0.0.1:1"


class Done(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def line(self) -> str:
        (line,) = self.err.splitlines()
        return line


Run = Callable[..., Done]


@pytest.fixture(scope="module")
def node(cache: Path) -> Iterator[DaemonProcess]:
    """The module's daemon: a private one, because sessions with dedicated processes consume generations of its
    device."""
    config, tokens = tenants(tenant("default"), tenant("no-dedicated", rights=["allocate", "read", "write", "launch"]))
    process = DaemonProcess(cache, config, 1)
    process.tokens = tokens  # type: ignore[attr-defined]
    yield process
    process.stop()
    left = process.left_behind()
    process.remove()
    assert not left


@pytest.fixture
def run(node: DaemonProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Run:
    """Runs `hearth run` in this process, in a folder with sources."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("HEARTH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HEARTH_TARGET", node.unix)
    monkeypatch.setenv("HEARTH_TOKEN", node.tokens["default"])  # type: ignore[attr-defined]
    (tmp_path / "saxpy.cu").write_text(SOURCE)
    (tmp_path / "constants.h").write_text("#define FACTOR 1")
    (tmp_path / "several.cu").write_text(SEVERAL)

    def go(*arguments: str) -> Done:
        try:
            status = main.main(["run", *arguments])
        except SystemExit as ended:
            status = int(str(ended.code))
        out, err = capsys.readouterr()
        assert "Traceback" not in err, err
        return Done(status, out, err)

    return go


# ---- successful runs ----


def test_arrays_from_files_and_generated_ones_and_a_result_file(run: Run, tmp_path: Path) -> None:
    n = 10_000
    x = np.linspace(0, 1, n, dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    done = run("saxpy.cu", "f32=2", "in:x.npy", f"inout:ones:float[{n}]=y.npy", f"int={n}", "--timed")
    assert (done.status, done.err) == (0, "")
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.float32(2) * x + 1)
    heading, times, result = done.out.splitlines()
    assert heading.startswith("saxpy<<<(40, 1, 1), (256, 1, 1)>>> on device 0 of ")
    assert "on the device; " in times and result == f"argument 3: float32[{n}] -> y.npy"

    done = run("saxpy.cu", "f32=1", "in:x.npy", "inout:y.npy=y.npy", f"int={n}")
    assert done.status == 2 and "the result 'y.npy' exists" in done.line and "--force" in done.line and not done.out
    done = run("saxpy.cu", "f32=1", "in:x.npy", "inout:y.npy=y.npy", f"int={n}", "--force", "--iterations", "3")
    assert done.status == 0 and "3 times" in done.out
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), 5 * x + 1, rtol=1e-6)
    assert not [each for each in tmp_path.iterdir() if each.suffix == ".part"]


def test_output_as_json_document(run: Run) -> None:
    done = run(
        "several.cu", "out:int[4]", "i32=3", "--kernel", "fill", "--block", "4", "--grid", "2", "--json", "--timed"
    )
    assert (done.status, done.err) == (0, "")
    found = json.loads(done.out)
    assert found["schema"] == 1 and (found["kernel"], found["grid"], found["block"]) == ("fill", [2, 1, 1], [4, 1, 1])
    assert found["results"] == [{"argument": 1, "dtype": "int32", "shape": [4], "values": [7, 7, 7, 0]}]
    assert found["device_ns"] > 0 and found["output"] == "" and found["device"]["ordinal"] == 0


def test_kernel_output_is_printed(run: Run) -> None:
    done = run("several.cu", "--kernel", "hello", "i32=42", "--block", "1")
    assert done.status == 0 and done.out.splitlines()[1:] == ["hello 42"]
    done = run("several.cu", "--kernel", "hello", "i32=42", "--block", "1", "--json", "--shared")
    assert json.loads(done.out)["output"] == "hello 42\n"


def test_results_are_printed_as_numpy_does(run: Run) -> None:
    done = run("saxpy.cu", "f32=1", "arange:f32[5000]", "out:f32[5000]", "i32=5000")
    assert done.out.splitlines()[1:] == ["argument 3: float32[5000]", str(np.arange(5000, dtype=np.float32))]


def test_templates_macros_and_headers(run: Run, tmp_path: Path) -> None:
    (tmp_path / "constants.h").unlink()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "constants.h").write_text("#define FACTOR MACRO")
    tail = ["f32=1", "ones:f32[2]", "out:f32[2]", "i32=2", "--json"]
    done = run("saxpy.cu", "-I", "lib", "-DMACRO=3", *tail)
    assert json.loads(done.out)["results"][0]["values"] == [3, 3]
    done = run("several.cu", "--kernel", "scale<float>", "inout:arange:f32[3]", "f32=2", "--block", "3", "--json")
    assert json.loads(done.out)["results"][0]["values"] == [0, 2, 4]


# ---- mistakes ----


def test_kernel_must_be_named_if_the_source_has_several(run: Run) -> None:
    done = run("several.cu")
    assert done.status == 2 and "has 4 kernels: " in done.line and "--kernel" in done.line
    done = run("several.cu", "--kernel", "none")
    assert done.status == 2 and "no kernel 'none'; it has" in done.line and "hello" in done.line


def test_the_compilers_log_is_shown_in_full(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.cu").write_text('extern "C" __global__ void bad(int* x) {\n  x[0] = one;\n  x[1] = two;\n}\n')
    done = run("bad.cu", "out:i32[2]")
    *log, last = done.err.splitlines()
    assert done.status == 1 and not done.out and last.startswith("hearth: bad.cu does not compile (COMPILE_FAILED)")
    for name in ("one", "two"):
        assert sum("error" in line and name in line for line in log) == 1, "each is shown once"


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["none.cu"], 2, "'none.cu' cannot be read: No such file"),
        (["saxpy.cu", "f33=1"], 2, "argument 1, 'f33=1', character 1: 'f33' is not a type"),
        (["saxpy.cu", "in:none.npy"], 2, "'none.npy' cannot be read"),
        (["saxpy.cu", "out:f32[1]=none/y.npy"], 2, "'none', the directory of the result 'y.npy', does not exist"),
        (["saxpy.cu", "--grid", "0"], 2, "argument --grid: '0' is not a size in x, y and z"),
        (["saxpy.cu", "--mode", "quick"], 2, "invalid choice: 'quick'"),
        (["saxpy.cu", "--iterations", "0"], 2, "is not a number from 1 to"),
        (["saxpy.cu", "--bogus"], 2, "unrecognized arguments: --bogus"),
        ([], 2, "the following arguments are required: FILE"),
        (["saxpy.cu", "--device", "7"], 1, "no device 7; it has [0"),
        (["saxpy.cu", "f32=1"], 1, "1 argument is given; the kernel has 4 parameters"),
        (["saxpy.cu", "--block", "5000"], 1, "block.x is 5000; the device's maximum is"),
        (["several.cu", "--kernel", "beyond", "out:i32[4]", "--block", "4", "--mode", "validate"], 1, "beyond"),
        (["saxpy.cu", "--target", CLOSED], 1, "no daemon answers at"),
    ],
)  # fmt: skip
def test_each_mistake_is_reported_in_one_line(run: Run, arguments: list[str], status: int, says: str) -> None:
    done = run(*arguments)
    assert done.status == status and says in done.line, done


def test_without_the_right_to_dedicated_processes(
    run: Run, node: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEARTH_TOKEN", node.tokens["no-dedicated"])  # type: ignore[attr-defined]
    tail = ["several.cu", "--kernel", "fill", "out:i32[1]", "i32=1"]
    done = run(*tail)
    assert done.status == 1 and "--shared" in done.line
    assert run(*tail, "--shared").status == 0


# ---- how it ends ----


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hearth.cli.main", "run", *arguments]


@on_cpu
def test_ctrl_c_while_a_kernel_never_ends(run: Run, node: DaemonProcess) -> None:
    """The session and its process end soon afterwards, and other clients are served in the meantime."""
    mark = uuid.uuid4().hex
    with subprocess.Popen(
        command(*ENDLESS, "--launch-timeout", "2"), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=environment(**{MARK: mark}, **client_variables()),
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stdout.readline().startswith("endless<<<")
        (pid,) = [each["pid"] for each in status(node)["devices"][0]["processes"] if each["session"]]
        process.send_signal(signal.SIGINT)
        assert run("several.cu", "--kernel", "fill", "out:i32[1]", "i32=1").status == 0
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "hearth: interrupted\n")
    assert not [command_of(pid) for pid in marked(mark)]
    wait_until(lambda: not alive(pid) and not status(node)["sessions"], "the end of its process")


def test_a_launch_that_takes_too_long(run: Run) -> None:
    done = run(*ENDLESS, "--launch-timeout", "0.5")
    assert done.status == 1 and "endless" in done.line and "--launch-timeout" in done.line


def test_output_without_a_reader(run: Run) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(
            command("several.cu", "--kernel", "hello", "i32=1"), stdout=closed, stderr=subprocess.PIPE, text=True,
            env=environment(**client_variables()), timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")


def client_variables() -> dict[str, str]:
    return {name: os.environ[name] for name in ("HEARTH_TARGET", "HEARTH_TOKEN")}


def status(node: DaemonProcess) -> Any:
    return json.loads(node.get("/status", node.tokens["default"]).body)  # type: ignore[attr-defined]
