// epilogue.cu -- bias, residual and activation over rows that a GEMM has written
//
// computes  y[m,n] = activation(y[m,n] + bias_scale * bias[m * bias_row_stride (+ n)] + residual[m,n]), in place
//           bias or residual null: left out; bias_per_column 0: one bias for the row
// layout    y, residual M rows of N floats, y_stride and residual_stride floats apart (NHWC: pixels and channels)
// mapping   x thread and grid: vector of n; y thread and grid, z grid: m (no thread divides)
// cost      3*M*N FLOPs at most; 8*M*N bytes, 12*M*N with a residual
// needs     M*y_stride < 2^31
// source    ONNX operators Conv, Gemm and the activations
#include "kernel.cuh"
#include "channels.cuh"
#include "epilogue.cuh"

KERNEL(epilogue)(const float* __restrict__ bias, const float* residual, float* y,
                 int M, int N, int y_stride, int residual_stride, int bias_row_stride, int bias_per_column,
                 float bias_scale, int activation, float alpha, float beta, int y_first) {
    int n = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    int m = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    if (n >= N || m >= M) return;
    int count = N - n;
    float* out = y + m * y_stride + n;
    Vector<VECTOR> sum = load_channels(out, count);
    if (bias) {
        const float* first = bias + m * bias_row_stride;
        Vector<VECTOR> added = bias_per_column ? load_channels(first + n, count) : splat<VECTOR>(*first);
        sum = fma(added, bias_scale, sum);
    }
    if (residual) sum = sum + load_channels(residual + m * residual_stride + n, count);
    store_channels(out, activate(sum, activation, alpha, beta), count);
}
