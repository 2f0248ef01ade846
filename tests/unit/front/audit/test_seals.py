"""Keys and anchors of the audit log: a log that was rewritten, or whose end was removed, is detected."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hearthd.front.audit import anchors, keys
from hearthd.front.audit.log_file import ROTATED
from hearthd.front.audit.recorder import Audit, AuditError
from hearthd.front.audit.verify import Guarantee, Verification, verify
from hearthd.front.config.audit import AuditSettings
from tests.support.front.fixture import run, until


class Place:
    """A log in one directory, with its keys and anchors in another directory."""

    def __init__(self, folder: Path, **more: Any) -> None:
        (folder / "logs").mkdir(exist_ok=True)
        self.log, self.key, self.anchor = folder / "logs" / "audit.log", folder / "state" / "k", folder / "state" / "a"
        chosen = {"key": str(self.key), "anchor": str(self.anchor), "anchor_interval": 3600.0, **more}
        self.settings = AuditSettings(path=str(self.log), **chosen)

    def daemon(self, *events: str) -> None:
        """Runs the audit log of a daemon from start to stop, with these events."""

        async def scenario() -> None:
            audit = Audit(self.settings)
            audit.open()
            for event in events:
                audit.record(event)
            await audit.close()

        run(scenario())

    def verify(self, *logs: Path, strict: bool = True) -> Verification:
        lines = [line for log in logs or (self.log,) for line in log.read_bytes().splitlines()]
        found = list(anchors.read(self.anchor.read_bytes().splitlines())) if self.anchor.exists() else []
        return verify(lines, keys.load(str(self.key)), found, strict=strict)

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.log.read_bytes().splitlines()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_log_is_signed_and_its_end_anchored(place: Place) -> None:
    place.daemon("a", "b")
    assert place.key.stat().st_mode & 0o777 == 0o600 and place.anchor.stat().st_mode & 0o777 == 0o600
    verdict = place.verify()
    assert not verdict.problems and verdict.signed == verdict.anchored == verdict.entries == 2
    assert verdict.guarantee == Guarantee.ANCHORED
    assert str(keys.load(str(place.key)).current.secret.hex()) not in place.log.read_text() + place.anchor.read_text()
    place.daemon("c")
    assert place.verify().anchored == 3
    # Without the key only the chain can be checked.
    chain = verify(place.log.read_bytes().splitlines())
    assert not chain.problems and chain.guarantee == Guarantee.CHAIN and len(chain.unknown_keys) == 1


def test_truncated_log_is_detected(place: Place) -> None:
    place.daemon("a", "b", "c")
    whole = place.log.read_bytes()
    for kept in range(3):
        place.log.write_bytes(b"".join(whole.splitlines(keepends=True)[:kept]))
        assert any("its end is missing" in each for each in place.verify().problems), kept
    # Without anchors the removal is not detected.
    cut = verify(whole.splitlines()[:2], keys.load(str(place.key)))
    assert not cut.problems and cut.guarantee == Guarantee.KEYED


def test_rewritten_log_is_detected(place: Place, tmp_path: Path) -> None:
    """The attacker can write the log and knows the format, but does not have the key."""
    place.daemon("a", "b", "c")
    (tmp_path / "forger").mkdir()
    forged = Place(tmp_path / "forger")
    forged.daemon("a", "x", "c")
    place.log.write_bytes(forged.log.read_bytes())  # signed with another key
    found = place.verify().problems
    assert any("not among the given keys" in each for each in found) and any("anchored" in each for each in found)
    unsigned = Place(tmp_path / "forger", key="")
    unsigned.log.unlink()
    unsigned.anchor.unlink()
    unsigned.daemon("a", "x", "c")  # not signed at all
    place.log.write_bytes(unsigned.log.read_bytes())
    assert any("no line is signed" in each for each in place.verify().problems)
    assert any("not the one that was anchored" in each for each in place.verify().problems)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_forged_lines_are_detected(place: Place, data: st.DataObject) -> None:
    """A process that can write the file changes a line and repairs the chain after it. The signatures reveal it."""
    if not place.log.exists():
        place.daemon(*"abcdef")
    lines = place.log.read_bytes().splitlines()
    which = data.draw(st.integers(0, len(lines) - 1))
    rewritten = []
    for number, raw in enumerate(lines):
        entry = json.loads(raw)
        if number == which:
            entry["event"] = "z"
        if rewritten:
            entry["prev"] = hashlib.sha256(rewritten[-1]).hexdigest()
        rewritten.append(json.dumps(entry, separators=(",", ":")).encode())
    plain = verify(rewritten)
    assert not plain.problems, "the chain alone does not show the change"
    found = verify(rewritten, keys.load(str(place.key)))
    assert len(found.problems) >= len(lines) - which and "changed or forged" in found.problems[0]


def test_daemon_detects_missing_entries_at_its_start(place: Place) -> None:
    """The end is removed while the daemon is down. The daemon reports that in its log, and in the audit log, whose
    numbers continue after the gap."""
    place.daemon("a", "b", "c")
    place.log.write_bytes(b"".join(place.log.read_bytes().splitlines(keepends=True)[:1]))
    with structlog.testing.capture_logs() as told:
        place.daemon("d")
    assert [(each["event"], each["anchored"], each["found"]) for each in told if each["event"] == "audit_tampered"] == [
        ("audit_tampered", 3, 1)
    ]
    entry = json.loads(place.log.read_bytes().splitlines()[-1])
    assert (entry["seq"], entry["gap"], entry["event"]) == (4, 3, "d")
    assert any("shorter than, or different from, its anchor: 3" in each for each in place.verify().problems)


def test_chain_continues_after_files_were_moved(place: Place, tmp_path: Path) -> None:
    """The file is renamed while the daemon runs, and while it is down. The chain continues; the older file alone shows
    that it does."""
    old, older = tmp_path / "logs" / "1", tmp_path / "logs" / "2"

    async def scenario() -> None:
        audit = Audit(place.settings)
        audit.open()
        audit.record("a")
        await audit.flush()
        place.log.rename(older)
        await audit.reopen()
        audit.record("b")
        await audit.reopen()  # a reload without a renamed file
        audit.record("c")
        await audit.close()

    run(scenario())
    assert place.events() == ["b", "c"]
    assert [json.loads(line)["event"] for line in older.read_bytes().splitlines()] == ["a", ROTATED]
    place.log.rename(old)
    place.daemon("d")
    verdict = place.verify(older, old, place.log)
    assert not verdict.problems and verdict.entries == 5 and verdict.anchored == 5
    assert not place.verify().problems and not place.verify(older).problems and place.verify(older).continues
    assert any("does not follow" in each for each in place.verify(older, place.log).problems)


def test_a_new_key(place: Place) -> None:
    """Earlier entries stay valid. The old key introduces the new one, and signs nothing afterwards."""
    place.daemon("a", "b")
    old = keys.load(str(place.key)).current
    made = keys.rotate(str(place.key))
    place.daemon("c")
    assert place.events() == ["a", "b", "audit_key", "c"]
    lines = [json.loads(line) for line in place.log.read_bytes().splitlines()]
    assert [line["key"] for line in lines] == [old.id] * 3 + [made.id] and lines[2]["next"] == made.id
    assert not place.verify().problems and place.verify().signed == 4
    body = {"time": "now", "event": "forged", "seq": 5, "prev": place.verify().head, "key": old.id}
    stolen = old.seal(json.dumps(body, separators=(",", ":")).encode())
    with place.log.open("ab") as file:
        file.write(stolen + b"\n")
    assert any("a newer key had replaced" in each for each in place.verify().problems)


def test_keys_that_cannot_be_used(place: Place, tmp_path: Path) -> None:
    place.daemon("a")
    place.key.chmod(0o604)
    with pytest.raises(AuditError, match=r"audit\.key.*chmod 600"):
        place.daemon("b")
    place.key.chmod(0o600)
    place.key.write_text("no key\n")
    with pytest.raises(AuditError, match="contains no audit log keys"):
        place.daemon("b")
    assert [each.name for each in (tmp_path / "logs").iterdir()] == ["audit.log"], "and no other file remains"
    for name in ("key", "anchor"):
        with pytest.raises(ValueError, match="own directory"):
            AuditSettings(path=str(place.log), **{name: str(place.log.with_name("x"))})


def test_separate_key_that_cannot_be_made_costs_the_signature_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").write_text("in the way")
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    auto = Place.__new__(Place)
    auto.settings = AuditSettings(path=str(tmp_path / "audit.log"))
    with structlog.testing.capture_logs() as told:
        Place.daemon(auto, "a")
    assert [each["event"] for each in told] == ["audit_unsigned", "audit_anchor_failed"]
    assert "mac" not in (tmp_path / "audit.log").read_text()


def test_anchors_in_any_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anchors in the daemon's own log and in syslog are words that are found in any text."""
    words: list[str] = []
    monkeypatch.setattr(anchors.syslog, "syslog", lambda level, text: words.append(text))
    Place(tmp_path, anchor="syslog").daemon("a")
    (tmp_path / "logs" / "audit.log").unlink()
    with structlog.testing.capture_logs() as told:
        Place(tmp_path, anchor="log").daemon("a")
    place = Place(tmp_path)
    text = json.dumps(told) + f"\nNov 24 host hearthd-audit[7]: {words[0]}\nhearth-anchor:nothing=\n"
    found = list(anchors.read(text.encode().splitlines()))
    assert [(each.sequence, each.log) for each in found] == [(1, str(place.log))] * 2
    assert all(each.is_signed_by(keys.load(str(place.key))) for each in found)


