// maxpool.cu -- the largest value under each window
//
// computes  y[n,c,p,q] = max over r < R, s < S of x[n, c, p*stride_h + r*dilation_h - pad_top,
//                                                        q*stride_w + s*dilation_w - pad_left]
//           taps outside x are skipped; NaN wins over every number
//           maxpool_indices: also where in x it is, the first of equals; images count by rows or by columns
// layout    maxpool: x N,C,H,W -> y N,C,P,Q.  maxpool_nhwc: pixels of C channels (padding may count), x_stride and
//           y_stride elements apart. ELEMENT: float, half; maxpool_indices: float
// mapping   maxpool: x thread and grid: q; y grid: p; z grid: n*C + c.
//           maxpool_nhwc: x thread and grid: vector of channels; y: q; z grid: n*P + p (no thread divides)
// cost      N*C*P*Q*R*S compares; 4*N*C*(H*W + P*Q) bytes if each x is fetched once
// needs     N*C*H*W and N*C*P*Q < 2^31
// source    ONNX operator MaxPool
#include "kernel.cuh"
#include "elements.cuh"
#include "channels.cuh"

static constexpr float LEAST = -INFINITY;

KERNEL(maxpool)(const Number* __restrict__ x, Number* __restrict__ y, int H, int W, int R, int S, int P, int Q,
                int stride_h, int stride_w, int dilation_h, int dilation_w, int pad_top, int pad_left, int y_first,
                int z_first) {
    int q = blockIdx.x * blockDim.x + threadIdx.x;
    int p = blockIdx.y + y_first;
    int plane = blockIdx.z + z_first;
    const Number* image = x + plane * H * W;
    int w_first = q * stride_w - pad_left;
    if (q >= Q) return;
    float most = LEAST;
    for (int r = 0; r < R; ++r) {
        int h = p * stride_h + r * dilation_h - pad_top;
        if (h < 0 || h >= H) continue;
        for (int s = 0; s < S; ++s) {
            int w = w_first + s * dilation_w;
            if (w >= 0 && w < W) most = maximum(image[h * W + w], most);
        }
    }
    y[(plane * P + p) * Q + q] = most;
}

KERNEL(maxpool_nhwc)(const Number* __restrict__ x, Number* __restrict__ y,
                     int C, int H, int W, int R, int S, int P, int Q,
                     int stride_h, int stride_w, int dilation_h, int dilation_w, int pad_top, int pad_left,
                     int x_stride, int y_stride, int y_first, int z_first) {
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    int q = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int row = blockIdx.z + z_first;
    int n = row / P, p = row % P;
    if (c >= C || q >= Q) return;
    Vector<VECTOR> most = splat<VECTOR>(LEAST);
    for (int r = 0; r < R; ++r) {
        int h = p * stride_h + r * dilation_h - pad_top;
        if (h < 0 || h >= H) continue;
        for (int s = 0; s < S; ++s) {
            int w = q * stride_w + s * dilation_w - pad_left;
            if (w >= 0 && w < W) most = maximum(load_channels(x + ((n * H + h) * W + w) * x_stride + c, C - c), most);
        }
    }
    store_channels(y + (row * Q + q) * y_stride + c, most, C - c);
}

KERNEL(maxpool_indices)(const float* __restrict__ x, float* __restrict__ y, long long* __restrict__ indices, int H,
                        int W, int R, int S, int P, int Q, int stride_h, int stride_w, int dilation_h, int dilation_w,
                        int pad_top, int pad_left, int by_columns, int y_first, int z_first) {
    int q = blockIdx.x * blockDim.x + threadIdx.x;
    int p = blockIdx.y + y_first;
    int plane = blockIdx.z + z_first;
    const float* image = x + plane * H * W;
    int w_first = q * stride_w - pad_left;
    if (q >= Q) return;
    float most = LEAST;
    int place = -1;
    for (int r = 0; r < R; ++r) {
        int h = p * stride_h + r * dilation_h - pad_top;
        if (h < 0 || h >= H) continue;
        for (int s = 0; s < S; ++s) {
            int w = w_first + s * dilation_w;
            if (w < 0 || w >= W) continue;
            float value = image[h * W + w];
            if (place >= 0 && !(value > most) && !(value != value && most == most)) continue;
            most = value;
            place = by_columns ? w * H + h : h * W + w;
        }
    }
    y[(plane * P + p) * Q + q] = most;
    indices[(plane * P + p) * Q + q] = (long long)plane * H * W + place;
}
