// depthwise.cu -- a convolution of every channel with a filter of its own
//
// computes  y[n,p,q,c] = activation(bias[c] + residual[n,p,q,c] + sum over r < R, s < S of
//               x[n, p*stride_h + r*dilation_h - pad_top, q*stride_w + s*dilation_w - pad_left, c] * w[r,s,c])
//           taps outside x are skipped; bias or residual null: left out
// layout    x, y, residual: pixels of C channels, x_stride, y_stride, residual_stride elements apart; padding may
//           count in C. ELEMENT of x, residual, y: float, half
//           w R,S,w_stride   bias of w_stride floats
// mapping   x thread and grid: vector of channels; y thread and grid: q; z grid: n*P + p (no thread divides)
// cost      2*N*P*Q*C*R*S FLOPs; each x is fetched R*S times, mostly from cache
// needs     N*H*W*x_stride and N*P*Q*y_stride < 2^31
// source    ONNX operator Conv with group = C = K
#include "kernel.cuh"
#include "elements.cuh"
#include "channels.cuh"
#include "epilogue.cuh"

KERNEL(depthwise)(const Number* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias,
                  const Number* __restrict__ residual, Number* __restrict__ y,
                  int C, int H, int W, int R, int S, int P, int Q,
                  int stride_h, int stride_w, int dilation_h, int dilation_w, int pad_top, int pad_left,
                  int x_stride, int w_stride, int y_stride, int residual_stride,
                  int activation, float alpha, float beta, int y_first, int z_first) {
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    int q = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int row = blockIdx.z + z_first;
    int n = row / P, p = row % P;
    if (c >= C || q >= Q) return;
    int count = C - c;
    Vector<VECTOR> sum = bias ? load<VECTOR>(bias + c) : splat<VECTOR>(0.0f);
    for (int r = 0; r < R; ++r) {
        int h = p * stride_h + r * dilation_h - pad_top;
        if (h < 0 || h >= H) continue;
        for (int s = 0; s < S; ++s) {
            int column = q * stride_w + s * dilation_w - pad_left;
            if (column < 0 || column >= W) continue;
            Vector<VECTOR> tap = load_channels(x + ((n * H + h) * W + column) * x_stride + c, count);
            sum = fma(tap, load<VECTOR>(w + (r * S + s) * w_stride + c), sum);
        }
    }
    int pixel = row * Q + q;
    if (residual) sum = sum + load_channels(residual + pixel * residual_stride + c, count);
    store_channels(y + pixel * y_stride + c, activate(sum, activation, alpha, beta), count);
}
