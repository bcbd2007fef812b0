// clip.cu -- numbers kept between two limits
//
// computes  y = min(max(x, low), high), which leaves NaN as it is; where low > high, everything becomes high
// layout    `rows` rows of `width` neighbouring elements, x_stride and y_stride elements apart; y may be x. ELEMENT: float, half
// mapping   thread x: place in the row; y: row
// cost      2 compares and two elements of memory, 8 bytes of float
// needs     rows * stride < 2^31
// source    ONNX operator Clip
#include "kernel.cuh"
#include "elements.cuh"

KERNEL(clip)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, float low, float high, int y_first)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int row = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    x += row * x_stride, y += row * y_stride;  // a compiler sees a vector in x[i], not in x[row * x_stride + i]
    if (i >= width || row >= rows) return;
    Value value = x[i];
    value = value < low ? low : value;
    y[i] = value > high ? high : value;
}
