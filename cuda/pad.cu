// pad.cu -- one value all over a tensor; what lies inside the frame is copied in afterwards (strided_copy.cu)
//
// computes  y[i*y0 + j*y1 + k*y2 + l*y3] = value
// layout    any strides, axis 0 y's innermost. ELEMENT: any
// mapping   thread x: i < E0, y: j < E1; grid z: l*E2 + k
// cost      one element of memory: 4 bytes of float
// needs     every index < 2^31
// source    ONNX operator Pad, mode "constant"
#include "kernel.cuh"
#include "elements.cuh"

KERNEL(pad)(Number* y, double value, int E0, int E1, int E2, int y0, int y1, int y2, int y3, int y_first, int z_first)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int j = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int z = blockIdx.z + z_first, l = z / E2, k = z - l * E2;
    y += j * y1 + k * y2 + l * y3;
    Value v = Value(value);
    if (i >= E0 || j >= E1) return;
    if (y0 == 1)  // apart, so that a compiler makes a vector loop of it
        y[i] = v;
    else
        y[i * y0] = v;
}
