"""`hearth trace`: the summary of a trace, and merging several traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hearth.cli import main
from hearth.cli.trace import report
from hearth.cli.trace.summary import NotATraceError, summarize
from hearth.profiling import trace_file
from hearth.profiling.base_trace import document
from hearth_proto.v1 import commands_pb2


def trace(
    epoch_ns: int, *events: tuple[str, str, int, int, int, int], name: str = "gpu", error: str = ""
) -> dict[str, Any]:
    """Builds a trace of (command, kernel, stream, start, end, bytes), in microseconds."""
    result = commands_pb2.TraceResult(epoch_ns=epoch_ns)
    for index, (command, kernel, stream, start, end, size) in enumerate(events):
        event = result.events.add(
            name=command, kernel=kernel, stream=stream, seq=1, index=index, queued_ns=0, submitted_ns=1000 * start,
            started_ns=1000 * start, ended_ns=1000 * end, bytes=size, error=error,
        )  # fmt: skip
        if kernel:
            event.grid.x = event.block.x = 1
    return document(name, result)


WORK = (
    ("write", "", 0, 0, 100, 1_000_000),
    ("launch", "add", 0, 150, 200, 0),
    ("launch", "add", 0, 200, 210, 0),
    ("launch", "mul", 7, 180, 230, 0),
    ("read", "", 0, 1000, 1100, 500_000),
)


def test_kernels_and_transfers_are_summed_up() -> None:
    summary = summarize(trace(5, *WORK))
    assert [(row.name, row.count, row.total_us, row.max_us) for row in summary.kernels] == [
        ("add", 2, 60.0, 50.0), ("mul", 1, 50.0, 50.0),
    ]  # fmt: skip
    assert {row.name: (row.bytes, row.gb_per_s) for row in summary.transfers} == {
        "write": (1_000_000, 10.0), "read": (500_000, 5.0),
    }  # fmt: skip
    assert summary.devices == [("gpu", 280.0, 1100.0)] and summary.span_us == 1100.0
    assert {each.stream: (each.commands, each.busy_us) for each in summary.streams} == {
        "default stream": (4, 260.0), "stream 7": (1, 50.0),
    }  # fmt: skip
    assert [(gap.us, gap.after, gap.before) for gap in summary.gaps] == [(770.0, "mul", "read"), (50.0, "write", "add")]
    assert not summary.errors


def test_failures_are_counted_once() -> None:
    summary = summarize(trace(5, WORK[1], error="LAUNCH_FAILED"))
    assert summary.errors == {("add", "LAUNCH_FAILED"): 1}


def test_several_in_one() -> None:
    later, other = trace(1_002_000, WORK[1]), trace(2_000, WORK[0], name="second")
    whole = trace_file.merge([later, trace(2_000, WORK[1]), other])
    assert whole["otherData"]["epoch_unix_ns"] == "2000" and whole["otherData"]["devices"] == ["gpu", "gpu", "second"]
    summary = summarize(whole)
    assert [name for name, _, _ in summary.devices] == ["gpu", "second"] and summary.kernels[0].count == 2
    (gpu,) = (each["pid"] for each in whole["traceEvents"] if each.get("args") == {"name": "gpu"})
    starts = [each["ts"] for each in whole["traceEvents"] if each["ph"] == "X" and each["pid"] == gpu]
    assert sorted(starts) == [150.0, 1150.0], "on one clock"
    names = [(each["pid"], each["tid"]) for each in whole["traceEvents"] if each["name"] == "thread_name"]
    assert len(names) == len(set(names)) == 4
    arrows = [each["id"] for each in whole["traceEvents"] if each["ph"] == "s"]
    assert len(set(arrows)) == 3
    again = trace_file.merge([whole])
    assert summarize(again) == summary


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    trace_file.write(path, trace(1, *WORK))
    before = path.read_text()
    with pytest.raises(TypeError):
        trace_file.write(path, {"traceEvents": [object()]})
    assert path.read_text() == before and list(tmp_path.iterdir()) == [path]


def test_text_and_document() -> None:
    summary = summarize(trace(5, *WORK))
    text = report.to_text("t.json", summary, 1)
    assert "t.json: 5 commands with work for a device, in 1.10 ms" in text
    assert "and 1 more (--top 2)" in text and "after mul, before read" in text
    assert json.loads(json.dumps(report.to_json("t.json", summary)))["kernels"][0]["name"] == "add"
    assert "No device had any work" in report.to_text("t.json", summarize({"traceEvents": []}), 5)


@pytest.mark.parametrize("wrong", [3, {}, {"traceEvents": 3}, [1], {"traceEvents": [None]}])
def test_invalid_traces_are_refused(wrong: Any) -> None:
    with pytest.raises(NotATraceError):
        summarize(wrong)


def test_traces_of_other_programs_are_accepted() -> None:
    entries = [{"ph": "X", "pid": 1, "tid": 2, "name": "a", "ts": 1, "dur": 2, "args": 3}, {"ph": "X"}, {"ph": "M"}, {}]
    summary = summarize(entries)
    assert {row.name for row in summary.others} == {"a", "?"}
    report.to_text("t", summary, 5)


def test_invalid_arguments_are_reported(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "text.json").write_text("hello")
    (tmp_path / "other.json").write_text('{"a": 1}')
    (tmp_path / "program.py").write_text("print()")
    for arguments, says in (
        (["show", str(tmp_path / "none.json")], "cannot be read: No such file"),
        (["show", str(tmp_path / "text.json")], "is not a trace: the file is not valid JSON"),
        (["show", str(tmp_path / "other.json")], "the document has no list traceEvents"),
        (["record", "-o", str(tmp_path / "program.py"), "--", "true"], "exists and is not a trace"),
        (["record", "-o", str(tmp_path), "--", "true"], "is a directory"),
        (["record", "-o", str(tmp_path / "x.json"), "--", "/no/program"], "'/no/program' cannot be run"),
    ):
        assert main.main(["trace", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert says in line
