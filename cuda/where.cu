// where.cu -- one operand or another, as a third says, each stretched over y as numpy does
//
// computes  y = c ? a : b
// layout    any strides: c[i*c0 + j*c1 + k*c2 + l*c3], likewise a, b and y; a stride of 0 stretches; axis 0 is y's
//           innermost. c in bytes; ELEMENT: a, b, y
// mapping   thread x: i < E0, y: j < E1; grid z: l*E2 + k
// cost      up to 13 bytes of float an element
// needs     every index < 2^31
// source    ONNX operator Where
#include "kernel.cuh"
#include "elements.cuh"

KERNEL(where)(const unsigned char* __restrict__ c, const Number* __restrict__ a, const Number* __restrict__ b,
              Number* __restrict__ y, int E0, int E1, int E2, int c0, int c1, int c2, int c3, int a0, int a1, int a2, int a3,
              int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int is_dense, int y_first, int z_first)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int j = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int z = blockIdx.z + z_first, l = z / E2, k = z - l * E2;
    c += j * c1 + k * c2 + l * c3, a += j * a1 + k * a2 + l * a3, b += j * b1 + k * b2 + l * b3;
    y += j * y1 + k * y2 + l * y3;
    if (i >= E0 || j >= E1) return;
    if (is_dense)  // c, a, b and y all along the row
        y[i] = c[i] ? a[i] : b[i];
    else
        y[i * y0] = c[i * c0] ? a[i * a0] : b[i * b0];
}
