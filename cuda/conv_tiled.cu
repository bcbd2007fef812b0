// conv_tiled.cu -- a convolution whose sums stay in registers: PIXELS outputs x VECTORS * 16 channels a thread
//
// computes  y[n,p,q,k] = activation(bias[k] + residual[n,p,q,k] + sum over r < R, s < S, c < C of
//               x[n, p*stride_h + r*dilation_h - pad_top, q*stride_w + s*dilation_w - pad_left, g*C + c] * w[r,s,c,k])
//           conv_tiled_pad: x of few channels with its pads, channels last, so that a filter's row is one run of memory
// layout    x, y, residual: pixels, x_stride, y_stride, residual_stride floats apart
//           w [group][block][R][S][C][VECTORS * 16], `zeros` C zeros: what taps outside x read
//           conv_tiled_pad: x N,C,H,W -> y N, H_padded, W_padded, C
// mapping   a thread: PIXELS neighbours in the row of all N*P*Q pixels; the last thread's may be fewer
//           grid x and y: threads and blocks of channels; `channels_inner` says which changes faster: the blocks where
//           x is large against the weights, so that it is fetched once; grid z: group
//           conv_tiled_pad: x thread and grid: padded row
// cost      2*N*P*Q*K*R*S*C FLOPs, 1 load for every PIXELS * VECTORS / (PIXELS + VECTORS) multiply-adds of vectors
// needs     PIXELS * VECTORS + VECTORS + 1 vector registers; N*H*W*x_stride and N*P*Q*y_stride < 2^31
// source    Georganas et al., "Anatomy of High-Performance Deep Learning Convolutions on SIMD Architectures", 2018
#include "kernel.cuh"
#include "channels.cuh"
#include "epilogue.cuh"
#include "tile.cuh"

#ifndef CHANNELS
#define CHANNELS 3
#endif

static constexpr int TAPS = 16;  // of the filter that one call of add_taps goes over

KERNEL(conv_tiled)(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ zeros,
                   const float* __restrict__ bias, const float* __restrict__ residual, float* __restrict__ y,
                   int pixels, int H, int W, int R, int S, int P, int Q,
                   int stride_h, int stride_w, int dilation_h, int dilation_w, int pad_top, int pad_left,
                   int groups, int C, int K, int k_first, int blocks, int x_stride, int y_stride, int y_channels,
                   int residual_stride, int residual_channels, int channels_inner,
                   int activation, float alpha, float beta, int z_first) {
    int tile = (channels_inner ? blockIdx.y : blockIdx.x) * blockDim.x + threadIdx.x;
    int block = channels_inner ? blockIdx.x : blockIdx.y;
    int first_pixel = tile * PIXELS;
    if (first_pixel >= pixels) return;
    int count = pixels - first_pixel;
    int g = blockIdx.z + z_first;
    int k = g * (K / groups) + k_first + block * BLOCK_CHANNELS;
    int k_end = g + 1 == groups ? y_channels : (g + 1) * (K / groups);  // padding behind the last group may be written

    // Where each pixel's window begins.
    int h[PIXELS], column[PIXELS], place[PIXELS];
    int q = first_pixel % Q, row = first_pixel / Q;
    int p = row % P, n = row / P;
    if (q + PIXELS <= Q) {  // in one row: a loop that vectorises
        for (int i = 0; i < PIXELS; ++i) {
            h[i] = p * stride_h - pad_top;
            column[i] = (q + i) * stride_w - pad_left;
            place[i] = ((n * H + h[i]) * W + column[i]) * x_stride + g * C;
        }
    }
    UNROLL(1)
    for (int i = q + PIXELS <= Q ? PIXELS : 0; i < PIXELS; ++i) {
        h[i] = p * stride_h - pad_top;
        column[i] = q * stride_w - pad_left;
        place[i] = ((n * H + h[i]) * W + column[i]) * x_stride + g * C;
        if (i + 1 < count && ++q == Q) {
            q = 0;
            if (++p == P) p = 0, ++n;
        }
    }

    if (count > PIXELS) count = PIXELS;
    UNROLL(1)
    for (int i = 0; i < count; ++i) {
        UNROLL(4)
        for (int v = 0; v < VECTORS; ++v) {
            PREFETCH_WRITE(y + (first_pixel + i) * y_stride + k + v * VECTOR);
            if (residual) PREFETCH(residual + (first_pixel + i) * residual_stride + k + v * VECTOR);
        }
    }

    float sums[TILE_FLOATS];
    const float *source[TAPS * PIXELS], *filters[TAPS];
    const float* weights = w + (g * blocks + block) * R * S * C * BLOCK_CHANNELS;
    int taps = 0;
    bool has_sums = false;
    for (int r = 0; r < R; ++r) {
        for (int s = 0; s < S; ++s, weights += C * BLOCK_CHANNELS) {
            int down = r * dilation_h, right = s * dilation_w;
            int step = (down * W + right) * x_stride;
            bool any_inside = false;
            for (int i = 0; i < PIXELS; ++i) {
                bool inside = unsigned(h[i] + down) < unsigned(H) && unsigned(column[i] + right) < unsigned(W);
                source[taps * PIXELS + i] = inside ? x + (place[i] + step) : zeros;
                any_inside |= inside;
            }
            if (!any_inside) continue;
            filters[taps++] = weights;
            if (taps < TAPS) continue;
            has_sums ? add_taps<false>(source, filters, taps, C, sums) : add_taps<true>(source, filters, taps, C, sums);
            has_sums = true;
            taps = 0;
        }
    }
    has_sums ? add_taps<false>(source, filters, taps, C, sums) : add_taps<true>(source, filters, taps, C, sums);

    UNROLL(1)
    for (int i = 0; i < count; ++i) {
        int pixel = first_pixel + i;
        UNROLL(1)
        for (int v = 0; v < VECTORS; ++v) {
            int channel = k + v * VECTOR;
            Vector<VECTOR> total = load<VECTOR>(sums + i * BLOCK_CHANNELS + v * VECTOR);
            if (bias) total = total + load_channels(bias + channel, K - channel);
            if (residual)
                total = total + load_channels(residual + pixel * residual_stride + channel, residual_channels - channel);
            store_channels(y + pixel * y_stride + channel, activate(total, activation, alpha, beta), k_end - channel);
        }
    }
}

KERNEL(conv_tiled_pad)(const float* __restrict__ x, float* __restrict__ y, int N, int H, int W,
                       int H_padded, int W_padded, int pad_top, int pad_left) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= N * H_padded) return;
    int n = row / H_padded, h = row % H_padded - pad_top;
    float* target = y + row * W_padded * CHANNELS;
    bool row_exists = h >= 0 && h < H;
    int before = row_exists ? min(pad_left, W_padded) : W_padded;
    int inside = min(W, W_padded - before);  // columns of x in the row
    for (int i = 0; i < before * CHANNELS; ++i) target[i] = 0.0f;
    for (int i = (before + inside) * CHANNELS; i < W_padded * CHANNELS; ++i) target[i] = 0.0f;
    const float* source = x + (n * CHANNELS * H + (row_exists ? h : 0)) * W;
    target += before * CHANNELS;
    for (int w = 0; w < inside; ++w) {  // a thread a row: the loop interleaves vectors of w
        UNROLL(16)
        for (int c = 0; c < CHANNELS; ++c) target[w * CHANNELS + c] = source[c * H * W + w];
    }
}
