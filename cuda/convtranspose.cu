// convtranspose.cu -- transposed convolution, gathered: each output collects the inputs that a window spread over it
//
// computes  y[n,k,p,q] = activation(bias[k] + residual[n,k,p,q] + sum over c of k's group, r < R, s < S of
//               x[n,c,h,w] * w[c,k,r,s])     where h*stride_h = p + pad_top - r*dilation_h, and w alike;
//           taps without such an h and w are skipped; bias or residual null: left out
//           col2im: the same from columns[h*W + w, g, r, s, k] = sum over c of x * w, which a GEMM has made
// layout    convtranspose: x N,C,H,W   w C,K/groups,R,S   y, residual N,K,P,Q
//           convtranspose_depthwise: pixels of C channels (padding may count), x_stride, y_stride, residual_stride
//           floats apart; w R,S,w_stride; bias of w_stride floats
//           col2im: columns of input rows first_h and on of one image; y, residual that image's pixels of groups*K channels
// mapping   q = j*stride_w + phase: a block has one phase, so that no thread divides to find its w
//           convtranspose: x thread and grid: j, phases in turn; y grid: p; z grid: n*K + k
//           convtranspose_depthwise: x thread: vector of channels; y thread: j; x grid: j, phases in turn; y grid:
//           channels a block doesn't reach; z grid: n*P + p
//           col2im: the same but y grid: p - first_p; z grid: group and the channels a block doesn't reach
// cost      2*N*C*H*W*(K/groups)*R*S FLOPs
// needs     N*C*H*W, N*K*P*Q and the columns' elements < 2^31
// source    ONNX operator ConvTranspose; Dumoulin, Visin, "A guide to convolution arithmetic for deep learning", 2016
#include "kernel.cuh"
#include "channels.cuh"
#include "epilogue.cuh"

KERNEL(convtranspose)(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias,
                      const float* __restrict__ residual, float* __restrict__ y,
                      int C, int H, int W, int K, int R, int S, int P, int Q, int groups,
                      int stride_h, int stride_w, int dilation_h, int dilation_w, int pad_top, int pad_left,
                      int activation, float alpha, float beta, int y_first, int z_first) {
    int phase = blockIdx.x % stride_w;
    int j = blockIdx.x / stride_w * blockDim.x + threadIdx.x;
    int p = blockIdx.y + y_first;
    int n = (blockIdx.z + z_first) / K, k = (blockIdx.z + z_first) % K;
    int C_group = C / groups, K_group = K / groups;
    int first = k / K_group * C_group;
    const float* image = x + (n * C + first) * H * W;
    const float* filter = w + (first * K_group + k % K_group) * R * S;
    int q = j * stride_w + phase;
    int out = ((n * K + k) * P + p) * Q + q;
    if (q >= Q) return;
    float sum = bias ? bias[k] : 0.0f;
    for (int r = 0; r < R; ++r) {
        int down = p + pad_top - r * dilation_h, h = down / stride_h;
        if (down < 0 || down % stride_h || h >= H) continue;
        for (int s = 0; s < S; ++s) {
            int across = phase + pad_left - s * dilation_w;
            if (across % stride_w) continue;
            int column = j + across / stride_w;
            if (column < 0 || column >= W) continue;
            for (int c = 0; c < C_group; ++c)
                sum += image[(c * H + h) * W + column] * filter[(c * K_group * R + r) * S + s];
        }
    }
    if (residual) sum += residual[out];
    y[out] = activate(sum, activation, alpha, beta);
}

KERNEL(convtranspose_depthwise)(const float* __restrict__ x, const float* __restrict__ w,
                                const float* __restrict__ bias, const float* __restrict__ residual,
                                float* __restrict__ y,
                                int C, int H, int W, int R, int S, int P, int Q,
                                int stride_h, int stride_w, int dilation_h, int dilation_w, int pad_top, int pad_left,
                                int x_stride, int w_stride, int y_stride, int residual_stride,
                                int activation, float alpha, float beta, int z_first) {
    int phase = blockIdx.x % stride_w;
    int j = blockIdx.x / stride_w * blockDim.y + threadIdx.y;
    int c = (blockIdx.y * blockDim.x + threadIdx.x) * VECTOR;
    int row = blockIdx.z + z_first;
    int n = row / P, p = row % P;
    int q = j * stride_w + phase, count = C - c;
    if (c >= C || q >= Q) return;
    Vector<VECTOR> sum = bias ? load<VECTOR>(bias + c) : splat<VECTOR>(0.0f);
    for (int r = 0; r < R; ++r) {
        int down = p + pad_top - r * dilation_h, h = down / stride_h;
        if (down < 0 || down % stride_h || h >= H) continue;
        for (int s = 0; s < S; ++s) {
            int across = phase + pad_left - s * dilation_w;
            int column = j + across / stride_w;
            if (across % stride_w || column < 0 || column >= W) continue;
            Vector<VECTOR> tap = load_channels(x + ((n * H + h) * W + column) * x_stride + c, count);
            sum = fma(tap, load<VECTOR>(w + (r * S + s) * w_stride + c), sum);
        }
    }
    int pixel = row * Q + q;
    if (residual) sum = sum + load_channels(residual + pixel * residual_stride + c, count);
    store_channels(y + pixel * y_stride + c, activate(sum, activation, alpha, beta), count);
}

KERNEL(col2im)(const float* __restrict__ columns, const float* __restrict__ bias, const float* __restrict__ residual,
               float* __restrict__ y, int groups, int H, int W, int K, int R, int S, int Q, int first_h, int first_p,
               int stride_h, int stride_w, int dilation_h, int dilation_w, int pad_top, int pad_left,
               int y_stride, int residual_stride, int activation, float alpha, float beta, int y_first, int z_first) {
    int phase = blockIdx.x % stride_w;
    int j = blockIdx.x / stride_w * blockDim.y + threadIdx.y;
    int p = first_p + blockIdx.y + y_first;
    int z = blockIdx.z + z_first, chunk = z / groups, g = z % groups;
    int k = (chunk * blockDim.x + threadIdx.x) * VECTOR;
    int q = j * stride_w + phase, count = K - k;
    if (k >= K || q >= Q) return;
    int channel = g * K + k, pixel = p * Q + q;
    Vector<VECTOR> sum = bias ? load_channels(bias + channel, count) : splat<VECTOR>(0.0f);
    for (int r = 0; r < R; ++r) {
        int down = p + pad_top - r * dilation_h, h = down / stride_h;
        if (down < 0 || down % stride_h || h >= H) continue;
        for (int s = 0; s < S; ++s) {
            int across = phase + pad_left - s * dilation_w;
            int column = j + across / stride_w;
            if (across % stride_w || column < 0 || column >= W) continue;
            const float* tap = columns + ((((h - first_h) * W + column) * groups + g) * R * S + r * S + s) * K + k;
            sum = sum + load_channels(tap, count);
        }
    }
    if (residual) sum = sum + load_channels(residual + pixel * residual_stride + channel, count);
    store_channels(y + pixel * y_stride + channel, activate(sum, activation, alpha, beta), count);
}
