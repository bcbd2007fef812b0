// trilu.cu -- one triangle of every matrix, the other set to zero
//
// computes  y[n,r,c] = x[n,r,c] where c - r >= k (upper) or c - r <= k, else 0
// layout    N dense matrices of R rows and C columns. ELEMENT: any
// mapping   thread x: c; y: r; grid z: n
// cost      two elements of memory
// needs     N*R*C < 2^31
// source    ONNX operator Trilu
#include "kernel.cuh"
#include "elements.cuh"

KERNEL(trilu)(const Number* __restrict__ x, Number* __restrict__ y, int R, int C, int upper, int k, int y_first, int z_first)
{
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    int r = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int start = ((blockIdx.z + z_first) * R + r) * C;
    x += start, y += start;
    if (c >= C || r >= R) return;
    Number v = x[c], zero;
    zero = 0;
    y[c] = (upper ? c - r >= k : c - r <= k) ? v : zero;
}
