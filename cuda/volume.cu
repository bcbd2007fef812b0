// volume.cu -- windows over volumes: convolution, forth and back, and pooling with a depth
//
// computes  what conv_direct.cu, convtranspose.cu, maxpool.cu, averagepool.cu and lppool.cu say, with a third axis: depth d < D, filter
//           depth t < T, output depth o < O
// layout    x N,C,D,H,W   w K,C/groups,T,R,S   y, residual N,K,O,P,Q (pooling: K = C), row-major
// mapping   x thread and grid: q (convtranspose_volume: j, phases in turn, as in convtranspose.cu); y grid: p;
//           z grid: (n*K + k)*O + o (no thread divides)
// cost      convolution 2*N*K*O*P*Q*(C/groups)*T*R*S FLOPs, pooling N*C*O*P*Q*T*R*S
// needs     N*C*D*H*W and N*K*O*P*Q < 2^31
// source    ONNX operators Conv, ConvTranspose, MaxPool, AveragePool, LpPool
#include "kernel.cuh"
#include "epilogue.cuh"
#include "lppool.cuh"

KERNEL(conv_volume)(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias,
                    const float* __restrict__ residual, float* __restrict__ y,
                    int C, int D, int H, int W, int K, int T, int R, int S, int O, int P, int Q, int groups,
                    int stride_d, int stride_h, int stride_w, int dilation_d, int dilation_h, int dilation_w,
                    int pad_front, int pad_top, int pad_left, int activation, float alpha, float beta, int y_first,
                    int z_first) {
    int q = blockIdx.x * blockDim.x + threadIdx.x;
    int p = blockIdx.y + y_first;
    int z = blockIdx.z + z_first;
    int plane = z / O, o = z % O, n = plane / K, k = plane % K;
    int C_group = C / groups, first = k / (K / groups) * C_group;
    const float* volume = x + (n * C + first) * D * H * W;
    const float* filter = w + k * C_group * T * R * S;
    int out = (z * P + p) * Q + q;
    int w_first = q * stride_w - pad_left;
    if (q >= Q) return;
    float sum = bias ? bias[k] : 0.0f;
    for (int c = 0; c < C_group; ++c)
        for (int t = 0; t < T; ++t) {
            int d = o * stride_d + t * dilation_d - pad_front;
            if (d < 0 || d >= D) continue;
            for (int r = 0; r < R; ++r) {
                int h = p * stride_h + r * dilation_h - pad_top;
                if (h < 0 || h >= H) continue;
                const float* row = volume + ((c * D + d) * H + h) * W;
                const float* taps = filter + ((c * T + t) * R + r) * S;
                for (int s = 0; s < S; ++s) {
                    int column = w_first + s * dilation_w;
                    if (column >= 0 && column < W) sum += row[column] * taps[s];
                }
            }
        }
    if (residual) sum += residual[out];
    y[out] = activate(sum, activation, alpha, beta);
}

KERNEL(maxpool_volume)(const float* __restrict__ x, float* __restrict__ y, int D, int H, int W, int T, int R, int S,
                       int O, int P, int Q, int stride_d, int stride_h, int stride_w, int dilation_d, int dilation_h,
                       int dilation_w, int pad_front, int pad_top, int pad_left, int y_first, int z_first) {
    int q = blockIdx.x * blockDim.x + threadIdx.x;
    int p = blockIdx.y + y_first;
    int z = blockIdx.z + z_first, plane = z / O, o = z % O;
    int w_first = q * stride_w - pad_left;
    if (q >= Q) return;
    float most = -INFINITY;
    for (int t = 0; t < T; ++t) {
        int d = o * stride_d + t * dilation_d - pad_front;
        if (d < 0 || d >= D) continue;
        for (int r = 0; r < R; ++r) {
            int h = p * stride_h + r * dilation_h - pad_top;
            if (h < 0 || h >= H) continue;
            const float* row = x + ((plane * D + d) * H + h) * W;
            for (int s = 0; s < S; ++s) {
                int column = w_first + s * dilation_w;
                if (column >= 0 && column < W) most = maximum(row[column], most);
            }
        }
    }
    y[(z * P + p) * Q + q] = most;
}

// How many of `taps` positions first, first + step, ... lie in [least, end).
VECTOR_FUNCTION int taps_within(int first, int step, int taps, int least, int end) {
    int count = 0;
    for (int t = 0; t < taps; ++t) {
        int place = first + t * step;
        count += place >= least && place < end ? 1 : 0;
    }
    return count;
}

