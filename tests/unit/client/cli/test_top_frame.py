"""Frames of `hearth top` and `hearth status` from documents alone: rates, order, hostile names, small terminals."""

from __future__ import annotations

from typing import Any

import pytest

from hearth.cli.format import output
from hearth.cli.format.printable import printable, width
from hearth.cli.status import status_text
from hearth.cli.top import lines, rates
from hearth.cli.top.command import View
from hearth.cli.top.frame import Outage, frame
from hearth.cli.top.lines import ScreenLine

GIB = 1 << 30
STARTED = 1_790_000_000.0


def device(ordinal: int, busy_s: float = 0.0, launches: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "ordinal": ordinal,
        "name": f"NVIDIA H{ordinal}00",
        "state": "serving",
        "detail": "",
        "generation": 1,
        "memory": {"total_bytes": 16 * GIB, "used_bytes": 4 * GIB},
        "counters": {
            "device_busy_ns": int(busy_s * 1e9), "kernel_launches": launches, "commands": 2 * launches,
            "host_to_device_bytes": launches << 20, "device_to_host_bytes": 0,
        },
        "gauges": {"commands_waiting": 3},
        **more,
    }  # fmt: skip


def session(name: str, seconds: float, **more: Any) -> dict[str, Any]:
    return {
        "id": name, "client": f"host:1 {name}.py", "tenant": "default", "devices": [0], "device_seconds": seconds,
        "opened_unix": STARTED + 5, "connected": True, "lease_left_seconds": 30.0, "dedicated": False, **more,
    }  # fmt: skip


def document(uptime: float, devices: list[Any], sessions: list[Any], **more: Any) -> dict[str, Any]:
    return {
        "node": "box", "version": "0.1.0", "started_unix": STARTED, "uptime_seconds": uptime, "ready": True,
        "draining": False, "devices": devices, "sessions": sessions, "tenants": [{"name": "default"}], **more,
    }  # fmt: skip


BEFORE = document(100.0, [device(0), device(1, 5.0, 10)], [session("aaaa", 1.0), session("bbbb", 2.0)])
BUSY = {
    "busy_ratio": 1.0, "launches_per_second": 123456.0, "commands_per_second": 234567.0,
    "received_bytes_per_second": 1023.9 * GIB, "sent_bytes_per_second": 1023.9 * GIB,
}  # fmt: skip
NOW = document(
    102.0,
    [device(0, 0.2, 40), device(1, 6.5, 10)],
    [session("aaaa", 1.2), session("bbbb", 3.0), session("cccc", 0.5, connected=False, lease_left_seconds=12.0)],
)


def shown(lines: list[ScreenLine], columns: int = 200) -> list[str]:
    return [line.render(columns, colour=False) for line in lines]


# ---- rates ----


def test_rates_between_two_documents() -> None:
    found = rates.device_rates(BEFORE, NOW)
    assert found[0] == pytest.approx((0.1, 20.0, 40.0, 20 << 20, 0.0)) and found[1] == pytest.approx((0.75, 0, 0, 0, 0))
    assert rates.session_rates(BEFORE, NOW) == pytest.approx({"aaaa": 0.1, "bbbb": 0.5, "cccc": 0.25})


@pytest.mark.parametrize("before", [None, {**BEFORE, "started_unix": 1.0}, {**BEFORE, "uptime_seconds": 102.0}])
def test_rates_without_a_comparable_document(before: Any) -> None:
    """The first document, a restarted daemon, the same document twice: the rates that the daemon reports, or none."""
    throughput = {"busy_ratio": 0.5, "launches_per_second": 7.0}
    now = {**NOW, "devices": [device(0, throughput=throughput), device(1)]}
    assert rates.device_rates(before, now) == {0: rates.Rates(0.5, 7.0), 1: rates.Rates()}
    assert set(rates.session_rates(before, now).values()) == {None}


def test_decreasing_or_missing_counters_give_no_rate() -> None:
    now = {**NOW, "devices": [device(0), {**device(1, 4.0, 11), "counters": {"device_busy_ns": 4 * 10**9}}, device(2)]}
    found = rates.device_rates(BEFORE, now)
    assert found[1] == rates.Rates() and found[2] == rates.Rates() and found[0].launches == 0


