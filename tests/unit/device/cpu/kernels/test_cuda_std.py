"""libcu++ in kernels: cuda::std implemented by the host's standard library, its C++17 extras, and cuda::'s own
functions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hearth_proto.reasons import Reason, Refusal
from tests.support.cpu.kernels import Kernels

SOURCE = r"""
#include <cuda/cmath>
#include <cuda/functional>
#include <cuda/std/array>
#include <cuda/std/atomic>
#include <cuda/std/bit>
#include <cuda/std/bitset>
#include <cuda/std/cassert>
#include <cuda/std/chrono>
#include <cuda/std/complex>
#include <cuda/std/cstdint>
#include <cuda/std/expected>
#include <cuda/std/functional>
#include <cuda/std/iterator>
#include <cuda/std/limits>
#include <cuda/std/numbers>
#include <cuda/std/numeric>
#include <cuda/std/optional>
#include <cuda/std/span>
#include <cuda/std/tuple>
#include <cuda/std/type_traits>
#include <cuda/std/utility>
#include <cuda/std/variant>
#include <cuda/std/version>
#include <cuda_fp16.h>
namespace cs = cuda::std;

// The program's own names together with those of the library.
__device__ int distance = 5, count = 6;
struct span { int own; };
__device__ int size(int x) { return x + 1; }

extern "C" __global__ void bits(const unsigned* in, int* out, int n) {
    int i = threadIdx.x;
    unsigned v = in[i];
    cs::uint8_t b = cs::uint8_t(v); cs::uint64_t w = cs::uint64_t(v) << 31 | v;
    int all[] = {cs::countl_zero(v), cs::countr_zero(v), cs::countl_one(v), cs::countr_one(v), cs::popcount(v),
                 cs::has_single_bit(v), (int)cs::bit_width(v), (int)cs::bit_floor(v), (int)cs::rotl(v, 5),
                     (int)cs::rotr(v, 37),
                 cs::countl_zero(b), cs::countr_zero(b), cs::popcount(b), (int)cs::rotl(b, 3), (int)cs::rotr(b, -3),
                 (int)cs::bit_ceil(cs::uint8_t(b / 2)), cs::popcount(w), cs::countl_zero(w), (int)cs::byteswap(v),
                 (int)cs::byteswap(cs::uint16_t(v)),
                     (int)(cs::bit_cast<unsigned>(cs::bit_cast<float>(v & 0x7f7fffffu)))};
    for (int k = 0; k < 21; ++k) out[k * n + i] = all[k];
    static_assert(cs::endian::native == cs::endian::little && cs::bit_ceil(5u) == 8 && cs::popcount(255u) == 8, "");
}
__device__ int total(cs::span<const int> s) { int t = 0; for (int x : s) t += x; return t; }
template <class T> __device__ cs::optional<T> half_of(T v) {
    return v % 2 ? cs::optional<T>() : cs::optional<T>(v / 2); }
enum class Failure { odd = 3, other };
__device__ cs::expected<int, Failure> halved(int v) { if (v % 2) return cs::unexpected(Failure::odd); return v / 2; }
struct Shape { float a; };
struct Twice { template <class T> __device__ T operator()(T v) const { return v + v; } };

