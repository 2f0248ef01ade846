// Programs in the C++ that CUDA users write.

// program constexpr_tables: 25 4 55
struct Table { int v[8]; };
constexpr __host__ __device__ Table squares() { Table t{}; for (int i = 0; i < 8; ++i) t.v[i] = i * i; return t; }
__constant__ constexpr Table table = squares();
constexpr __device__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
template <int N> struct Fib { enum : int { value = Fib<N - 1>::value + Fib<N - 2>::value }; };
template <> struct Fib<0> { enum { value = 0 }; };
template <> struct Fib<1> { enum { value = 1 }; };
extern "C" __global__ void constexpr_tables(int* out) {
    static_assert(fib(10) == 55, ""); static constexpr int local[] = {2, 4};
    out[0] = table.v[5]; out[1] = local[1]; out[2] = Fib<10>::value;
}

// program variable_templates: 6 28 3 2
template <class T> __constant__ T two_pi = T(6.28);
template <class T> __device__ T counter = T(28);
template <class A, class B> constexpr bool is_same_v = false;
template <class A> constexpr bool is_same_v<A, A> = true;
template <int... N> constexpr int product = (N * ... * 1);
template <class T> __device__ int slots[2] = {3, 4};
extern "C" __global__ void variable_templates(int* out) {
    out[0] = two_pi<int>; out[1] = (int)counter<float>; out[2] = slots<int>[0] * is_same_v<int, int> + is_same_v<int, char>; out[3] = product<1, 2>;
}

// program enums_unions_bit_fields: 2 1065353216 5 7 3
enum class Mode : unsigned char { add, mul = 2 };
union Bits { float f; unsigned u; unsigned char bytes[4]; };
struct Packed { unsigned a : 3, b : 5; int : 0; int c : 4; };
struct __align__(16) Node { union { int leaf; struct { short left, right; }; }; };
extern "C" __global__ void enums_unions_bit_fields(int* out) {
    Bits b; b.f = 1.0f; Packed p{5, 7, 3}; Node n; n.left = 1; n.right = 0;
    out[0] = static_cast<int>(Mode::mul) + !n.leaf; out[1] = b.u; out[2] = p.a; out[3] = p.b; out[4] = p.c;
}

// program namespaces: 1 2 3 4 5 6
namespace a { namespace b { __device__ int one() { return 1; } } inline namespace v2 { __device__ int two() { return 2; } } }
namespace a::c::d { struct S { static __device__ int three() { return 3; } }; __device__ int six = 6; }
namespace { __device__ int four = 4; struct Hidden { int v; }; __device__ __noinline__ int five(Hidden h) { return h.v; } }
namespace short_name = a::c::d;
using a::b::one;
extern "C" __global__ void namespaces(int* out) {
    using namespace a; using short_name::S;
    out[0] = one(); out[1] = two(); out[2] = S::three(); out[3] = four; out[4] = five(Hidden{5}); out[5] = ::a::c::d::six;
}

// program kernels_in_namespaces: 3
namespace app { namespace kernels { template <class T, int N> __global__ void __launch_bounds__(N, 2) fill(T* p) { p[threadIdx.x] = N; }
extern "C" __global__ void kernels_in_namespaces(int* out) { if (threadIdx.x == 0) out[0] = 3; } } }

// program launch_bounds_forms: 4 5
constexpr int kThreads = 128;
template <int T = 64> __global__ __launch_bounds__(T) void bounded(int* p) { p[0] = T; }
template __global__ void bounded<32>(int*);
extern "C" __global__ __launch_bounds__(kThreads, 1) void launch_bounds_forms(int* __restrict__ out) { out[0] = 4; out[1] = 5; }

// program restrict_and_attributes: 6 7 8
[[nodiscard]] __device__ __forceinline__ int add(const int* __restrict__ a, const int* __restrict b) { return *a + *b; }
__device__ __attribute__((noinline)) int slow(int v) { return v; }
struct [[maybe_unused]] alignas(16) Aligned { int v; };
template <class T> [[nodiscard]] static __host__ __device__ inline constexpr T keep(T v) noexcept { return v; }
extern "C" __global__ void restrict_and_attributes(int* __restrict__ out) {
    int a = 2, b = 4; [[maybe_unused]] int unused; out[0] = add(&a, &b); out[1] = slow(7);
    switch (a) { case 2: out[2] = 7; [[fallthrough]]; default: out[2] += keep(1); }
    static_assert(alignof(Aligned) == 16, "");
}

