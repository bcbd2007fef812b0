// qlinearconv.cu -- convolution of 8-bit integers, summed in 32 bits, as the textbook writes it
//
// computes  sum = bias[k] + sum over c, r, s of (x[n, first + c, h, w] - x_zero) * (w[k, c, r, s] - w_zero[k])
//           y[n,k,p,q] = saturate(round(sum * x_scale * w_scale[k] / y_scale) + y_zero), or sum itself (RESULT 2)
//           taps outside x are skipped: padding is x_zero, a real 0. Null zero points: 0; null bias: none
// layout    x N,C,H,W   w K,C/groups,R,S   y N,K,P,Q, row-major; w_step: 1 if w has a scale (and zero) for each k, else 0
// mapping   thread x: q; y grid: p; z grid: n*K + k (no thread divides)
// cost      N*K*P*Q*(C/groups)*R*S multiply-adds of integers
// needs     N*C*H*W and N*K*P*Q < 2^31
// source    ONNX operators QLinearConv, ConvInteger
#include "kernel.cuh"
#include "quantized.cuh"

KERNEL(qlinearconv)(const Number* __restrict__ x, const float* __restrict__ x_scale, const Number* __restrict__ x_zero,
                    const Weight* __restrict__ w, const float* __restrict__ w_scale, const Weight* __restrict__ w_zero,
                    const float* __restrict__ y_scale, const Result* __restrict__ y_zero, const int* __restrict__ bias,
                    Result* __restrict__ y, int w_scale_step, int w_zero_step,
                    int C, int H, int W, int K, int R, int S, int P, int Q, int groups,
                    int stride_h, int stride_w, int dilation_h, int dilation_w, int pad_top, int pad_left,
                    int z_first) {
    int q = blockIdx.x * blockDim.x + threadIdx.x;
    int p = blockIdx.y;
    int n = (blockIdx.z + z_first) / K, k = (blockIdx.z + z_first) % K;
    int C_group = C / groups;
    int first = k / (K / groups) * C_group;
    const Number* image = x + (n * C + first) * H * W;
    const Weight* filter = w + k * C_group * R * S;
    int out = ((n * K + k) * P + p) * Q + q;
    int w_first = q * stride_w - pad_left;
    int own_x_zero = x_zero ? x_zero[0] : 0, own_w_zero = w_zero ? w_zero[k * w_zero_step] : 0;
    float multiplier = y_scale ? x_scale[0] * w_scale[k * w_scale_step] / y_scale[0] : 1.0f;
    float zero = y_zero ? float(y_zero[0]) : 0.0f;
    if (q >= Q) return;
    int sum = bias ? bias[k] : 0;
    for (int c = 0; c < C_group; ++c) {
        for (int r = 0; r < R; ++r) {
            int h = p * stride_h + r * dilation_h - pad_top;
            if (h < 0 || h >= H) continue;
            for (int s = 0; s < S; ++s) {
                int column = w_first + s * dilation_w;
                if (column < 0 || column >= W) continue;
                int factor = filter[(c * R + r) * S + s] - own_w_zero;
                sum += (image[(c * H + h) * W + column] - own_x_zero) * factor;
            }
        }
    }
    y[out] = requantised(sum, multiplier, zero);
}
