// Programs full of names that the C and C++ libraries have, and NVRTC has not.

// program functions_named_as_in_the_c_library: 4 12 1 11 19 7 47 2
__device__ int abs_diff(int a, int b); 
__device__ int strlen(const char* s) { int n = 0; while (s[n]) ++n; return n; }
__device__ void* memmove(void* d, const void* s, size_t n) { char* a = (char*)d; const char* b = (const char*)s; for (size_t i = 0; i < n; ++i) a[i] = b[i]; return d; }
__device__ int strcmp(const char* a, const char* b) { while (*a && *a == *b) ++a, ++b; return *a - *b; }
__device__ int atoi(const char* s) { int v = 0; while (*s) v = v * 10 + *s++ - '0'; return v; }
__device__ void swap(int& a, int& b) { int t = a; a = b; b = t; }
__device__ void qsort(int* v, int n) { for (int i = 0; i < n; ++i) for (int j = i + 1; j < n; ++j) if (v[j] < v[i]) swap(v[i], v[j]); }
__device__ unsigned rand(unsigned& s) { return s = s * 1664525u + 1013904223u; } __device__ float drand48() { return 0.5f; }
__device__ int puts(const char*) { return 5; } __device__ int exit(int v) { return v; } __device__ int abort() { return 2; } __device__ int sleep() { return 1; }
__device__ float significand(float x) { return x; } __device__ float pow10(float x) { return 10 * x; } __device__ bool finite(float x) { return true; } __device__ float scalb(float a, float b) { return a * b; } __device__ float fract(float x) { return x - floorf(x); } __device__ int isalpha(int c) { return 1; }
__device__ float lerp(float a, float b, float t) { return a + t * (b - a); } __device__ int clamp(int v, int a, int b) { return min(max(v, a), b); } __device__ int gcd(int a, int b) { return b ? gcd(b, a % b) : a; } __device__ float mix(float a) { return a; } __device__ float step(float a, float b) { return a < b; } __device__ int sign(float v) { return v > 0; } __device__ float rsqrt_(float) { return 1; } __device__ int popcount(unsigned v) { return __popc(v); } __device__ int bswap_32(int v) { return v; } __device__ int ffsl(long v) { return 1; } __device__ int signbit_(float f) { return 0; } __device__ int data(int* p) { return *p; } __device__ int size(int* p) { return 1; } __device__ int* begin(int* p) { return p; } __device__ int move(int v) { return v; } __device__ int forward(int v) { return v; } __device__ int distance(int a, int b) { return b - a; } __device__ int count(int v) { return v; } __device__ int byte = 3; __device__ int get(int v) { return v; } __device__ int hash(int v) { return v * 31; } __device__ int plus(int a, int b) { return a + b; } 
extern "C" __global__ void functions_named_as_in_the_c_library(int* p) { int v[] = {3, 1, 2}; qsort(v, 3); p[0] = v[0] + strlen("abc"); p[1] = strcmp("a", "a") + atoi("12"); unsigned s = 1; p[2] = rand(s) != 0; p[3] = puts("x") + exit(3) + abort() + sleep(); p[4] = (int)(significand(1) + pow10(1) + scalb(2, 3)) + finite(1) + isalpha(3); p[5] = clamp(5, 1, 3) + gcd(6, 4) + (int)lerp(0, 4, 0.5f); p[6] = data(v) + size(v) + *begin(v) + move(1) + forward(2) + distance(1, 3) + count(1) + byte + get(1) + hash(1) + plus(1, 2); memmove(v, v + 1, 4); p[7] = v[0]; }

// program names_of_libc_headers: 6 4 5 21 1 3 1 5
__device__ int __try(int __P) { return __P; } __device__ int __N, __wur, __u, __always_inline_; 
__device__ int major = 1, minor = 2, makedev = 3, environ = 4, errno = 5, signgam = 6, daylight = 7, tzname = 8, optarg, sys_nerr;
struct option { int x; }; struct stat { int y; }; struct passwd; union wait { int w; }; struct FILE { int fd; }; struct div_t { int q; }; 
typedef struct lldiv_t { long long q; } lldiv_t; typedef int pid_t; typedef float off_t; typedef int mode_t; struct nullptr_t {}; struct max_align_t {}; 
template <class T> struct vector { T v; }; struct string {}; struct exception {}; namespace chrono { typedef int rep; } namespace literals { struct A {}; } namespace ranges { enum { a = 1 }; } 
namespace __gnu_cxx { struct X { int v; }; } namespace std_ { }
extern "C" __global__ void names_of_libc_headers(int* p) { p[0] = major + minor + makedev; p[1] = environ; p[2] = errno; p[3] = signgam + daylight + tzname; off_t o = 1.5f; p[4] = o * 2 == 3; FILE f{3}; p[5] = f.fd; stat s{1}; p[6] = s.y; p[7] = __try(3) + ranges::a + __gnu_cxx::X{1}.v; }

// program argument_dependent_lookup: 6 6 9 4 6 7 6 2
namespace ns { struct T { int v; }; __device__ int index(T t) { return t.v; } __device__ T max(T a, T b) { return a.v > b.v ? a : b; } __device__ T& operator<<(T& t, int v) { t.v += v; return t; } struct Functor { template <class U> __device__ int operator()(U u) const { return index(u); } }; }
template <class F> __device__ int go(F f) { return f(ns::T{4}); }
__device__ int time(ns::T t) { return t.v; }
struct Global { int v; }; __device__ int index(Global g) { return g.v; } __device__ int read(Global g, int n) { return g.v * n; }
template <class X> __device__ int generic(X x) { return index(x) + 1; }
extern "C" __global__ void argument_dependent_lookup(int* p) { ns::T t{1}; t << 2 << 3; p[0] = t.v; p[1] = index(t); p[2] = max(t, ns::T{9}).v; p[3] = go(ns::Functor()); p[4] = time(t); p[5] = generic(Global{6}); p[6] = read(Global{2}, 3); p[7] = max(1, 2); }

// program macros_and_reserved_names: 3 3 2147483647 7 3 8 9 3
#define EOF 3
#define M_PI 3.14159f
#ifndef INT_MAX
#define INT_MAX 0x7fffffff
#endif
#ifndef NULL
#define NULL 0
#endif
#define assert(x)
#define offsetof(t, m) 7
enum Kind { I, _A, _B, _C, _L, _S, _N, _X, BIG_ENDIAN, stdout };
struct __STRING_ { int __unused; };
template <int _Tp> struct Q { enum { v = _Tp }; };
template <typename _T, int _N_> struct R { _T __x[_N_]; };
extern "C" __global__ void macros_and_reserved_names(int* p) { p[0] = EOF; p[1] = (int)M_PI; p[2] = INT_MAX; assert(false); p[3] = offsetof(a, b); p[4] = _C; p[5]=BIG_ENDIAN; p[6]=stdout; __STRING_ s{1}; p[7] = s.__unused + Q<2>::v; }
