// register_tile.cu -- rung 4: a thread makes FILTERS outputs, so that each value of x serves as many products
//
// computes  y[n,k,p,q] = sum over c < C, r < R, s < S of x[n, c, p + r - pad, q + s - pad] * w[k,c,r,s], 0 outside x
// layout    x N,C,H,W   w K,C,R,S   y N,K,P,Q, dense
//           shared: TILE + R - 1 rows of TILE + S - 1 of one channel of x, and that channel of FILTERS filters
// mapping   a block of TILE x TILE threads: as many pixels of FILTERS k; y grid: rows of blocks,
//           z grid: n * ceil(K / FILTERS) + group of filters
// cost      2*N*K*P*Q*C*R*S FLOPs; one read of shared memory for FILTERS multiply-adds of x, one broadcast for each w
// needs     R, S <= MOST
// source    Volkov, "Better Performance at Lower Occupancy", GTC 2010
#include "kernel.cuh"

#define TILE 16
#define MOST 7
#define SIDE (TILE + MOST - 1)
#define FILTERS 8

KERNEL(register_tile)(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y,
                      int N, int C, int H, int W, int K, int R, int S, int P, int Q, int pad) {
    __shared__ float tile[SIDE][SIDE + 1];
    __shared__ float filters[MOST * MOST][FILTERS];
    int q = blockIdx.x * TILE + threadIdx.x, p = blockIdx.y * TILE + threadIdx.y;
    int groups = (K + FILTERS - 1) / FILTERS;
    int n = blockIdx.z / groups, first = blockIdx.z % groups * FILTERS;
    int thread = threadIdx.y * TILE + threadIdx.x;
    float sum[FILTERS];
    UNROLL(8)
    for (int i = 0; i < FILTERS; ++i) sum[i] = 0.0f;
    for (int c = 0; c < C; ++c) {
        const float* plane = x + (n * C + c) * H * W;
        for (int i = threadIdx.y; i < TILE + R - 1; i += TILE)
            for (int j = threadIdx.x; j < TILE + S - 1; j += TILE) {
                int h = blockIdx.y * TILE + i - pad, column = blockIdx.x * TILE + j - pad;
                bool is_inside = h >= 0 && h < H && column >= 0 && column < W;
                tile[i][j] = is_inside ? plane[h * W + column] : 0.0f;
            }
        for (int i = thread; i < R * S * FILTERS; i += TILE * TILE) {
            int k = first + i % FILTERS, tap = i / FILTERS;
            filters[tap][i % FILTERS] = k < K ? w[(k * C + c) * R * S + tap] : 0.0f;
        }
        __syncthreads();
        for (int r = 0; r < R; ++r)
            for (int s = 0; s < S; ++s) {
                float value = tile[threadIdx.y + r][threadIdx.x + s];
                UNROLL(8)
                for (int i = 0; i < FILTERS; ++i) sum[i] += value * filters[r * S + s][i];
            }
        __syncthreads();
    }
    if (p >= P || q >= Q || n >= N) return;
    UNROLL(8)
    for (int i = 0; i < FILTERS; ++i)
        if (first + i < K) y[((n * K + first + i) * P + p) * Q + q] = sum[i];
}
