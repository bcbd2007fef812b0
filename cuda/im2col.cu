// im2col.cu -- a slab of convolution windows laid out as a matrix, so that a GEMM does the rest
//
// computes  im2col:       columns[c*R*S + r*S + s, m*Q + q] = x[n, c, p*stride_h + r*dilation_h - pad_top, ...]
//           im2col_nhwc:  columns[m*Q + q, g, r, s, c] = the same tap of channel g*C + c
//           m < M counts output rows of the slab: first_row + m = n*P + p; taps outside x are 0
// layout    im2col: x N,C,H,W; columns C*R*S rows of M*Q.  im2col_nhwc: x pixels of x_stride floats, C channels a group
// mapping   im2col: x thread: q; y grid: m; z grid: c*R*S + r*S + s.
//           im2col_nhwc: x thread: vector of channels; y thread: q; x grid: q; y grid: m; z grid: group and the
//           channels a block doesn't reach (no thread divides)
// cost      no FLOPs; R*S times the bytes of x read (mostly from cache) and written
// needs     M*Q*C*R*S < 2^31
// source    Chellapilla, Puri, Simard, "High Performance Convolutional Neural Networks for Document Processing", 2006
#include "kernel.cuh"
#include "channels.cuh"

KERNEL(im2col)(const float* __restrict__ x, float* __restrict__ columns,
               int C, int H, int W, int R, int S, int P, int Q, int M, int first_row,
               int stride_h, int stride_w, int dilation_h, int dilation_w, int pad_top, int pad_left, int y_first,
               int z_first) {
    int q = blockIdx.x * blockDim.x + threadIdx.x;
    int m = blockIdx.y + y_first;
    int tap = blockIdx.z + z_first;
    int n = (first_row + m) / P, p = (first_row + m) % P;
    int c = tap / (R * S), r = tap / S % R, s = tap % S;
    int h = p * stride_h + r * dilation_h - pad_top;
    bool row_exists = h >= 0 && h < H;
    const float* row = x + ((n * C + c) * H + (row_exists ? h : 0)) * W;
    float* out = columns + (tap * M + m) * Q;
    int w = q * stride_w + s * dilation_w - pad_left;
    int nearest = w < 0 ? 0 : w < W ? w : W - 1;  // a load without a condition: a CPU compiler vectorises it
    if (q >= Q) return;
    float tap_value = row[nearest];
    out[q] = row_exists && nearest == w ? tap_value : 0.0f;
}

KERNEL(im2col_nhwc)(const float* __restrict__ x, float* __restrict__ columns,
                    int groups, int C, int H, int W, int R, int S, int P, int Q, int first_row,
                    int stride_h, int stride_w, int dilation_h, int dilation_w, int pad_top, int pad_left, int x_stride,
                    int y_first, int z_first) {
    int q = blockIdx.x * blockDim.y + threadIdx.y;
    int m = blockIdx.y + y_first;
    int z = blockIdx.z + z_first;
    int n = (first_row + m) / P, p = (first_row + m) % P;
    int chunk = z / groups, g = z % groups;
    int c = (chunk * blockDim.x + threadIdx.x) * VECTOR;
    if (q >= Q || c >= C) return;
    float* out = columns + ((m * Q + q) * groups + g) * R * S * C + c;
    for (int r = 0; r < R; ++r) {
        int h = p * stride_h + r * dilation_h - pad_top;
        for (int s = 0; s < S; ++s, out += C) {
            int w = q * stride_w + s * dilation_w - pad_left;
            Vector<VECTOR> v = splat<VECTOR>(0.0f);
            if (h >= 0 && h < H && w >= 0 && w < W)
                v = load_channels(x + ((n * H + h) * W + w) * x_stride + g * C + c, C - c);
            store_channels(out, v, C - c);
        }
    }
}
