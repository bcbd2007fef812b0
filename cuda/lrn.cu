// lrn.cu -- local response normalisation: each value divided by the strength of its neighbours across channels
//
// computes  y[n,c,i] = x[n,c,i] / (bias + scale * sum over d from -before to after of x[n,c+d,i]^2) ^ beta
//           channels outside 0..C-1 are skipped; scale = alpha / size
// layout    lrn: N,C,HW.  lrn_nhwc: pixels of C channels, x_stride and y_stride floats apart
// mapping   lrn: x thread and grid: i; y grid: c; z grid: n.  lrn_nhwc: x thread and grid: vector of channels; y: pixel
// cost      N*C*HW*(2*size + 3) FLOPs and a power each; 8*N*C*HW bytes if each x is fetched once
// needs     N*C*HW < 2^31
// source    ONNX operator LRN; Krizhevsky, Sutskever, Hinton, "ImageNet Classification with Deep Convolutional Neural
//           Networks", 2012, section 3.3
#include "kernel.cuh"
#include "channels.cuh"

// base ^ -0.75, the power of AlexNet and GoogLeNet: a CPU compiler vectorises roots, but not powf.
VECTOR_FUNCTION float inverse_power_3_4(float base) {
    float root = sqrtf(base);
    return 1.0f / (root * sqrtf(root));
}

KERNEL(lrn)(const float* __restrict__ x, float* __restrict__ y, int C, int HW, int before, int after,
            float scale, float beta, float bias, int z_first) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int c = blockIdx.y;
    const float* image = x + (blockIdx.z + z_first) * C * HW;
    float* out = y + ((blockIdx.z + z_first) * C + c) * HW;
    int first = c - before > 0 ? c - before : 0;
    int last = c + after < C - 1 ? c + after : C - 1;
    if (i >= HW) return;
    float squares = 0.0f;
    for (int other = first; other <= last; ++other) squares += image[other * HW + i] * image[other * HW + i];
    float base = bias + scale * squares;
    out[i] = image[c * HW + i] * (beta == 0.75f ? inverse_power_3_4(base) : powf(base, -beta));
}

KERNEL(lrn_nhwc)(const float* __restrict__ x, float* __restrict__ y, int pixels, int C, int before, int after,
                 float scale, float beta, float bias, int x_stride, int y_stride, int y_first) {
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    int pixel = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    if (c >= C || pixel >= pixels) return;
    const float* p = x + pixel * x_stride;
    Vector<VECTOR> squares = splat<VECTOR>(0.0f);
    for (int d = -before; d <= after; ++d) {
        Vector<VECTOR> v = splat<VECTOR>(0.0f);
        if (c + d >= 0 && c + d + VECTOR <= C) {
            v = load<VECTOR>(p + c + d);
        } else {  // padding channels hold anything and must not count
            for (int i = 0; i < VECTOR; ++i)
                if (c + d + i >= 0 && c + d + i < C) v.set(i, p[c + d + i]);
        }
        squares = fma(v, v, squares);
    }
    float scales[VECTOR];
    store(scales, fma(squares, scale, splat<VECTOR>(bias)));
    if (beta == 0.75f) {
        for (int i = 0; i < VECTOR; ++i) scales[i] = inverse_power_3_4(scales[i]);
    } else {
        for (int i = 0; i < VECTOR; ++i) scales[i] = powf(scales[i], -beta);
    }
    store_channels(y + pixel * y_stride + c, load_channels(p + c, C - c) * load<VECTOR>(scales), C - c);
}
