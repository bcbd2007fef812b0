// shared_tile.cu -- rung 3: a block's part of the image is fetched once, into shared memory
//
// computes  y[n,k,p,q] = sum over c < C, r < R, s < S of x[n, c, p + r - pad, q + s - pad] * w[k,c,r,s], 0 outside x
// layout    x N,C,H,W   w K,C,R,S   y N,K,P,Q, dense   shared: TILE + R - 1 rows of TILE + S - 1, of one channel
// mapping   a block of TILE x TILE threads: as many outputs of one k; y grid: rows of blocks, z grid: n*K + k
// cost      2*N*K*P*Q*C*R*S FLOPs; x is fetched (1 + (R-1)/TILE) * (1 + (S-1)/TILE) times for each k, not R*S times
// needs     R, S <= MOST
// source    Kirk, Hwu, "Programming Massively Parallel Processors", chapter on convolution
#include "kernel.cuh"

#define TILE 16
#define MOST 7
#define SIDE (TILE + MOST - 1)

KERNEL(shared_tile)(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y,
                    int N, int C, int H, int W, int K, int R, int S, int P, int Q, int pad) {
    __shared__ float tile[SIDE][SIDE + 1];
    int q = blockIdx.x * TILE + threadIdx.x, p = blockIdx.y * TILE + threadIdx.y;
    int n = blockIdx.z / K, k = blockIdx.z % K;
    float sum = 0.0f;
    for (int c = 0; c < C; ++c) {
        const float* plane = x + (n * C + c) * H * W;
        for (int i = threadIdx.y; i < TILE + R - 1; i += TILE)
            for (int j = threadIdx.x; j < TILE + S - 1; j += TILE) {
                int h = blockIdx.y * TILE + i - pad, column = blockIdx.x * TILE + j - pad;
                bool is_inside = h >= 0 && h < H && column >= 0 && column < W;
                tile[i][j] = is_inside ? plane[h * W + column] : 0.0f;
            }
        __syncthreads();
        for (int r = 0; r < R; ++r)
            for (int s = 0; s < S; ++s)
                sum += tile[threadIdx.y + r][threadIdx.x + s] * w[((k * C + c) * R + r) * S + s];
        __syncthreads();
    }
    if (p < P && q < Q && n < N) y[((n * K + k) * P + p) * Q + q] = sum;
}
