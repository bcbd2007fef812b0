// strided_copy.cu -- the same elements laid out anew: layout conversions, transpositions, concatenations
//
// computes  copy_words, copy_bytes  y[i*y0 + j*y1 + k*y2 + l*y3] = x[i*x0 + j*x1 + k*x2 + l*x3]
//           copy_tile               y[b + a*y_a + k*y2 + l*y3]   = x[a + b*x_b + k*x2 + l*x3]
// layout    any strides, in words of 4 bytes (of 1 byte: copy_bytes); axis 0 is y's innermost
// mapping   thread x: i < E0, y: j < E1; grid z: l*E2 + k
//           copy_tile: x's neighbours along thread x (a < A), TILE of y's neighbours (b < B) a thread, so that warps
//           read whole lines, every thread writes whole sectors, and there is neither shared memory nor a barrier
// cost      8 bytes a word; copy_tile's writes reach each line TILE words at a time
// needs     x and y don't overlap
// source    own
#include "kernel.cuh"

#ifndef TILE
#define TILE 8
#endif

template <class T>
__device__ void copy_strided(const T* __restrict__ x, T* __restrict__ y, int E0, int E1, int E2, int x0, int x1, int x2,
                             int x3, int y0, int y1, int y2, int y3, int j_block, int z)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int j = j_block * blockDim.y + threadIdx.y;
    int l = z / E2, k = z - l * E2;
    x += j * x1 + k * x2 + l * x3, y += j * y1 + k * y2 + l * y3;
    if (i >= E0 || j >= E1) return;
    if (x0 == 1 && y0 == 1)  // apart, so that a compiler makes a vector loop of it
        y[i] = x[i];
    else
        y[i * y0] = x[i * x0];
}

KERNEL(copy_words)(const unsigned* __restrict__ x, unsigned* __restrict__ y, int E0, int E1, int E2, int x0, int x1,
                   int x2, int x3, int y0, int y1, int y2, int y3, int y_first, int z_first)
{
    copy_strided(x, y, E0, E1, E2, x0, x1, x2, x3, y0, y1, y2, y3, blockIdx.y + y_first, blockIdx.z + z_first);
}

KERNEL(copy_bytes)(const unsigned char* __restrict__ x, unsigned char* __restrict__ y, int E0, int E1, int E2, int x0,
                   int x1, int x2, int x3, int y0, int y1, int y2, int y3, int y_first, int z_first)
{
    copy_strided(x, y, E0, E1, E2, x0, x1, x2, x3, y0, y1, y2, y3, blockIdx.y + y_first, blockIdx.z + z_first);
}

KERNEL(copy_tile)(const unsigned* __restrict__ x, unsigned* __restrict__ y, int A, int B, int E2, int x_b, int x2, int x3,
                  int y_a, int y2, int y3, int y_first, int z_first)
{
    int a = blockIdx.x * blockDim.x + threadIdx.x;
    int b = ((blockIdx.y + y_first) * blockDim.y + threadIdx.y) * TILE;
    int l = (blockIdx.z + z_first) / E2, k = blockIdx.z + z_first - l * E2;
    int from = a + b * x_b + k * x2 + l * x3, to = a * y_a + b + k * y2 + l * y3;
    if (a >= A) return;
    if (b + TILE <= B) {
        UNROLL(TILE)
        for (int t = 0; t < TILE; ++t) y[to + t] = x[from + t * x_b];
    } else {
        for (int t = 0; t < B - b; ++t) y[to + t] = x[from + t * x_b];
    }
}
