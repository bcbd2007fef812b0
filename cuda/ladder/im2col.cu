// im2col.cu -- rung 6: the windows become a matrix, and the convolution a product of matrices
//
// computes  unfold:    columns[(n*P + p)*Q + q, (r*S + s)*C + c] = x[n, p + r - pad, q + s - pad, c], 0 outside x
//           multiply:  y[m, k] = sum over i < R*S*C of columns[m, i] * w[i, k], m < N*P*Q
// layout    x N,H,W,C   w R,S,C,K   y N,P,Q,K, dense   columns N*P*Q rows of R*S*C
// mapping   unfold: x thread and grid: c; y grid: r*S + s; z grid: pixel.
//           multiply: a block of TILE x TILE threads makes as many outputs, TILE terms of the sum at a time
// cost      2*N*K*P*Q*C*R*S FLOPs; R*S times the bytes of x written and read again
// needs     N*P*Q*R*S*C < 2^31
// source    Chellapilla, Puri, Simard, "High Performance Convolutional Neural Networks for Document Processing", 2006
#include "kernel.cuh"

#define TILE 16

KERNEL(unfold)(const float* __restrict__ x, float* __restrict__ columns,
               int C, int H, int W, int R, int S, int P, int Q, int pad) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    int r = blockIdx.y / S, s = blockIdx.y % S, pixel = blockIdx.z;
    int n = pixel / (P * Q), p = pixel / Q % P, q = pixel % Q;
    int h = p + r - pad, column = q + s - pad;
    if (c >= C) return;
    bool is_inside = h >= 0 && h < H && column >= 0 && column < W;
    columns[(pixel * R * S + blockIdx.y) * C + c] = is_inside ? x[((n * H + h) * W + column) * C + c] : 0.0f;
}

KERNEL(multiply)(const float* __restrict__ columns, const float* __restrict__ w, float* __restrict__ y,
                 int M, int K, int terms) {
    __shared__ float a[TILE][TILE];
    __shared__ float b[TILE][TILE];
    int k = blockIdx.x * TILE + threadIdx.x, m = blockIdx.y * TILE + threadIdx.y;
    float sum = 0.0f;
    for (int first = 0; first < terms; first += TILE) {
        int i = first + threadIdx.x, j = first + threadIdx.y;
        a[threadIdx.y][threadIdx.x] = m < M && i < terms ? columns[m * terms + i] : 0.0f;
        b[threadIdx.y][threadIdx.x] = j < terms && k < K ? w[j * K + k] : 0.0f;
        __syncthreads();
        UNROLL(16)
        for (int t = 0; t < TILE; ++t) sum += a[threadIdx.y][t] * b[t][threadIdx.x];
        __syncthreads();
    }
    if (m < M && k < K) y[m * K + k] = sum;
}
