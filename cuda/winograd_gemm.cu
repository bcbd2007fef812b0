// winograd_gemm.cu -- what stands before and behind the products of F(OUTPUTS x OUTPUTS, 3x3), which a batched GEMM does
//
// computes  winograd_input:   v[i,j,t,c] = (B^T x tile B)[i,j] of channel c of tile t
//           winograd_output:  y tile = activation(bias[k] + residual + (A^T m[.,.,t,k] A)), OUTPUTS x OUTPUTS pixels
//           tile t = (n*ceil(P/OUTPUTS) + p/OUTPUTS)*ceil(Q/OUTPUTS) + q/OUTPUTS; outside x is 0; bias or residual null:
//           left out (winograd.cuh names the points)
// layout    x, y, residual: pixels, x_stride, y_stride, residual_stride floats apart
//           v SIDE^2 matrices of T tiles x C, m of T x K, dense
// mapping   x thread and grid: channel; y thread and grid: tile
// cost      F(2x2): 32 additions a tile and channel before, 24 behind; F(4x4): about 144 and 100
// needs     every index < 2^31
// source    Lavin, Gray, "Fast Algorithms for Convolutional Neural Networks", 2016
#include "kernel.cuh"
#include "epilogue.cuh"
#include "winograd.cuh"

KERNEL(winograd_input)(const float* __restrict__ x, float* __restrict__ v, int C, int H, int W, int P, int Q, int T,
                       int pad_top, int pad_left, int x_stride, int y_first) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    int t = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    if (c >= C || t >= T) return;
    int wide = (Q + OUTPUTS - 1) / OUTPUTS, high = (P + OUTPUTS - 1) / OUTPUTS;
    int n = t / (wide * high), top = t / wide % high * OUTPUTS - pad_top, left = t % wide * OUTPUTS - pad_left;
    float half[SIDE][SIDE];  // B^T x, transposed
    UNROLL(6)
    for (int j = 0; j < SIDE; ++j) {
        float d[SIDE];
        UNROLL(6)
        for (int i = 0; i < SIDE; ++i) {
            int h = top + i, w = left + j;
            bool is_inside = h >= 0 && h < H && w >= 0 && w < W;
            d[i] = is_inside ? x[((n * H + h) * W + w) * x_stride + c] : 0.0f;
        }
        transform_input(d, half[j]);
    }
    UNROLL(6)
    for (int i = 0; i < SIDE; ++i) {
        float d[SIDE], row[SIDE];
        UNROLL(6)
        for (int j = 0; j < SIDE; ++j) d[j] = half[j][i];
        transform_input(d, row);
        UNROLL(6)
        for (int j = 0; j < SIDE; ++j) v[((i * SIDE + j) * T + t) * C + c] = row[j];
    }
}

KERNEL(winograd_output)(const float* __restrict__ m, const float* __restrict__ bias, const float* __restrict__ residual,
                        float* __restrict__ y, int K, int P, int Q, int T, int y_stride, int residual_stride,
                        int activation, float alpha, float beta, int y_first) {
    int k = blockIdx.x * blockDim.x + threadIdx.x;
    int t = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    if (k >= K || t >= T) return;
    int wide = (Q + OUTPUTS - 1) / OUTPUTS, high = (P + OUTPUTS - 1) / OUTPUTS;
    int n = t / (wide * high), top = t / wide % high * OUTPUTS, left = t % wide * OUTPUTS;
    float half[SIDE][OUTPUTS];  // A^T m, transposed
    UNROLL(6)
    for (int j = 0; j < SIDE; ++j) {
        float column[SIDE];
        UNROLL(6)
        for (int i = 0; i < SIDE; ++i) column[i] = m[((i * SIDE + j) * T + t) * K + k];
        transform_output(column, half[j]);
    }
    float start = bias ? bias[k] : 0.0f;
    UNROLL(4)
    for (int i = 0; i < OUTPUTS; ++i) {
        float row[SIDE], out[OUTPUTS];
        UNROLL(6)
        for (int j = 0; j < SIDE; ++j) row[j] = half[j][i];
        transform_output(row, out);
        UNROLL(4)
        for (int j = 0; j < OUTPUTS; ++j) {
            int p = top + i, q = left + j, pixel = (n * P + p) * Q + q;
            if (p >= P || q >= Q) continue;
            float sum = out[j] + start;
            if (residual) sum += residual[pixel * residual_stride + k];
            y[pixel * y_stride + k] = activate(sum, activation, alpha, beta);
        }
    }
}
