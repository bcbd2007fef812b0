// direct.cu -- rung 1: the definition, one thread for each output
//
// computes  y[n,k,p,q] = sum over c < C, r < R, s < S of x[n, c, p + r - pad, q + s - pad] * w[k,c,r,s], 0 outside x
// layout    x N,C,H,W   w K,C,R,S   y N,K,P,Q, dense
// mapping   x thread and grid: k; y grid: p*Q + q; z grid: n. Neighbours in a warp want filters C*R*S floats apart
// cost      2*N*K*P*Q*C*R*S FLOPs; every product fetches both of its factors
// needs     tensors below 2^31 elements
// source    ONNX operator Conv
#include "kernel.cuh"

KERNEL(direct)(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y,
               int N, int C, int H, int W, int K, int R, int S, int P, int Q, int pad) {
    int k = blockIdx.x * blockDim.x + threadIdx.x;
    int p = blockIdx.y / Q, q = blockIdx.y % Q, n = blockIdx.z;
    if (k >= K || n >= N) return;
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
