// pad.cu -- a frame of one value around a tensor; a negative frame cuts off
//
// computes  y[i,j,k,l] = x[i - p0, j - p1, k - p2, l - p3] where x has that element, else value
// layout    any strides, axis 0 y's innermost: of NHWC tensors a whole image row, columns and channels as one axis
// mapping   thread x: i < E0, y: j < E1; grid z: l*E2 + k
// cost      4 compares and up to 8 bytes an element of y
// needs     every index < 2^31
// source    ONNX operator Pad, mode "constant"
#include "kernel.cuh"

KERNEL(pad)(const float* __restrict__ x, float* __restrict__ y, float value, int E0, int E1, int E2, int X0, int X1,
            int X2, int X3, int p0, int p1, int p2, int p3, int x0, int x1, int x2, int x3, int y0, int y1, int y2,
            int y3, int y_first, int z_first)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int j = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int z = blockIdx.z + z_first, l = z / E2, k = z - l * E2;
    bool in_row = j >= p1 && j < p1 + X1 && k >= p2 && k < p2 + X2 && l >= p3 && l < p3 + X3;
    int from = (j - p1) * x1 + (k - p2) * x2 + (l - p3) * x3 - p0 * x0, to = j * y1 + k * y2 + l * y3;
    int begin = in_row ? p0 : E0, end = in_row ? p0 + X0 : E0;
    if (i >= E0 || j >= E1) return;
    if (x0 == 1 && y0 == 1)
        y[to + i] = i >= begin && i < end ? x[from + i] : value;
    else
        y[to + i * y0] = i >= begin && i < end ? x[from + i * x0] : value;
}
