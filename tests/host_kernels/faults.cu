// faults.cu -- small kernels that are wrong, each in one way that a checked build has to find
//
// computes  nothing of use
// layout    row-major
// mapping   as each kernel says
// cost      negligible
// needs     -
// source    -
#include "kernel.cuh"

static constexpr int TILE = 16;

// No guard: the last block reads and writes beyond the arrays.
KERNEL(beyond_global)(const float* __restrict__ x, float* __restrict__ y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i] * n;
}

// The last thread writes behind the shared array.
KERNEL(beyond_shared)(float* __restrict__ y) {
    __shared__ float s[32];
    __shared__ float t[32];
    s[threadIdx.x + 1] = float(threadIdx.x);
    t[threadIdx.x] = 0.f;
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x] + t[0];
}

// One float more than the launch gave.
KERNEL(beyond_dynamic)(float* __restrict__ y, int n) {
    DYNAMIC_SHARED(float, s);
    s[threadIdx.x] = 1.f;
    if (threadIdx.x == 0) s[n] = 2.f;
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x];
}

// Past the end of a row, inside the array.
KERNEL(beyond_row)(float* __restrict__ y) {
    __shared__ float s[TILE][TILE];
    int t = threadIdx.x;
    s[t / TILE][t % TILE + 1] = 1.f;
    __syncthreads();
    y[t] = s[t / TILE][t % TILE];
}

// Four floats at once from an address that isn't a multiple of 16 bytes: a fault on a GPU.
KERNEL(misaligned)(const float* __restrict__ x, float* __restrict__ y) {
    float4 v = *reinterpret_cast<const float4*>(x + 1 + 4 * threadIdx.x);
    y[threadIdx.x] = v.x + v.w;
}
KERNEL(misaligned_vector)(const float* __restrict__ x, float* __restrict__ y) {
    y[threadIdx.x] = load_aligned<4>(x + 1 + 4 * threadIdx.x)[3];
}

// Reads what another thread writes, with no barrier between.
KERNEL(missing_barrier)(const float* __restrict__ x, float* __restrict__ y) {
    __shared__ float s[256];
    int t = threadIdx.x;
    s[t] = x[t];
    y[t] = s[blockDim.x - 1 - t];
}

// The tiled product without its second barrier.
KERNEL(missing_second_barrier)(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int n) {
    __shared__ float a[TILE][TILE], b[TILE][TILE];
    int column = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE + threadIdx.y;
    float sum = 0.f;
    for (int k = 0; k < n; k += TILE) {
        a[threadIdx.y][threadIdx.x] = A[row * n + k + threadIdx.x];
        b[threadIdx.y][threadIdx.x] = B[(k + threadIdx.y) * n + column];
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += a[threadIdx.y][i] * b[i][threadIdx.x];
    }
    C[row * n + column] = sum;
}

// Warp-synchronous code of the old days.
KERNEL(missing_warp_barrier)(const float* __restrict__ x, float* __restrict__ y) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    if (t < 32)
        for (int distance = 16; distance > 0; distance /= 2)
            if (t < distance) s[t] += s[t + distance];
    if (t == 0) y[0] = s[0];
}

// Some threads only, and two different lines.
KERNEL(divergent)(float* __restrict__ y) {
    __shared__ float s[64];
    s[threadIdx.x] = 1.f;
    if (threadIdx.x < 40) __syncthreads();
    y[threadIdx.x] = s[63 - threadIdx.x];
}
KERNEL(two_barriers)(float* __restrict__ y) {
    if (threadIdx.x & 1)
        __syncthreads();
    else
        __syncthreads();
    y[threadIdx.x] = 1.f;
}

// Half of the threads at a block's barrier, half at a warp's: neither can open.
KERNEL(deadlock)(float* __restrict__ y) {
    if (threadIdx.x < 16)
        __syncthreads();
    else
        __syncwarp();
    y[threadIdx.x] = 1.f;
}

// Adds without atomics.
KERNEL(race)(const float* __restrict__ x, float* __restrict__ y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[0] += x[i];
}

// Each block writes the same place.
KERNEL(race_of_blocks)(float* __restrict__ y) {
    if (threadIdx.x == 0) y[0] = float(blockIdx.x);
}

// Reads s[63], which nobody wrote.
KERNEL(unwritten)(float* __restrict__ y) {
    __shared__ float s[64];
    if (threadIdx.x < 63) s[threadIdx.x] = 1.f;
    __syncthreads();
    float sum = 0.f;
    for (int i = 0; i < 64; ++i) sum += s[i];
    y[threadIdx.x] = sum;
}
KERNEL(unwritten_dynamic)(float* __restrict__ y) {
    DYNAMIC_SHARED(float, s);
    y[threadIdx.x] = s[threadIdx.x];
}
