// globalaveragepool.cu -- the mean of every channel over the whole image
//
// computes  y[n,c] = (sum over HW of x[n,c,hw]) / HW
// layout    globalaveragepool: x N*C rows of HW floats.  globalaveragepool_nhwc: x pixels of C channels (padding may
//           count), x_stride elements apart; y images of C channels, y_stride apart. ELEMENT: float, half
// mapping   globalaveragepool: x thread and grid: n*C + c.
//           globalaveragepool_nhwc: x thread and grid: vector of channels; y: n
// cost      N*C*HW FLOPs; 4*N*C*HW bytes
// needs     N*HW*x_stride < 2^31
// source    ONNX operator GlobalAveragePool
#include "kernel.cuh"
#include "elements.cuh"
#include "channels.cuh"

KERNEL(globalaveragepool)(const Number* __restrict__ x, Number* __restrict__ y, int rows, int HW) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int i = 0; i < HW; ++i) sum += (float)x[row * HW + i];
    y[row] = sum / (float)HW;
}

KERNEL(globalaveragepool_nhwc)(const Number* __restrict__ x, Number* __restrict__ y, int N, int C, int HW,
                               int x_stride, int y_stride, int y_first) {
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    int n = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    const Number* image = x + n * HW * x_stride;
    if (c >= C || n >= N) return;
    Vector<VECTOR> sum = splat<VECTOR>(0.0f);
    for (int i = 0; i < HW; ++i) sum = sum + load_channels(image + i * x_stride + c, C - c);
    store_channels(y + n * y_stride + c, sum / (float)HW, C - c);
}
