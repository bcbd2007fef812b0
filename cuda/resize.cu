// resize.cu -- a tensor seen at other extents: each output is a weighted sum of a few inputs
//
// computes  along an axis: y[o] = sum over t < T, weight[o][t] != 0, of x[index[o][t]] * weight[o][t]
//           where index[o][0] < 0 (beyond what was cropped): y[o] = outside
//           resize_nhwc: along H and W at once
// layout    tables of T indices and weights for each output place, as minicnn/ops/resize.py makes them
//           resize_axis: x OUTER,L,INNER -> y OUTER,M,INNER.  resize_last: the same where INNER is 1
//           resize_nhwc: pixels of C channels (padding may count), x_stride and y_stride floats apart
// mapping   resize_axis: x thread and grid: inner; y grid: o; z grid: outer.  resize_last: x thread and grid: o; y: outer
//           resize_nhwc: x thread and grid: vector of channels; y: q; z grid: n*P + p (no thread divides extents)
// cost      2*T FLOPs an element; a row of the tables is read by all channels alike
// needs     every index < 2^31
// source    ONNX operators Resize and Upsample
#include "kernel.cuh"
#include "channels.cuh"

KERNEL(resize_axis)(const float* __restrict__ x, const int* __restrict__ index, const float* __restrict__ weight,
                    float* __restrict__ y, int L, int M, int INNER, int T, float outside, int y_first, int z_first) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int o = blockIdx.y + y_first;
    int outer = blockIdx.z + z_first;
    index += o * T;
    weight += o * T;
    x += outer * L * INNER;
    y += (outer * M + o) * INNER;
    int is_outside = index[0] < 0;
    if (i >= INNER) return;
    if (T == 1) {
        y[i] = is_outside ? outside : x[(is_outside ? 0 : index[0]) * INNER + i];
        return;
    }
    float sum = 0.0f;
    if (!is_outside)
        for (int t = 0; t < T; ++t)
            if (weight[t] != 0.0f) sum += x[index[t] * INNER + i] * weight[t];
    y[i] = is_outside ? outside : sum;
}

KERNEL(resize_last)(const float* __restrict__ x, const int* __restrict__ index, const float* __restrict__ weight,
                    float* __restrict__ y, int OUTER, int L, int M, int T, float outside, int y_first) {
    int o = blockIdx.x * blockDim.x + threadIdx.x;
    int outer = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    if (o >= M || outer >= OUTER) return;
    index += o * T;
    weight += o * T;
    x += outer * L;
    float sum = 0.0f;
    int is_outside = index[0] < 0;
    for (int t = 0; t < T; ++t)
        if (!is_outside && weight[t] != 0.0f) sum += x[index[t]] * weight[t];
    y[outer * M + o] = is_outside ? outside : sum;
}

KERNEL(resize_nhwc)(const float* __restrict__ x, const int* __restrict__ h_index, const float* __restrict__ h_weight,
                    const int* __restrict__ w_index, const float* __restrict__ w_weight, float* __restrict__ y,
                    int C, int H, int W, int P, int Q, int TH, int TW, int x_stride, int y_stride, float outside,
                    int y_first, int z_first) {
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    int q = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int row = blockIdx.z + z_first;
    int n = row / P, p = row % P, count = C - c;
    if (c >= C || q >= Q) return;
    h_index += p * TH;
    h_weight += p * TH;
    w_index += q * TW;
    w_weight += q * TW;
    y += (row * Q + q) * y_stride + c;
    if (h_index[0] < 0 || w_index[0] < 0) {
        store_channels(y, splat<VECTOR>(outside), count);
        return;
    }
    x += n * H * W * x_stride + c;
    if (TH * TW == 1) {
        store_channels(y, load_channels(x + (h_index[0] * W + w_index[0]) * x_stride, count), count);
        return;
    }
    Vector<VECTOR> sum = splat<VECTOR>(0.0f);
    for (int i = 0; i < TH; ++i)
        for (int j = 0; j < TW; ++j) {
            float weight = h_weight[i] * w_weight[j];
            if (weight == 0.0f) continue;
            sum = fma(load_channels(x + (h_index[i] * W + w_index[j]) * x_stride, count), weight, sum);
        }
    store_channels(y, sum, count);
}