KERNEL(averagepool_volume)(const float* __restrict__ x, float* __restrict__ y, int D, int H, int W, int T, int R,
                           int S, int O, int P, int Q, int stride_d, int stride_h, int stride_w, int dilation_d,
                           int dilation_h, int dilation_w, int pad_front, int pad_top, int pad_left, int pad_back,
                           int pad_bottom, int pad_right, int count_pads, int y_first, int z_first) {
    int q = blockIdx.x * blockDim.x + threadIdx.x;
    int p = blockIdx.y + y_first;
    int z = blockIdx.z + z_first, plane = z / O, o = z % O;
    int d_first = o * stride_d - pad_front, h_first = p * stride_h - pad_top, w_first = q * stride_w - pad_left;
    if (q >= Q) return;
    float sum = 0.0f;
    for (int t = 0; t < T; ++t) {
        int d = d_first + t * dilation_d;
        if (d < 0 || d >= D) continue;
        for (int r = 0; r < R; ++r) {
            int h = h_first + r * dilation_h;
            if (h < 0 || h >= H) continue;
            const float* row = x + ((plane * D + d) * H + h) * W;
            for (int s = 0; s < S; ++s) {
                int column = w_first + s * dilation_w;
                if (column >= 0 && column < W) sum += row[column];
            }
        }
    }
    int with_pads = count_pads ? 1 : 0;
    int count = taps_within(d_first, dilation_d, T, -with_pads * pad_front, D + with_pads * pad_back) *
                taps_within(h_first, dilation_h, R, -with_pads * pad_top, H + with_pads * pad_bottom) *
                taps_within(w_first, dilation_w, S, -with_pads * pad_left, W + with_pads * pad_right);
    y[(z * P + p) * Q + q] = sum / (float)count;
}

KERNEL(lppool_volume)(const float* __restrict__ x, float* __restrict__ y, int D, int H, int W, int T, int R, int S,
                      int O, int P, int Q, int stride_d, int stride_h, int stride_w, int dilation_d, int dilation_h,
                      int dilation_w, int pad_front, int pad_top, int pad_left, float power, int y_first,
                      int z_first) {
    int q = blockIdx.x * blockDim.x + threadIdx.x;
    int p = blockIdx.y + y_first;
    int z = blockIdx.z + z_first, plane = z / O, o = z % O;
    int w_first = q * stride_w - pad_left;
    if (q >= Q) return;
    float sum = 0.0f;
    for (int t = 0; t < T; ++t) {
        int d = o * stride_d + t * dilation_d - pad_front;
        if (d < 0 || d >= D) continue;
        for (int r = 0; r < R; ++r) {
            int h = p * stride_h + r * dilation_h - pad_top;
            if (h < 0 || h >= H) continue;
            const float* row = x + ((plane * D + d) * H + h) * W;
            for (int s = 0; s < S; ++s) {
                int column = w_first + s * dilation_w;
                if (column >= 0 && column < W) sum += powered(row[column], power);
            }
        }
    }
    y[(z * P + p) * Q + q] = rooted(sum, power);
}

// y[n,k,o,p,q] = activation(bias[k] + residual + sum over c of k's group, t, r, s of x[n,c,d,h,w] * w[c,k,t,r,s]), where
// d*stride_d = o + pad_front - t*dilation_d, h and w alike; x N,C,D,H,W and w C,K/groups,T,R,S.
KERNEL(convtranspose_volume)(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias,
                             const float* __restrict__ residual, float* __restrict__ y,
                             int C, int D, int H, int W, int K, int T, int R, int S, int O, int P, int Q, int groups,
                             int stride_d, int stride_h, int stride_w, int dilation_d, int dilation_h, int dilation_w,
                             int pad_front, int pad_top, int pad_left, int activation, float alpha, float beta,
                             int y_first, int z_first) {
    int phase = blockIdx.x % stride_w;
    int j = blockIdx.x / stride_w * blockDim.x + threadIdx.x, q = j * stride_w + phase;
    int p = blockIdx.y + y_first;
    int z = blockIdx.z + z_first, plane = z / O, o = z % O, n = plane / K, k = plane % K;
    int C_group = C / groups, K_group = K / groups, first = k / K_group * C_group;
    const float* volume = x + (n * C + first) * D * H * W;
    const float* filter = w + (first * K_group + k % K_group) * T * R * S;
    int out = (z * P + p) * Q + q;
    if (q >= Q) return;
    float sum = bias ? bias[k] : 0.0f;
    for (int t = 0; t < T; ++t) {
        int deep = o + pad_front - t * dilation_d, d = deep / stride_d;
        if (deep < 0 || deep % stride_d || d >= D) continue;
        for (int r = 0; r < R; ++r) {
            int down = p + pad_top - r * dilation_h, h = down / stride_h;
            if (down < 0 || down % stride_h || h >= H) continue;
            for (int s = 0; s < S; ++s) {
                int across = phase + pad_left - s * dilation_w;
                if (across % stride_w) continue;
                int column = j + across / stride_w;
                if (column < 0 || column >= W) continue;
                for (int c = 0; c < C_group; ++c)
                    sum += volume[((c * D + d) * H + h) * W + column] * filter[((c * K_group * T + t) * R + r) * S + s];
            }
        }
    }
    if (residual) sum += residual[out];
    y[out] = activate(sum, activation, alpha, beta);
}
