// implicit_gemm.cu -- rung 7: the product of rung 6, its left matrix read from the image as it is needed
//
// computes  y[n,p,q,k] = sum over r < R, s < S, c < C of x[n, p + r - pad, q + s - pad, c] * w[r,s,c,k], 0 outside x
// layout    x N,H,W,C   w R,S,C,K   y N,P,Q,K, dense   shared: STEP terms of ROWS pixels and of COLUMNS filters
// mapping   a block of THREADS threads: ROWS pixels (x grid) by COLUMNS filters (y grid), 4 by 4 a thread
// cost      2*N*K*P*Q*C*R*S FLOPs; no matrix in memory: x is fetched R*S*K/COLUMNS times, mostly from cache
// needs     tensors below 2^31 elements
// source    Chetlur et al., "cuDNN: Efficient Primitives for Deep Learning", 2014
#include "kernel.cuh"
#include "implicit_gemm.cuh"

KERNEL(implicit_gemm)(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y,
                      int N, int C, int H, int W, int K, int R, int S, int P, int Q, int pad) {
    __shared__ float a[STEP][ROWS + 4];
    __shared__ float b[STEP][COLUMNS];
    Problem o = {C, H, W, K, R, S, P, Q, pad, N * P * Q};
    int m_first = blockIdx.x * ROWS, k_first = blockIdx.y * COLUMNS, thread = threadIdx.x;
    float sum[4][4];
    multiply_tile(x, w, o, m_first, k_first, 0, R * S * C, thread, a, b, sum);
    UNROLL(4)
    for (int i = 0; i < 4; ++i) {
        UNROLL(4)
        for (int j = 0; j < 4; ++j) {
            int m = m_first + thread / 8 * 4 + i, k = k_first + thread % 8 * 4 + j;
            if (m < o.M && k < K) y[m * K + k] = sum[i][j];
        }
    }
}
