// conv_winograd.cu -- a 3x3 convolution with fewer products: F(OUTPUTS x OUTPUTS, 3x3)
//
// computes  y[n,p,q,k] = activation(bias[k] + residual[n,p,q,k] + sum over r, s < 3, c < C of
//               x[n, p + r - pad_top, q + s - pad_left, c] * w[r,s,c,k]), a tile of OUTPUTS^2 outputs at a time:
//           y tile = A^T (sum over c of U * V) A, element by element, with V = B^T x tile B, U = G w G^T, made at load
//           (winograd.cuh names the points)
// layout    x, y, residual: pixels, x_stride, y_stride, residual_stride floats apart
//           u [block][SIDE^2][C][VECTORS * 16]
//           shared: V [SIDE^2][tiles][C padded to 16, + 16 against cache aliasing], then sums [SIDE^2][tiles][channels]
// mapping   a block is one thread: `together` tiles (grid x) by `blocks_together` blocks of channels (grid y)
// cost      2*C*K*SIDE^2 FLOPs a tile (the definition's 18*C*K*OUTPUTS^2) and the transforms: 144 C additions and 50 K
// needs     a CPU: 1 MB of shared memory; N*H*W*x_stride and N*P*Q*y_stride < 2^31
// source    Lavin, Gray, "Fast Algorithms for Convolutional Neural Networks", 2016
#include "kernel.cuh"
#include "channels.cuh"
#include "epilogue.cuh"
#include "tile.cuh"
#include "winograd.cuh"

typedef Vector<VECTOR> Channels;

KERNEL(conv_winograd)(const float* __restrict__ x, const float* __restrict__ u, const float* __restrict__ bias,
                      const float* __restrict__ residual, float* __restrict__ y,
                      int N, int C, int H, int W, int K, int P, int Q, int pad_top, int pad_left,
                      int k_first, int blocks, int blocks_together, int together, int x_stride, int x_channels,
                      int y_stride, int y_channels, int residual_stride, int residual_channels,
                      int activation, float alpha, float beta) {
    DYNAMIC_SHARED(float, memory);
    int tiles_wide = (Q + OUTPUTS - 1) / OUTPUTS, tiles_high = (P + OUTPUTS - 1) / OUTPUTS;
    int first_tile = blockIdx.x * together;
    int tiles = min(together, N * tiles_high * tiles_wide - first_tile);
    int v_stride = (C + VECTOR - 1) / VECTOR * VECTOR + VECTOR;
    float* transformed = memory;
    float* sums = memory + PRODUCTS * together * v_stride;

    for (int t = 0; t < tiles; ++t) {
        int tile = first_tile + t;
        int n = tile / (tiles_high * tiles_wide);
        int h = tile / tiles_wide % tiles_high * OUTPUTS - pad_top, column = tile % tiles_wide * OUTPUTS - pad_left;
        for (int c = 0; c < C; c += VECTOR) {
            Channels half[SIDE][SIDE];  // B^T x, transposed
            UNROLL(1)
            for (int j = 0; j < SIDE; ++j) {
                Channels d[SIDE];
                bool column_exists = unsigned(column + j) < unsigned(W);
                UNROLL(6)
                for (int i = 0; i < SIDE; ++i) {
                    d[i] = splat<VECTOR>(0.0f);
                    if (column_exists && unsigned(h + i) < unsigned(H))
                        d[i] = load_channels(x + ((n * H + h + i) * W + column + j) * x_stride + c, x_channels - c);
                }
                transform_input(d, half[j]);
            }
            UNROLL(1)
            for (int i = 0; i < SIDE; ++i) {
                Channels d[SIDE], v[SIDE];
                UNROLL(6)
                for (int j = 0; j < SIDE; ++j) d[j] = half[j][i];
                transform_input(d, v);
                UNROLL(6)
                for (int j = 0; j < SIDE; ++j)
                    store(transformed + ((i * SIDE + j) * together + t) * v_stride + c, v[j]);
            }
        }
    }

    int last_block = min((blockIdx.y + 1) * blocks_together, blocks);
    for (int block = blockIdx.y * blocks_together; block < last_block; ++block) {
        for (int product = 0; product < PRODUCTS; ++product) {
            const float* filter = u + (block * PRODUCTS + product) * C * BLOCK_CHANNELS;
            for (int t = 0; t < tiles; t += PIXELS) {
                const float* source[PIXELS];
                for (int i = 0; i < PIXELS; ++i)
                    source[i] = transformed + (product * together + min(t + i, tiles - 1)) * v_stride;
                add_taps<true>(source, &filter, 1, C, sums + (product * together + t) * BLOCK_CHANNELS);
            }
        }
        for (int t = 0; t < tiles; ++t) {
            int tile = first_tile + t;
            int n = tile / (tiles_high * tiles_wide);
            int p = tile / tiles_wide % tiles_high * OUTPUTS, q = tile % tiles_wide * OUTPUTS;
            UNROLL(1)
            for (int v = 0; v < VECTORS; ++v) {
                int k = k_first + block * BLOCK_CHANNELS + v * VECTOR;
                Channels half[SIDE][OUTPUTS];  // A^T sums, transposed
                UNROLL(1)
                for (int j = 0; j < SIDE; ++j) {
                    Channels m[SIDE];
                    UNROLL(6)
                    for (int i = 0; i < SIDE; ++i)
                        m[i] = load<VECTOR>(sums + ((i * SIDE + j) * together + t) * BLOCK_CHANNELS + v * VECTOR);
                    transform_output(m, half[j]);
                }
                Channels start = bias ? load_channels(bias + k, K - k) : splat<VECTOR>(0.0f);
                UNROLL(1)
                for (int i = 0; i < OUTPUTS; ++i) {
                    if (p + i >= P) continue;
                    Channels m[SIDE], out[OUTPUTS];
                    UNROLL(6)
                    for (int j = 0; j < SIDE; ++j) m[j] = half[j][i];
                    transform_output(m, out);
                    UNROLL(4)
                    for (int j = 0; j < OUTPUTS; ++j) {
                        int pixel = (n * P + p + i) * Q + q + j;
                        if (q + j >= Q) continue;
                        Channels total = out[j] + start;
                        if (residual)
                            total = total + load_channels(residual + pixel * residual_stride + k, residual_channels - k);
                        store_channels(y + pixel * y_stride + k, activate(total, activation, alpha, beta),
                                       y_channels - k);
                    }
                }
            }
        }
    }
}
