// Programs in the manner of libraries: Kokkos, CUTLASS, Thrust, CUB, and of their users.

// program in_the_manner_of_cutlass: 24 3 2
namespace cutlass_like {
template <int M_, int N_> struct Shape { static constexpr int kM = M_, kN = N_; static constexpr int kCount = M_ * N_; };
template <typename T, int N> struct Array { T storage[N]; __device__ T& operator[](int i) { return storage[i]; } __device__ T const& operator[](int i) const { return storage[i]; } static constexpr int kElements = N; };
template <typename Shape_, typename T> struct Fragment { using Shape = Shape_; using Element = T; Array<T, Shape::kCount> data; __device__ void clear() {
    #pragma unroll
    for (int i = 0; i < Shape::kCount; ++i) data[i] = T(0); } };
template <typename Shape_, typename T> struct DefaultPolicy { using Shape = Shape_; using Fragment = cutlass_like::Fragment<Shape, T>; struct Params { T alpha; int n; }; };
template <typename Policy> struct Gemm {
    using Params = typename Policy::Params; using Fragment = typename Policy::Fragment;
    union SharedStorage { typename Policy::Shape shape; int raw; };
    __device__ Gemm() {}
    __device__ int operator()(Params const& params) const { Fragment f; f.clear(); for (int k = 0; k < params.n; ++k) for (int i = 0; i < Fragment::Shape::kCount; ++i) f.data[i] += params.alpha; int s = 0; for (int i = 0; i < decltype(f.data)::kElements; ++i) s += f.data[i]; return s; }
};
}
extern "C" __global__ void in_the_manner_of_cutlass(int* out) {
    using Op = ::cutlass_like::Gemm<::cutlass_like::DefaultPolicy<::cutlass_like::Shape<2, 3>, int>>;
    Op op; typename Op::Params params{2, 2}; out[0] = op(params); out[1] = Op::Fragment::Shape::kN; out[2] = cutlass_like::Shape<2, 3>::kM;
}

// program in_the_manner_of_kokkos: 10 5 9
namespace kokkos_like {
struct LayoutLeft {}; struct LayoutRight {};
template <class T, class Layout = LayoutRight> class View;
template <class T> class View<T**, LayoutRight> { T* p_; int m_; public: __device__ View(T* p, int m) : p_(p), m_(m) {} __device__ T& operator()(int i, int j) const { return p_[i * m_ + j]; } };
template <class T> class View<T**, LayoutLeft> { T* p_; int n_; public: __device__ View(T* p, int n) : p_(p), n_(n) {} __device__ T& operator()(int i, int j) const { return p_[j * n_ + i]; } };
template <class Functor> __device__ void parallel_for(int n, Functor const& functor) { for (int i = 0; i < n; ++i) functor(i); }
template <class Functor, class Result> __device__ void parallel_reduce(int n, Functor const& functor, Result& result) { Result update = Result(); for (int i = 0; i < n; ++i) functor(i, update); result = update; }
struct Fill { View<int**, LayoutLeft> v; __device__ void operator()(const int i) const { v(i % 2, i / 2) = i; } };
}
extern "C" __global__ void in_the_manner_of_kokkos(int* out) {
    using namespace kokkos_like; int cells[6]; View<int**, LayoutLeft> left(cells, 2); View<int**> right(cells, 3);
    parallel_for(6, Fill{left}); int total; parallel_reduce(5, [=](int i, int& update) { update += i; }, total);
    out[0] = total; out[1] = right(1, 2); out[2] = left(0, 2) + left(1, 2);
}

// program in_the_manner_of_thrust: 15 120 4 2
namespace thrust_like {
template <class T = void> struct plus { typedef T first_argument_type; __host__ __device__ constexpr T operator()(const T& a, const T& b) const { return a + b; } };
template <> struct plus<void> { template <class A, class B> __host__ __device__ constexpr auto operator()(A&& a, B&& b) const -> decltype(a + b) { return a + b; } };
template <class It, class T, class Op> __host__ __device__ T reduce(It first, It last, T init, Op op) { for (; first != last; ++first) init = op(init, *first); return init; }
template <class T> struct counting_iterator { T v; __device__ T operator*() const { return v; } __device__ counting_iterator& operator++() { ++v; return *this; } __device__ bool operator!=(const counting_iterator& o) const { return v != o.v; } };
template <class A, class B> struct pair { A first; B second; };
template <class A, class B> __device__ pair<A, B> make_pair(A a, B b) { return {a, b}; }
template <class It, class P> __device__ int count_if(It first, It last, P pred) { int n = 0; while (first != last) { n += pred(*first) ? 1 : 0; ++first; } return n; }
}
extern "C" __global__ void in_the_manner_of_thrust(int* out) {
    namespace t = thrust_like; t::counting_iterator<int> first{1}, last{6};
    out[0] = t::reduce(first, last, 0, t::plus<int>()); out[1] = t::reduce(first, last, 1, [](int a, int b) { return a * b; });
    out[2] = t::reduce(first, last, 0, t::plus<>()) - 11; out[3] = t::count_if(first, last, [](int v) { return v % 2 == 0; }) * t::make_pair(1, 'c').first;
}

