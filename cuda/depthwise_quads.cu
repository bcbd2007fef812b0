// depthwise_quads.cu -- a depthwise convolution for a GPU: four channels of PIXELS neighbours a thread
//
// computes  y[n,p,q,c] = activation(bias[c] + residual[n,p,q,c] + sum over r < R, s < TAPS of
//               x[n, p*stride_h + r*dilation_h - pad_top, q*STRIDE + s - pad_left, c] * w[r,s,c]), x outside itself 0
// layout    as depthwise.cu, C a multiple of 4. ELEMENT of x, residual, y: float, half
// mapping   x thread and grid: four channels, so that a warp's loads and stores are of 16 bytes side by side; y thread
//           and grid: strip of a row; z grid: n*P + p
// cost      2*N*P*Q*C*R*TAPS FLOPs; (PIXELS - 1)*STRIDE + TAPS loads for PIXELS*TAPS multiply-adds of four
// needs     x, y, residual and their strides multiples of four elements; N*H*W*x_stride and N*P*Q*y_stride < 2^31
// source    ONNX operator Conv with group = C = K
#include "kernel.cuh"
#include "elements.cuh"
#include "epilogue.cuh"

#ifndef PIXELS
#define PIXELS 4
#endif
#ifndef TAPS
#define TAPS 3
#endif
#ifndef STRIDE
#define STRIDE 1
#endif
#define QUAD 4

static constexpr int REACH = (PIXELS - 1) * STRIDE + TAPS;  // columns that a strip sees

KERNEL(depthwise_quads)(const Number* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias,
                        const Number* __restrict__ residual, Number* __restrict__ y,
                        int C, int H, int W, int R, int P, int Q, int stride_h, int dilation_h, int pad_top,
                        int pad_left, int x_stride, int w_stride, int y_stride, int residual_stride,
                        int activation, float alpha, float beta, int y_first, int z_first) {
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * QUAD;
    int q = ((blockIdx.y + y_first) * blockDim.y + threadIdx.y) * PIXELS;
    int row = blockIdx.z + z_first;
    int n = row / P, p = row % P;
    if (c >= C || q >= Q) return;
    int column = q * STRIDE - pad_left;
    Vector<QUAD> sum[PIXELS];
    UNROLL(8)
    for (int i = 0; i < PIXELS; ++i) sum[i] = bias ? load_aligned<QUAD>(bias + c) : splat<QUAD>(0.0f);
    for (int r = 0; r < R; ++r) {
        int h = p * stride_h + r * dilation_h - pad_top;
        if (h < 0 || h >= H) continue;
        const Number* source = x + ((n * H + h) * W + column) * x_stride + c;
        Vector<QUAD> seen[REACH], filter[TAPS];  // a row's loads, all on their way at once
        UNROLL(32)
        for (int j = 0; j < REACH; ++j) {
            bool is_inside = unsigned(column + j) < unsigned(W);
            seen[j] = is_inside ? load_aligned<QUAD>(source + j * x_stride) : splat<QUAD>(0.0f);
        }
        UNROLL(8)
        for (int s = 0; s < TAPS; ++s) filter[s] = load_aligned<QUAD>(w + (r * TAPS + s) * w_stride + c);
        UNROLL(8)
        for (int i = 0; i < PIXELS; ++i) {
            UNROLL(8)
            for (int s = 0; s < TAPS; ++s) sum[i] = fma(seen[i * STRIDE + s], filter[s], sum[i]);
        }
    }
    int pixel = row * Q + q, pixels = min(PIXELS, Q - q);
    UNROLL(1)
    for (int i = 0; i < pixels; ++i, ++pixel) {  // one activation's code for all, the sums moving past it
        Vector<QUAD> total = sum[0];
        UNROLL(8)
        for (int j = 1; j < PIXELS; ++j) sum[j - 1] = sum[j];
        if (residual) total = total + load_aligned<QUAD>(residual + pixel * residual_stride + c);
        store_aligned<QUAD>(y + pixel * y_stride + c, activate(total, activation, alpha, beta));
    }
}
