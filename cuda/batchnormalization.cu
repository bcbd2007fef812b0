// batchnormalization.cu -- each channel shifted and scaled to the mean and variance the training set had
//
// computes  batchnormalization(_nhwc): y[n,c,i] = activation(x[n,c,i] * scale_shift[0,c] + scale_shift[1,c])
//           batchnormalization_fold:  scale_shift[0,c] = scale[c] / sqrt(variance[c] + epsilon)
//                                     scale_shift[1,c] = b[c] - mean[c] * scale_shift[0,c]
// layout    batchnormalization: N,C,HW.  batchnormalization_nhwc: pixels of C channels, x_stride and y_stride elements
//           apart. ELEMENT of x and y: float, half
// mapping   batchnormalization: x thread and grid: i; y grid: c; z grid: n.  batchnormalization_nhwc: x thread and grid:
//           vector of c; y thread and grid: pixel.  batchnormalization_fold: x thread and grid: c
// cost      2*N*C*HW FLOPs; 8*N*C*HW bytes
// needs     N*C*HW < 2^31
// source    ONNX operator BatchNormalization; Ioffe, Szegedy, "Batch Normalization", 2015
#include "kernel.cuh"
#include "elements.cuh"
#include "channels.cuh"
#include "epilogue.cuh"

KERNEL(batchnormalization)(const Number* x, const float* __restrict__ scale_shift, Number* y, int C, int HW,
                           int activation, float alpha, float beta, int y_first, int z_first) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int c = blockIdx.y + y_first;
    int plane = (blockIdx.z + z_first) * C + c;
    float scale = scale_shift[c], shift = scale_shift[C + c];
    if (i >= HW) return;
    float value = x[plane * HW + i];
    y[plane * HW + i] = activate(value * scale + shift, activation, alpha, beta);
}

KERNEL(batchnormalization_nhwc)(const Number* x, const float* __restrict__ scale_shift, Number* y, int pixels, int C,
                                int x_stride, int y_stride, int activation, float alpha, float beta, int y_first) {
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    int pixel = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    if (c >= C || pixel >= pixels) return;
    int count = C - c;
    Vector<VECTOR> scale = load_channels(scale_shift + c, count), shift = load_channels(scale_shift + C + c, count);
    Vector<VECTOR> moved = fma(load_channels(x + pixel * x_stride + c, count), scale, shift);
    store_channels(y + pixel * y_stride + c, activate(moved, activation, alpha, beta), count);
}

KERNEL(batchnormalization_fold)(const float* __restrict__ scale, const float* __restrict__ b,
                                const float* __restrict__ mean, const float* __restrict__ variance,
                                float* __restrict__ scale_shift, int C, float epsilon) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= C) return;
    float factor = scale[c] / sqrtf(variance[c] + epsilon);
    scale_shift[c] = factor;
    scale_shift[C + c] = b[c] - mean[c] * factor;
}
