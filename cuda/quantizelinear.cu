// quantizelinear.cu -- real numbers to 8-bit integers and back
//
// computes  quantizelinear    y = saturate(round(x / scale) + zero), halves to the even number; NaN becomes the least
//           dequantizelinear  y = (x - zero) * scale
//           dynamic_extremes  parts[t], parts[THREADS + t] = the least and greatest of thread t's share of x, and of 0
//           dynamic_scale     scale = (greatest - least) / 255, zero = saturate(round(-least / scale))
//           zero null: 0. A scale and a zero for each entry of an axis (s: its strides), or one for all (strides 0)
// layout    four walked axes, E0 the innermost, strides in elements; ELEMENT: the integers
// mapping   thread x, y: axes 0 and 1; grid z: axes 2 and 3
// cost      1 division or multiplication an element; 5 bytes an element
// needs     every index < 2^31
// source    ONNX operators QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear
#include "kernel.cuh"
#include "elements.cuh"

#ifndef THREADS
#define THREADS 1024
#endif

KERNEL(quantizelinear)(const float* __restrict__ x, const float* __restrict__ scale, const Number* __restrict__ zero,
                       Number* __restrict__ y, int E0, int E1, int E2, int x0, int x1, int x2, int x3,
                       int s0, int s1, int s2, int s3, int y0, int y1, int y2, int y3, float low, float high,
                       int z_first) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int j = blockIdx.y * blockDim.y + threadIdx.y;
    int k = (blockIdx.z + z_first) % E2, l = (blockIdx.z + z_first) / E2;
    x += j * x1 + k * x2 + l * x3, y += j * y1 + k * y2 + l * y3;
    int s = j * s1 + k * s2 + l * s3 + i * s0;
    if (i >= E0 || j >= E1) return;
    float v = rintf(x[i * x0] / scale[s]) + (zero ? float(zero[s]) : 0.0f);
    v = v > low ? v : low;
    v = v < high ? v : high;
    y[i * y0] = Number(int(v));
}

KERNEL(dequantizelinear)(const Number* __restrict__ x, const float* __restrict__ scale,
                         const Number* __restrict__ zero, float* __restrict__ y, int E0, int E1, int E2,
                         int x0, int x1, int x2, int x3, int s0, int s1, int s2, int s3,
                         int y0, int y1, int y2, int y3, int z_first) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int j = blockIdx.y * blockDim.y + threadIdx.y;
    int k = (blockIdx.z + z_first) % E2, l = (blockIdx.z + z_first) / E2;
    x += j * x1 + k * x2 + l * x3, y += j * y1 + k * y2 + l * y3;
    int s = j * s1 + k * s2 + l * s3 + i * s0;
    if (i >= E0 || j >= E1) return;
    y[i * y0] = float(int(x[i * x0]) - (zero ? int(zero[s]) : 0)) * scale[s];
}

KERNEL(dynamic_extremes)(const float* __restrict__ x, float* __restrict__ parts, int count) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= THREADS) return;
    float least = 0.0f, greatest = 0.0f;
    for (int i = t; i < count; i += THREADS) {
        least = minimum(least, x[i]);
        greatest = maximum(greatest, x[i]);
    }
    parts[t] = least, parts[THREADS + t] = greatest;
}

KERNEL(dynamic_scale)(const float* __restrict__ parts, float* __restrict__ scale, unsigned char* __restrict__ zero) {
    if (threadIdx.x > 0) return;
    float least = 0.0f, greatest = 0.0f;
    for (int t = 0; t < THREADS; ++t) {
        least = minimum(least, parts[t]);
        greatest = maximum(greatest, parts[THREADS + t]);
    }
    float unit = (greatest - least) / 255.0f;
    float v = unit > 0.0f ? rintf(-least / unit) : 0.0f;
    v = v > 0.0f ? v : 0.0f;
    scale[0] = unit, zero[0] = (unsigned char)(int(v < 255.0f ? v : 255.0f));
}
