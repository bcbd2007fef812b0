// lppool.cu -- the norm of each window
//
// computes  y[n,c,p,q] = (sum over the window's taps inside x of |x|^power)^(1/power)
// layout    lppool: x N,C,H,W -> y N,C,P,Q.  lppool_nhwc: pixels of C channels (padding may count), x_stride and
//           y_stride floats apart
// mapping   lppool: x thread and grid: q; y grid: p; z grid: n*C + c
//           lppool_nhwc: x thread and grid: vector of channels; y: q; z grid: n*P + p (no thread divides extents)
// cost      2*N*C*P*Q*R*S FLOPs for powers 1 and 2, a power function a tap for others
// needs     N*C*H*W and N*C*P*Q < 2^31
// source    ONNX operator LpPool
#include "kernel.cuh"
#include "channels.cuh"
#include "lppool.cuh"

KERNEL(lppool)(const float* __restrict__ x, float* __restrict__ y, int H, int W, int R, int S, int P, int Q,
               int stride_h, int stride_w, int dilation_h, int dilation_w, int pad_top, int pad_left, float power,
               int y_first, int z_first) {
    int q = blockIdx.x * blockDim.x + threadIdx.x;
    int p = blockIdx.y + y_first;
    int plane = blockIdx.z + z_first;
    const float* image = x + plane * H * W;
    int w_first = q * stride_w - pad_left;
    if (q >= Q) return;
    float sum = 0.0f;
    for (int r = 0; r < R; ++r) {
        int h = p * stride_h + r * dilation_h - pad_top;
        if (h < 0 || h >= H) continue;
        for (int s = 0; s < S; ++s) {
            int w = w_first + s * dilation_w;
            if (w >= 0 && w < W) sum += powered(image[h * W + w], power);
        }
    }
    y[(plane * P + p) * Q + q] = rooted(sum, power);
}

KERNEL(lppool_nhwc)(const float* __restrict__ x, float* __restrict__ y, int C, int H, int W, int R, int S, int P,
                    int Q, int stride_h, int stride_w, int dilation_h, int dilation_w, int pad_top, int pad_left,
                    float power, int x_stride, int y_stride, int y_first, int z_first) {
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    int q = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int row = blockIdx.z + z_first;
    int n = row / P, p = row % P;
    if (c >= C || q >= Q) return;
    Vector<VECTOR> sum = splat<VECTOR>(0.0f);
    for (int r = 0; r < R; ++r) {
        int h = p * stride_h + r * dilation_h - pad_top;
        if (h < 0 || h >= H) continue;
        for (int s = 0; s < S; ++s) {
            int w = q * stride_w + s * dilation_w - pad_left;
            if (w < 0 || w >= W) continue;
            Vector<VECTOR> tap = load_channels(x + ((n * H + h) * W + w) * x_stride + c, C - c);
            if (power == 2.0f)
                sum = fma(tap, tap, sum);
            else
                UNROLL(16) for (int lane = 0; lane < VECTOR; ++lane) sum.set(lane, sum[lane] + powered(tap[lane], power));
        }
    }
    UNROLL(16) for (int lane = 0; lane < VECTOR; ++lane) sum.set(lane, rooted(sum[lane], power));
    store_channels(y + (row * Q + q) * y_stride + c, sum, C - c);
}
