"""Verification of an audit log: its hash chain, signatures and anchors. Pure."""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hearthd.front.audit.anchors import Anchor
from hearthd.front.audit.keys import Keyring
from hearthd.front.audit.log_file import GENESIS, ROTATED


class Guarantee(enum.StrEnum):
    """The kind of attack that a successful verification still rules out, weakest guarantee first."""

    CHAIN = "chain"
    """Detects a changed line. An attacker with write access can rewrite the whole log, or remove its end."""
    KEYED = "keyed"
    """Detects lines that were written without the key. The end of the log can still be removed."""
    ANCHORED = "anchored"
    """Detects every line that was inserted, changed or removed before the last anchor."""

    def covers(self, other: Guarantee) -> bool:
        """Returns True if this guarantee is at least as strong as the other."""
        order = list(Guarantee)
        return order.index(self) >= order.index(other)


@dataclass
class Verification:
    """The result of verifying a log."""

    lines: int = 0
    head: str = ""
    """The hash of the last line."""
    begins: str = ""
    """The `prev` of the first line: `GENESIS`, or the hash of the last line of the previous file."""
    problems: list[str] = field(default_factory=list)
    """The errors that were found, with line numbers. Empty: the chain is valid."""
    missing: int = 0
    """Number of events that the daemon reports as not written."""
    entries: int = 0
    """The number of the last entry."""
    signed: int = 0
    """Number of lines whose signature was verified."""
    unknown_keys: list[str] = field(default_factory=list)
    """Ids of keys that signed lines and are not among the given keys."""
    anchored: int = 0
    """The number of the last entry that matches an anchor. 0: none does."""
    continues: bool = False
    """True if the last line reports that the log continues in another file."""

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee that the anchors and signatures found in the log provide."""
        if self.anchored:
            return Guarantee.ANCHORED
        return Guarantee.KEYED if self.signed else Guarantee.CHAIN


def verify(
    lines: Iterable[bytes], keys: Keyring | None = None, anchors: Sequence[Anchor] = (), *, strict: bool = True
) -> Verification:
    """Verifies the lines of a log, or of several consecutive files.

    `strict`: from the first signed line on, every line must be signed by one of `keys`. Otherwise unknown keys are
    only listed.
    """
    return _Check(keys, anchors, strict).run(lines)


class _Check:
    """A single pass over the lines."""

    def __init__(self, keys: Keyring | None, anchors: Sequence[Anchor], strict: bool) -> None:
        self._keys = keys
        self._strict = strict
        self._verdict = Verification()
        self._newest_key = -1
        """Index of the newest key that was seen, in the order of `keys`. Older keys may not sign further lines."""
        self._first_number = 0
        self._anchors: dict[int, list[Anchor]] = {}
        for anchor in anchors:
            if keys is not None and not anchor.is_signed_by(keys):
                if strict:
                    self._verdict.problems.append(
                        f"the anchor of entry {anchor.sequence} is not signed by any of the given keys"
                    )
                continue
            self._anchors.setdefault(anchor.sequence, []).append(anchor)

    def run(self, lines: Iterable[bytes]) -> Verification:
        verdict = self._verdict
        problems = verdict.problems
        sequence = broken = 0  # `broken`: number of the previous line if it was not JSON, else 0
        head = ""
        for count, raw in enumerate(_stripped(lines), 1):
            verdict.lines = count
            try:
                entry = json.loads(raw)
                prev, number = str(entry["prev"]), int(entry["seq"])
            except (ValueError, TypeError, KeyError):
                if broken:
                    problems.append(f"line {broken} is not an audit log entry")
                broken, head = count, hashlib.sha256(raw).hexdigest()
                continue
            if broken and not entry.get("torn"):
                problems.append(f"line {broken} is not an audit log entry")
            elif head and prev != head:
                problems.append(
                    f"line {count} does not follow line {count - 1}: one of the two was changed, or lines between "
                    f"them are missing"
                )
            elif sequence and number != sequence + 1:
                problems.append(f"line {count} has number {number}, after number {sequence}")
            if "gap" in entry:
                problems.append(
                    f"line {count}: the daemon found that the log was shorter than, or different from, its anchor: "
                    f"{entry['gap']}"
                )
            verdict.begins = verdict.begins or prev
            self._first_number = self._first_number or number
            verdict.missing += int(entry.get("missing", 0))
            head, sequence, broken = hashlib.sha256(raw).hexdigest(), number, 0
            verdict.continues = entry.get("event") == ROTATED
            self._check_signature(count, raw, entry)
            self._check_anchor(number, head)
        if broken:
            problems.append(f"line {broken}, the last one, is incomplete")
        verdict.head, verdict.entries = head, sequence
        if self._first_number == 1 and verdict.begins != GENESIS:
            problems.append("line 1 has number 1, but is not the first entry of a log")
        self._check_end(sequence)
        return verdict

    def _check_signature(self, count: int, raw: bytes, entry: dict[str, Any]) -> None:
        verdict, keys = self._verdict, self._keys
        signer = str(entry.get("key", "")) if "mac" in entry else ""
        if signer and (keys is None or (keys.find(signer) is None and not self._strict)):
            if signer not in verdict.unknown_keys:
                verdict.unknown_keys.append(signer)
            return
        if keys is None:
            return
        key = keys.find(signer)
        if not signer:
            if verdict.signed:
                verdict.problems.append(f"line {count} is not signed, and lines before it are")
        elif key is None:
            verdict.problems.append(f"line {count} is signed by key {signer}, which is not among the given keys")
        elif not key.is_sealed(raw):
            verdict.problems.append(f"line {count} was not signed by key {signer}: it was changed or forged")
        elif keys.age(signer) < self._newest_key:
            verdict.problems.append(f"line {count} is signed by key {signer}, which a newer key had replaced")
        else:
            self._newest_key = keys.age(signer)
            verdict.signed += 1

    def _check_anchor(self, number: int, head: str) -> None:
        for anchor in self._anchors.pop(number, ()):
            if anchor.head == head:
                self._verdict.anchored = number
            else:
                self._verdict.problems.append(f"entry {number} is not the one that was anchored on {anchor.time}")

    def _check_end(self, last: int) -> None:
        """Reports anchors whose entries are not in the log."""
        verdict = self._verdict
        missing = [anchor for anchors in self._anchors.values() for anchor in anchors if anchor.sequence > last]
        if missing and not verdict.continues:
            newest = max(missing, key=lambda anchor: anchor.sequence)
            verdict.problems.append(
                f"the log ends with entry {last}, and entry {newest.sequence} was anchored on {newest.time}: its end "
                "is missing"
            )
        if self._keys is not None and self._strict and verdict.lines and not verdict.signed:
            verdict.problems.append("no line is signed by any of the given keys")


def _stripped(lines: Iterable[bytes]) -> Iterator[bytes]:
    for line in lines:
        if line.strip(b"\n"):
            yield line.rstrip(b"\n")
