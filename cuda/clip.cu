// clip.cu -- numbers kept between two limits
//
// computes  y = min(max(x, low), high), which leaves NaN as it is; where low > high, everything becomes high
// layout    `rows` rows of `width` neighbouring elements, x_stride and y_stride elements apart; y may be x
// mapping   thread x: place in the row; y: row
// cost      2 compares and 8 bytes an element
// needs     rows * stride < 2^31
// source    ONNX operator Clip
#include "kernel.cuh"

KERNEL(clip)(const float* x, float* y, int rows, int width, int x_stride, int y_stride, float low, float high, int y_first)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int row = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    x += row * x_stride, y += row * y_stride;  // a compiler sees a vector in x[i], not in x[row * x_stride + i]
    if (i >= width || row >= rows) return;
    float value = x[i];
    value = value < low ? low : value;
    y[i] = value > high ? high : value;
}
