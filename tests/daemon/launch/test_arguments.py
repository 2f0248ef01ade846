"""Kernel arguments of every type reach the kernel as it declares them."""

from __future__ import annotations

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import BACKEND

ECHO = """
struct alignas(8) F2 { float x, y; };
struct alignas(16) D2 { double x, y; };
template <typename T> __global__ void echo(char before, T value, char after, T* out, char* around) {
    *out = value; around[0] = before; around[1] = after;
}
"""
C_TYPES = {
    "bool": "bool", "int8": "signed char", "uint8": "unsigned char", "int16": "short", "uint16": "unsigned short",
    "int32": "int", "uint32": "unsigned", "int64": "long long", "uint64": "unsigned long long",
    "float16": "unsigned short", "float32": "float", "float64": "double", "complex64": "F2", "complex128": "D2",
}  # fmt: skip
NAMES = {dtype: f"echo<{c_type}>" for dtype, c_type in C_TYPES.items()}


def echoed(gpu: hearth.Device, name: str, value: object, dtype: object, out: object = None) -> np.ndarray:
    """Returns `value` as a kernel receives it between two chars, as `dtype`."""
    module = gpu.RawModule(code=ECHO, name_expressions=sorted(set(NAMES.values())))
    result, around = gpu.empty(1, np.dtype(dtype)), gpu.zeros(2, np.int8)  # type: ignore[call-overload]
    arguments = (np.int8(-7), value, np.int8(99), result, around)
    module.get_function(name)((1,), (1,), arguments)
    assert around.get().tolist() == [-7, 99]
    return result.get()


def extremes(dtype: np.dtype) -> list[np.generic]:
    if dtype.kind == "b":
        return [np.bool_(False), np.bool_(True)]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return [dtype.type(value) for value in (limits.min, limits.max, 1)]
    if dtype.kind == "f":
        limits = np.finfo(dtype)
        return [dtype.type(value) for value in (limits.min, limits.tiny, -0.0, np.inf, np.nan, 1.25)]
    return [dtype.type(complex(1.5, -2.25)), dtype.type(complex(np.inf, 0))]


@pytest.mark.parametrize("dtype", C_TYPES)
def test_every_numpy_scalar(gpu: hearth.Device, dtype: str) -> None:
    for value in extremes(np.dtype(dtype)):
        assert echoed(gpu, NAMES[dtype], value, dtype).tobytes() == value.tobytes(), value


@pytest.mark.parametrize("dtype", ["int32", "float64", "float16", "complex128", "bool"])
def test_arrays_without_axes(gpu: hearth.Device, dtype: str) -> None:
    value = np.array(1.5 if np.dtype(dtype).kind in "fc" else 1, dtype)
    assert echoed(gpu, NAMES[dtype], value, dtype).tobytes() == value.tobytes()
    swapped = value.astype(value.dtype.newbyteorder())
    assert echoed(gpu, NAMES[dtype], swapped, dtype).tobytes() == value.tobytes()


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (True, "bool"),
        (False, "bool"),
        (0, "int64"),
        (-(2**63), "int64"),
        (2**63 - 1, "int64"),
        (1.25, "float64"),
        (float("nan"), "float64"),
        (1 - 2j, "complex128"),
    ],
)
def test_python_numbers(gpu: hearth.Device, value: object, dtype: str) -> None:
    assert echoed(gpu, NAMES[dtype], value, dtype).tobytes() == np.array(value, dtype).tobytes()


def test_python_ints_beyond_64_bits_are_refused(gpu: hearth.Device) -> None:
    for value in (2**63, 2**64, -(2**63) - 1):
        with pytest.raises(hearth.LaunchError, match=r"argument 1 .*np\.uint64\(x\)"):
            echoed(gpu, NAMES["int64"], value, "int64")


