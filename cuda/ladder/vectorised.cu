// vectorised.cu -- rung 5: channels last, four of them in one load, four pixels a thread
//
// computes  y[n,p,q,k] = sum over r < R, s < S, c < C of x[n, p + r - pad, q + s - pad, c] * w[r,s,c,k], 0 outside x
// layout    x N,H,W,C   w R,S,C,K   y N,P,Q,K, dense
// mapping   x thread and grid: four k; y thread and grid: PIXELS q; z grid: n*P + p
// cost      2*N*K*P*Q*C*R*S FLOPs; one load of 16 bytes of w and PIXELS broadcasts of x for 4 * PIXELS multiply-adds
// needs     K a multiple of 4; w and y aligned to 16 bytes
// source    CUDA C++ Programming Guide, "Device Memory Accesses"
#include "kernel.cuh"

#define PIXELS 4

KERNEL(vectorised)(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y,
                   int N, int C, int H, int W, int K, int R, int S, int P, int Q, int pad) {
    int k = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    int q = (blockIdx.y * blockDim.y + threadIdx.y) * PIXELS;
    int n = blockIdx.z / P, p = blockIdx.z % P;
    if (k >= K || q >= Q || n >= N) return;
    Vector<4> sum[PIXELS];
    UNROLL(4)
    for (int i = 0; i < PIXELS; ++i) sum[i] = splat<4>(0.0f);
    for (int r = 0; r < R; ++r) {
        int h = p + r - pad;
        if (h < 0 || h >= H) continue;
        for (int s = 0; s < S; ++s)
            for (int c = 0; c < C; ++c) {
                Vector<4> filter = load_aligned<4>(w + ((r * S + s) * C + c) * K + k);
                UNROLL(4)
                for (int i = 0; i < PIXELS; ++i) {
                    int column = q + i + s - pad;
                    bool is_inside = column >= 0 && column < W;
                    sum[i] = fma(filter, is_inside ? x[((n * H + h) * W + column) * C + c] : 0.0f, sum[i]);
                }
            }
    }
    UNROLL(4)
    for (int i = 0; i < PIXELS; ++i)
        if (q + i < Q) store_aligned(y + ((n * P + p) * Q + q + i) * K + k, sum[i]);
}
