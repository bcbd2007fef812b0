// good.cu -- small kernels that are right, one for each thing that the host device has to get right
//
// computes  see each kernel; test_host.py holds the same in numpy
// layout    row-major
// mapping   as each kernel says
// cost      negligible
// needs     blocks of full warps, where warps are used
// source    -
#include "kernel.cuh"

static constexpr int TILE = 16;

// y[i] = a * x[i] + b, with a tail and arguments of every type
KERNEL(scale)(const float* __restrict__ x, float* __restrict__ y, int n, unsigned step, long long offset, double a,
              float b) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    y[i * step + offset] = float(a) * x[i] + b;
}

// y[z, y, x] = z * 10000 + y * 100 + x over a grid and blocks of three dimensions
KERNEL(where)(int* __restrict__ y, int ny, int nx) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int z = blockIdx.z * blockDim.z + threadIdx.z;
    if (x >= nx || row >= ny) return;
    y[(z * ny + row) * nx + x] = z * 10000 + row * 100 + x;
}

// y = x backwards, within each block
KERNEL(reverse)(const float* __restrict__ x, float* __restrict__ y) {
    __shared__ float s[1024];
    int t = threadIdx.x, n = blockDim.x;
    s[t] = x[blockIdx.x * n + t];
    __syncthreads();
    y[blockIdx.x * n + t] = s[n - 1 - t];
}

// The same through shared memory whose size the launch gives, twice over, so that barriers repeat.
KERNEL(reverse_dynamic)(const float* __restrict__ x, float* __restrict__ y, int times) {
    DYNAMIC_SHARED(float, s);
    int t = threadIdx.x, n = blockDim.x;
    float value = x[blockIdx.x * n + t];
    for (int i = 0; i < times; ++i) {
        s[t] = value;
        __syncthreads();
        value = s[n - 1 - t];
        __syncthreads();
    }
    y[blockIdx.x * n + t] = value;
}

// C = A @ B, all square, by tiles
KERNEL(matmul)(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int n) {
    __shared__ float a[TILE][TILE], b[TILE][TILE];
    int column = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE + threadIdx.y;
    float sum = 0.f;
    for (int k = 0; k < n; k += TILE) {
        a[threadIdx.y][threadIdx.x] = A[row * n + k + threadIdx.x];
        b[threadIdx.y][threadIdx.x] = B[(k + threadIdx.y) * n + column];
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += a[threadIdx.y][i] * b[i][threadIdx.x];
        __syncthreads();
    }
    C[row * n + column] = sum;
}

// y[row, t]: what each shuffle, vote and warp sum gives thread t
KERNEL(shuffles)(const float* __restrict__ x, float* __restrict__ y) {
    const unsigned all = 0xffffffffu;
    int t = threadIdx.x, n = blockDim.x;
    float v = x[t];
    y[0 * n + t] = __shfl_sync(all, v, 5);
    y[1 * n + t] = __shfl_xor_sync(all, v, 3);
    y[2 * n + t] = __shfl_down_sync(all, v, 4);
    y[3 * n + t] = __shfl_up_sync(all, v, 2);
    y[4 * n + t] = __shfl_down_sync(all, v, 4, 16);
    y[5 * n + t] = __shfl_sync(all, v, 3, 8);
    y[6 * n + t] = float(__ballot_sync(all, v > 0.f) >> 16);
    y[7 * n + t] = warp_sum(v);
    y[8 * n + t] = warp_maximum(v);
    y[9 * n + t] = float(__any_sync(all, v > 2.f) * 2 + __all_sync(all, v > -9.f));
}

// Half of the warp shuffles once more than the other, then all together: lanes differ in how often they stopped.
KERNEL(uneven_lanes)(const float* __restrict__ x, float* __restrict__ y) {
    int t = threadIdx.x;
    float v = x[t];
    if (t % 32 < 16) v += __shfl_xor_sync(0x0000ffffu, v, 1);
    v += __shfl_xor_sync(0xffffffffu, v, 16);
    __syncwarp();
    y[t] = v;
}

// Sum tree: warp-synchronous, with __syncwarp where lanes read each other's writes
KERNEL(warp_tree)(const float* __restrict__ x, float* __restrict__ y) {
    __shared__ float s[32];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncwarp();
    for (int distance = 16; distance > 0; distance /= 2) {
        float other = t < distance ? s[t + distance] : 0.f;
        __syncwarp();
        s[t] += other;
        __syncwarp();
    }
    if (t == 0) y[0] = s[0];
}

// Counts of x modulo 8, with atomics in shared memory, then in global
KERNEL(histogram)(const int* __restrict__ x, int* __restrict__ counts, int* __restrict__ largest, int n) {
    __shared__ int local[8];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x < 8) local[threadIdx.x] = 0;
    __syncthreads();
    if (i < n) {
        atomicAdd(&local[x[i] & 7], 1);
        atomicMax(largest, x[i]);
    }
    __syncthreads();
    if (threadIdx.x < 8) atomicAdd(&counts[threadIdx.x], local[threadIdx.x]);
}

// y = relu(2 x + 1) with N floats a thread, and its partner operations; rows of y: relu, largest of x and 0, quotient
template <int N>
__device__ void vectors_of(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i * N >= n) return;
    Vector<N> v = load<N>(x + i * N), zero = splat<N>(0.f);
    Vector<N> linear = fma(v, 2.f, splat<N>(1.f));
    store_aligned(y + i * N, select_less(linear, zero, zero, linear));
    store(y + n + i * N, maximum(v, zero));
    store(y + 2 * n + i * N, minimum(v, zero) / (v * v + 1.f) - fma(v, v, v));
}
KERNEL(vectors_4)(const float* __restrict__ x, float* __restrict__ y, int n) { vectors_of<4>(x, y, n); }
KERNEL(vectors_8)(const float* __restrict__ x, float* __restrict__ y, int n) { vectors_of<8>(x, y, n); }
KERNEL(vectors_16)(const float* __restrict__ x, float* __restrict__ y, int n) { vectors_of<16>(x, y, n); }
KERNEL(vectors_32)(const float* __restrict__ x, float* __restrict__ y, int n) { vectors_of<32>(x, y, n); }
