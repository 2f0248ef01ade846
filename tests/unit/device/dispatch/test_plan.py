"""Bindings of a dispatch: valid bindings are read as intended, and all errors are reported together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.dispatch.plan import (
    BindingFailure,
    DispatchPlan,
    check_binding,
    is_plain,
    named_transfers,
    read_bindings,
    refuse,
)

B = c.Binding
INLINE = 1000


def planned(command: c.Dispatch) -> tuple[DispatchPlan, list[BindingFailure]]:
    return read_bindings(command, [binding.data for binding in command.bindings], INLINE)


@st.composite
def inputs(draw: st.DrawFn, role: int) -> c.Binding:
    binding = B(role=role, size=draw(st.integers(0, 64)))  # type: ignore[arg-type]
    binding.data = bytes(binding.size)
    return binding


@st.composite
def outputs(draw: st.DrawFn, binding: c.Binding) -> c.Binding:
    start = draw(st.integers(0, binding.size))
    if draw(st.booleans()):
        binding.range_offset = start
    if draw(st.booleans()):
        binding.range_size = draw(st.integers(0, binding.size - binding.range_offset))
    return binding


SOUND = st.one_of(
    inputs(B.ROLE_INPUT),
    inputs(B.ROLE_INPUT_OUTPUT).flatmap(outputs),
    st.integers(0, 64).flatmap(lambda size: outputs(B(role=B.ROLE_OUTPUT, size=size))),
    st.just(B(role=B.ROLE_VALUE, value=c.Argument(int32=1))),
)


@given(st.lists(SOUND, max_size=8), st.none() | st.integers(1, 1 << 32 - 1))
def test_valid_dispatch_gives_the_expected_plan(bindings: list[c.Binding], iterations: int | None) -> None:
    command = c.Dispatch(bindings=bindings, iterations=iterations)
    plan, failures = planned(command)
    assert not failures and plan.iterations == (iterations or 1)
    assert len(plan.arguments) == len(bindings) == len(plan.transients) + sum(b.role == B.ROLE_VALUE for b in bindings)
    for slot in plan.transients:
        binding = bindings[slot.binding]
        assert slot.size == binding.size
        assert slot.has_input == (binding.role != B.ROLE_OUTPUT) and slot.has_output == (binding.role != B.ROLE_INPUT)
        assert plan.arguments[slot.binding].pointer.read_only == (binding.role == B.ROLE_INPUT)
        wanted = range(binding.size)[binding.range_offset :]
        if binding.HasField("range_size"):
            wanted = wanted[: binding.range_size]
        assert slot.length == (len(wanted) if slot.has_output else 0)
        assert not wanted or not slot.has_output or wanted[0] == slot.offset


BITS = st.one_of(st.just(0), st.integers(0, 100), st.sampled_from([2**32, 2**63, 2**64 - 1]))
ANY = st.builds(
    lambda role, size, data, upload, start, length, download, value: B(
        role=role, size=size, data=data, upload=upload, range_offset=start, range_size=length, download=download,
        value=value,
    ),
    st.integers(0, 6), BITS, st.binary(max_size=10), BITS, BITS, st.none() | BITS, BITS,
    st.none() | st.just(c.Argument()) | st.just(c.Argument(raw=b"1")),
)  # fmt: skip


@given(st.lists(ANY, max_size=6), st.none() | st.integers(0, 3))
def test_plan_is_valid_or_names_every_wrong_binding(bindings: list[c.Binding], iterations: int | None) -> None:
    """Any input gives either a consistent plan or failures that name every wrong binding."""
    command = c.Dispatch(bindings=bindings, iterations=iterations)
    plan, failures = planned(command)
    if failures:
        refusal = refuse("f", failures)
        assert refusal.reason == failures[0].reason and all(failure.text in refusal.message for failure in failures)
        assert refusal.details["failures"] == str(len(failures)) and refusal.fix
    named = {int(word) for failure in failures for word in failure.text.split()[1:2] if word.isdecimal()}
    read = {slot.binding for slot in plan.transients}
    for index, binding in enumerate(bindings):
        assert index in read or index in named or binding.role == B.ROLE_VALUE
    for slot in plan.transients:
        assert (slot.offset >= 0 and slot.offset + slot.length <= slot.size) or not slot.has_output
        assert not slot.has_input or slot.upload or len(bindings[slot.binding].data) == slot.size
    if not failures:
        assert plan.iterations >= 1
        assert len(set(plan.transfers)) == len(plan.transfers)
        assert sum(slot.length for slot in plan.transients if not slot.download) <= INLINE
    assert set(plan.transfers) <= set(named_transfers(command))


@given(st.one_of(ANY, SOUND))
def test_quick_check_accepts_only_valid_bindings(binding: c.Binding) -> None:
    assert not (is_plain(binding, binding.data) and check_binding(0, binding, binding.data))


def test_an_inline_output_may_be_exactly_as_large_as_is_allowed() -> None:
    for sizes, fits in (([INLINE], True), ([INLINE - 1, 1], True), ([INLINE, 1], False), ([INLINE + 1], False)):
        bindings = [B(role=B.ROLE_OUTPUT, size=size) for size in sizes]
        _, failures = planned(c.Dispatch(bindings=bindings))
        assert (not failures) == fits
        if not fits:
            assert failures[0].reason == Reason.MESSAGE_TOO_LARGE
            assert str(sum(sizes)) in failures[0].text and str(INLINE) in failures[0].text
    beside = [B(role=B.ROLE_OUTPUT, size=INLINE), B(role=B.ROLE_OUTPUT, size=1 << 40, download=3)]
    assert not planned(c.Dispatch(bindings=beside))[1]
    part = [B(role=B.ROLE_OUTPUT, size=1 << 40, range_offset=7, range_size=INLINE)]
    assert not planned(c.Dispatch(bindings=part))[1]
