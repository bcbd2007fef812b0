// depthwise_strip.cu -- depthwise rung 3: a thread makes STRIP outputs of a row, and keeps what windows share
//
// computes  y[n,p,q,c] = sum over r < R, s < S of x[n, p + r - pad, q + s - pad, c] * w[r,s,c], 0 outside x
// layout    x N,H,W,C   w R,S,C   y N,P,Q,C, dense
// mapping   x thread and grid: c; y thread and grid: STRIP q; z grid: n*P + p
// cost      2*N*C*P*Q*R*S FLOPs; an x is fetched R * (1 + (S-1)/STRIP) times, a tap of w once for STRIP outputs
// needs     S <= MOST
// source    Zhang, Lo, Lu, "High Performance Depthwise and Pointwise Convolutions on Mobile Devices", 2020
#include "kernel.cuh"

#define STRIP 4
#define MOST 7

KERNEL(depthwise_strip)(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y,
                        int N, int C, int H, int W, int R, int S, int P, int Q, int pad) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    int q = (blockIdx.y * blockDim.y + threadIdx.y) * STRIP;
    int n = blockIdx.z / P, p = blockIdx.z % P;
    if (c >= C || q >= Q || n >= N) return;
    float sum[STRIP];
    UNROLL(4)
    for (int i = 0; i < STRIP; ++i) sum[i] = 0.0f;
    for (int r = 0; r < R; ++r) {
        int h = p + r - pad;
        if (h < 0 || h >= H) continue;
        float row[STRIP + MOST - 1];
        UNROLL(10)
        for (int i = 0; i < STRIP + MOST - 1; ++i) {
            int column = q + i - pad;
            bool is_inside = i < STRIP + S - 1 && column >= 0 && column < W;
            row[i] = is_inside ? x[((n * H + h) * W + column) * C + c] : 0.0f;
        }
        UNROLL(7)
        for (int s = 0; s < MOST; ++s) {
            if (s >= S) continue;
            float tap = w[(r * S + s) * C + c];
            UNROLL(4)
            for (int i = 0; i < STRIP; ++i) sum[i] += row[i + s] * tap;
        }
    }
    UNROLL(4)
    for (int i = 0; i < STRIP; ++i)
        if (q + i < Q) y[((n * P + p) * Q + q + i) * C + c] = sum[i];
}