def test_memory_and_queue_from_the_available_fields() -> None:
    assert rates.memory_used(device(0)) == 4 * GIB and rates.queued(device(0, queue={"commands": 7})) == 7
    bare = device(0, memory={"total_bytes": 1, "used_bytes": None}, gauges={"memory_in_use_bytes": 9})
    shared = {**bare, "processes": [{"memory_held_bytes": 8}, {"memory_held_bytes": 3}]}
    assert rates.memory_used(shared) == 11 and rates.memory_used(bare) == 9 and rates.queued(bare) is None
    assert rates.memory_used({"ordinal": 0}) is None and rates.queued({"ordinal": 0}) is None


# ---- the frame ----


def test_the_busiest_are_listed_first() -> None:
    text = shown(frame(BEFORE, NOW, at=0.0, columns=200))
    assert text[0].endswith("box: ready; hearthd 0.1.0, up 1 min 42 s")
    assert "2 of 2 serving" in text[1] and "3 (2 connected)" in text[1] and "launches: 20/s" in text[1]
    assert "in 20 MiB/s, out 0 B/s" in text[1]
    first, second = (line.split() for line in text[4:6])
    assert (first[0], second[0]) == ("1", "0") and "75 %" in text[4] and "10 %" in text[5]
    assert "[##--------]  4/16 GiB" in text[4] and " 3 " in text[4]
    assert [line.split()[0] for line in text[8:]] == ["bbbb", "cccc", "aaaa"]
    assert "50 %" in text[8] and "12 s left" in text[9] and text[8].endswith("host:1 bbbb.py")


def test_idle_devices_and_sessions_keep_their_order() -> None:
    still = {**NOW, "uptime_seconds": 103.0}
    text = shown(frame(NOW, still, at=0.0, columns=200))
    assert [line.split()[0] for line in text[4:6]] == ["0", "1"]
    assert [line.split()[0] for line in text[8:]] == ["bbbb", "aaaa", "cccc"]


@pytest.mark.parametrize("columns", [20, 40, 80, 120])
@pytest.mark.parametrize("rows", [1, 3, 5, 8, 24])
def test_frame_fits_any_terminal(columns: int, rows: int) -> None:
    many = document(9, [device(n) for n in range(16)], [session(f"{n:04x}", n) for n in range(100)])
    text = shown(frame(None, many, at=0.0, columns=columns, rows=rows), columns)
    assert len(text) <= rows and all(width(line) <= columns for line in text)
    if rows == 24:
        assert sum(line.startswith("... ") for line in text) == 2, "of devices, and of sessions"


def test_long_names_are_cut_on_narrow_terminals() -> None:
    named = document(9, [device(0, name="NVIDIA H200 with a very long name", detail="")], [])
    assert "..." not in shown(frame(None, named, at=0.0, columns=200), 200)[4].split("serving")[1]
    assert "NVIDIA H200 with a very l..." in shown(frame(None, named, at=0.0, columns=72), 72)[5]
    assert "NVIDIA H200 w..." in shown(frame(None, named, at=0.0, columns=60), 60)[5]
    assert "NVIDI..." in shown(frame(None, named, at=0.0, columns=40), 40)[5]


@pytest.mark.parametrize("columns", [72, 80, 100])
def test_every_column_is_shown_on_a_narrow_terminal(columns: int) -> None:
    """A device has two lines if one does not fit; no name and no figure is cut."""
    reading = {"temperature": 41.6, "power": 312.4}
    many = [device(n, name="AMD EPYC 9654", gpu=reading, counters={}, throughput=BUSY) for n in range(2)]
    wide = shown(frame(None, document(9, many, []), at=0.0, columns=200), 200)[3:6]
    narrow = shown(frame(None, document(9, many, []), at=0.0, columns=columns), columns)[3:9]
    assert "..." not in "".join(narrow)
    assert [*narrow[0].split(), *narrow[1].split()] == [
        "DEVICE", "NAME", "STATE", "GEN", "MEMORY", "BUSY", "QUEUED", "LAUNCH/S", "CMD/S", "IN", "OUT", "TEMP", "POWER",
    ] == wide[0].split()  # fmt: skip
    for line in (wide[1], *narrow[2:4]):
        assert set(line.split()) <= {*wide[1].split()}
    assert len(narrow[2].split()) + len(narrow[3].split()) in (len(wide[1].split()), len(wide[1].split()) - 1), (
        "the bar"
    )
    assert narrow[4].split()[0] == "1"


def test_a_hostile_client_breaks_nothing() -> None:
    evil = session("\x1b[2J", 1.0, client="\x1b]0;owned\x07\n\u202e" + "\u65e5" * 300, tenant="t\r\n" * 9)
    lines = frame(None, document(9, [device(0, name="\x1bc", detail="\x1b[31m\n")], [evil]), at=0.0, columns=80)
    text = shown(lines, 80)
    assert all(width(line) <= 80 and line.isprintable() for line in text)


