// Forms of kernels, of shared memory and of linkage.
#define CONCAT_(a, b) a##b
#define CONCAT(a, b) CONCAT_(a, b)
#define DEFINE_KERNEL(name, type, ...) extern "C" __global__ void name(type* out) { __VA_ARGS__ }

// program from_a_macro: 4 5
DEFINE_KERNEL(CONCAT(from_, a_macro), int, int v[] = {4, 5}; out[0] = v[0]; out[1] = v[1];)

// program in_a_linkage_block: 2 3
extern "C" {
__constant__ float block_constant[2] = {2, 3};
__device__ int helper(float v) { return (int)v; }
static __device__ __noinline__ int index(const float* p, int i) { return helper(p[i]); }
__global__ void in_a_linkage_block(int* out) { out[0] = index(block_constant, 0); out[1] = index(block_constant, 1); }
}

// program specifiers_in_any_order: 1 2 3
extern "C" void __global__ specifiers_in_any_order(int *const out) { out[0] = 1; out[1] = 2; out[2] = 3; }
static __global__ void __launch_bounds__(64, 2) internal(int* p) { p[0] = 1; }
__global__ static void internal2(int* p) { p[0] = 1; }
template <typename T> static __global__ void __launch_bounds__(sizeof(T) * 32) generic(T* p) { p[0] = 1; }
template <> __global__ void generic<float>(float* p) { p[0] = 2; }
__global__ void overloaded(int* p, int) {}
__global__ void overloaded(float* p) {}
inline __global__ void prototype(int* time, int index);
__global__ void prototype(int* time, int index) { time[0] = index; }

// program dynamic_shared_in_a_class: 0 31 9
template <class T> struct SharedMemory { __device__ operator T*() { extern __shared__ int smem_[]; return (T*)smem_; } };
extern "C" __global__ void dynamic_shared_in_a_class(int* out) {
    float* cells = SharedMemory<float>(); int* same = SharedMemory<int>();
    cells[threadIdx.x] = threadIdx.x; __syncthreads();
    if (threadIdx.x == 0) { out[0] = (int)cells[0]; out[1] = (int)cells[31]; same[0] = 9; out[2] = same[0]; }
}

// program shared_of_other_types: 31 4 16
extern __shared__ __align__(16) unsigned char raw[];
template <int N> struct Buffer { enum { bytes = N * 4 }; };
extern "C" __global__ void shared_of_other_types(int* out) {
    __shared__ __align__(16) char room[Buffer<32>::bytes]; __shared__ int grid[4][8]; __shared__ volatile int flag; static __shared__ float2 pair;
    int* typed = reinterpret_cast<int*>(room); typed[threadIdx.x] = threadIdx.x; grid[threadIdx.x / 8][threadIdx.x % 8] = 1;
    reinterpret_cast<double*>(raw)[threadIdx.x] = 0.5 * threadIdx.x;
    if (threadIdx.x == 0) { flag = 4; pair.x = 1; }
    __syncthreads();
    if (threadIdx.x == 1) { out[0] = typed[31]; out[1] = flag; out[2] = 1 + (int)reinterpret_cast<double*>(raw)[30] * grid[3][7] * (int)pair.x; }
}

// program one_array_of_two_types: 32
extern "C" __global__ void first_type(float* out) { extern __shared__ float array[]; array[0] = 1; out[0] = array[0]; }
extern "C" __global__ void one_array_of_two_types(int* out) { extern __shared__ int2 array_[]; array_[threadIdx.x] = make_int2(1, 1); __syncthreads(); if (threadIdx.x == 0) { int s = 0; for (int i = 0; i < 32; ++i) s += array_[i].y; out[0] = s; } }

// program indices_in_local_types: 31 96 32
extern "C" __global__ void indices_in_local_types(int* out) {
    struct Where { int i; __device__ Where() : i(threadIdx.x) {} __device__ static int size() { return blockDim.x; } };
    auto linear = [] { return blockIdx.x * blockDim.x + threadIdx.x; };
    if (linear() == 31) { out[0] = Where().i; out[1] = 3 * Where::size(); out[2] = gridDim.x * blockDim.x; }
}

// program constants_everywhere: 1 2 3 4 5
__constant__ const int c1 = 1; const __constant__ int c2 = 2; static __constant__ constexpr int c3[] = {3}; __device__ __constant__ int c4 = 4;
__device__ static const struct { int v; } c5 = {5};
extern "C" __global__ void constants_everywhere(int* out) { out[0] = c1; out[1] = c2; out[2] = c3[0]; out[3] = c4; out[4] = c5.v; }

// program macros_named_min_and_max: 2 5
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
extern "C" __global__ void macros_named_min_and_max(int* out) { out[0] = min(2, 5); out[1] = max(2, 5); }
#undef min
#undef max

// program pragmas: 28 6
#pragma nv_diag_suppress 177
#define UNROLL _Pragma("unroll 4")
template <int N> __device__ int unrolled() {
    int s = 0;
#pragma unroll N
    for (int i = 0; i < N; ++i) s += i;
    UNROLL for (int i = 0; i < 1; ++i) s += 0;
#pragma unroll 1
    while (false) {}
    return s;
}
extern "C" __global__ void pragmas(int* out) { out[0] = unrolled<8>(); out[1] = unrolled<4>(); }

// program struct_parameters: 7
struct alignas(16) Params { int* p; int n; float scale; struct { char c; } inner; };
__device__ void use(const Params& p) { p.p[0] = p.n; }
extern "C" __global__ void takes_params(const Params params, const bool flag, char c, float3 v) { if (flag) use(params); }
extern "C" __global__ void struct_parameters(int* out) { Params p{out, 7, 1.0f, {'a'}}; use(p); }
