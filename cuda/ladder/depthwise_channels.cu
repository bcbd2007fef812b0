// depthwise_channels.cu -- depthwise rung 2: channels last, a warp along them
//
// computes  y[n,p,q,c] = sum over r < R, s < S of x[n, p + r - pad, q + s - pad, c] * w[r,s,c], 0 outside x
// layout    x N,H,W,C   w R,S,C   y N,P,Q,C, dense
// mapping   x thread and grid: c; y thread and grid: q; z grid: n*P + p. Full warps whatever the image's size, and
//           all of a warp inside or outside the image
// cost      2*N*C*P*Q*R*S FLOPs; every x is fetched R*S times
// needs     tensors below 2^31 elements
// source    Qin et al., "Diagonalwise Refactorization: An Efficient Training Method for Depthwise Convolutions", 2018
#include "kernel.cuh"

KERNEL(depthwise_channels)(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y,
                           int N, int C, int H, int W, int R, int S, int P, int Q, int pad) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    int q = blockIdx.y * blockDim.y + threadIdx.y;
    int n = blockIdx.z / P, p = blockIdx.z % P;
    if (c >= C || q >= Q || n >= N) return;
    float sum = 0.0f;
    for (int r = 0; r < R; ++r)
        for (int s = 0; s < S; ++s) {
            int h = p + r - pad, column = q + s - pad;
            if (h < 0 || h >= H || column < 0 || column >= W) continue;
            sum += x[((n * H + h) * W + column) * C + c] * w[(r * S + s) * C + c];
        }
    y[((n * P + p) * Q + q) * C + c] = sum;
}
