"""Arrays in shared memory, pointers to them, and functions in which lanes meet, found from the tokens of a source.

The basis of `warp_synchronous`: considers names only, not types. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hearthd.device.cpu.translation.declarations import FunctionDeclaration, declarator_names
from hearthd.device.cpu.translation.tokens import OPENING, Token, matching

MEETING = re.compile(
    r"\w*sync\w*|\w*barrier\w*|bar|shfl\w*|ballot|any|all|match_any|match_all|reduce|inclusive_scan|exclusive_scan"
    r"|arrive_and_wait|wait|invoke_one\w*|__nanosleep"
)
"""Names whose call may be a meeting point of lanes: CUDA's, those of cooperative groups, and names that a program may
use for its own functions."""

Arrays = Mapping[str, bool]
"""Names of arrays and pointers, with True for those that are both volatile and in shared memory: every read of another
lane's slot in these is reported. Others are either shared or volatile, and are reported only in a reduction."""


def meeting_functions(tokens: Sequence[Token], bodies: Sequence[FunctionDeclaration]) -> set[str]:
    """Returns the functions of the source that reach a meeting point, judged by the names that their bodies mention."""
    mentioned: dict[str, set[str]] = {}
    for function in bodies:
        assert function.body is not None
        names = {token.text for token in tokens[function.body[0] : function.body[1]] if token.kind == "name"}
        mentioned.setdefault(function.name, set()).update(names)
        if function.owner:
            mentioned.setdefault(function.owner, set()).update(names)
    meeting = {name for name, names in mentioned.items() if any(MEETING.fullmatch(word) for word in names)}
    grows = True
    while grows:
        callers = {name for name, names in mentioned.items() if name not in meeting and names & meeting}
        meeting |= callers
        grows = bool(callers)
    return meeting


def statement_end(tokens: Sequence[Token], at: int, end: int) -> int:
    """Returns the index of the semicolon that ends the statement at `at`, or `end`."""
    while at < end and tokens[at].text != ";":
        at = matching(tokens, at, end) + 1 if tokens[at].text in OPENING else at + 1
    return at


def _statement_start(tokens: Sequence[Token], at: int) -> int:
    while at > 0 and tokens[at - 1].text not in (";", "{", "}"):
        at -= 1
    return at


def shared_names(
    tokens: Sequence[Token], bodies: Sequence[FunctionDeclaration]
) -> Mapping[tuple[int, int] | None, dict[str, bool]]:
    """Returns shared arrays by the body that declares them (None: outside functions), and volatile pointers to them."""
    names: dict[tuple[int, int] | None, dict[str, bool]] = {None: {}}
    for index, token in enumerate(tokens):
        if token.text != "__shared__":
            continue
        start, end = _statement_start(tokens, index), statement_end(tokens, index, len(tokens))
        inside = next((f.body for f in bodies if f.body is not None and f.body[0] <= index < f.body[1]), None)
        is_volatile = any(word.text == "volatile" for word in tokens[start:end])
        for name in declarator_names(tokens, index + 1, end):
            if tokens[name + 1].text == "[":  # a scalar is a flag or a total, which is not conclusive
                names.setdefault(inside, {})[tokens[name].text] = is_volatile
    for function in bodies:
        assert function.body is not None
        pointers = names.setdefault(function.body, {})
        _add_pointers(tokens, function.body, pointers, names[None])
    return names


def _add_pointers(tokens: Sequence[Token], body: tuple[int, int], pointers: dict[str, bool], outside: Arrays) -> None:
    """Adds `T *p = array + 1` as another name of the same memory, and other pointers that are volatile."""
    for index in range(body[0] + 2, body[1] - 1):
        name = tokens[index]
        if name.kind != "name" or tokens[index - 1].text not in ("*", "__restrict__", "const", "auto"):
            continue
        if tokens[index + 1].text != "=" or tokens[index + 2].text == "=":
            continue
        start, end = _statement_start(tokens, index), statement_end(tokens, index, body[1])
        words = {token.text for token in tokens[start:index]}
        value = [token.text for token in tokens[index + 2 : end] if token.kind == "name"]
        pointed = any(word in pointers or word in outside for word in value)
        texts = {token.text for token in tokens[index + 2 : end]}
        loads = "[" in texts and "&" not in texts
        declares = len(words - {"*", "(", ")"}) > 0 and "=" not in words and "return" not in words
        if declares and not loads and (pointed or "volatile" in words):
            is_volatile = "volatile" in words or ("auto" in words and "volatile" in texts)
            pointers[name.text] = pointed and is_volatile


Calls = Mapping[str, Sequence[tuple[tuple[int, int], int]]]
"""The bodies that mention a function of the source, with the token index of the mention, by the function's name."""


def calls(tokens: Sequence[Token], bodies: Sequence[FunctionDeclaration]) -> Calls:
    """Returns the mentions of the source's own functions in each other's bodies."""
    mentions: dict[str, list[tuple[tuple[int, int], int]]] = {function.name: [] for function in bodies}
    for function in bodies:
        assert function.body is not None
        for index in range(*function.body):
            if tokens[index].text in mentions:
                mentions[tokens[index].text].append((function.body, index))
    return mentions


def pointer_parameters(
    tokens: Sequence[Token],
    function: FunctionDeclaration,
    called: Calls,
    shared: Mapping[tuple[int, int] | None, Arrays],
) -> dict[str, bool]:
    """Returns the pointer parameters of `function` that are volatile, or that get a shared array in a call.

    Only calls within the source are known.
    """
    pointers: dict[int, tuple[str, bool]] = {}
    for position, (start, end) in enumerate(
        _comma_ranges(tokens, function.parameters[0] + 1, function.parameters[1] - 1)
    ):
        texts = [token.text for token in tokens[start:end]]
        names = [token.text for token in tokens[start:end] if token.kind == "name"]
        if names and ("*" in texts or "[" in texts):
            pointers[position] = (names[-1], "volatile" in texts)
    parameters = dict.fromkeys((name for name, is_volatile in pointers.values() if is_volatile), False)
    if not pointers or function.is_kernel:
        return parameters
    for body, index in called.get(function.name, ()):
        arrays = {**shared.get(None, {}), **shared.get(body, {})}
        opening = index + 1
        if tokens[opening].text == "<":  # template arguments: up to the parenthesis
            while opening < body[1] - 1 and tokens[opening].text not in ("(", ";"):
                opening += 1
        if tokens[opening].text != "(":
            continue
        for position, (start, end) in enumerate(_comma_ranges(tokens, opening + 1, matching(tokens, opening, body[1]))):
            if position in pointers and any(token.text in arrays for token in tokens[start:end]):
                name, is_volatile = pointers[position]
                parameters[name] = is_volatile
    return parameters


def _comma_ranges(tokens: Sequence[Token], start: int, end: int) -> list[tuple[int, int]]:
    """Returns the ranges between the commas of a list of parameters or arguments."""
    ranges: list[tuple[int, int]] = []
    begin = at = start
    while at < end:
        if tokens[at].text in OPENING:
            at = matching(tokens, at, end)
        elif tokens[at].text == ",":
            ranges.append((begin, at))
            begin = at + 1
        at += 1
    if begin < end:
        ranges.append((begin, end))
    return ranges
