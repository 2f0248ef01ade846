// Programs that overload CUDA's functions and operators, and bring the atomic functions that CUDA lacks.

// program vector_operators: 5 7 9 11 3 10
inline __host__ __device__ float4 operator+(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
inline __host__ __device__ void operator+=(float4& a, float b) { a.x += b; a.y += b; a.z += b; a.w += b; }
inline __host__ __device__ float4 operator*(float s, const float4& a) { return make_float4(s * a.x, s * a.y, s * a.z, s * a.w); }
__device__ inline float2 operator-(float2 a) { return make_float2(-a.x, -a.y); }
__device__ inline bool operator==(int2 a, int2 b) { return a.x == b.x && a.y == b.y; }
__device__ inline float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
__device__ inline float dot(float2 a, float2 b) { return a.x * b.x + a.y * b.y; }
extern "C" __global__ void vector_operators(int* out) {
    float4 v = make_float4(1, 2, 3, 4) + make_float4(4, 5, 6, 7);
    v += 1.0f; v = v + (-1.0f) * make_float4(1, 1, 1, 1);
    out[0] = v.x; out[1] = v.y; out[2] = v.z; out[3] = v.w;
    out[4] = (make_int2(1, 2) == make_int2(1, 2)) + 2; out[5] = (int)dot(make_float2(1, 3), -make_float2(-1, -3));
}

// program operators_found_from_a_namespace: 8 6
namespace inner {
struct V { int v; };
__device__ V operator+(V a, V b) { return {a.v + b.v}; }
__device__ float4 twice(float4 a) { return a + a; }
template <class T> __device__ T sum(T a, T b) { return a + b; }
}
extern "C" __global__ void operators_found_from_a_namespace(int* out) {
    out[0] = (int)inner::twice(make_float4(4, 0, 0, 0)).x; out[1] = inner::sum(inner::V{2}, inner::V{4}).v;
}

// program overloads_of_math_functions: 3 2 7 5 4 2 1
inline __device__ float3 floor(float3 v) { return make_float3(floorf(v.x), floor(v.y), floorf(v.z)); }
inline __device__ float2 max(float2 a, float2 b) { return make_float2(max(a.x, b.x), fmaxf(a.y, b.y)); }
inline __device__ float2 fabs(const float2& v) { return make_float2(fabs(v.x), fabsf(v.y)); }
template <class T> struct Dual { T re, du; };
template <class T> __device__ Dual<T> sqrt(Dual<T> a) { T r = sqrt(a.re); return {r, a.du / (2 * r)}; }
template <class T> __device__ Dual<T> pow(Dual<T> a, int n) { return {T(pow(a.re, n)), n * a.du}; }
__device__ int round(int v, int step) { return (v + step / 2) / step * step; }
__device__ float y0(float x, int) { return x; }
extern "C" __global__ void overloads_of_math_functions(int* out) {
    out[0] = (int)floor(make_float3(1, 3.5f, 2)).y; out[1] = (int)floor(2.5f); out[2] = (int)max(make_float2(1, 7), make_float2(2, 5)).y;
    out[3] = max(5, 3); out[4] = (int)sqrt(Dual<float>{16.0f, 8}).re; out[5] = (int)fabs(-2.0); out[6] = round(1.4) == round(3, 4) - 3;
}

// program templates_over_math_functions: 4 3
template <class T> __device__ T abs(const Dual<T>& v) { return v.re < 0 ? -v.re : v.re; }
namespace math { template <class T> __device__ T norm(T v) { return abs(v); } __device__ int min(int a, int b, int c) { return ::min(::min(a, b), c); } }
extern "C" __global__ void templates_over_math_functions(int* out) {
    out[0] = abs(Dual<int>{-4, 0}); out[1] = math::min(5, 3, 4) * math::norm(-1);
}

// program own_atomics: 9 -2 40 6 5 3
__device__ float atomicMax(float* p, float v) {
    int seen = __float_as_int(*p), assumed;
    do { assumed = seen; if (__int_as_float(assumed) >= v) break; seen = atomicCAS((int*)p, assumed, __float_as_int(v)); } while (seen != assumed);
    return __int_as_float(seen);
}
__device__ double atomicMin(double* p, double v) {
    unsigned long long* bits = (unsigned long long*)p; unsigned long long seen = *bits, assumed;
    do { assumed = seen; seen = atomicCAS(bits, assumed, (unsigned long long)__double_as_longlong(fmin(v, __longlong_as_double(assumed)))); } while (assumed != seen);
    return __longlong_as_double(seen);
}
__device__ long atomicAdd(long* p, long v) { return (long)atomicAdd((unsigned long long*)p, (unsigned long long)v); }
static inline __device__ long long atomicAdd(long long* p, long long v) { return (long long)atomicAdd((unsigned long long*)p, (unsigned long long)v); }
__device__ unsigned char atomicAdd(unsigned char* p, unsigned char v) { unsigned char old = *p; *p = old + v; return old; }
__device__ bool atomicExch(bool* p, bool v) { bool old = *p; *p = v; return old; }
__device__ double atomicExch_block(double* p, double v) { double old = *p; *p = v; return old; }
__device__ void atomicAdd(int3* p, int3 v) { atomicAdd(&p->x, v.x); atomicAdd(&p->y, v.y); atomicAdd(&p->z, v.z); }
__device__ float highest; __device__ double lowest; __device__ long total; __device__ int3 triple;
extern "C" __global__ void own_atomics(int* out) {
    if (threadIdx.x != 0) return;
    atomicMax(&highest, 9.0f); atomicMin(&lowest, -2.0); long before = atomicAdd(&total, 40L); atomicAdd(&triple, make_int3(1, 2, 3));
    unsigned char byte = 5; atomicAdd(&byte, (unsigned char)1); bool flag = true; flag = atomicExch(&flag, false); double d = 5;
    out[0] = (int)highest; out[1] = (int)lowest; out[2] = (int)(before + total); out[3] = byte * flag; out[4] = (int)atomicExch_block(&d, 1.0); out[5] = triple.z;
}

// program overloads_of_intrinsics: 3 4 12 5
struct alignas(8) Pair { int a, b; };
__device__ Pair __ldg(const Pair* p) { int2 v = __ldg((const int2*)p); return {v.x, v.y}; }
__device__ inline float2 __shfl_xor_sync(unsigned mask, float2 v, int lane) { return make_float2(__shfl_xor_sync(mask, v.x, lane), __shfl_xor_sync(mask, v.y, lane)); }
__device__ float2 make_float2(float4 v) { return make_float2(v.x, v.y); }
__device__ int __popc(int2 v) { return __popc(v.x) + __popc(v.y); }
extern "C" __global__ void overloads_of_intrinsics(int* out) {
    Pair pair{3, 4}; pair = __ldg(&pair);
    out[0] = pair.a; out[1] = pair.b; out[2] = __popc(make_int2(255, 15)); out[3] = (int)make_float2(make_float4(5, 6, 7, 8)).x;
}

// program redeclared_builtins: 2 1
__device__ double sin(double);
extern "C" __device__ int printf(const char*, ...);
extern "C" __device__ void* malloc(size_t);
__device__ float rsqrtf(float);
extern "C" __global__ void redeclared_builtins(int* out) {
    int* p = (int*)malloc(8); *p = 2; out[0] = *p; free(p); out[1] = (int)(sin(0.0) + rsqrtf(1.0f));
}

// program comparison_and_conversion: 1 2 3 0
struct Fixed {
    int bits;
    __device__ explicit Fixed(float v) : bits((int)(v * 256)) {}
    __device__ operator int() const { return bits / 256; }
    __device__ Fixed& operator++() { bits += 256; return *this; }
    __device__ Fixed operator++(int) { Fixed old = *this; ++*this; return old; }
    __device__ friend bool operator<(Fixed a, Fixed b) { return a.bits < b.bits; }
    __device__ int operator()(int i) const { return i; }
    __device__ int operator[](int i) const { return bits >> i & 1; }
};
__device__ constexpr int operator"" _k(unsigned long long v) { return (int)v * 1000; }
extern "C" __global__ void comparison_and_conversion(int* out) {
    Fixed f(1.5f); int before = f++;
    out[0] = before; out[1] = f; out[2] = f(3) + (f < Fixed(0.0f)); out[3] = f[0] + (2_k == 1999);
}

// program user_operator_new: 6 7
struct Arena { char bytes[64]; int used; };
__device__ void* operator new(size_t n, Arena& arena) { void* p = arena.bytes + arena.used; arena.used += (int)n; return p; }
struct Pooled {
    int v;
    __device__ static void* operator new(size_t n) { return malloc(n); }
    __device__ static void operator delete(void* p) { free(p); }
};
extern "C" __global__ void user_operator_new(int* out) {
    Arena arena; arena.used = 0; int* p = new (arena) int(6); out[0] = *p; Pooled* q = new Pooled; q->v = 7; out[1] = q->v; delete q;
}

// program placement_new_and_heap: 3 2 5 9
struct Counted { int v; __device__ Counted(int x) : v(x) {} __device__ virtual int twice() const { return 2 * v; } __device__ virtual ~Counted() {} };
struct Derived : Counted { using Counted::Counted; __device__ int twice() const override { return 5; } };
extern "C" __global__ void placement_new_and_heap(int* out) {
    alignas(8) char room[64]; Counted* a = new (room) Counted(3); out[0] = a->v; a->~Counted();
    int* q = new int[3]{1, 2, 3}; out[1] = q[1]; delete[] q; Counted* d = new Derived(9); out[2] = d->twice(); out[3] = d->v; delete d;
}

// program overloads_through_a_using_directive: 6 3 4 2
namespace mine { __device__ float max(float a, float b) { return a > b ? a : b; } __device__ double sqrt(double v) { return 7; } __device__ int rand() { return 4; } typedef unsigned long long time_t; }
namespace elsewhere { using namespace mine; using mine::time_t;
extern "C" __global__ void overloads_through_a_using_directive(int* p) { p[0] = (int)max(1, 2) + rand(); time_t t = 3; p[1] = t; { using ::max; p[2] = (int)max(3, 4); } p[3] = (int)::sqrt(4.0); } }
