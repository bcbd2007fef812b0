// relu.cu -- negative numbers become zero
//
// computes  y = x < 0 ? 0 : x, which leaves NaN as it is
// layout    `rows` rows of `width` neighbouring elements, x_stride and y_stride elements apart; y may be x
// mapping   thread x: place in the row; y: row
// cost      1 compare and 8 bytes an element
// needs     rows * stride < 2^31
// source    ONNX operator Relu
#include "kernel.cuh"

KERNEL(relu)(const float* x, float* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int row = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    x += row * x_stride, y += row * y_stride;  // a compiler sees a vector in x[i], not in x[row * x_stride + i]
    if (i >= width || row >= rows) return;
    float value = x[i];
    y[i] = value < 0 ? 0 : value;
}
