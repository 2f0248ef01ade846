"""Objects held by graphs and prepared lists: each hold ends, and the union of all uses equals that of one command."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.flows.segment import Segment
from hearthd.device.launch.holdings import Holdings, Keepers, Summary, Uses
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.module import ModuleEntry
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.track import PooledStream


class Keeper:
    def __init__(self) -> None:
        self.held: Counter[object] = Counter()

    def hold(self, thing: Any) -> None:
        self.held[thing] += 1

    def unhold(self, *session_and_thing: Any) -> None:
        thing = session_and_thing[-1]
        assert self.held[thing], "released although it is not held"
        self.held[thing] -= 1


BUFFERS = [Buffer(handle, 8) for handle in range(4)]
MODULES = [ModuleEntry(handle) for handle in range(2)]
SESSION: Any = object()
SEGMENTS = [Segment(number, 4096, SESSION, lambda _: None) for number in range(2)]


@st.composite
def uses(draw: st.DrawFn) -> Uses:
    """Draws uses as made by launches, copies and fills: a written buffer is not among the buffers that are only
    read."""
    chosen = draw(st.permutations(BUFFERS))
    cut = draw(st.integers(0, 2))
    written, read = tuple(chosen[:cut]), tuple(chosen[cut : cut + draw(st.integers(0, 2))])
    whole = bool(written) and draw(st.booleans())
    needed = read if whole else (*written, *read)
    modules = tuple(draw(st.sets(st.sampled_from(MODULES), max_size=2)))
    segments = tuple(draw(st.sets(st.sampled_from(SEGMENTS), max_size=2)))
    return Uses(written, read, modules, needed, written[0] if whole else None, segments)


@given(st.lists(uses(), max_size=6), st.lists(st.tuples(st.integers(0, 5), uses()), max_size=6))
def test_held_objects_are_the_used_ones(first: list[Uses], changes: list[tuple[int, Uses]]) -> None:
    memory, modules, segments = Keeper(), Keeper(), Keeper()
    stream: Any = object()
    session = DeviceSession(1, {}, lambda priority: PooledStream(0, stream, 0))
    holdings = Holdings(session, Keepers(memory, modules, segments))
    now = list(first)
    for each in first:
        holdings.add(each)
    for index, each in changes:
        if index < len(now):
            holdings.replace(index, each)
            now[index] = each
    assert +memory.held == Counter(buffer for each in now for buffer in (*each.written, *each.read))
    assert +modules.held == Counter(module for each in now for module in each.modules)
    assert +segments.held == Counter(segment for each in now for segment in each.segments)
    summary, afresh = holdings.summary, Summary(now)
    for name in ("needed", "prints", "read", "reads", "renewed", "writes", "written"):
        assert getattr(summary, name) == getattr(afresh, name)
    holdings.release()
    holdings.release()
    assert not +memory.held and not +modules.held and not +segments.held
    assert holdings.summary.written == ()


@given(st.lists(uses(), max_size=6))
def test_combined_uses_equal_those_of_one_command(program: list[Uses]) -> None:
    summary = Summary(program)
    written = {buffer for each in program for buffer in each.written}
    read = {buffer for each in program for buffer in each.read}
    assert set(summary.written) == written and len(summary.written) == len(written)
    assert set(summary.read) == read - written
    assert summary.writes == tuple(buffer.usage for buffer in summary.written)
    assert summary.reads == tuple(buffer.usage for buffer in summary.read)
    for buffer in BUFFERS:
        # Earlier contents of a buffer matter if the first command that uses the buffer needs them, in the order of the
        # program.
        first = next((each for each in program if buffer in each.needed or buffer is each.replaced), None)
        assert (buffer in summary.needed) == (first is not None and buffer in first.needed)
        assert (buffer in summary.renewed) == (first is not None and buffer not in first.needed)
