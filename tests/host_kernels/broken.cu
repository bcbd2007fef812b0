// broken.cu -- doesn't compile: the message has to name this file and the line below
#include "kernel.cuh"

KERNEL(broken)(float* __restrict__ y) {
    y[threadIdx.x] = undeclared;
}
