// Programs whose names the C library, or the backend, has too. After each `program`: what its kernel leaves in `out`.
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned int uint;
typedef uint64_t uintptr_t;
typedef int64_t intptr_t;
typedef long long intmax_t;

// program fixed_width_types: 8 1 1 -1 8
template <class A, class B> struct Same { static const bool value = false; };
template <class A> struct Same<A, A> { static const bool value = true; };
__device__ int64_t widen(int64_t v) { return v; }
__device__ long long through_pointer(int64_t* p) { return *p; }
extern "C" __global__ void fixed_width_types(int* out) {
    int64_t v = -1;
    long long* same = &v;
    out[0] = sizeof(uint64_t); out[1] = Same<int64_t, long long>::value; out[2] = Same<uint64_t, unsigned long long>::value;
    out[3] = (int)widen(through_pointer(same)); out[4] = sizeof(uintptr_t);
}

// program variables_of_the_c_library: 3 4 5 6 14
__device__ int time = 3;
__constant__ int index[2] = {4, 40};
static __device__ int stdin = 5, *signgam;
__device__ struct { int seconds; } timezone = {6};
extern "C" __global__ void variables_of_the_c_library(int* out) {
    out[0] = time; out[1] = index[0]; out[2] = stdin; out[3] = timezone.seconds; out[4] = ::time + ::index[0] + 7;
    signgam = out;
}

// program functions_of_the_c_library: 12 -1 7 9 2 5
__device__ int read(int a, int b) { return a * b; }
__device__ inline int select(bool which, int a, int b) { return which ? a : b; }
static __device__ int ffs(int) { return 7; }
extern "C" __device__ int toupper(int c) { return c + 1; }
extern "C" {
__device__ int div(int a, int b);
__device__ double gamma(double x) { return 2.5 * x; }
}
__device__ int div(int a, int b) { return a / b; }
extern "C" __global__ void functions_of_the_c_library(int* out) {
    out[0] = read(3, 4); out[1] = select(false, 1, -1); out[2] = ffs(8); out[3] = toupper(8);
    out[4] = ::div(5, 2); out[5] = (int)gamma(2.0);
}

// program types_of_the_c_library: 1 2 3 4 5 6
struct tm { int hour; };
class timespec { public: __device__ int at() const { return 2; } };
enum signal { SIGNAL_OFF, SIGNAL_ON = 3 };
enum class pipe : int { in = 4, out = 40 };
union sigval { int bits; float value; };
using fpos_t = int;
typedef struct { int quot; } ldiv_t;
extern "C" __global__ void types_of_the_c_library(int* out) {
    tm t{1}; timespec s; signal g = SIGNAL_ON; sigval v; v.bits = 5; fpos_t f = 6; ldiv_t l = {1};
    out[0] = t.hour * l.quot; out[1] = s.at(); out[2] = g; out[3] = (int)pipe::in; out[4] = v.bits; out[5] = f;
}

// program enumerators_and_macros: 0 1 2 3 2 4 9
enum Number { NAN, INFINITY, EOF, M_PI };
__constant__ float FLT_MAX = 2.0f;
struct Limits { int INT_MAX, linux; __device__ int clock() const { return INT_MAX + linux; } };
extern "C" __global__ void enumerators_and_macros(int* out) {
    Limits limits{1, 3};
    int BUFSIZ = 9;
    out[0] = NAN; out[1] = INFINITY; out[2] = EOF; out[3] = M_PI; out[4] = (int)FLT_MAX; out[5] = limits.clock();
    out[6] = BUFSIZ;
}

// program members_keep_their_names: 1 2 3 4 5
struct Device {
    int read, write;
    __device__ int open() const { return read + write; }
    __device__ static int close() { return 4; }
    struct stat { int size; };
};
extern "C" __global__ void members_keep_their_names(int* out) {
    Device device{1, 2}; Device::stat stat{5};
    out[0] = device.read; out[1] = (&device)->write; out[2] = device.open(); out[3] = Device::close(); out[4] = stat.size;
}

// program names_in_namespaces: 1 2 3 6
namespace posix { struct random { int v; }; __device__ int pause(int v) { return v; } __device__ int sync = 3; }
using namespace posix;
extern "C" __global__ void names_in_namespaces(int* out) {
    random r{1};
    out[0] = r.v; out[1] = pause(2); out[2] = sync; out[3] = ::posix::pause(::posix::sync) + posix::random{3}.v;
}

// program kernel_named_as_a_c_function: 11
extern "C" __global__ void rename(int* out) { out[0] = 11; }
extern "C" __global__ void kernel_named_as_a_c_function(int* out) { out[0] = 11; }

// program helpers_of_the_backend: 1 2 3 4 5
struct Index { int i; };
template <class T> struct Layout { T t; };
struct Kernel { int k; };
__device__ int relax(int v) { return v; }
__device__ int saturate(int v) { return v > 4 ? 4 : v; }
enum Vote { none, count = 5 };
extern "C" __global__ void helpers_of_the_backend(int* out) {
    out[0] = Index{1}.i; out[1] = Layout<int>{2}.t; out[2] = Kernel{3}.k; out[3] = saturate(relax(9)); out[4] = count;
}

// program locals_and_parameters: 21
template <int time> __device__ int scaled(int y0, int (*log)(int), int& floor) { return time * (y0 + log(floor)); }
__device__ int identity(int v) { return v; }
extern "C" __global__ void locals_and_parameters(int* out) {
    int y1 = 3, exp = 4;
    auto sin = [](int v) { return v; };
    out[0] = scaled<3>(sin(y1), identity, exp);
}

// program known_without_an_include: 1 710 4 3 24 1
extern "C" __global__ void known_without_an_include(int* out) {
    cudaExtent extent = {1, 2, 3}; cudaPos pos = {4, 0, 0}; cudaPitchedPtr pitched; pitched.pitch = extent.depth;
    cudaStream_t stream = 0; cudaError_t error = cudaErrorAssert; cudaMemcpyKind kind = cudaMemcpyDefault;
    out[0] = (int)extent.width; out[1] = error; out[2] = kind; out[3] = (int)pitched.pitch;
    out[4] = (int)sizeof(extent) + (stream != 0) + cudaSuccess; out[5] = pos.x == 4;
}

// program compiler_barriers: 7
extern "C" __global__ void compiler_barriers(int* out) {
    out[0] = 3; asm volatile("" ::: "memory"); asm(""); asm volatile("" : : : "memory"); out[0] += 4;
}

// program predefined_macros: 1 1 1 1 1
extern "C" __global__ void predefined_macros(int* out) {
#if defined(__CUDACC__) && defined(__CUDACC_RTC__) && defined(__CUDA_ARCH__) && defined(__CUDACC_VER_MAJOR__)
    out[0] = 1;
#endif
    out[1] = __CUDA_ARCH__ >= 600;
#if defined(__CUDA_FTZ) && defined(__CUDA_PREC_DIV) && defined(__CUDA_PREC_SQRT)
    out[2] = 1;
#endif
#if !defined(linux) && !defined(unix) && !defined(CUDA_VERSION) && !defined(INT_MAX) && !defined(M_LN2)
    out[3] = 1;
#endif
#if defined(__CUDA_ARCH_LIST__) && defined(__LP64__) && defined(NULL)
    out[4] = 1;
#endif
}