// program lambdas: 7 12 3 10 9
template <class F, class... A> __device__ auto call(F&& f, A&&... a) -> decltype(f(static_cast<A&&>(a)...)) { return f(static_cast<A&&>(a)...); }
extern "C" __global__ void lambdas(int* out) {
    int base = 3; auto plus = [base](int v) { return v + base; }; auto times = [&](auto v) mutable { return v * base; };
    auto fact = [](auto self, int n) -> int { return n < 2 ? 1 : n * self(self, n - 1); };
    auto init = [v = base * 3] { return v; }; int (*plain)(int) = [](int v) { return v * 5; };
    out[0] = call(plus, 4); out[1] = call(times, 4); out[2] = fact(fact, 3) / 2; out[3] = plain(2); out[4] = init();
}

// program packs_and_folds: 10 3 24 6
template <class... T> __device__ auto sum(T... v) { return (v + ... + 0); }
template <class... T> __device__ constexpr int count_of(T...) { return sizeof...(T); }
template <int... I> struct Sequence {};
template <int N, int... I> struct Make : Make<N - 1, N - 1, I...> {};
template <int... I> struct Make<0, I...> { using type = Sequence<I...>; };
template <class F, int... I> __device__ void unroll(F f, Sequence<I...>) { (f(I), ...); }
template <class T> __device__ T product_of(T v) { return v; }
template <class T, class... R> __device__ T product_of(T v, R... r) { return v * product_of(r...); }
extern "C" __global__ void packs_and_folds(int* out) {
    int total = 0; unroll([&](int i) { total += i; }, typename Make<4>::type{});
    out[0] = sum(1, 2, 3, 4); out[1] = count_of('a', 1, 2.0); out[2] = product_of(2, 3, 4); out[3] = total;
}

// program if_constexpr_and_bindings: 1 2 3 7 9
template <class T> __device__ int kind(T v) { if constexpr (sizeof(T) == 8) return 2; else if constexpr (T(-1) < T(0)) return 1; else return 3; }
struct Point { int x, y; };
extern "C" __global__ void if_constexpr_and_bindings(int* out) {
    out[0] = kind(1); out[1] = kind(1.0); out[2] = kind(1u); auto [x, y] = Point{3, 4}; out[3] = x + y; int arr[2] = {4, 5}; auto& [p, q] = arr;
    if (int s = p + q; s > 8) out[4] = s;
}

// program classes: 12 5 3 1 8
struct Shape { __device__ virtual int area() const = 0; __device__ virtual ~Shape() {} };
struct Box final : Shape { int w, h; __device__ Box(int w_, int h_) : w(w_), h(h_) {} __device__ int area() const override { return w * h; } };
template <class D> struct Crtp { __device__ int twice() const { return 2 * static_cast<const D*>(this)->value(); } };
struct Four : Crtp<Four> { __device__ int value() const { return 4; } };
class Counter { int n_ = 0; public: static constexpr int limit = 5; __device__ Counter& add(int v) & { n_ += v; return *this; } __device__ int get() const { return n_; } friend __device__ int peek(const Counter& c); };
__device__ int peek(const Counter& c) { return c.n_ - 2; }
struct Multi : Point, Four { int Point::* member = &Point::x; __device__ Multi() : Point{1, 2} {} };
extern "C" __global__ void classes(int* out) {
    Box box(3, 4); Shape& shape = box; Counter c; Multi m;
    out[0] = shape.area(); out[1] = Counter::limit; out[2] = peek(c.add(2).add(3)); out[3] = m.*m.member; out[4] = m.twice();
}

// program function_pointers: 3 -1 6
typedef int (*Binary)(int, int);
__device__ int plus(int a, int b) { return a + b; }
__device__ int minus(int a, int b) { return a - b; }
__device__ Binary operations[2] = {plus, minus};
template <int (*F)(int, int)> __device__ int apply(int a, int b) { return F(a, b); }
template <auto F> __device__ int apply_auto(int a) { return F(a, a); }
extern "C" __global__ void function_pointers(int* out) { Binary f = operations[1]; out[0] = operations[0](1, 2); out[1] = (*f)(1, 2); out[2] = apply<plus>(1, 1) + apply_auto<plus>(2); }

// program control_flow: 45 3 6 20
extern "C" __global__ void control_flow(int* out) {
    int i = 0, s = 0;
loop:
    s += i++; if (i < 10) goto loop;
    out[0] = s; do { if (i == 7) break; --i; } while (true); out[1] = i - 4;
    int v[] = {1, 2, 3}; for (int& x : v) x *= 1; int t = 0;
#pragma unroll
    for (const auto x : v) t += x;
    out[2] = t; int n = 1; while (n < 16) { n <<= 1; if (n & 1) continue; } out[3] = n == 16 ? 20 : -1;
}
