// calibrate.cu -- what it costs to launch, and how many multiply-adds the machine can do
//
// computes  null_kernel: nothing; fma_peak: a = a * factor + factor in ACCUMULATORS * 16 registers, `steps` times
// layout    y: one float, written only if the sum is one that can't be
// mapping   thread: its own accumulators, no memory
// cost      2 * 16 * ACCUMULATORS * steps floating-point operations a thread
// needs     factor below 1, so that the accumulators stay finite
// source    the usual way to find a machine's arithmetic roof: S. Williams et al., Roofline, CACM 52(4), 2009
#include "kernel.cuh"

#ifndef ACCUMULATORS
#define ACCUMULATORS 4
#endif

KERNEL(null_kernel)(float* __restrict__ y)
{
    (void)y;
}

KERNEL(fma_peak)(float* __restrict__ y, float factor, int steps)
{
    Vector<16> sums[ACCUMULATORS];
    Vector<16> factors = splat<16>(factor);
    UNROLL(16)
    for (int i = 0; i < ACCUMULATORS; ++i) sums[i] = splat<16>(float(i + int(threadIdx.x)));
    UNROLL(1)
    for (int step = 0; step < steps; ++step) {
        UNROLL(16)
        for (int i = 0; i < ACCUMULATORS; ++i) sums[i] = fma(sums[i], factors, factors);
    }
    float sum = 0;
    for (int i = 0; i < ACCUMULATORS; ++i)
        for (int lane = 0; lane < 16; ++lane) sum += sums[i][lane];
    if (sum == -1.0f) y[0] = sum;
}
