// depthwise_strips.cu -- a depthwise convolution, a strip of PIXELS neighbours a thread: each x is loaded once a row
//
// computes  y[n,p,q,c] = activation(bias[c] + residual[n,p,q,c] + sum over r < R, s < TAPS of
//               x[n, p*stride_h + r*dilation_h - pad_top, q*STRIDE + s - pad_left, c] * w[r,s,c])
// layout    as depthwise.cu
// mapping   x thread and grid: vector of channels; y thread and grid: strip; z grid: n*P + p (no thread divides)
// cost      2*N*P*Q*C*R*TAPS FLOPs; (PIXELS - 1)*STRIDE + TAPS loads for PIXELS*TAPS multiply-adds
// needs     PIXELS + TAPS + 1 vector registers; N*H*W*x_stride and N*P*Q*y_stride < 2^31
// source    ONNX operator Conv with group = C = K
#include "kernel.cuh"
#include "channels.cuh"
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

static constexpr int REACH = (PIXELS - 1) * STRIDE + TAPS;  // columns that a strip sees

// Adds one row of the filter. IS_WHOLE: every column lies inside x, and so do all channels of the vector.
template <bool IS_WHOLE>
__device__ __forceinline__ static void add_row(const float* x, const float* w, int first_column, int W, int count,
                                               int x_stride, int w_stride, Vector<VECTOR>* sum) {
    Vector<VECTOR> filter[TAPS];
    UNROLL(8)
    for (int s = 0; s < TAPS; ++s) filter[s] = load<VECTOR>(w + s * w_stride);
    UNROLL(64)
    for (int j = 0; j < REACH; ++j) {
        Vector<VECTOR> value;
        if (IS_WHOLE)
            value = load<VECTOR>(x + j * x_stride);
        else if (unsigned(first_column + j) < unsigned(W))
            value = load_channels(x + j * x_stride, count);
        else
            continue;
        UNROLL(8)
        for (int s = 0; s < TAPS; ++s) {
            int i = (j - s) / STRIDE;
            if (j >= s && (j - s) % STRIDE == 0 && i < PIXELS) sum[i] = fma(value, filter[s], sum[i]);
        }
    }
}

KERNEL(depthwise_strips)(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias,
                         const float* __restrict__ residual, float* __restrict__ y,
                         int C, int H, int W, int R, int P, int Q, int stride_h, int dilation_h, int pad_top,
                         int pad_left, int x_stride, int w_stride, int y_stride, int residual_stride,
                         int activation, float alpha, float beta, int y_first, int z_first) {
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    int q = ((blockIdx.y + y_first) * blockDim.y + threadIdx.y) * PIXELS;
    int row = blockIdx.z + z_first;
    int n = row / P, p = row % P;
    if (c >= C || q >= Q) return;
    int count = C - c;
    int column = q * STRIDE - pad_left;
    float* out = y + (row * Q + q) * y_stride + c;
    bool is_whole = count >= VECTOR && column >= 0 && column + REACH <= W;
    Vector<VECTOR> sum[PIXELS];
    Vector<VECTOR> start = bias ? load<VECTOR>(bias + c) : splat<VECTOR>(0.0f);
    UNROLL(32)
    for (int i = 0; i < PIXELS; ++i) {
        sum[i] = start;
        PREFETCH_WRITE(out + i * y_stride);
    }
    for (int r = 0; r < R; ++r) {
        int h = p * stride_h + r * dilation_h - pad_top;
        if (h < 0 || h >= H) continue;
        const float* source = x + ((n * H + h) * W + column) * x_stride + c;
        const float* filter = w + r * TAPS * w_stride + c;
        if (is_whole)
            add_row<true>(source, filter, column, W, count, x_stride, w_stride, sum);
        else
            add_row<false>(source, filter, column, W, count, x_stride, w_stride, sum);
    }
    float sums[PIXELS * VECTOR];  // through memory: the loop below needn't be unrolled
    UNROLL(32)
    for (int i = 0; i < PIXELS; ++i) store(sums + i * VECTOR, sum[i]);
    int pixels = min(PIXELS, Q - q);
    UNROLL(1)
    for (int i = 0; i < pixels; ++i) {
        Vector<VECTOR> total = load<VECTOR>(sums + i * VECTOR);
        if (residual) total = total + load_channels(residual + (row * Q + q + i) * residual_stride + c, count);
        store_channels(out + i * y_stride, activate(total, activation, alpha, beta), count);
    }
}
