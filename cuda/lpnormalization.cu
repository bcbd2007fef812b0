// lpnormalization.cu -- rows scaled to length one
//
// computes  y[r] = x[r] / norm, norm the sum over s < R of |x[s]| or, with power 2, the root of that of x[s]*x[s]
//           a group of zeros stays as it is
// layout    groups of R elements, x_step and y_step apart; groups lie by the strides x0..x3, y0..y3; y may be x
// mapping   a thread a group. thread x: i < E0, y: j < E1; grid z: l*E2 + k
// cost      3 FLOPs, 2 reads and 1 write an element
// needs     every index < 2^31
// source    ONNX operator LpNormalization
#include "kernel.cuh"

KERNEL(lpnormalization)(const float* x, float* y, int power, int R, int x_step, int y_step, int E0, int E1, int E2,
                        int x0, int x1, int x2, int x3, int y0, int y1, int y2, int y3, int y_first, int z_first)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int j = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int z = blockIdx.z + z_first, l = z / E2, k = z - l * E2;
    if (i >= E0 || j >= E1) return;
    x += i * x0 + j * x1 + k * x2 + l * x3;
    y += i * y0 + j * y1 + k * y2 + l * y3;
    float norm = 0;
    for (int begin = 0; begin < R; begin += 64) {
        int end = begin + 64 < R ? begin + 64 : R;
        float part = 0;
        for (int r = begin; r < end; ++r) {
            float value = x[r * x_step];
            part += power == 2 ? value * value : value < 0 ? -value : value;
        }
        norm += part;
    }
    if (power == 2) norm = sqrtf(norm);
    for (int r = 0; r < R; ++r) y[r * y_step] = norm == 0 ? x[r * x_step] : x[r * x_step] / norm;
}
