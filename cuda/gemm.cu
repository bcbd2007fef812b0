// gemm.cu -- matrix times matrix as the textbook writes it
//
// computes  y[z,m,n] = activation(scale * (sum over k < K of a[z,m,k] * b[z,k,n]) + bias_scale * bias[m,n] + residual[z,m,n])
//           bias or residual null: left out
// layout    every matrix by its strides, so a transposed or broadcast one is a matter of arguments; columns of y and of
//           the residual are neighbours
// mapping   x thread and grid: n; y grid: m; z grid: batch (no thread divides)
// cost      2*batch*M*N*K FLOPs; each a is fetched N times, each b M times
// needs     every index < 2^31
// source    ONNX operators Gemm and MatMul
#include "kernel.cuh"
#include "epilogue.cuh"

KERNEL(gemm_direct)(const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ bias,
                    const float* __restrict__ residual, float* __restrict__ y,
                    int M, int N, int K, int a_row, int a_column, int b_row, int b_column, int bias_row, int bias_column,
                    int residual_row, int y_row, int a_batch, int b_batch, int y_batch, float scale, float bias_scale,
                    int activation, float alpha, float beta, int y_first, int z_first) {
    int n = blockIdx.x * blockDim.x + threadIdx.x;
    int m = blockIdx.y + y_first;
    int z = blockIdx.z + z_first;
    const float* row = a + z * a_batch + m * a_row;
    const float* matrix = b + z * b_batch;
    if (n >= N) return;
    float sum = 0.0f;
    for (int k = 0; k < K; ++k) sum += row[k * a_column] * matrix[k * b_row + n * b_column];
    sum *= scale;
    if (bias) sum += bias_scale * bias[m * bias_row + n * bias_column];
    if (residual) sum += residual[z * y_batch + m * residual_row + n];
    y[z * y_batch + m * y_row + n] = activate(sum, activation, alpha, beta);
}
