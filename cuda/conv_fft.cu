// conv_fft.cu -- what stands before and behind the Fourier transforms of a convolution
//
// computes  fft_pad:   image[n,h,w,c] = x[n, h - pad_top, w - pad_left, c], 0 outside x, for h < rows, w < columns
//           fft_crop:  y[n,p,q,k] = activation(bias[k] + residual[n,p,q,k] + image[n,p,q,k])
//           bias or residual null: left out
// layout    x, y, residual: pixels of channels, x_stride, y_stride, residual_stride floats apart
//           image: pixels of C (or K) floats, rows x columns of them
// mapping   x thread and grid: vector of channels; y thread and grid: column; z grid: row (no thread divides)
// cost      no FLOPs worth counting; each reads and writes its image once
// needs     N*H*W*x_stride, N*rows*columns*C and N*P*Q*y_stride < 2^31
// source    Mathieu, Henaff, LeCun, "Fast Training of Convolutional Networks through FFTs", 2014
#include "kernel.cuh"
#include "channels.cuh"
#include "epilogue.cuh"

KERNEL(fft_pad)(const float* __restrict__ x, float* __restrict__ image, int C, int H, int W, int rows, int columns,
                int pad_top, int pad_left, int x_stride, int y_first, int z_first) {
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    int column = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int row = blockIdx.z + z_first;
    int n = row / rows, h = row % rows - pad_top;
    int w = column - pad_left;
    if (c >= C || column >= columns) return;
    Vector<VECTOR> v = splat<VECTOR>(0.0f);
    if (h >= 0 && h < H && w >= 0 && w < W) v = load_channels(x + ((n * H + h) * W + w) * x_stride + c, C - c);
    store_channels(image + (row * columns + column) * C + c, v, C - c);
}

KERNEL(fft_crop)(const float* __restrict__ image, const float* __restrict__ bias, const float* __restrict__ residual,
                 float* __restrict__ y, int K, int P, int Q, int rows, int columns, int y_stride,
                 int residual_stride, int activation, float alpha, float beta, int y_first, int z_first) {
    int k = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    int q = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int row = blockIdx.z + z_first;
    int n = row / P, p = row % P;
    if (k >= K || q >= Q) return;
    int count = K - k;
    int pixel = row * Q + q;
    Vector<VECTOR> sum = load_channels(image + ((n * rows + p) * columns + q) * K + k, count);
    if (bias) sum = sum + load_channels(bias + k, count);
    if (residual) sum = sum + load_channels(residual + pixel * residual_stride + k, count);
    store_channels(y + pixel * y_stride + k, activate(sum, activation, alpha, beta), count);
}
