// depthwise_direct.cu -- depthwise rung 1: the definition, one thread for each output of a plane
//
// computes  y[n,c,p,q] = sum over r < R, s < S of x[n, c, p + r - pad, q + s - pad] * w[c,r,s], 0 outside x
// layout    x N,C,H,W   w C,R,S   y N,C,P,Q, dense
// mapping   x thread and grid: q; y thread and grid: p; z grid: n*C + c. A 7 x 7 image leaves most of a warp idle
// cost      2*N*C*P*Q*R*S FLOPs; every x is fetched R*S times
// needs     tensors below 2^31 elements
// source    ONNX operator Conv with group = C
#include "kernel.cuh"

KERNEL(depthwise_direct)(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y,
                         int N, int C, int H, int W, int R, int S, int P, int Q, int pad) {
    int q = blockIdx.x * blockDim.x + threadIdx.x;
    int p = blockIdx.y * blockDim.y + threadIdx.y;
    int n = blockIdx.z / C, c = blockIdx.z % C;
    if (q >= Q || p >= P || n >= N) return;
    float sum = 0.0f;
    for (int r = 0; r < R; ++r)
        for (int s = 0; s < S; ++s) {
            int h = p + r - pad, column = q + s - pad;
            if (h < 0 || h >= H || column < 0 || column >= W) continue;
            sum += x[((n * C + c) * H + h) * W + column] * w[(c * R + r) * S + s];
        }
    y[((n * C + c) * P + p) * Q + q] = sum;
}
