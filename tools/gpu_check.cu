// gpu_check.cu -- a kernel that does nothing, to time what a launch costs
//
// computes  nothing; `unused` is there because a launch names at least one argument
// source    none
#include "kernel.cuh"

KERNEL(nothing)(int unused) {}