INTEGERS = [name for name in C_TYPES if np.dtype(name).kind in "iu"]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_python_int_takes_the_type_of_an_integer_parameter(gpu: hearth.Device, dtype: str) -> None:
    """The kernels are templates: the sign of their parameters is known on both backends."""
    low, high, size = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max), np.dtype(dtype).itemsize
    for value in (low, min(high, 2**63 - 1), 0, 1):
        assert echoed(gpu, NAMES[dtype], value, dtype) == value
    if size == 8:
        assert echoed(gpu, NAMES[dtype], -1, dtype).view(np.int64) == -1, "as in C, and in CuPy"
        return
    for value in (low - 1, high + 1, -(2**63)):
        with pytest.raises(hearth.LaunchError, match=f"argument 1 is {value}; .* of {size} bytes") as caught:
            echoed(gpu, NAMES[dtype], value, dtype)
        assert f"np.uint{8 * size}(x)" in caught.value.fix and "np.int64(x)" in caught.value.fix
    with pytest.raises(hearth.LaunchError, match=f"has 8 bytes; .* has {size}"):
        echoed(gpu, NAMES[dtype], np.int64(1), dtype)  # a type that is named is not converted


UNSIGNED = """
extern "C" __global__ void put(unsigned value, unsigned short small, unsigned* out) { out[0] = value; out[1] = small; }
"""


def test_the_sign_of_a_parameter_of_an_extern_c_kernel(gpu: hearth.Device) -> None:
    """The CPU backend knows the sign. On a GPU it is unknown, and a Python int must fit a signed parameter."""
    put, out = gpu.RawKernel(UNSIGNED, "put"), gpu.zeros(2, np.uint32)
    put(1, 1, (2**31 - 1, 2**15 - 1, out))
    assert out.get().tolist() == [2**31 - 1, 2**15 - 1]
    put(1, 1, (np.uint32(2**32 - 1), np.uint16(2**16 - 1), out))
    assert out.get().tolist() == [2**32 - 1, 2**16 - 1]
    for args, index in (((2**31, 0, out), 0), ((0, 2**15, out), 1)):
        if BACKEND == "cpu":
            put(1, 1, args)
            assert out.get().tolist() == list(args[:2])
            continue
        with pytest.raises(hearth.LaunchError, match=f"argument {index} is .* of unknown sign") as caught:
            put(1, 1, args)
            gpu.synchronize()
        assert f"np.uint{32 >> index}(x)" in caught.value.fix
    for args in ((2**32, 0, out), (0, 2**16, out), (-(2**31) - 1, 0, out)):
        with pytest.raises(hearth.LaunchError, match="which takes a Python int from"):
            put(1, 1, args)
            gpu.synchronize()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_python_ints_are_refused_for_floating_point_parameters(gpu: hearth.Device, dtype: str) -> None:
    with pytest.raises(hearth.LaunchError, match=rf"argument 1 is an integer; .*np\.{dtype}\(x\)"):
        echoed(gpu, NAMES[dtype], 1, dtype)


def test_python_float_is_refused_for_a_float32_parameter(gpu: hearth.Device) -> None:
    with pytest.raises(hearth.LaunchError, match=r"has 8 bytes; .* has 4 \(pass np\.float32\(x\)\)"):
        echoed(gpu, NAMES["float32"], 1.5, "float32")


ADD = """
extern "C" __global__ void add(int* x, short step, const int* more) { x[threadIdx.x] += step + (more ? *more : 0); }
"""


