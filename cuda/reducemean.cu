// reducemean.cu -- the mean along some axes
//
// computes  y[i,j,k,l] = sum over r < R0, s < R1, t < R2 of x[i,j,k,l, r,s,t], divided by R0*R1*R2
//           sums of at most 64 terms are added up, so that a long mean loses no more digits than a short one
// layout    any strides: kept axes x0..x3 and y0..y3 (axis 0 y's innermost), averaged axes r0..r2 (r0 x's innermost)
// mapping   thread x: i < E0, y: j < E1; grid z: l*E2 + k; a thread an element of y
// cost      1 addition and 4 bytes an element of x
// needs     every index < 2^31
// source    ONNX operator ReduceMean
#include "kernel.cuh"

KERNEL(reducemean)(const float* __restrict__ x, float* __restrict__ y, int R0, int R1, int R2, int r0, int r1, int r2,
                   int E0, int E1, int E2, int x0, int x1, int x2, int x3, int y0, int y1, int y2, int y3, int y_first,
                   int z_first)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int j = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int z = blockIdx.z + z_first, l = z / E2, k = z - l * E2;
    float count = (float)R0 * R1 * R2;
    if (i >= E0 || j >= E1) return;
    x += i * x0 + j * x1 + k * x2 + l * x3;
    float sum = 0;
    for (int t = 0; t < R2; ++t)
        for (int s = 0; s < R1; ++s)
            for (int begin = 0; begin < R0; begin += 64) {
                const float* from = x + t * r2 + s * r1;
                int end = begin + 64 < R0 ? begin + 64 : R0;
                float part = 0;
                for (int r = begin; r < end; ++r) part += from[r * r0];
                sum += part;
            }
    y[i * y0 + j * y1 + k * y2 + l * y3] = sum / count;
}
