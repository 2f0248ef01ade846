"""The audit log: its hash chain shows changes, and a full disk costs lines but nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal
from hearthd.front.audit import log_file
from hearthd.front.audit.recorder import GENESIS, Audit, AuditError
from hearthd.front.audit.verify import verify
from hearthd.front.config.audit import AuditSettings
from hearthd.front.sessions.session_table import SessionTable
from hearthd.front.tenancy.tenants import Caller, Tenant
from tests.support.front.fixture import run

CALLER = Caller(Tenant("alice"), "token ci", "ipv4:10.0.0.1:5", uid=7)


def unsigned(path: Path) -> Audit:
    """Returns an audit log with the hash chain only."""
    return Audit(AuditSettings(path=str(path), key="", anchor=""))


def written(path: Path, *events: str, **fields: Any) -> list[dict[str, Any]]:
    """Writes a log of these events and returns its entries."""

    async def scenario() -> None:
        audit = unsigned(path)
        audit.open()
        for event in events:
            audit.record(event, caller=CALLER, **fields)
        await audit.close()

    run(scenario())
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def problems(data: bytes) -> list[str]:
    return verify(data.splitlines(keepends=True)).problems


def test_lines_and_their_chain(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    lines = written(path, "one", "two", why="x" * 5000)
    assert [line["event"] for line in lines] == ["one", "two"] and [line["seq"] for line in lines] == [1, 2]
    assert lines[0]["prev"] == GENESIS and lines[0]["time"].endswith("+00:00")
    assert (lines[1]["tenant"], lines[1]["credential"], lines[1]["uid"]) == ("alice", "token ci", 7)
    assert len(lines[0]["why"]) < 1100
    assert path.stat().st_mode & 0o777 == 0o600
    more = written(path, "three")  # a later daemon continues in the same file
    assert more[2]["seq"] == 3
    verdict = verify(path.read_bytes().splitlines())
    assert verdict.lines == 3 and not verdict.problems and verdict.begins == GENESIS and len(verdict.head) == 64


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_any_change_of_the_log_is_detected(tmp_path: Path, data: st.DataObject) -> None:
    """Changes a byte, or removes, doubles or moves a line. Only a change of the last line may remain undetected."""
    path = tmp_path / "audit.log"
    if not path.exists():
        written(path, *"abcdef")
    good = path.read_bytes()
    lines = good.splitlines(keepends=True)
    which = data.draw(st.integers(0, len(lines) - 2))
    change = data.draw(st.sampled_from(["byte", "remove", "double", "swap"]))
    if change == "byte":
        at = data.draw(st.integers(0, len(lines[which]) - 2))
        bad = bytearray(lines[which])
        bad[at] ^= data.draw(st.sampled_from([1, 2, 16, 32]))
        if b"\n" in bytes(bad)[:-1]:
            return
        lines[which] = bytes(bad)
    elif change == "remove":
        if which == 0:
            return  # the rest is a valid continuation of another file, which `begins` shows
        del lines[which]
    elif change == "double":
        lines.insert(which, lines[which])
    else:
        lines[which], lines[which + 1] = lines[which + 1], lines[which]
    assert problems(b"".join(lines)), change
    assert not problems(good)


def test_missing_first_line_changes_the_reported_beginning(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    written(path, "a", "b")
    verdict = verify(path.read_bytes().splitlines()[1:])
    assert not verdict.problems and verdict.begins != GENESIS


def test_log_continues_after_an_incomplete_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    written(path, "a", "b")
    with path.open("ab") as file:
        file.write(b'{"time":"2026-')
    lines = path.read_bytes().splitlines(keepends=True)
    assert "incomplete" in problems(b"".join(lines))[0]
    written_more = tmp_path / "audit.log"

    async def scenario() -> None:
        audit = unsigned(written_more)
        audit.open()
        audit.record("c")
        audit.record("d")
        await audit.close()

    run(scenario())
    data = path.read_bytes()
    assert not problems(data) and json.loads(data.splitlines()[3])["torn"] is True
    changed = data.replace(b'{"time":"2026-\n', b'{"time":"2025-\n')
    assert problems(changed)
    assert problems(b"\n".join(line for line in data.splitlines() if line != b'{"time":"2026-'))
    assert problems(b"garbage\nmore\n" + data)


def test_a_full_disk_costs_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that cannot be written are counted. The next line that can be written reports them, and the chain
    continues."""
    path = tmp_path / "audit.log"
    real = os.write
    room = [0]

    def full(handle: int, data: bytes) -> int:
        if room[0] <= 0:
            raise OSError(28, "No space left on device")
        data = data[: room[0]]
        room[0] -= len(data)
        return real(handle, data)

    async def scenario() -> None:
        audit = unsigned(path)
        audit.open()
        audit.record("before")
        await audit.flush()
        monkeypatch.setattr(log_file.os, "write", full)
        audit.record("lost")
        await audit.flush()
        room[0] = 20  # room for a part of a line
        audit.record("torn")
        audit.record("lost as well")
        await audit.flush()
        assert audit.lost == 3
        monkeypatch.setattr(log_file.os, "write", real)
        audit.record("after")
        audit.record("and after")
        await audit.close()

    run(scenario())
    verdict = verify(path.read_bytes().splitlines())
    assert not verdict.problems and verdict.missing == 3
    events = [json.loads(line)["event"] for line in path.read_bytes().splitlines() if line.endswith(b"}")]
    assert events == ["before", "after", "and after"]