def test_python_ints_and_none_in_every_form_of_a_launch(gpu: hearth.Device) -> None:
    add, x = gpu.RawKernel(ADD, "add"), gpu.zeros(4, np.int32)
    for step in (1, 2, 3, 4):  # the later launches are not checked again
        add((1,), (4,), (x, step, None))
    assert x.get().tolist() == [10] * 4
    with pytest.raises(hearth.LaunchError, match="argument 1 is 65536"):
        add((1,), (4,), (x, 65536, None))
        gpu.synchronize()
    x.fill(0)
    with gpu.prepared() as prepared:
        add(1, 4, (x, 5, None))
    prepared.launch(2)
    with gpu.graph() as graph:
        add(1, 4, (x, -3, None))
    graph.launch()
    graph.nodes[0].set_args((x, 7, None))
    graph.launch()
    assert x.get().tolist() == [14] * 4
    for step in (1, 2, -5):
        (out,) = gpu.dispatch(add, 1, 4, [hearth.InOut(np.zeros(4, np.int32)), step, None])
        assert out.tolist() == [step] * 4
    with pytest.raises(hearth.LaunchError, match="argument 1 is 65536"):
        gpu.dispatch(add, 1, 4, [hearth.InOut(np.zeros(4, np.int32)), 65536, None])
    with pytest.raises(hearth.LaunchError, match="argument 1 is 65536"), gpu.graph():
        add(1, 4, (x, 65536, None))


def test_a_module_with_cooperative_groups_launches_cooperatively(gpu: hearth.Device) -> None:
    code = r"""
    #include <cooperative_groups.h>
    extern "C" __global__ void count(int* x, int n) {
        atomicAdd(x, n);
        cooperative_groups::this_grid().sync();
        x[1 + blockIdx.x] = x[0];
    }"""
    x = gpu.zeros(3, np.int32)
    gpu.RawKernel(code, "count", enable_cooperative_groups=True)((2,), (4,), (x, 5))
    assert x.get().tolist() == [40, 40, 40]


def test_arrays_of_one_element_are_values(gpu: hearth.Device) -> None:
    assert echoed(gpu, NAMES["int16"], np.array([5], np.int16), "int16") == 5
    assert echoed(gpu, NAMES["float32"], np.array([[2.5]], np.float32), "float32") == 2.5


def test_array_of_one_element_with_the_size_of_an_address_is_refused(gpu: hearth.Device) -> None:
    add, x = gpu.RawKernel(ADD, "add"), gpu.zeros(4, np.int32)
    for value in (np.array([1.5]), np.array([[7]], np.int64)):
        with pytest.raises(hearth.LaunchTypeError, match="argument 2 is a NumPy array of one element of 8 bytes"):
            add(1, 4, (x, 1, value))
        with pytest.raises(hearth.LaunchTypeError, match="argument 1 is a NumPy array of one element of 8 bytes"):
            echoed(gpu, NAMES["float64"], value, "float64")
    assert echoed(gpu, NAMES["float64"], np.array([1.5]).flat[0], "float64") == 1.5


STRUCT = np.dtype([("tag", "i1"), ("weight", "f8"), ("ids", "i4", (3,)), ("flag", "?")], align=True)
STRUCTS = """
struct Item { signed char tag; double weight; int ids[3]; bool flag; };
extern "C" __global__ void open(int before, Item item, int after, double* out) {
    out[0] = before; out[1] = item.tag; out[2] = item.weight; out[3] = item.ids[0]; out[4] = item.ids[1];
    out[5] = item.ids[2]; out[6] = item.flag; out[7] = after;
}
struct __attribute__((packed)) Tight { char a; int b; };
extern "C" __global__ void tight(char before, Tight item, double* out) {
    out[0] = before; out[1] = item.a; out[2] = item.b;
}
struct alignas(16) Wide { float v[8]; };
extern "C" __global__ void wide(char before, Wide item, double* out) {
    out[0] = before; for (int i = 0; i < 8; ++i) out[1 + i] = item.v[i];
}
"""


def test_structs(gpu: hearth.Device) -> None:
    kernel = gpu.RawModule(code=STRUCTS).get_function("open")
    item = np.zeros((), STRUCT)
    item["tag"], item["weight"], item["ids"], item["flag"] = -3, 2.5, (7, 8, 9), True
    swapped = item.astype(STRUCT.newbyteorder())
    for passed in (item, item[()], swapped, swapped[()], item.tobytes(), hearth.Struct(item.tobytes(), align=8)):
        out = gpu.zeros(8, np.float64)
        kernel((1,), (1,), (np.int32(1), passed, np.int32(2), out))
        assert out.get().tolist() == [1, -3, 2.5, 7, 8, 9, 1, 2]


