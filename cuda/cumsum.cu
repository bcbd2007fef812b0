// cumsum.cu -- running sums along an axis
//
// computes  y[a] = x[0] + ... + x[a], or without x[a] (exclusive); backwards with pointers to the last elements and
//           negative steps
// layout    A elements, x_step and y_step apart; lines lie by the strides x0..x3, y0..y3. ELEMENT: floats, integers
// mapping   a thread a line. thread x: i < E0, y: j < E1; grid z: l*E2 + k
// cost      1 addition and two elements of memory; a float16 line is summed in float32
// needs     every index < 2^31
// source    ONNX operator CumSum
#include "kernel.cuh"
#include "elements.cuh"

KERNEL(cumsum)(const Number* __restrict__ x, Number* __restrict__ y, int A, int x_step, int y_step, int exclusive, int E0,
               int E1, int E2, int x0, int x1, int x2, int x3, int y0, int y1, int y2, int y3, int y_first, int z_first)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int j = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int z = blockIdx.z + z_first, l = z / E2, k = z - l * E2;
    x += j * x1 + k * x2 + l * x3, y += j * y1 + k * y2 + l * y3;
    if (i >= E0 || j >= E1) return;
    x += i * x0, y += i * y0;
    Value sum = 0;
    for (int a = 0; a < A; ++a) {
        Value before = sum;
        sum += Value(x[a * x_step]);
        y[a * y_step] = exclusive ? before : sum;
    }
}