def test_anchors_are_written_periodically(place: Place) -> None:
    """An anchor is written immediately for the first entry, then at most once per interval, and before the end."""
    place.settings = AuditSettings(**{**place.settings.model_dump(), "anchor_interval": 0.05})

    async def scenario() -> None:
        audit = Audit(place.settings)
        audit.open()
        audit.record("a")
        await until(lambda: audit.entries == (1, 1))
        for _ in range(20):
            audit.record("b")
        await until(lambda: audit.entries == (21, 21))
        await audit.close()

    run(scenario())
    assert len(place.anchor.read_bytes().splitlines()) < 10


def test_an_anchor_file_stays_small(place: Place) -> None:
    for _ in range(3):
        place.daemon("a")
    kept = place.anchor.read_bytes()
    assert len(kept.splitlines()) >= 3
    place.anchor.write_bytes(kept * (anchors.TRIM // len(kept) + 1))
    place.daemon("a")
    assert place.anchor.stat().st_size < len(kept) and place.verify().anchored == 4
    place.daemon("a")
    assert place.verify().anchored == 5


def test_control_characters_are_escaped(place: Place) -> None:
    """A terminal that shows the log must not interpret characters that a client put into a name."""
    evil = "\x1b]0;x\x07\r\n\x7f\x9b31m\u2028\ud800"

    async def scenario() -> None:
        audit = Audit(place.settings)
        audit.open()
        audit.record("a", client=evil, why=[evil, {evil: evil}])
        await audit.close()

    run(scenario())
    data = place.log.read_bytes()
    assert data.count(b"\n") == 1 and all(32 <= byte < 127 for byte in data[:-1])
    assert json.loads(data)["client"] == evil
