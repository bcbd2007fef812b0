// qlinearmatmul.cu -- a product of matrices of 8-bit integers, summed in 32 bits
//
// computes  sum = sum over k of (a[m,k] - a_zero) * (b[k,n] - b_zero[n])
//           y[m,n] = saturate(round(sum * a_scale * b_scale[n] / y_scale) + y_zero), or sum itself (RESULT 2)
//           null zero points: 0
// layout    a, b, y row-major; b_scale_step, b_zero_step: 1 if there is one for each column, else 0
// mapping   thread x: n; thread y: m
// cost      M*N*K multiply-adds of integers; every a is fetched N times
// needs     M*N, M*K, K*N < 2^31
// source    ONNX operators QLinearMatMul, MatMulInteger
#include "kernel.cuh"
#include "quantized.cuh"

KERNEL(qlinearmatmul)(const Number* __restrict__ a, const float* __restrict__ a_scale, const Number* __restrict__ a_zero,
                      const Weight* __restrict__ b, const float* __restrict__ b_scale, const Weight* __restrict__ b_zero,
                      const float* __restrict__ y_scale, const Result* __restrict__ y_zero, Result* __restrict__ y,
                      int b_scale_step, int b_zero_step, int M, int N, int K, int y_first) {
    int n = blockIdx.x * blockDim.x + threadIdx.x;
    int m = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    a += m * K;
    int own_a_zero = a_zero ? a_zero[0] : 0;
    if (n >= N || m >= M) return;
    int own_b_zero = b_zero ? b_zero[n * b_zero_step] : 0;
    float multiplier = y_scale ? a_scale[0] * b_scale[n * b_scale_step] / y_scale[0] : 1.0f;
    int sum = 0;
    for (int k = 0; k < K; ++k) {
        int factor = b[k * N + n] - own_b_zero;
        sum += (a[k] - own_a_zero) * factor;
    }
    y[m * N + n] = requantised(sum, multiplier, y_zero ? float(y_zero[0]) : 0.0f);
}