def test_gpu_readings_are_shown() -> None:
    gpu = device(0, gpu={"temperature": 41.6, "power": 312.4}, memory={"total_bytes": GIB, "used_bytes": 0})
    text = shown(frame(None, document(9, [gpu, device(1, gpu={"temperature": None})], []), at=0.0, columns=200))
    assert text[3].split()[-2:] == ["TEMP", "POWER"] and "42 C  312 W" in text[4] and "no sessions" in text[-1]


def test_waiting_loads_are_shown() -> None:
    def waiting(count: int, seconds: float) -> list[ScreenLine]:
        gauges = {"loads_waiting": count, "load_wait_longest_ns": int(seconds * 1e9)}
        return frame(None, document(9, [device(0, gauges=gauges), device(1)], []), at=0.0, columns=200)

    (line,) = (each for each in waiting(2, 65.0) if "kernels to end" in each.text)
    assert line.text.strip() == "2 module loads are waiting for kernels to end, the longest for 1 min 5 s"
    assert line.codes == (output.YELLOW,)
    assert any("1 module load is waiting for" in each.text for each in waiting(1, 3.0))
    for count, seconds in ((1, 0.1), (0, 0.0)):
        assert not any("kernels to end" in each.text for each in waiting(count, seconds))


def test_clients_of_one_name_are_shown_with_host_and_pid() -> None:
    assert lines.client("worker", False, "box:7") == "worker (box:7)"
    assert lines.client("worker", True, "box:8") == "worker (box:8) (dedicated)"
    assert lines.client("box:7 train.py", False, "box:7") == "box:7 train.py", "the name begins with it"
    assert lines.client("", False, "box:7") == "- (box:7)" and lines.client("old", False) == "old"
    assert lines.client("worker", False, "box\x1b:7") == "worker (" + printable("box\x1b:7") + ")"
    of_pid = document(9.0, [], [session("a", 1, client="w", process="box:7")])
    assert "w (box:7)" in lines.sessions(of_pid, {})[1].text


def test_absent_daemon_is_reported_in_the_frame() -> None:
    lines = frame(None, NOW, outage=Outage("no daemon\x1b answers: " + "word " * 30, 1000.0), at=1065.5, columns=60)
    assert (
        "box: unreachable since" in lines[0].text
        and lines[0].text.endswith("(1 min 5 s)")
        and output.RED in lines[0].codes
    )
    assert lines[1].text.startswith("no daemon? answers: word") and lines[3].text.startswith("word")
    assert all(len(line.text) <= 60 for line in lines[:4])


def test_a_view_over_time() -> None:
    view = View(BEFORE, 10.0)
    assert view.before is None
    view.record_answer(NOW, 12.0)
    assert view.before is BEFORE and view.now is NOW
    view.check_overdue(14.0, 1.0)
    assert view.outage is None
    view.check_overdue(16.5, 1.0)
    assert view.outage is not None and view.outage.since == 12.0, "since the last answer of a hanging daemon"
    view.record_failure("refused", 20.0)
    assert view.outage == Outage("refused", 12.0) and view.now is NOW
    view.record_answer(NOW, 30.0)
    assert view.outage is None and view.before is NOW


# ---- status ----


def test_status() -> None:
    found = {
        **NOW,
        "ready": False,
        "devices": [device(0, throughput={"busy_ratio": 0.25}), device(1, state="fenced", detail="failed 5 times")],
        "faults": [
            {
                "time_unix": STARTED + 42, "device": 1, "generation": 4, "reason": "DEVICE_LOST",
                "detail": "an illegal\naddress", "kernels": ["saxpy", "bad\x1b"],
            }
        ] * 7,
    }  # fmt: skip
    text = status_text(found, "unix:/run/hearth.sock", 200, colour=False)
    assert text.startswith("box: not ready\nhearthd 0.1.0, up 1 min 42 s, at unix:/run/hearth.sock\n")
    assert "sessions: 3 (2 connected); tenants: 1" in text and "25 %" in text and "\n        failed 5 times\n" in text
    assert "1 min ago: device 1, generation 4: DEVICE_LOST: an illegal address (kernels: saxpy, bad?)" in text
    assert text.endswith("... 2 more")
    assert "draining" in status_text({**found, "draining": True}, "x", 200, colour=False)


def test_minimal_status_document() -> None:
    text = status_text({}, "host:1", 80, colour=False)
    assert "not ready" in text and "no devices" in text
    assert shown(frame(None, {}, at=0.0, columns=80), 80)
