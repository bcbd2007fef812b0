// gather.cu -- slices of a tensor, named by indices that are only known when the kernel runs
//
// computes  y[i,j,k,l] = x[i,j,k,l; index[i,j,k,l]]; indices below 0 count from the end of the axis, and those beyond its
//           ends are taken for its ends
// layout    x[i*x0 + j*x1 + k*x2 + l*x3 + n*x_axis] with n = index[(i*n0 + j*n1 + k*n2 + l*n3) * index_words], of
//           one word or two; y likewise, axis 0 its innermost. ELEMENT: any
// mapping   thread x: i < E0, y: j < E1; grid z: l*E2 + k
// cost      two elements of memory and an index
// needs     little-endian integers
// source    ONNX operator Gather
#include "kernel.cuh"
#include "elements.cuh"

KERNEL(gather)(const Number* __restrict__ x, const int* __restrict__ index, Number* __restrict__ y, int A, int x_axis,
               int index_words, int E0, int E1, int E2, int x0, int x1, int x2, int x3, int n0, int n1, int n2, int n3,
               int y0, int y1, int y2, int y3, int y_first, int z_first)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int j = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int z = blockIdx.z + z_first, l = z / E2, k = z - l * E2;
    x += j * x1 + k * x2 + l * x3, y += j * y1 + k * y2 + l * y3;
    index += (j * n1 + k * n2 + l * n3) * index_words;
    if (i >= E0 || j >= E1) return;
    index += i * n0 * index_words;
    int n = index[0];
    if (index_words == 2 && index[1] != n >> 31) n = index[1] < 0 ? -A - 1 : A;  // beyond 32 bits, and x
    n = n < 0 ? n + A : n;
    n = n < 0 ? 0 : n >= A ? A - 1 : n;
    y[i * y0] = x[i * x0 + n * x_axis];
}
