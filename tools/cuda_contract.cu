// cuda_contract.cu -- small kernels that show what a device does with a launch
//
// mixed    one argument of every kind, written back as doubles
// twice    y = 2x
// reverse  n floats turned round in dynamic shared memory
// rows     each z block writes its own number: grids cut in z must cover all
// beyond   writes where it is told to, to provoke a fault
#include "kernel.cuh"

#ifndef SCALE
#define SCALE 1
#endif

KERNEL(mixed)(const float* __restrict__ x, double* __restrict__ y, int i, long long q, float f, unsigned u,
              double d, const float* __restrict__ nothing) {
    if (threadIdx.x == 0) {
        y[0] = x[0]; y[1] = i; y[2] = (double)q; y[3] = f; y[4] = u; y[5] = d; y[6] = nothing == nullptr;
        y[7] = SCALE;
    }
}

KERNEL(twice)(const float* __restrict__ x, float* __restrict__ y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
}

KERNEL(reverse)(float* x, int n) {
    DYNAMIC_SHARED(float, tile);
    for (int i = threadIdx.x; i < n; i += blockDim.x) tile[i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = tile[n - 1 - i];
}

KERNEL(rows)(int* y, int rows, int z_first) {
    int z = blockIdx.z + z_first;
    if (threadIdx.x == 0 && z < rows) y[z] = z;
}

KERNEL(beyond)(float* x, long long n) {
    x[n] = 1.0f;
}
