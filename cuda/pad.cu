// pad.cu -- one value all over a tensor; what lies inside the frame is copied in afterwards (strided_copy.cu)
//
// computes  y[i*y0 + j*y1 + k*y2 + l*y3] = value
// layout    any strides, axis 0 y's innermost
// mapping   thread x: i < E0, y: j < E1; grid z: l*E2 + k
// cost      4 bytes an element
// needs     every index < 2^31
// source    ONNX operator Pad, mode "constant"
#include "kernel.cuh"

KERNEL(pad)(float* y, float value, int E0, int E1, int E2, int y0, int y1, int y2, int y3, int y_first, int z_first)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int j = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int z = blockIdx.z + z_first, l = z / E2, k = z - l * E2;
    y += j * y1 + k * y2 + l * y3;
    if (i >= E0 || j >= E1) return;
    if (y0 == 1)  // apart, so that a compiler makes a vector loop of it
        y[i] = value;
    else
        y[i * y0] = value;
}
