"""The sequence of measurements, without a daemon: rounds, refusals, floors of a real process, and the report."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator

import pytest

from hearth import errors
from hearth.cli.bench import rounds
from hearth.cli.bench.figures import Figure
from hearth.cli.bench.floor_process import FloorError, FloorProcess, Kind
from hearth.cli.bench.floors import Floors
from hearth.cli.bench.report import BenchReport
from hearth.cli.bench.sampling import After, Measurement, Once, Unit

QUICK = rounds.Effort(rounds=2, seconds=0.002, floor_seconds=0.002, launches=100)


def measurement(key: str, log: list[str], error: BaseException | None = None, unit: Unit = "us") -> Measurement:
    @contextlib.contextmanager
    def opened() -> Iterator[Once]:
        log.append(key)

        def once() -> None:
            if error is not None:
                raise error

        yield once
        log.append(f"end {key}")

    return Measurement(key, key, unit, opened)


def figures(log: list[str], refused: BaseException | None) -> list[Figure]:
    shared = measurement("floor", log)
    return [
        Figure(measurement("one", log, refused), (shared,)),
        Figure(measurement("two", log), (shared, measurement("other floor", log))),
    ]


def silent(_: str) -> None:
    pass


def test_figures_and_floors_take_turns_and_a_shared_floor_is_measured_once_a_round() -> None:
    log: list[str] = []
    rounds.run(figures(log, None), QUICK, lambda: None, silent)
    assert [each for each in log if not each.startswith("end")] == ["one", "floor", "two", "other floor"] * 2
    assert len(log) == 16


@pytest.mark.parametrize("error", [errors.QuotaExceededError("too much", reason="QUOTA_EXCEEDED"), MemoryError()])
def test_refusal_of_one_figure_does_not_stop_the_others(error: BaseException) -> None:
    log: list[str] = []
    settled: list[int] = []
    one, two = measured = figures(log, error)
    rounds.run(measured, QUICK, lambda: settled.append(1), silent)
    assert one.error is not None and one.error.reason in ("QUOTA_EXCEEDED", "OUT_OF_MEMORY") and settled == [1]
    assert log.count("one") == 1 and two.error is None and two.measurement.percentiles().n > 0


@pytest.mark.parametrize("error", [errors.ConnectError("gone"), errors.DeviceLostError("gone"), KeyboardInterrupt()])
def test_errors_that_end_the_bench(error: BaseException) -> None:
    with pytest.raises(type(error)):
        rounds.run(figures([], error), QUICK, lambda: None, silent)


def test_a_floor_that_fails_is_an_error_of_hearths() -> None:
    figure = Figure(measurement("one", []), (measurement("floor", [], BrokenPipeError("ended")),))
    with pytest.raises(FloorError, match=r"floor cannot be measured .*BrokenPipeError"):
        rounds.run([figure], QUICK, lambda: None, silent)


def counted(takes: float, calls: list[int], ended: list[int], after: float = 0) -> Measurement:
    """Returns a measurement whose run takes `takes` seconds, followed by `after` untimed seconds."""
    idle = threading.Event()

    def once() -> After:
        calls.append(1)
        idle.wait(takes)
        return lambda: (ended.append(1), idle.wait(after))

    return Measurement("", "", "ms", lambda: contextlib.nullcontext(once))


def sampled(operation: Measurement, seconds: float, minimum: int = 1) -> list[float]:
    """Returns the samples of the measurement after `sample`."""
    operation.sample(seconds, minimum)
    return operation.samples


def test_slow_operations_run_once_and_quick_ones_are_warmed_up() -> None:
    calls: list[int] = []
    ended: list[int] = []
    assert len(sampled(counted(0.01, calls, ended), 0.005)) == 1 == len(calls)
    assert len(sampled(counted(0.01, calls, ended), 0.005, 3)) == 3 == len(calls) - 1
    assert len(sampled(counted(0, calls, ended), 0.01)) < len(calls) - 4
    assert len(ended) == len(calls)


def test_cleanup_is_not_timed() -> None:
    (taken,) = sampled(counted(0.01, [], [], after=1), 0.005)
    assert 10 <= taken < 1000


def test_units() -> None:
    def value(unit: Unit, amount: float = 1) -> float:
        return Measurement("", "", unit, lambda: contextlib.nullcontext(lambda: None), amount).value(0.002)

    assert (value("us"), value("ms"), value("1/s", 100), value("GB/s", 4e6)) == (2000, 2, 50_000, 2)


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_the_floors_of_this_machine(kind: Kind) -> None:
    with contextlib.closing(FloorProcess(kind)) as process:
        floors = Floors(process)
        for floor in (
            floors.launch(), floors.launches(100), floors.small(4096), floors.connection(), floors.upload(100_001),
            floors.download(3_000_001), floors.copy(4096),
        ):  # fmt: skip
            found = sampled(floor, 0.001, 3)
            assert len(found) >= 3 and min(found) > 0, floor.name
        assert process.process.poll() is None
        process.process.kill()
        process.process.wait()
        gone = Figure(measurement("one", []), (floors.upload(4096),))
        with pytest.raises(FloorError):
            rounds.run([gone], QUICK, lambda: None, silent)


def test_a_process_for_the_floors_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with contextlib.closing(FloorProcess("tcp")) as process, pytest.raises(FloorError, match="did not start"):
        assert process.addresses
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(FloorError, match="No such file"):
        FloorProcess("tcp")


def test_the_report() -> None:
    def series(name: str, samples: list[float], unit: Unit) -> Measurement:
        return Measurement(name, name, unit, contextlib.nullcontext, 1, samples)  # type: ignore[arg-type]

    times = Figure(series("latency", [30.0, 10.0, 20.0], "us"), (series("echo", [5.0], "us"),))
    rates = Figure(
        series("upload", [1.0, 2.0, 3.0], "GB/s"), (series("socket", [4.0], "GB/s"), series("copy", [8.0], "GB/s"))
    )
    refused = Figure(series("launch", [], "us"), (), errors.AuthenticationError("no\nright.", reason="DENIED", fix="f"))
    report = BenchReport(
        "gpu-box:7421",
        False,
        "1.2",
        "gpu-box",
        3,
        "H200",
        "cuda",
        False,
        1.5,
        "tcp",
        "asyncio",
        [times, rates, refused],
    )
    text = report.to_text().splitlines()
    assert [line.split() for line in text[4:8]] == [
        ["latency", "20.0", "28.0", "29.8", "us", "3", "5.00", "4.00", "echo"],
        ["upload", "2.00", "1.20", "1.02", "GB/s", "3", "4.00", "0.500", "socket"],
        ["8.00", "0.250", "copy"],
        ["launch", "not", "measured:", "no", "right."],
    ]
    assert "another host" in text[-1]
    document = json.loads(json.dumps(report.to_json()))
    assert document["device"] == {"ordinal": 3, "name": "H200", "backend": "cuda"}
    latency, upload, launch = document["figures"]
    assert latency["floor"] == {"name": "echo", "unit": "us", "p50": 5, "p90": 5, "p99": 5, "n": 1, "ratio": 4}
    assert [floor["ratio"] for floor in upload["other_floors"]] == [0.25]
    assert launch["error"] == {"reason": "DENIED", "message": "no\nright.", "fix": "f"} and "p50" not in launch
