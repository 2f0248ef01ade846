"""Arguments of `hearth run`: valid ones are parsed as written, and errors in others are reported with their
position."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.cli.run.numbers import NUMPY_TYPES, TYPES, SpecError, dimensions, integer, number
from hearth.cli.run.spec import GENERATORS, Array, FromFile, Generated, Scalar, parse, parse_all

# A result file follows ":" or "=", so its name may contain anything. A source file's name may not contain ".npy=".
results = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12).map(lambda name: f"x{name}.npy")
sources = results.filter(lambda name: ".npy=" not in name and name.partition(":")[0] not in GENERATORS)
shapes = st.lists(st.integers(0, 1000), max_size=4).map(tuple)
dtypes = st.sampled_from(NUMPY_TYPES)


@st.composite
def values(draw: st.DrawFn, dtype: str) -> Any:
    if dtype == "bool":
        return draw(st.booleans())
    if "int" in dtype:
        limits = np.iinfo(dtype)
        return draw(st.integers(int(limits.min), int(limits.max)))
    if dtype.startswith("float"):
        return draw(st.floats(width=int(dtype[5:]), allow_nan=False))
    return draw(st.complex_numbers(max_magnitude=1e30, allow_nan=False, allow_infinity=False))


@st.composite
def written(draw: st.DrawFn) -> tuple[str, Scalar | Array]:
    """Draws an argument and the value that it specifies."""
    dtype = draw(dtypes)
    name = draw(st.sampled_from([name for name, meant in TYPES.items() if meant == dtype]))
    kind = draw(st.sampled_from(["scalar", "in", "inout", "out", "made"]))
    if kind == "scalar":
        value = draw(values(dtype))
        return f"{name}={value!r}", Scalar(dtype, value)
    result = draw(st.none() | results)
    behind = "" if result is None else f"={result}"
    if kind == "out":
        shape = draw(shapes)
        text = f"out:{name}[{','.join(map(str, shape))}]{behind}"
        return text, Array("out", Generated("zeros", dtype, shape), result)
    if kind == "in":
        path = draw(sources)
        return f"in:{path}", Array("in", FromFile(path))
    if kind == "inout":
        path = draw(sources)
        return f"inout:{path}{behind}", Array("inout", FromFile(path), result)
    how, shape = draw(st.sampled_from(sorted(GENERATORS))), draw(shapes)
    options: dict[str, Any] = {}
    for option in GENERATORS[how]:
        if option == "value" or draw(st.booleans()):
            options[option] = draw(st.integers(0, 2**64 - 1) if option == "seed" else values(dtype))
    made = f"{how}:{name}[{', '.join(map(str, shape))}]" + "".join(
        f":{key}={value!r}" for key, value in options.items()
    )
    if draw(st.booleans()):
        return f"inout:{made}{behind}", Array("inout", Generated(how, dtype, shape, options), result)
    return draw(st.sampled_from(["", "in:"])) + made, Array("in", Generated(how, dtype, shape, options))


@given(written())
def test_valid_specifications_are_parsed(case: tuple[str, Scalar | Array]) -> None:
    text, meant = case
    assert parse(text) == meant


pieces = st.sampled_from(
    ["in:", "inout:", "out:", "zeros:", "random:", "f32", "[", "]", "=", ":", ",", "a.npy", "seed"]
)


@given(st.text(max_size=30) | st.lists(pieces | st.text(max_size=3), max_size=8).map("".join))
def test_invalid_specifications_are_refused_with_a_position(text: str) -> None:
    try:
        parse(text)
    except SpecError as error:
        assert 0 <= error.at <= len(text) and error.problem
        parse(error.example)  # the example is valid


@pytest.mark.parametrize(
    ("text", "at", "says"),
    [
        ("", 0, "neither TYPE=VALUE nor an array"),
        ("f33=2", 0, "'f33' is not a type (did you mean 'f32'?)"),
        ("i8=128", 3, "128 is not between -128 and 127, the range of int8"),
        ("u8=-1", 3, "not between 0 and 255"),
        ("i32=1.5", 4, "'1.5' is not a valid int32: use an integer"),
        ("f32=1e39", 4, "beyond 3.4028234663852886e+38"),
        ("f32=two", 4, "'two' is not a valid float32: use a number"),
        ("bool=maybe", 5, "true or false"),
        ("data.npy", 0, "specify whether the file is read (in:)"),
        ("in:data.txt", 3, "is not an .npy file"),
        ("in:", 3, "the file name is missing"),
        ("in:a.npy=b.npy", 8, "use inout:a.npy=b.npy"),
        ("inout:a.npy=b", 12, "'b' is not an .npy file"),
        ("zeros:float3[4]", 6, "'float3' is not a type"),
        ("zeros:float32", 13, "the shape is missing"),
        ("zeros:float32[4,x]", 16, "'x' is not a number"),
        ("zeros:float32[-4]", 14, "an axis cannot have -4 elements"),
        ("zeros:float32[4]4", 16, "'4' is unexpected here"),
        ("zeros:float32[1<<60]", 13, "exceed the memory of any device"),
        ("zeros:f32[4]=y.npy", 12, "use inout:zeros:f32[4]=y.npy"),
        ("full:f32[4]", 11, "add :value=3"),
        ("random:f32[4]:sed=1", 14, "'sed' is not an option of random: its options are seed, low, high"),
        ("random:f32[4]:seed=1:seed=2", 21, "specified twice"),
        ("random:f32[4]:seed", 14, "requires a value"),
        ("out:zeros:f32[4]", 4, "use inout:zeros:f32[4]"),
        ("outs:f32[4]", 0, "did you mean 'out'?"),
    ],
)
def test_mistakes(text: str, at: int, says: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse(text)
    assert (refused.value.at, says in str(refused.value)) == (at, True), refused.value


def test_errors_name_the_argument() -> None:
    with pytest.raises(SpecError, match=r"argument 2, 'i32=x', character 5: .*; e.g. f32=2.5"):
        parse_all(["f32=1", "i32=x"])
    with pytest.raises(SpecError, match="arguments 1 and 3 both write to"):
        parse_all(["out:f32[1]=y.npy", "f32=1", "out:f32[1]=y.npy"])


@pytest.mark.parametrize(
    ("text", "value"), [("0x10", 16), ("1_000", 1000), ("1<<20", 1 << 20), ("2**10", 1024), ("-7", -7), ("007", 7)]
)
def test_whole_numbers(text: str, value: int) -> None:
    assert integer(text) == value


@pytest.mark.parametrize("text", ["", "1.0", "1<<99", "1<<", "9" * 200, "1__0", "0x", "٣"])
def test_invalid_integers_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        integer(text)


def test_nan_and_infinity_are_accepted() -> None:
    assert math.isnan(number("float32", "nan")) and number("float64", "-inf") == -math.inf  # type: ignore[arg-type]
    assert number("float64", "0x1p-3") == 0.125 and number("complex64", "1 + 2j") == 1 + 2j


def test_dimensions() -> None:
    assert dimensions("4") == (4, 1, 1) and dimensions("4,2") == dimensions("4x2x1") == (4, 2, 1)
    for text in ("", "0", "1,2,3,4", "a", "-1", "1<<40", "4,"):
        with pytest.raises(ValueError, match="one to three integers"):
            dimensions(text)