def test_moved_file_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    path, old = tmp_path / "audit.log", tmp_path / "audit.log.1"

    async def scenario() -> None:
        audit = unsigned(path)
        audit.open()
        audit.record("a")
        await audit.flush()
        path.rename(old)
        audit.record("b")
        await audit.reopen()
        audit.record("c")
        await audit.close()

    run(scenario())
    first, second = verify(old.read_bytes().splitlines()), verify(path.read_bytes().splitlines())
    assert first.lines == 3 and first.continues and second.lines == 1 and second.begins == first.head
    assert not problems(old.read_bytes() + path.read_bytes())


def test_event_during_a_rotation_does_not_break_the_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, old = tmp_path / "audit.log", tmp_path / "audit.log.1"
    real = os.write
    rotating, written_meanwhile = threading.Event(), threading.Event()

    def slow(handle: int, data: bytes) -> int:
        if b'"rotated"' in data:
            rotating.set()
            written_meanwhile.wait(0.5)  # the other thread does not write before this one is done
        else:
            written_meanwhile.set()
        return real(handle, data)

    async def scenario() -> None:
        audit = unsigned(path)
        audit.open()
        audit.record("a")
        await audit.flush()
        path.rename(old)
        written_meanwhile.clear()
        monkeypatch.setattr(log_file.os, "write", slow)
        reopened = asyncio.create_task(audit.reopen())
        await asyncio.to_thread(rotating.wait, 30)
        audit.record("b")
        await reopened
        await audit.close()
        assert not audit.lost

    run(scenario())
    data = old.read_bytes() + path.read_bytes()
    assert not problems(data)
    assert [json.loads(line)["event"] for line in data.splitlines()] == ["a", "rotated", "b"]


def test_events_without_an_open_file_are_lost_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.log"

    async def scenario() -> None:
        audit = unsigned(path)
        audit.open()
        audit.record("a")
        await audit.flush()
        with monkeypatch.context() as context:
            context.setattr(log_file.fcntl, "flock", _refused)
            await audit.reopen()
        audit.record("b")
        await audit.flush()
        assert audit.lost == 1
        await audit.reopen()
        audit.record("c")
        await audit.close()

    run(scenario())
    verdict = verify(path.read_bytes().splitlines())
    assert not verdict.problems and verdict.entries == 2 and verdict.missing == 1


def _refused(handle: int, operation: int) -> None:
    raise OSError(11, "in use")


def test_event_during_the_closing_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.log"
    real = os.close
    closing, recorded = threading.Event(), threading.Event()

    def slow(handle: int) -> None:
        closing.set()
        recorded.wait(30)
        real(handle)

    async def scenario() -> None:
        audit = unsigned(path)
        audit.open()
        audit.record("a")
        await audit.flush()
        with monkeypatch.context() as context:
            context.setattr(log_file.os, "close", slow)
            closed = asyncio.create_task(audit.close())
            await asyncio.to_thread(closing.wait, 30)
            audit.record("late")
            await audit.flush()
            recorded.set()
            await closed

    run(scenario())
    assert [json.loads(line)["event"] for line in path.read_bytes().splitlines()] == ["a"]


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match=r"audit\.path.*missing.*No such file"):
        unsigned(tmp_path / "missing" / "audit.log").open()
    first, second = unsigned(tmp_path / "log"), unsigned(tmp_path / "log")
    first.open()
    with pytest.raises(AuditError, match="another process"):
        second.open()
    run(first.close())


def test_disabled_audit_does_nothing() -> None:
    audit = Audit()
    audit.open()
    audit.record("x", caller=CALLER)  # works without an event loop
    audit.refused(CALLER, "Drain", Refusal(Reason.PERMISSION_DENIED, "no"))


def test_sessions_and_refusals(tmp_path: Path) -> None:
    path = tmp_path / "log"

    async def scenario() -> None:
        sessions = SessionTable(30, 8)
        sessions.audit = audit = unsigned(path)
        audit.open()
        session, _ = sessions.open("me", "1", CALLER)
        denied = Refusal(Reason.PERMISSION_DENIED, "no", details={"right": "launch"})
        for _ in range(3):
            audit.refused(session, "launch", denied)
        audit.refused(CALLER, "Drain", denied)
        await sessions.close(session, "test")
        await audit.close()

    run(scenario())
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [line["event"] for line in lines] == ["session_open", "refused", "refused", "session_close"]
    assert lines[0]["session"] == lines[1]["session"] == lines[3]["session"] and "session" not in lines[2]
    assert lines[1]["right"] == "launch" and lines[1]["operation"] == "launch" and lines[3]["why"] == "test"
    assert {line["tenant"] for line in lines} == {"alice"}