extern "C" __global__ void library(double* out, const int* in) {
    int k = 0;
    cs::array<int, 4> a{4, 1, 3, 2};
    int raw[6] = {1, 2, 3, 4, 5, 6};
    cs::span<int> all(raw); cs::span<int, 6> fixed(raw); cs::span deduced(a); cs::span<const int> from_array = a,
        pointer(in, 3);
    all[0] = 10;
    out[k++] = total(all) + total(from_array) + total(pointer) + total(cs::span<const int>());
    out[k++] = all.first(2).size() * 100 + all.last<3>().front() * 10 + fixed.subspan<2, 2>().back();
    out[k++] = total(all.subspan(4)) + fixed.size_bytes() + deduced.size() + *all.rbegin() + cs::as_bytes(all).size();
    static_assert(decltype(fixed)::extent == 6 && decltype(deduced)::extent == 4
        && cs::dynamic_extent == cs::size_t(-1), "");
    cs::optional<int> some = half_of(in[1]), none = half_of(7);
    out[k++] = some.value_or(-1) * 10 + none.value_or(-1) + (some ? 100 : 0) + (none == cs::nullopt ? 1000 : 0);
    auto good = halved(10), bad = halved(5);
    out[k++] = *good + int(bad.error()) * 10 + bad.value_or(7) * 100 + (good && !bad ? 1000 : 0);
    out[k++] = good.and_then(halved).error_or(Failure::other) == Failure::odd;
    out[k++] = good.transform(Twice()).value() + halved(4).transform([](int v) { return v * 0.25; }).value();
    out[k++] = cs::expected<void, int>().has_value() + 2 * (cs::expected<void, int>(cs::unexpect, 9).error() == 9);
    cs::tuple<int, double, Shape> t = cs::make_tuple(1, 2.5, Shape{3});
    auto [x, y, z] = t;
    out[k++] = x + y + z.a + cs::get<1>(t) + cs::tuple_size<decltype(t)>::value + cs::apply([](int p, double q,
        Shape) { return p * q; }, t);
    cs::variant<int, double> v = 2.5;
    out[k++] = cs::visit([](auto value) { return double(value * 2); }, v) + v.index()
        + cs::holds_alternative<double>(v);
    out[k++] = cs::accumulate(a.begin(), a.end(), 0) + cs::gcd(12, 18) + cs::lcm(4, 6) + cs::inner_product(raw,
        raw + 2, raw, 0) + cs::midpoint(1, 6);
    out[k++] = cs::numeric_limits<float>::max() == FLT_MAX && cs::numeric_limits<int>::min() == INT_MIN
        && float(cs::numeric_limits<__half>::max()) == 65504.0f;
    out[k++] = cs::is_same_v<cs::remove_cvref_t<const int&>, int> + cs::is_bounded_array_v<int[2]>
        + cs::is_same_v<cs::type_identity_t<int>, int>
             + cs::conditional_t<true, cs::true_type, cs::false_type>::value + cs::is_invocable_v<Twice, int>;
    out[k++] = cs::cmp_less(-1, 1u) + 2 * cs::in_range<cs::uint8_t>(300) + 4 * cs::cmp_greater_equal(3u, -5)
        + cs::to_underlying(Failure::odd) * 8;
    out[k++] = cs::plus<>()(1, 2.5) + cs::invoke(Twice(), 4) + cs::identity()(3) + cs::exchange(raw[1], 9)
        + raw[1] + cs::ssize(a);
    cs::pair<int, float> p(3, 4.0f); cs::swap(p.first, raw[2]);
    out[k++] = p.first + p.second + cs::get<0>(p) + cs::distance(a.begin(), a.end()) + cs::numbers::pi
        + cs::numbers::sqrt2_v<float>;
    cs::complex<double> c = cs::complex<double>(1, 2) * cs::complex<double>(3, -1);
    out[k++] = c.real() * 10 + c.imag() + cs::abs(cs::complex<float>(3, 4)) + cs::bitset<8>(0xf1).count();
    out[k++] = cuda::maximum<int>()(3, 4) + cuda::minimum<>()(2, 1.5) * 10 + cuda::maximum<>()(1u, 2ull) * 100
             + cuda::proclaim_return_type<int>([](int q) { return q * 1000; })(3);
    out[k++] = cuda::ceil_div(7, 2) + cuda::ceil_div(8u, 4ull) * 10 + cuda::round_up(9, 4) * 100
        + cuda::round_down(9, 4) * 10000
             + cuda::ilog2(1000u) * 100000 + cuda::ilog10(1000) * 10000000;
    out[k++] = cuda::ceil_div(0xfffffff0u, 0x20u) + cuda::ceil_div((unsigned char)255, (unsigned char)16);
    auto then = cs::chrono::high_resolution_clock::now();
    out[k++] = cs::chrono::duration_cast<cs::chrono::milliseconds>(cs::chrono::seconds(2)).count()
        + (then.time_since_epoch().count() > 0);
    assert(k == 21);
    out[k++] = distance + count + span{7}.own + size(1);
    out[k] = __cplusplus;
}
"""


@pytest.fixture(scope="module", params=["c++17", "c++20"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(SOURCE, [f"-std={request.param}"])


def test_bit_operations(kernels: Kernels) -> None:
    v = np.random.default_rng(0).integers(0, 2**32, 96, dtype=np.uint64) >> np.arange(96, dtype=np.uint64) % np.uint64(
        33
    )
    v[:4] = 0, 1, 2**32 - 1, 2**31
    out = np.zeros((21, 96), np.int32)
    kernels("bits", 1, 96, v.astype(np.uint32), out, np.int32(96))

    def zeros(x: int, width: int) -> tuple[int, int]:
        return width - x.bit_length(), (x & -x).bit_length() - 1 if x else width

    def rotated(x: int, by: int, width: int) -> int:
        by %= width
        return (x << by | x >> (width - by)) & (2**width - 1)

    for i, x in enumerate(v.tolist()):
        b, w, inverse = x & 255, x << 31 | x, ~x & 0xFFFFFFFF
        half = b // 2
        expected = [
            *zeros(x, 32), *zeros(inverse, 32), x.bit_count(), x.bit_count() == 1, x.bit_length(),
            1 << (x.bit_length() - 1) if x else 0, rotated(x, 5, 32), rotated(x, -37, 32), *zeros(b, 8), b.bit_count(),
            rotated(b, 3, 8), rotated(b, 3, 8), 1 if half <= 1 else 1 << (half - 1).bit_length(), w.bit_count(),
            zeros(w, 64)[0], int.from_bytes(x.to_bytes(4, "little"), "big"),
            int.from_bytes((x & 0xFFFF).to_bytes(2, "little"), "big"),
            x & 0x7F7FFFFF,
        ]  # fmt: skip
        assert (out[:, i].astype(np.uint32)).tolist() == [int(e) & 0xFFFFFFFF for e in expected], x


def test_library_in_kernels(kernels: Kernels) -> None:
    out, values = np.zeros(24), np.array([5, 6, 7], np.int32)
    kernels("library", 1, 1, out, values)
    expected = [
        30 + 10 + 18, 200 + 40 + 4, 11 + 24 + 4 + 6 + 24, 30 - 1 + 100 + 1000, 5 + 30 + 700 + 1000, 1, 10 + 0.5, 3,
        1 + 2.5 + 3 + 2.5 + 3 + 2.5, 5 + 1 + 1, 10 + 6 + 12 + (100 + 4) + 3, 1, 5, 1 + 4 + 24, 3.5 + 8 + 3 + 2 + 9 + 4,
        3 + 4 + 3 + 4 + math.pi + np.float64(np.float32(math.sqrt(2))), 5 * 10 + 5 + 5 + 5, 4 + 15 + 200 + 3000,
        4 + 20 + 1200 + 80000 + 900000 + 30000000, 0x8000000 + 16, 2001, 5 + 6 + 7 + 2,
    ]  # fmt: skip
    np.testing.assert_allclose(out[:22], expected, rtol=1e-12)
    assert out[23] == 0 and out[22] in (201703, 202002)


@pytest.mark.parametrize("header", [
    "cuda/std/mdspan", "cuda/mdspan", "cuda/annotated_ptr", "cuda/std/inplace_vector", "cuda/std/concepts",
])  # fmt: skip
def test_header_that_is_missing_is_refused_by_name(header: str) -> None:
    with pytest.raises(Refusal) as refused:
        Kernels(f"#include <{header}>\n__global__ void k() {{}}")
    assert refused.value.reason == Reason.UNSUPPORTED
    assert header.rpartition("/")[2] in str(refused.value)
