// averagepool.cu -- the mean of each window
//
// computes  y[n,c,p,q] = sum over the window's taps inside x, divided by their number; with count_pads the divisor also
//           counts taps on padding (but not those that ceil_mode hangs over the padding's edge)
// layout    averagepool: x N,C,H,W -> y N,C,P,Q.  averagepool_nhwc: pixels of C channels (padding may count), x_stride
//           and y_stride elements apart. ELEMENT: float, half
// mapping   averagepool: x thread and grid: q; y grid: p; z grid: n*C + c.
//           averagepool_nhwc: x thread and grid: vector of channels; y: q; z grid: n*P + p (no thread divides extents)
// cost      N*C*P*Q*R*S FLOPs; 4*N*C*(H*W + P*Q) bytes if each x is fetched once
// needs     N*C*H*W and N*C*P*Q < 2^31
// source    ONNX operator AveragePool
#include "kernel.cuh"
#include "elements.cuh"
#include "channels.cuh"

// How many of `taps` positions first, first + step, ... lie in [least, end).
VECTOR_FUNCTION int taps_within(int first, int step, int taps, int least, int end) {
    int count = 0;
    for (int t = 0; t < taps; ++t) {
        int place = first + t * step;
        count += place >= least && place < end ? 1 : 0;
    }
    return count;
}

KERNEL(averagepool)(const Number* __restrict__ x, Number* __restrict__ y, int H, int W, int R, int S, int P, int Q,
                    int stride_h, int stride_w, int dilation_h, int dilation_w,
                    int pad_top, int pad_left, int pad_bottom, int pad_right, int count_pads, int y_first, int z_first) {
    int q = blockIdx.x * blockDim.x + threadIdx.x;
    int p = blockIdx.y + y_first;
    int plane = blockIdx.z + z_first;
    const Number* image = x + plane * H * W;
    int h_first = p * stride_h - pad_top, w_first = q * stride_w - pad_left;
    if (q >= Q) return;
    float sum = 0.0f;
    for (int r = 0; r < R; ++r) {
        int h = h_first + r * dilation_h;
        if (h < 0 || h >= H) continue;
        for (int s = 0; s < S; ++s) {
            int w = w_first + s * dilation_w;
            if (w >= 0 && w < W) sum += (float)image[h * W + w];
        }
    }
    int rows = count_pads ? taps_within(h_first, dilation_h, R, -pad_top, H + pad_bottom)
                          : taps_within(h_first, dilation_h, R, 0, H);
    int columns = count_pads ? taps_within(w_first, dilation_w, S, -pad_left, W + pad_right)
                             : taps_within(w_first, dilation_w, S, 0, W);
    y[(plane * P + p) * Q + q] = sum / (float)(rows * columns);
}

KERNEL(averagepool_nhwc)(const Number* __restrict__ x, Number* __restrict__ y,
                         int C, int H, int W, int R, int S, int P, int Q,
                         int stride_h, int stride_w, int dilation_h, int dilation_w,
                         int pad_top, int pad_left, int pad_bottom, int pad_right, int count_pads,
                         int x_stride, int y_stride, int y_first, int z_first) {
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    int q = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int row = blockIdx.z + z_first;
    int n = row / P, p = row % P;
    int h_first = p * stride_h - pad_top, w_first = q * stride_w - pad_left;
    if (c >= C || q >= Q) return;
    Vector<VECTOR> sum = splat<VECTOR>(0.0f);
    for (int r = 0; r < R; ++r) {
        int h = h_first + r * dilation_h;
        if (h < 0 || h >= H) continue;
        for (int s = 0; s < S; ++s) {
            int w = w_first + s * dilation_w;
            if (w >= 0 && w < W) sum = sum + load_channels(x + ((n * H + h) * W + w) * x_stride + c, C - c);
        }
    }
    int rows = count_pads ? taps_within(h_first, dilation_h, R, -pad_top, H + pad_bottom)
                          : taps_within(h_first, dilation_h, R, 0, H);
    int columns = count_pads ? taps_within(w_first, dilation_w, S, -pad_left, W + pad_right)
                             : taps_within(w_first, dilation_w, S, 0, W);
    store_channels(y + (row * Q + q) * y_stride + c, sum / (float)(rows * columns), C - c);
}