// program tag_dispatch_and_sfinae: 1 2 3 4
template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <class T> struct is_float { static constexpr bool value = false; };
template <> struct is_float<float> { static constexpr bool value = true; };
template <class T> __device__ typename enable_if<is_float<T>::value, int>::type which(T) { return 1; }
template <class T> __device__ typename enable_if<!is_float<T>::value, int>::type which(T) { return 2; }
template <class> using void_t = void;
template <class T, class = void> struct has_size { static constexpr int value = 0; };
template <class T> struct has_size<T, void_t<decltype(T().size)>> { static constexpr int value = 3; };
struct Sized { int size; };
struct slow_tag {}; struct fast_tag : slow_tag {};
__device__ int path(slow_tag) { return 0; }
__device__ int path(fast_tag) { return 4; }
extern "C" __global__ void tag_dispatch_and_sfinae(int* out) { out[0] = which(1.0f); out[1] = which(1); out[2] = has_size<Sized>::value + has_size<int>::value; out[3] = path(fast_tag()); }

// program template_templates: 6 3 2
template <class T> struct Vec { T v[3]; };
template <template <class> class C, class T> struct Rebind { using type = C<T>; };
template <class T, template <class> class... P> struct Host : P<T>... { static constexpr int policies = sizeof...(P); };
template <class T> struct PolicyA { T a; }; template <class T> struct PolicyB { T b; };
template <typename T, T... V> struct Constants { static constexpr T sum = (V + ...); };
extern "C" __global__ void template_templates(int* out) { out[0] = Constants<int, 1, 2, 3>::sum; out[1] = sizeof(typename Rebind<Vec, char>::type); out[2] = Host<int, PolicyA, PolicyB>::policies; }

// program grid_stride_and_shared: 496 32 31
template <typename T, unsigned N> struct Tile { T cells[N]; };
extern "C" __global__ void grid_stride_and_shared(int* out) {
    __shared__ Tile<int, 32> tile; __shared__ int total, most;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < 32; i += gridDim.x * blockDim.x) tile.cells[i] = i;
    if (threadIdx.x == 0) { total = 0; most = 0; }
    __syncthreads();
    atomicAdd(&total, tile.cells[31 - threadIdx.x]); atomicMax(&most, tile.cells[threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) { out[0] = total; out[1] = blockDim.x; out[2] = most; }
}

// program warp_reduction: 496 31 32
template <typename T, typename Op> __device__ T warp_fold(T v, Op op) {
#pragma unroll
    for (int offset = warpSize / 2; offset > 0; offset >>= 1) v = op(v, __shfl_down_sync(0xffffffffu, v, offset));
    return v;
}
extern "C" __global__ void warp_reduction(int* out) {
    int v = threadIdx.x; int total = warp_fold(v, [](int a, int b) { return a + b; }); int most = warp_fold(v, [](int a, int b) { return max(a, b); });
    unsigned ballot = __ballot_sync(~0u, v >= 0);
    if (threadIdx.x == 0) { out[0] = total; out[1] = most; out[2] = __popc(ballot); }
}

// program cupy_like: 5 6 8
#define CUPY_DEVICE __device__ __forceinline__
template <typename T> class CArray { T* data; int size_; public: typedef T value_type; CUPY_DEVICE CArray(T* d, int n) : data(d), size_(n) {} CUPY_DEVICE int size() const { return size_; } CUPY_DEVICE T& operator[](int i) { return data[i]; } };
#define CUPY_FOR(i, n) for (ptrdiff_t i = 0; i < (n); ++i)
template <typename T> CUPY_DEVICE T elementwise(CArray<T>& a) { T s = 0; CUPY_FOR(i, a.size()) { T& x = a[i]; { x += 1; } s += x; } return s; }
typedef int type_in0_raw; typedef float type_out0_raw;
extern "C" __global__ void cupy_like(int* out) { type_in0_raw cells[2] = {1, 2}; CArray<type_in0_raw> a(cells, 2); out[0] = elementwise(a); out[1] = (type_out0_raw)(a[0] * a[1]); out[2] = a.size() * 4; }

