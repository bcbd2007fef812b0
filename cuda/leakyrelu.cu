// leakyrelu.cu -- negative numbers times a slope
//
// computes  y = x < 0 ? alpha * x : x, for every alpha (below 0 and beyond 1 too), which leaves NaN as it is
// layout    `rows` rows of `width` neighbouring elements, x_stride and y_stride elements apart; y may be x
// mapping   thread x: place in the row; y: row
// cost      1 compare, 1 multiplication and 8 bytes an element
// needs     rows * stride < 2^31
// source    ONNX operator LeakyRelu
#include "kernel.cuh"

KERNEL(leakyrelu)(const float* x, float* y, int rows, int width, int x_stride, int y_stride, float alpha, int y_first)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int row = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    x += row * x_stride, y += row * y_stride;  // a compiler sees a vector in x[i], not in x[row * x_stride + i]
    if (i >= width || row >= rows) return;
    float value = x[i];
    y[i] = value < 0 ? alpha * value : value;
}
