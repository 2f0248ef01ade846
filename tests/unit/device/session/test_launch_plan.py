"""Launch plans: integers take the type of their parameters, or are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.launches import LayoutEntry, Record
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.launch_limits import INTEGER_KINDS, integer_range
from hearthd.device.backend.resources import Function
from hearthd.device.session.launch_plan import LaunchPlan

EDGES = [sign * 2**bits + more for bits in (0, 7, 8, 15, 16, 31, 32) for sign in (-1, 1) for more in (-1, 0, 1)]
VALUES = st.sampled_from(EDGES) | st.integers(-(2**63), 2**63 - 1)
PARAMETERS = st.lists(st.tuples(st.sampled_from("iun"), st.sampled_from([1, 2, 4, 8]), VALUES), min_size=1, max_size=5)


def plan_of(kinds: str, sizes: list[int]) -> LaunchPlan:
    """Returns the plan of a kernel whose parameters have these kinds and sizes, for Python ints."""
    real: list[tuple[int, int]] = []
    end = 0
    for size in sizes:
        start = (end + size - 1) // size * size
        real.append((start, size))
        end = start + size
    given = [LayoutEntry(8 * index, 8, False, True) for index in range(len(sizes))]
    record = Record(1, 0, (1, 1, 1), (1, 1, 1), 0, 0, 0, b"", (), bytes(8 * len(sizes)), None)
    function = SimpleNamespace(name="f", parameters=tuple(real), kinds=kinds)
    return LaunchPlan(cast(Function, function), "f", record, given)


@given(PARAMETERS)
def test_an_int_is_passed_in_the_parameters_type_or_refused(parameters: list[tuple[str, int, int]]) -> None:
    plan = plan_of("".join(kind for kind, *_ in parameters), [size for _, size, _ in parameters])
    block = b"".join(value.to_bytes(8, "little", signed=True) for *_, value in parameters)
    wrong = []
    for index, (kind, size, value) in enumerate(parameters):
        unsigned = kind == "u" and size < 8
        low, high = (0, 2 ** (8 * size) - 1) if unsigned else (-(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1)
        if not low <= value <= high:
            wrong.append(f"argument {index} is {value}; ")
    assert plan.integers_fit(b"header.." + block, 8) == (not wrong)
    if not wrong:
        plan.check_integers(block)
        passed = plan.params_of(block)
        for (kind, size, value), (start, _) in zip(parameters, plan.function.parameters, strict=True):
            signed = value < 0 or kind != "u"
            assert int.from_bytes(passed[start : start + size], "little", signed=signed) == value
        return
    with pytest.raises(Refusal) as caught:
        plan.check_integers(block)
    assert caught.value.reason is Reason.LAUNCH_INVALID
    assert all(text in caught.value.message for text in wrong) and caught.value.message.count("; the") == len(wrong)
    assert "np.uint" in caught.value.fix and "np.int64(x)" in caught.value.fix


@given(st.sampled_from(sorted(INTEGER_KINDS)), st.sampled_from([1, 2, 4, 8]))
def test_a_parameter_of_unknown_sign_takes_no_number_that_a_signed_one_refuses(kind: str, size: int) -> None:
    low, high = integer_range(kind, size)
    assert -(2 ** (8 * size - 1)) <= low <= 0 < high < 2 ** (8 * size)
    assert integer_range("n", size) == integer_range("i", size)


def test_the_message_names_the_type_and_the_fix() -> None:
    for kind, says in (
        ("i", "a signed integer of 4 bytes, which takes a Python int from -2147483648 to 2147483647"),
        ("n", "an integer of unknown sign of 4 bytes, which takes a Python int from -2147483648 to 2147483647"),
        ("u", "an unsigned integer of 4 bytes, which takes a Python int from 0 to 4294967295"),
        ("b", "a bool of 4 bytes, which takes a Python int from 0 to 1"),
    ):
        with pytest.raises(Refusal) as caught:
            plan_of(kind, [4]).check_integers((2**33).to_bytes(8, "little"))
        assert f"argument 0 is 8589934592; the kernel's parameter is {says}" in caught.value.message
        assert "np.uint32(x)" in caught.value.fix