// program pytorch_like: 3 6 2 7
namespace c10 { template <typename T> struct alignas(sizeof(T) * 2) complex { T re, im; __host__ __device__ constexpr complex(T r = T(), T i = T()) : re(r), im(i) {}
    template <typename U> __host__ __device__ explicit constexpr complex(const complex<U>& o) : re(o.re), im(o.im) {}
    __device__ complex& operator*=(const complex& o) { T r = re * o.re - im * o.im; im = re * o.im + im * o.re; re = r; return *this; } };
template <typename T> __device__ complex<T> operator*(complex<T> a, const complex<T>& b) { return a *= b; }
template <typename T, int N> struct alignas(sizeof(T) * N) aligned_vector { T val[N]; }; }
template <typename scalar_t> __device__ scalar_t op(scalar_t a, scalar_t b) { return a * b; }
extern "C" __global__ void pytorch_like(int* out) {
    auto z = op(c10::complex<float>(1, 2), c10::complex<float>(3, 0)); out[0] = (int)z.re; out[1] = (int)z.im;
    auto* v = reinterpret_cast<c10::aligned_vector<int, 2>*>(out + 2); c10::aligned_vector<int, 2> w; w.val[0] = 2; w.val[1] = 7; *v = w;
}

// program random_generator: 1 1
struct xorwow { unsigned d, v[5]; };
__device__ unsigned next(xorwow& s) { unsigned t = s.v[0] ^ (s.v[0] >> 2); for (int i = 0; i < 4; ++i) s.v[i] = s.v[i + 1]; s.v[4] = (s.v[4] ^ (s.v[4] << 4)) ^ (t ^ (t << 1)); return s.v[4] + (s.d += 362437); }
__device__ float uniform(xorwow& s) { return next(s) * 2.3283064e-10f; }
extern "C" __global__ void random_generator(int* out) { xorwow s{6615241, {123456789, 362436069, 521288629, 88675123, 5783321}}; float u = uniform(s); out[0] = u >= 0 && u <= 1; out[1] = next(s) != next(s); }

// program optional_and_variant: 5 -1 2
template <class T> class optional { union { char none_; T value_; }; bool has_; public: __device__ constexpr optional() : none_(), has_(false) {} __device__ constexpr optional(T v) : value_(v), has_(true) {} __device__ explicit operator bool() const { return has_; } __device__ T value_or(T o) const { return has_ ? value_ : o; } };
template <class... T> struct max_size; template <class T> struct max_size<T> { enum { value = sizeof(T) }; };
template <class T, class... R> struct max_size<T, R...> { enum { rest = max_size<R...>::value, value = sizeof(T) > rest ? sizeof(T) : rest }; };
template <class... T> struct variant { alignas(T...) unsigned char bytes[max_size<T...>::value]; int index; };
extern "C" __global__ void optional_and_variant(int* out) { optional<int> some(5), nothing; variant<int, double> v; v.index = 2; out[0] = some.value_or(0); out[1] = nothing ? 1 : nothing.value_or(-1); out[2] = v.index * (sizeof(v.bytes) == 8); }

// program recursion_and_static: 120 8 1
__device__ int factorial(int n);
__device__ int factorial(int n) { return n <= 1 ? 1 : n * factorial(n - 1); }
__device__ __noinline__ int ackermann(int m, int n) { return m == 0 ? n + 1 : n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1)); }
extern "C" __global__ void recursion_and_static(int* out) { static const int kOne = 1; out[0] = factorial(5); out[1] = ackermann(2, 2) + kOne; out[2] = sizeof(__func__) > 4; }

// program managed_and_extern: 3 8 2
extern __device__ int later; extern __constant__ float weights[4];
__managed__ int shared_with_host = 3; static __constant__ int2 offsets[] = {{1, 2}, {3, 4}};
__device__ volatile int ticket = 2; __device__ const char message[] = "hi"; __device__ int target = 3; __device__ int* pointer = &target;
extern "C" __global__ void managed_and_extern(int* out) { out[0] = *pointer * shared_with_host - 6; out[1] = later + offsets[1].y + (int)weights[1] + (message[0] == 'h') ; out[2] = ticket; }
__device__ int later = 1; __constant__ float weights[4] = {1, 2};
