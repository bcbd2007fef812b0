// coalesced.cu -- rung 2: the same, threads along a row of the image
//
// computes  y[n,k,p,q] = sum over c < C, r < R, s < S of x[n, c, p + r - pad, q + s - pad] * w[k,c,r,s], 0 outside x
// layout    x N,C,H,W   w K,C,R,S   y N,K,P,Q, dense
// mapping   x thread and grid: q; y thread and grid: p; z grid: n*K + k. A warp wants neighbours of x, and one
//           filter's tap for all
// cost      2*N*K*P*Q*C*R*S FLOPs; every product fetches both of its factors, a warp's x in a few transactions
// needs     tensors below 2^31 elements
// source    CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory"
#include "kernel.cuh"

KERNEL(coalesced)(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y,
                  int N, int C, int H, int W, int K, int R, int S, int P, int Q, int pad) {
    int q = blockIdx.x * blockDim.x + threadIdx.x;
    int p = blockIdx.y * blockDim.y + threadIdx.y;
    int n = blockIdx.z / K, k = blockIdx.z % K;
    if (q >= Q || p >= P || n >= N) return;
    float sum = 0.0f;
    for (int c = 0; c < C; ++c)
        for (int r = 0; r < R; ++r)
            for (int s = 0; s < S; ++s) {
                int h = p + r - pad, column = q + s - pad;
                if (h < 0 || h >= H || column < 0 || column >= W) continue;
                sum += x[((n * C + c) * H + h) * W + column] * w[((k * C + c) * R + r) * S + s];
            }
    y[((n * K + k) * P + p) * Q + q] = sum;
}
