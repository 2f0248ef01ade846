"""Recognition of warp-synchronous sources: programs that rely on the lanes of a warp running in step.

On GPUs before Volta a warp had one program counter, and a reduction within a warp needed no barrier: `volatile` shared
memory sufficed. Since Volta, lanes are scheduled independently. On the CPU backend each lane runs until its next
meeting point (`__syncwarp`, `__syncthreads`, a shuffle or a vote), so it reads slots that other lanes have not written
yet.

Covers reads of another lane's slot in shared memory after a write with no meeting point in between, and the warp
functions without `_sync`, which CUDA does not have for compute capability 7.0 and later. Does not cover races in
general: a source is reported only if the form of its text leaves little doubt, and a meeting point in any branch
between write and read counts as one. Pure: tokens in, findings out.

See https://developer.nvidia.com/blog/using-cuda-warp-level-primitives/ (implicit warp-synchronous programming).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cpu.translation.declarations import Declarations
from hearthd.device.cpu.translation.shared_arrays import (
    MEETING,
    Arrays,
    calls,
    meeting_functions,
    pointer_parameters,
    shared_names,
    statement_end,
)
from hearthd.device.cpu.translation.tokens import SourceMap, Token, matching

_WITHOUT_SYNC = re.compile(r"__(?:shfl(?:_up|_down|_xor)?|any|all|ballot)")
_REDUCTION_STEPS = 3
"""Number of consecutive statements s[x] += s[x + c], with c halved from each to the next, that are taken to be a
reduction."""

_THREAD = re.compile(r"threadIdx|\w*lane\w*|\w*tid\w*|\w*thread_?rank\w*", re.IGNORECASE)
"""Names that a condition for a single lane compares."""

_TIGHT = re.compile(r" ?([.()]|::|->) ?")
_ASSIGNING = frozenset("+-*/%&|^")
_LOOPS = frozenset({"for", "while"})


@dataclass(frozen=True)
class Finding:
    """A place that relies on lanes running in step."""

    file: str
    line: int
    text: str
    """One or two sentences: what the program relies on, and what to add."""

    name: str = ""
    """The function without `_sync`, which compiles for no current GPU; empty for a race."""

    def log_line(self) -> str:
        """Returns the finding as a line of a compile log."""
        return f"{self.file}({self.line}): {'error' if self.name else 'warning'}: {self.text}"


def warp_synchronous(source: SourceMap, tokens: Sequence[Token], declarations: Declarations) -> list[Finding]:
    """Returns the findings of a source, in the order of its lines; `declarations` is `declarations.scan(tokens)`."""
    findings = _without_sync(source, tokens, declarations)
    if not any(token.text in ("volatile", "__shared__") for token in tokens):
        return findings
    bodies = [function for function in declarations.functions if function.body is not None]
    meeting = meeting_functions(tokens, bodies)
    shared = shared_names(tokens, bodies)
    called = calls(tokens, bodies)
    for function in bodies:
        arrays = {**shared.get(None, {}), **shared.get(function.body, {})}
        arrays |= pointer_parameters(tokens, function, called, shared)
        walk = _Walk(tokens, arrays, meeting)
        assert function.body is not None
        walk.visit_block(function.body[0] + 1, function.body[1] - 1)
        findings += _races(source, tokens, function.name, walk.races)
    return sorted(findings, key=lambda finding: (finding.file, finding.line))


def check(findings: Iterable[Finding]) -> None:
    """Raises `Refusal` (UNSUPPORTED) for the first use of a warp function without `_sync`."""
    for finding in findings:
        if finding.name:
            raise Refusal(
                Reason.UNSUPPORTED,
                f"{finding.file}({finding.line}): {finding.text}",
                fix=f"Use {finding.name}_sync with the mask of the lanes that take part (0xffffffff for a whole warp).",
                details={
                    "feature": "warp functions without _sync",
                    "file": finding.file,
                    "line": finding.line,
                },
            )


def _without_sync(source: SourceMap, tokens: Sequence[Token], declarations: Declarations) -> list[Finding]:
    names = {function.name for function in declarations.functions}
    findings: list[Finding] = []
    for index, token in enumerate(tokens[:-1]):
        if token.kind != "name" or tokens[index + 1].text != "(" or not _WITHOUT_SYNC.fullmatch(token.text):
            continue
        if token.text in names or (index and tokens[index - 1].text in (".", "->")):
            continue
        file, line = source.location(token.start)
        text = (
            f"{token.text}() relies on the lanes of a warp running in step and does not exist for compute capability "
            f"7.0 and later; use {token.text}_sync() with the mask of the lanes that take part"
        )
        findings.append(Finding(file, line, text, token.text))
    return findings


# ---- one function's statements ----


@dataclass(frozen=True)
class _Access:
    """`array[index]` in a statement; a compound assignment both reads and writes."""

    array: str
    index: str
    at: int
    reads: bool
    writes: bool


@dataclass(frozen=True)
class _Guard:
    """A condition that is true for one lane only (`lane == 0`)."""

    names: frozenset[str]
    at: int


@dataclass(frozen=True)
class _Write:
    access: _Access
    guard: _Guard | None


@dataclass(frozen=True)
class _Race:
    write: _Access
    read: _Access
    same_statement: bool = False
    """True if the statement that reads also writes the array."""


@dataclass
class _State:
    """Accesses to shared memory since the last meeting point."""

    writes: list[_Write] = field(default_factory=list)
    chain: list[_Race] = field(default_factory=list)  # statements s[x] += s[x + c], c halving
    met: bool = False

    def copy(self) -> _State:
        return _State(list(self.writes), list(self.chain))

    def meet(self) -> None:
        self.writes.clear()
        self.chain.clear()
        self.met = True

    def join(self, branches: Sequence[_State]) -> None:
        """Merges the states after alternatives.

        A meeting point in one of them counts for all, so that correct code is not reported.
        """
        if any(branch.met for branch in branches):
            self.meet()
            return
        for branch in branches:
            self.writes += [write for write in branch.writes if write not in self.writes]
            self.chain = branch.chain if len(branch.chain) > len(self.chain) else self.chain


class _Walk:
    """Visits statements in the order in which a lane runs them: alternatives separately, loops twice."""

    def __init__(self, tokens: Sequence[Token], arrays: Arrays, meeting: set[str]) -> None:
        self.tokens = tokens
        self.arrays = arrays
        self.meeting = meeting
        self.races: dict[int, _Race] = {}  # by the token index of the read
        self._state = _State()
        self._written: set[str] = set()  # arrays that the current statement writes
        self._guard: _Guard | None = None
        self._halved: list[str] = []  # loop variables of the enclosing loops that are halved in each iteration
        self._counted: list[str] = []  # all loop variables of the enclosing loops

    def visit_block(self, at: int, end: int) -> None:
        while at < end:
            at = self._visit_statement(at, end)

    def _visit_statement(self, at: int, end: int) -> int:
        """Visits the statement at `at`; returns the index after it."""
        tokens = self.tokens
        text = tokens[at].text
        if text == "{":
            closing = matching(tokens, at, end)
            self.visit_block(at + 1, closing)
            return closing + 1
        if text == "if":
            return self._visit_alternatives(at, end)
        if text in _LOOPS and at + 1 < end and tokens[at + 1].text == "(":
            return self._visit_loop(at, end)
        if text in ("else", "do"):
            return self._visit_statement(at + 1, end) if at + 1 < end else end
        if text == "switch" and at + 1 < end and tokens[at + 1].text == "(":
            return matching(tokens, at + 1, end) + 1
        stop = statement_end(tokens, at, end)
        self._scan(at, stop)
        return stop + 1

    def _visit_alternatives(self, at: int, end: int) -> int:
        tokens = self.tokens
        opening = at + 2 if at + 1 < end and tokens[at + 1].text == "constexpr" else at + 1
        closing = matching(tokens, opening, end)
        self._scan(opening + 1, closing)
        before, outer = self._state, self._guard
        self._guard = self._lane_guard(opening + 1, closing) or outer
        self._state = taken = before.copy()
        at = self._visit_statement(closing + 1, end) if closing + 1 < end else end
        self._guard = outer
        self._state = other = before.copy()
        if at < end and tokens[at].text == "else":
            at = self._visit_statement(at + 1, end) if at + 1 < end else end
        self._state = before
        before.join((taken, other))
        return at

    def _visit_loop(self, at: int, end: int) -> int:
        tokens = self.tokens
        closing = matching(tokens, at + 1, end)
        if closing + 1 < end and tokens[closing + 1].text == ";":  # `do ... while (...);`, or a loop without a body
            self._scan(at + 2, closing)
            return closing + 2
        header = tokens[at + 2 : closing]
        counted = [token.text for token, after in itertools.pairwise(header) if after.text == "="]
        halved = {
            a.text for a, b, c in zip(header, header[1:], header[2:], strict=False) if (b.text, c.text) == (">", ">")
        }
        halved |= {a.text for a, b in itertools.pairwise(header) if b.text == "/"}
        self._counted += counted
        self._halved += sorted(halved)
        for _ in range(2):
            self._scan(at + 2, closing)
            stop = self._visit_statement(closing + 1, end) if closing + 1 < end else end
        del self._counted[len(self._counted) - len(counted) :]
        del self._halved[len(self._halved) - len(halved) :]
        return stop

    def _lane_guard(self, start: int, end: int) -> _Guard | None:
        """Returns the guard of a condition such as `lane == 0`, `!lane`, `threadIdx.x == 0 && n > 1`.

        Returns None if there is none.
        """
        texts = [token.text for token in self.tokens[start:end]]
        if "|" in texts or not texts:
            return None
        for position in range(1, len(texts) - 2):
            number = position + 2 < len(texts) and self.tokens[start + position + 2].kind == "number"
            if texts[position : position + 2] == ["=", "="] and number:
                return _Guard(frozenset(texts[:position]), start)
        if texts[0] == "!" and len(texts) <= 4 and self.tokens[start + 1].kind == "name":
            return _Guard(frozenset(texts[1:]), start)
        return None

    # ---- accesses ----

    def _scan(self, start: int, end: int) -> None:
        """Scans a statement without inner statements, or a condition."""
        accesses: list[_Access] = []
        met = False
        for at in range(start, end):
            token = self.tokens[at]
            if token.kind != "name":
                continue
            called = at + 1 < end and self.tokens[at + 1].text in ("(", "<")
            if token.text in self.meeting or (called and MEETING.fullmatch(token.text)):
                met = True
            elif token.text in self.arrays:
                access = self._access(at, start, end)
                if access is not None:
                    accesses.append(access)
        if met:  # the order within the statement is not known
            self._state.meet()
            return
        self._written = {access.array for access in accesses if access.writes}
        for access in accesses:
            if access.reads:
                self._read(access)
        self._record_chain(accesses)
        self._state.writes += [_Write(access, self._guard) for access in accesses if access.writes]

    def _access(self, at: int, start: int, end: int) -> _Access | None:
        tokens = self.tokens
        before = tokens[at - 1].text if at > start else ""
        if before in (".", "->", "::"):
            return None
        opening = at + 1
        while opening < end and tokens[opening].text == ")":  # ((volatile int *)s)[i]
            opening += 1
        if opening >= end or tokens[opening].text != "[":
            return None
        if before == "&" and (at - 2 < start or tokens[at - 2].text in ("(", ",", "=", "return")):
            return None  # an address, as passed to an atomic function
        index: list[str] = []
        closing = opening
        while closing < end and tokens[closing].text == "[":
            last = matching(tokens, closing, end)
            index.append(" ".join(token.text for token in tokens[closing + 1 : last]))
            closing = last + 1
        after = [token.text for token in tokens[closing : min(closing + 3, end)]] + ["", "", ""]
        steps = after[0] == after[1] and after[0] in ("+", "-")
        steps |= at - 2 >= start and before == tokens[at - 2].text and before in ("+", "-")
        plain = after[0] == "=" and after[1] != "="
        compound = after[0] in _ASSIGNING and after[1] == "=" and after[2] != "="
        compound |= after[:3] in (["<", "<", "="], [">", ">", "="])
        return _Access(tokens[at].text, "][".join(index), at, not plain, steps or plain or compound)

    def _read(self, read: _Access) -> None:
        """Records a race if this lane has not written the slot since the last meeting point, and other lanes have."""
        writes = [write for write in self._state.writes if write.access.array == read.array]
        if not writes or not self._is_volatile(read):
            return
        if self._guard is not None and all(write.guard == self._guard for write in writes):
            return  # the slot belongs to one lane
        same = [write for write in writes if write.access.index == read.index]
        if same:
            last = same[-1]
            guard = last.guard
            if guard is None or guard == self._guard or guard.names & set(read.index.split()):
                return
            if any(_THREAD.fullmatch(name) for name in guard.names):
                self._record(last.access, read)  # one lane writes, all read
            return
        self._record(writes[-1].access, read)

    def _is_volatile(self, access: _Access) -> bool:
        cast = [token.text for token in self.tokens[max(0, access.at - 5) : access.at]]
        return self.arrays[access.array] or (cast[-2:] == ["*", ")"] and "volatile" in cast)

    def _record_chain(self, accesses: Sequence[_Access]) -> None:
        """Records statements `s[x] += s[x + c]` on shared memory that is not volatile.

        They are a race if several follow each other, or if one is in a loop that halves c.
        """
        written = next((access for access in accesses if access.writes), None)
        if written is None or self._is_volatile(written) or self._guard is not None:
            return
        if set(written.index.split()) & set(self._counted):
            return  # a loop over the slots by one thread
        for read in accesses:
            if read.array != written.array or not read.index.startswith(f"{written.index} + "):
                continue
            offset = read.index.removeprefix(f"{written.index} + ").rstrip("uU")
            race = _Race(written, read)
            if offset in self._halved:  # found in the second iteration of the loop, unless its body has a meeting point
                if any(write.access.at == written.at for write in self._state.writes):
                    self._record(written, read)
            elif offset.isdigit():
                previous = self._state.chain[-1] if self._state.chain else None
                halves = previous is not None and previous.read.index == f"{written.index} + {2 * int(offset)}"
                self._state.chain = [*self._state.chain, race] if halves else [race]
                if len(self._state.chain) == _REDUCTION_STEPS:
                    for before, after in itertools.pairwise(self._state.chain):
                        self._record(before.write, after.read)
                elif len(self._state.chain) > _REDUCTION_STEPS:
                    self._record(self._state.chain[-2].write, read)

    def _record(self, write: _Access, read: _Access) -> None:
        self.races.setdefault(read.at, _Race(write, read, read.array in self._written))


def _races(source: SourceMap, tokens: Sequence[Token], function: str, races: Mapping[int, _Race]) -> Iterable[Finding]:
    """Yields one finding for each array of a function: the first place in full, the others by line."""
    arrays: dict[str, list[_Race]] = {}
    for at in sorted(races):
        arrays.setdefault(races[at].read.array, []).append(races[at])
    for array, array_races in arrays.items():
        first = array_races[0]
        file, line = source.location(tokens[first.read.at].start)
        write, read = _format_access(array, first.write.index), _format_access(array, first.read.index)
        text = (
            f"{function} relies on the lanes of a warp running in step: {read}, which another lane writes, is "
            f"read after the write of {write} with no barrier; add __syncwarp() between the write of {write} and the "
            f"read of {read}"
        )
        if any(race.same_statement for race in array_races):
            text += (
                ", and split a statement that reads another lane's slot and writes its own: "
                f"auto v = {read}; __syncwarp(); then the write; __syncwarp();"
            )
        lines = sorted({source.location(tokens[race.read.at].start)[1] for race in array_races[1:]} - {line})
        if lines:
            text += f" (also in line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines))})"
        yield Finding(file, line, text)


def _format_access(array: str, index: str) -> str:
    tight = _TIGHT.sub(r"\1", index).replace("] [", "][")
    return f"{array}[{tight}]"
