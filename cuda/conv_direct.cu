// conv_direct.cu -- convolution as the textbook writes it
//
// computes  y[n,k,p,q] = activation(bias[k] + residual[n,k,p,q] + sum over c < C/groups, r < R, s < S of
//               x[n, first + c, p*stride_h + r*dilation_h - pad_top, q*stride_w + s*dilation_w - pad_left] * w[k,c,r,s])
//           first = the first channel of k's group; taps outside x are skipped; bias or residual null: left out
// layout    x N,C,H,W   w K,C/groups,R,S   y, residual N,K,P,Q   float32, row-major
// mapping   x thread: q; y grid: p; z grid: n*K + k (no thread divides)
// cost      2*N*K*P*Q*(C/groups)*R*S FLOPs; each x is fetched by every k of its group
// needs     N*C*H*W and N*K*P*Q < 2^31
// source    ONNX operator Conv
#include "kernel.cuh"
#include "epilogue.cuh"

KERNEL(conv_direct)(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias,
                    const float* __restrict__ residual, float* __restrict__ y,
                    int C, int H, int W, int K, int R, int S, int P, int Q, int groups,
                    int stride_h, int stride_w, int dilation_h, int dilation_w, int pad_top, int pad_left,
                    int activation, float alpha, float beta, int z_first) {
    int q = blockIdx.x * blockDim.x + threadIdx.x;
    int p = blockIdx.y;
    int n = (blockIdx.z + z_first) / K, k = (blockIdx.z + z_first) % K;
    int C_group = C / groups;
    int first = k / (K / groups) * C_group;
    const float* image = x + (n * C + first) * H * W;
    const float* filter = w + k * C_group * R * S;
    int out = ((n * K + k) * P + p) * Q + q;
    int w_first = q * stride_w - pad_left;
    if (q >= Q) return;
    float sum = bias ? bias[k] : 0.0f;
    for (int c = 0; c < C_group; ++c) {
        for (int r = 0; r < R; ++r) {
            int h = p * stride_h + r * dilation_h - pad_top;
            if (h < 0 || h >= H) continue;
            for (int s = 0; s < S; ++s) {
                int column = w_first + s * dilation_w;
                if (column >= 0 && column < W) sum += image[(c * H + h) * W + column] * filter[(c * R + r) * S + s];
            }
        }
    }
    if (residual) sum += residual[out];
    y[out] = activate(sum, activation, alpha, beta);
}
