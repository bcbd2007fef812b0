// normalization.cu -- groups of numbers moved to mean 0 and scaled to variance 1
//
// computes  y = (x - mean) * reciprocal * scale + bias, mean and variance those of x's group,
//           reciprocal = 1 / (sqrt(variance + inside) + outside); scale and bias null: left out
//           statistics of chunks: a chunk is read twice, its mean first, then the squares of what differs from that; the
//           second time it lies in the cache. Chunks are put together by the exact formula for two samples' squares,
//           so that a large mean costs no digits of the variance
// layout    row_statistics, normalize_rows: x ROWS,L.  normalize_planes: x N,C,HW
//           channel_statistics, normalize_channels: pixels of C channels (padding doesn't count), x_stride and y_stride
//           floats apart; statistics of CP floats a row
// mapping   row_statistics: x thread and grid: chunk; y: row
//           channel_statistics: x thread and grid: vector of channels; y: chunk; z grid: n
//           finish_statistics: x thread and grid: b; y: a; a thread a group
//           normalize_rows: x: i; y: row.  normalize_planes: x: hw; y: c; z grid: n
//           normalize_channels: x: vector of channels; y: pixel; z grid: n
// cost      9 FLOPs an element; 3 reads, one of them from cache, and a write
// needs     every index < 2^31
// source    ONNX operators InstanceNormalization, GroupNormalization, LayerNormalization, MeanVarianceNormalization;
//           Chan, Golub, LeVeque, "Algorithms for Computing the Sample Variance", 1983
#include "kernel.cuh"
#include "channels.cuh"

VECTOR_FUNCTION float sum_of(const Vector<VECTOR>& v) {
    float sum = 0.0f;
    UNROLL(16) for (int i = 0; i < VECTOR; ++i) sum += v[i];
    return sum;
}

KERNEL(row_statistics)(const float* __restrict__ x, float* __restrict__ mean, float* __restrict__ squares, int ROWS,
                       int L, int CHUNK, int CHUNKS, int y_first) {
    int chunk = blockIdx.x * blockDim.x + threadIdx.x;
    int row = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    if (chunk >= CHUNKS || row >= ROWS) return;
    int first = chunk * CHUNK, count = L - first < CHUNK ? L - first : CHUNK;
    const float* p = x + row * L + first;
    Vector<VECTOR> sums = splat<VECTOR>(0.0f);
    for (int i = 0; i < count; i += VECTOR) sums = sums + load_channels(p + i, count - i);
    float m = sum_of(sums) / (float)count;
    sums = splat<VECTOR>(0.0f);
    int i = 0;
    for (; i + VECTOR <= count; i += VECTOR) {
        Vector<VECTOR> d = load<VECTOR>(p + i) - m;
        sums = fma(d, d, sums);
    }
    float s = sum_of(sums);
    for (; i < count; ++i) s += (p[i] - m) * (p[i] - m);
    mean[row * CHUNKS + chunk] = m;
    squares[row * CHUNKS + chunk] = s;
}

KERNEL(channel_statistics)(const float* __restrict__ x, float* __restrict__ mean, float* __restrict__ squares, int C,
                           int HW, int CHUNK, int CHUNKS, int CP, int x_stride, int y_first, int z_first) {
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    int chunk = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int n = blockIdx.z + z_first;
    if (c >= C || chunk >= CHUNKS) return;
    int first = chunk * CHUNK, count = HW - first < CHUNK ? HW - first : CHUNK;
    const float* p = x + (n * HW + first) * x_stride + c;
    Vector<VECTOR> sums = splat<VECTOR>(0.0f);
    for (int i = 0; i < count; ++i) sums = sums + load_channels(p + i * x_stride, C - c);
    Vector<VECTOR> m = sums / (float)count;
    sums = splat<VECTOR>(0.0f);
    for (int i = 0; i < count; ++i) {
        Vector<VECTOR> d = load_channels(p + i * x_stride, C - c) - m;
        sums = fma(d, d, sums);
    }
    store(mean + (n * CHUNKS + chunk) * CP + c, m);
    store(squares + (n * CHUNKS + chunk) * CP + c, sums);
}

KERNEL(finish_statistics)(const float* __restrict__ mean, const float* __restrict__ squares,
                          float* __restrict__ group_mean, float* __restrict__ reciprocal, int A, int B, int CHUNKS,
                          int J, int COPIES, int a_step, int b_step, int chunk_step, int j_step, int out_a, int out_b,
                          int out_copy, int size, int last_size, float inside, float outside, int y_first) {
    int b = blockIdx.x * blockDim.x + threadIdx.x;
    int a = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    if (a >= A || b >= B) return;
    float count = 0.0f, m = 0.0f, s = 0.0f;
    for (int j = 0; j < J; ++j)
        for (int i = 0; i < CHUNKS; ++i) {
            int place = a * a_step + b * b_step + j * j_step + i * chunk_step;
            float more = (float)(i == CHUNKS - 1 ? last_size : size), share = more / (count + more);
            float d = mean[place] - m;
            m += d * share;
            s += squares[place] + d * d * count * share;
            count += more;
        }
    float r = 1.0f / (sqrtf(s / count + inside) + outside);
    for (int i = 0; i < COPIES; ++i) {
        group_mean[a * out_a + b * out_b + i * out_copy] = m;
        reciprocal[a * out_a + b * out_b + i * out_copy] = r;
    }
}

KERNEL(normalize_rows)(const float* x, const float* __restrict__ mean, const float* __restrict__ reciprocal,
                       const float* __restrict__ scale, const float* __restrict__ bias, float* y, int ROWS, int L,
                       int y_first) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int row = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    if (i >= L || row >= ROWS) return;
    float value = (x[row * L + i] - mean[row]) * reciprocal[row];
    if (scale) value *= scale[i];
    if (bias) value += bias[i];
    y[row * L + i] = value;
}

KERNEL(normalize_planes)(const float* x, const float* __restrict__ mean, const float* __restrict__ reciprocal,
                         const float* __restrict__ scale, const float* __restrict__ bias, float* y, int C, int HW,
                         int group, int scale_group, int n_step, int y_first, int z_first) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int c = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int n = blockIdx.z + z_first;
    if (i >= HW || c >= C) return;
    int place = n * n_step + c / group;
    float value = (x[(n * C + c) * HW + i] - mean[place]) * reciprocal[place];
    if (scale) value *= scale[c / scale_group];
    if (bias) value += bias[c / scale_group];
    y[(n * C + c) * HW + i] = value;
}

KERNEL(normalize_channels)(const float* x, const float* __restrict__ mean, const float* __restrict__ reciprocal,
                           const float* __restrict__ scale, const float* __restrict__ bias, float* y, int C, int HW,
                           int CP, int x_stride, int y_stride, int y_first, int z_first) {
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    int i = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int n = blockIdx.z + z_first;
    if (c >= C || i >= HW) return;
    int count = C - c, pixel = n * HW + i;
    Vector<VECTOR> value = load_channels(x + pixel * x_stride + c, count) - load<VECTOR>(mean + n * CP + c);
    value = value * load<VECTOR>(reciprocal + n * CP + c);
    if (scale) value = value * load_channels(scale + c, count);
    if (bias) value = value + load_channels(bias + c, count);
    store_channels(y + pixel * y_stride + c, value, count);
}
