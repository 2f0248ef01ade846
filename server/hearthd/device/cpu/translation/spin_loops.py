"""Loops that may wait for another thread of the block: adds yields, so that the other thread can run.

A thread runs until it meets other threads, so a thread that polls a `volatile` variable would run forever. In a source
that mentions `volatile`, each iteration of a `while`, `do` or `for` loop therefore calls `hearth::relax()`, which
yields from time to time (include/hearth/thread.h). Waits by atomic functions, fences and `__nanosleep` yield
themselves. An unnecessary yield changes no result, because CUDA promises no order between threads that do not
synchronise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hearthd.device.cpu.translation.tokens import Token, matching

_POLLING = frozenset({"volatile", "__ldcv"})
_BEFORE_EQUALS = frozenset("=!<>+-*/%&|^")
"""Operators that end in `=`."""


def edits_of_loops(tokens: Sequence[Token]) -> Iterator[tuple[int, int, str]]:
    """Yields edits (start, end, replacement) of the text of `tokens`, for the condition of each loop."""
    if not any(token.text in _POLLING and token.kind == "name" for token in tokens):
        return
    for index, token in enumerate(tokens[:-1]):
        if token.kind != "name" or tokens[index + 1].text != "(":
            continue
        closing = matching(tokens, index + 1, len(tokens))
        first, end = index + 2, closing
        if token.text == "for":
            semicolons = [i for i in _outermost(tokens, index + 2, closing) if tokens[i].text == ";"]
            if len(semicolons) != 2:  # a loop over a range
                continue
            first, end = semicolons[0] + 1, semicolons[1]
            if first == end:
                yield tokens[first].start, tokens[first].start, " ::hearth::relaxed()"
                continue
        elif token.text != "while":
            continue
        if _declares(tokens, first, end):
            # The condition declares a variable: the call is put into its initializer.
            equals = next(i for i in _outermost(tokens, first, end) if tokens[i].text == "=")
            first, before = equals + 1, " (::hearth::relax(), "
        else:
            before = " ::hearth::relaxed() && ("
        yield tokens[first].start, tokens[first].start, before
        yield tokens[end].start, tokens[end].start, ")"


def _outermost(tokens: Sequence[Token], at: int, end: int) -> Iterator[int]:
    """Yields the indices of a range's tokens that are outside any brackets in the range."""
    while at < end:
        yield at
        at = matching(tokens, at, end) + 1 if tokens[at].text in ("(", "[", "{") else at + 1


def _declares(tokens: Sequence[Token], first: int, end: int) -> bool:
    """True if a condition is a declaration: a single `=` with a type and a name before it."""
    for at in _outermost(tokens, first, end):
        if tokens[at].text != "=" or tokens[at - 1].text in _BEFORE_EQUALS:
            continue
        if at + 1 < end and tokens[at + 1].text == "=":
            return False
        before = [token for token in tokens[first:at] if token.text not in ("*", "&", "::", "const", "<", ">")]
        return len(before) >= 2 and all(token.kind == "name" for token in before)
    return False
