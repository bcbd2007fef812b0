// channelshuffle.cu -- channels dealt out again: those of GROUPS groups in turn
//
// computes  y[n,h,w,b*GROUPS + a] = x[n,h,w,a*C/GROUPS + b]
// layout    pixels of C channels, x_stride and y_stride floats apart
// mapping   x thread and grid: pixel; the channels in a loop that reads GROUPS runs and writes one
// cost      no FLOPs; 8*N*C*H*W bytes
// needs     N*H*W*stride < 2^31
// source    Zhang et al., "ShuffleNet: An Extremely Efficient Convolutional Neural Network for Mobile Devices", 2018
#include "kernel.cuh"

#ifndef GROUPS
#define GROUPS 2
#endif

KERNEL(channelshuffle)(const float* __restrict__ x, float* __restrict__ y, int pixels, int C, int x_stride, int y_stride) {
    int pixel = blockIdx.x * blockDim.x + threadIdx.x;
    if (pixel >= pixels) return;
    const float* source = x + pixel * x_stride;
    float* target = y + pixel * y_stride;
    int run = C / GROUPS;
    for (int b = 0; b < run; ++b) {
        UNROLL(16)
        for (int a = 0; a < GROUPS; ++a) target[b * GROUPS + a] = source[a * run + b];
    }
}
