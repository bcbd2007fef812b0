// depthwise_vectorised.cu -- depthwise rung 4: rung 3 on four channels at a time
//
// computes  y[n,p,q,c] = sum over r < R, s < S of x[n, p + r - pad, q + s - pad, c] * w[r,s,c], 0 outside x
// layout    x N,H,W,C   w R,S,C   y N,P,Q,C, dense
// mapping   x thread and grid: four c; y thread and grid: STRIP q; z grid: n*P + p
// cost      2*N*C*P*Q*R*S FLOPs; as rung 3, in a quarter of the loads
// needs     S <= MOST; C a multiple of 4, all tensors aligned to 16 bytes
// source    CUDA C++ Programming Guide, "Device Memory Accesses"
#include "kernel.cuh"

#define STRIP 2
#define MOST 7

KERNEL(depthwise_vectorised)(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y,
                             int N, int C, int H, int W, int R, int S, int P, int Q, int pad) {
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    int q = (blockIdx.y * blockDim.y + threadIdx.y) * STRIP;
    int n = blockIdx.z / P, p = blockIdx.z % P;
    if (c >= C || q >= Q || n >= N) return;
    Vector<4> sum[STRIP];
    UNROLL(2)
    for (int i = 0; i < STRIP; ++i) sum[i] = splat<4>(0.0f);
    for (int r = 0; r < R; ++r) {
        int h = p + r - pad;
        if (h < 0 || h >= H) continue;
        Vector<4> row[STRIP + MOST - 1];
        UNROLL(8)
        for (int i = 0; i < STRIP + MOST - 1; ++i) {
            int column = q + i - pad;
            row[i] = splat<4>(0.0f);
            if (i < STRIP + S - 1 && column >= 0 && column < W)
                row[i] = load_aligned<4>(x + ((n * H + h) * W + column) * C + c);
        }
        UNROLL(7)
        for (int s = 0; s < MOST; ++s) {
            if (s >= S) continue;
            Vector<4> tap = load_aligned<4>(w + (r * S + s) * C + c);
            UNROLL(2)
            for (int i = 0; i < STRIP; ++i) sum[i] = fma(row[i + s], tap, sum[i]);
        }
    }
    UNROLL(2)
    for (int i = 0; i < STRIP; ++i)
        if (q + i < Q) store_aligned(y + ((n * P + p) * Q + q + i) * C + c, sum[i]);
}
