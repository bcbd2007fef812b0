// relu.cu -- negative numbers become zero
//
// computes  y = x < 0 ? 0 : x, which leaves NaN as it is
// layout    `rows` rows of `width` neighbouring elements, x_stride and y_stride elements apart; y may be x. ELEMENT: float, half
// mapping   thread x: place in the row; y: row
// cost      1 compare and two elements of memory, 8 bytes of float
// needs     rows * stride < 2^31
// source    ONNX operator Relu
#include "kernel.cuh"
#include "elements.cuh"

KERNEL(relu)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int row = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    x += row * x_stride, y += row * y_stride;  // a compiler sees a vector in x[i], not in x[row * x_stride + i]
    if (i >= width || row >= rows) return;
    Value value = x[i];
    y[i] = value < 0 ? 0 : value;
}
