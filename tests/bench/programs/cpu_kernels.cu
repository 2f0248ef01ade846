// The kernels of the rows `cpu`. Every parameter is a pointer, a long long or a double: eight bytes each, as
// rows/cpu.py packs them. cpu_loops.cpp has a loop of the same name and parameters for each.
#define TILE 16
#define FULL 0xffffffffu

extern "C" __global__ void empty(long long n) {}

extern "C" __global__ void saxpy(double a, const float* x, float* y, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = (float)a * x[i] + y[i];
}

// saxpy with a barrier that no launch reaches: n is never negative.
extern "C" __global__ void unreached(double a, const float* x, float* y, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (n < 0) __syncthreads();
    if (i < n) y[i] = (float)a * x[i] + y[i];
}

extern "C" __global__ void sine(const float* x, float* y, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = sinf(x[i]);
}

extern "C" __global__ void counters(unsigned* counts, long long n) {
    if (blockIdx.x * (long long)blockDim.x + threadIdx.x < n) atomicAdd(&counts[blockIdx.x], 1u);
}

extern "C" __global__ void histogram(const unsigned char* x, unsigned* bins, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&bins[x[i]], 1u);
}

extern "C" __global__ void reverse(const float* x, float* y, long long n) {
    __shared__ float cells[256];
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    cells[threadIdx.x] = x[i];
    __syncthreads();
    y[i] = cells[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void barriers(unsigned* passed, long long n) {
    for (long long round = 0; round < n; ++round) __syncthreads();
    passed[blockIdx.x * blockDim.x + threadIdx.x] = (unsigned)n;
}

extern "C" __global__ void block_sums(const float* x, float* sums, long long n) {
    __shared__ float cells[256];
    cells[threadIdx.x] = x[blockIdx.x * (long long)blockDim.x + threadIdx.x];
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) cells[threadIdx.x] += cells[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = cells[0];
}

extern "C" __global__ void warp_sums(const float* x, float* sums, long long rounds) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    float total = 0;
    for (long long round = 0; round < rounds; ++round) {
        float v = x[i] + (float)round;
        for (int offset = 16; offset > 0; offset /= 2) v += __shfl_down_sync(FULL, v, offset);
        total += v;
    }
    if (threadIdx.x % 32 == 0) sums[i / 32] = total;
}

extern "C" __global__ void naive(const float* a, const float* b, float* c, long long n) {
    const long long row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (long long k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + column];
    c[row * n + column] = sum;
}

extern "C" __global__ void tiled(const float* a, const float* b, float* c, long long n) {
    __shared__ float as[TILE][TILE], bs[TILE][TILE];
    const long long row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (long long tile = 0; tile < n; tile += TILE) {
        as[threadIdx.y][threadIdx.x] = a[row * n + tile + threadIdx.x];
        bs[threadIdx.y][threadIdx.x] = b[(tile + threadIdx.y) * n + column];
        __syncthreads();
        for (int k = 0; k < TILE; ++k) sum += as[threadIdx.y][k] * bs[k][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}
