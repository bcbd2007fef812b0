// split_k.cu -- rung 8: the sum of rung 7 cut into parts, so that small images fill a large GPU
//
// computes  y[n,p,q,k] = sum over r < R, s < S, c < C of x[n, p + r - pad, q + s - pad, c] * w[r,s,c,k], 0 outside x
// layout    x N,H,W,C   w R,S,C,K   y N,P,Q,K, dense   partial: z-grid parts of y, dense
//           arrived: a counter for each block of (x, y), 0 before and after
// mapping   as rung 7, the terms in equal parts along the z grid. The block that arrives last adds the parts up, in
//           the order of their numbers: the result doesn't depend on who was last
// cost      2*N*K*P*Q*C*R*S FLOPs; y is written once for each part and read again
// needs     tensors below 2^31 elements; all parts of one launch
// source    the last block's reduction: CUDA sample threadFenceReduction
#include "kernel.cuh"
#include "implicit_gemm.cuh"

KERNEL(split_k)(const float* __restrict__ x, const float* __restrict__ w, float* partial, int* arrived,
                float* __restrict__ y, int N, int C, int H, int W, int K, int R, int S, int P, int Q, int pad) {
    __shared__ float a[STEP][ROWS + 4];
    __shared__ float b[STEP][COLUMNS];
    __shared__ int before;
    Problem o = {C, H, W, K, R, S, P, Q, pad, N * P * Q};
    int m_first = blockIdx.x * ROWS, k_first = blockIdx.y * COLUMNS, thread = threadIdx.x;
    int terms = R * S * C, parts = gridDim.z, part = blockIdx.z;
    int length = (terms + parts - 1) / parts;
    int begin = min(part * length, terms), end = min(begin + length, terms);
    float sum[4][4];
    multiply_tile(x, w, o, m_first, k_first, begin, end, thread, a, b, sum);
    UNROLL(4)
    for (int i = 0; i < 4; ++i) {
        UNROLL(4)
        for (int j = 0; j < 4; ++j) {
            int m = m_first + thread / 8 * 4 + i, k = k_first + thread % 8 * 4 + j;
            if (m < o.M && k < K) partial[(part * o.M + m) * K + k] = sum[i][j];
        }
    }
    __threadfence();  // what this block wrote is there for whoever sees the counter
    __syncthreads();
    int* counter = arrived + blockIdx.y * gridDim.x + blockIdx.x;
    if (thread == 0) before = atomicAdd(counter, 1);
    __syncthreads();
    if (before != parts - 1) return;
    __threadfence();
    for (int i = thread; i < ROWS * COLUMNS; i += THREADS) {
        int m = m_first + i / COLUMNS, k = k_first + i % COLUMNS;
        if (m >= o.M || k >= K) continue;
        float total = 0.0f;
        for (int from = 0; from < parts; ++from) total += partial[(from * o.M + m) * K + k];
        y[m * K + k] = total;
    }
    if (thread == 0) *counter = 0;
}
