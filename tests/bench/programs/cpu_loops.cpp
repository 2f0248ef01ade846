// The loops that the kernels of cpu_kernels.cu are compared with: the same work as plain C++ for one thread, compiled by
// the backend's compiler with the backend's options.
#include <math.h>
#include <stddef.h>

#define LOOP extern "C" __attribute__((visibility("default"))) void

LOOP empty(long long n) {
    for (long long i = 0; i < n; ++i) asm volatile("");
}

LOOP saxpy(double a, const float *x, float *y, long long n) {
    for (long long i = 0; i < n; ++i) y[i] = static_cast<float>(a) * x[i] + y[i];
}

LOOP sine(const float *x, float *y, long long n) {
    for (long long i = 0; i < n; ++i) y[i] = sinf(x[i]);
}

LOOP counters(unsigned *counts, long long n) {
    for (long long i = 0; i < n; ++i) __atomic_fetch_add(&counts[i / 256], 1u, __ATOMIC_RELAXED);
}

LOOP histogram(const unsigned char *x, unsigned *bins, long long n) {
    for (long long i = 0; i < n; ++i) __atomic_fetch_add(&bins[x[i]], 1u, __ATOMIC_RELAXED);
}

LOOP reverse(const float *x, float *y, long long n) {
    for (long long begin = 0; begin < n; begin += 256) {
        for (int i = 0; i < 256; ++i) y[begin + i] = x[begin + 255 - i];
    }
}

LOOP block_sums(const float *x, float *sums, long long n) {
    for (long long block = 0; block < n / 256; ++block) {
        float sum = 0;
        for (int i = 0; i < 256; ++i) sum += x[block * 256 + i];
        sums[block] = sum;
    }
}

LOOP warp_sums(const float *x, float *sums, long long rounds) {
    for (long long warp = 0; warp < 256 * 256 / 32; ++warp) {
        float total = 0;
        for (long long round = 0; round < rounds; ++round) {
            for (int i = 0; i < 32; ++i) total += x[warp * 32 + i] + static_cast<float>(round);
        }
        sums[warp] = total;
    }
}

LOOP naive(const float *a, const float *b, float *c, long long n) {
    for (long long row = 0; row < n; ++row) {
        for (long long column = 0; column < n; ++column) {
            float sum = 0;
            for (long long k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + column];
            c[row * n + column] = sum;
        }
    }
}