def test_packed_and_wide_structs(gpu: hearth.Device) -> None:
    module = gpu.RawModule(code=STRUCTS)
    item = np.array((5, -70000), np.dtype([("a", "i1"), ("b", "i4")]))
    for passed in (item, item.tobytes(), hearth.Struct(item.tobytes(), align=1)):
        out = gpu.zeros(3, np.float64)
        module.get_function("tight")((1,), (1,), (np.int8(-1), passed, out))
        assert out.get().tolist() == [-1, 5, -70000]
    values = np.arange(8, dtype=np.float32)
    for passed in (values.tobytes(), hearth.Struct(values.tobytes(), align=16)):
        out = gpu.zeros(9, np.float64)
        module.get_function("wide")((1,), (1,), (np.int8(-1), passed, out))
        assert out.get().tolist() == [-1, *range(8)]


def test_a_struct_of_four_kilobytes(gpu: hearth.Device) -> None:
    code = """
    struct Big { int v[1000]; };
    extern "C" __global__ void f(Big big, int* out) { for (int i = 0; i < 1000; ++i) out[i] = big.v[i]; }
    """
    host, out = np.arange(1000, dtype=np.int32), gpu.zeros(1000, np.int32)
    gpu.RawKernel(code, "f")((1,), (1,), (host.tobytes(), out))
    np.testing.assert_array_equal(out.get(), host)


def test_pointers_point_at_views(gpu: hearth.Device) -> None:
    code = 'extern "C" __global__ void f(const int* from, int* to, const int* null) { *to = null ? -1 : *from; }'
    f = gpu.RawKernel(code, "f")
    source, target = gpu.asarray(np.arange(10, dtype=np.int32)), gpu.zeros(10, np.int32)
    f((1,), (1,), (source[3:], target[7:], np.uint64(0)))
    assert target.get().tolist() == [0] * 7 + [3, 0, 0]
    f((1,), (1,), (source[9], target[0], np.uint64(0)))
    f((1,), (1,), (target[0:0], target[1], np.uint64(0)))  # a pointer to the end of a buffer is valid
    assert target.get()[0] == 9


@pytest.mark.parametrize(
    "value", ["text", [1], np.zeros(3), object(), np.array(["x"]), {1: 2}], ids=lambda value: type(value).__name__
)
def test_unsupported_argument_is_named(gpu: hearth.Device, value: object) -> None:
    with pytest.raises(hearth.LaunchTypeError, match="argument 1") as caught:
        echoed(gpu, NAMES["int64"], value, "int64")
    assert caught.value.fix and caught.value.details["argument"] == "1"
    gpu.synchronize()


def test_sixty_arguments_of_mixed_sizes(gpu: hearth.Device) -> None:
    rng = np.random.default_rng(4)
    dtypes = [("int8", "char"), ("float64", "double"), ("int16", "short"), ("float32", "float"), ("int64", "long long")]
    chosen = [dtypes[index] for index in rng.integers(0, len(dtypes), 60)]
    parameters = ", ".join(f"{c_type} a{i}" for i, (_, c_type) in enumerate(chosen))
    body = " ".join(f"out[{i}] = a{i};" for i in range(60))
    kernel = gpu.RawKernel(f'extern "C" __global__ void f({parameters}, double* out) {{ {body} }}', "f")
    values = [np.dtype(dtype).type(rng.integers(-100, 100)) for dtype, _ in chosen]
    out = gpu.zeros(60, np.float64)
    kernel((1,), (1,), (*values, out))
    assert out.get().tolist() == [float(value) for value in values]
