// winograd.cuh -- the one-dimensional transforms of F(OUTPUTS x OUTPUTS, 3x3), of floats or of Vectors
//
// points 0, 1, -1 and infinity for OUTPUTS 2; 0, +-3/4, +-3/2 and infinity for 4: of the sets whose sums of squares have
// few bits the one with the least error (a quarter of that of 0, +-1, +-2). The filters' is made at load, in Python.
// Include kernel.cuh first.
#pragma once

#ifndef OUTPUTS
#define OUTPUTS 2
#endif

static constexpr int SIDE = OUTPUTS + 2;
static constexpr int PRODUCTS = SIDE * SIDE;

#if OUTPUTS == 2

// B^T d
template <class T>
__device__ __forceinline__ static void transform_input(const T* d, T* v) {
    v[0] = d[0] - d[2];
    v[1] = d[1] + d[2];
    v[2] = d[2] - d[1];
    v[3] = d[1] - d[3];
}

// A^T m
template <class T>
__device__ __forceinline__ static void transform_output(const T* m, T* y) {
    y[0] = m[0] + m[1] + m[2];
    y[1] = m[1] - m[2] - m[3];
}

#else

#define NEAR 0.75f  // the points +-NEAR and +-FAR
#define FAR 1.5f

template <class T>
__device__ __forceinline__ static void transform_input(const T* d, T* v) {
    T far_even = d[4] - d[2] * (FAR * FAR), far_odd = (d[3] - d[1] * (FAR * FAR)) * NEAR;
    T near_even = d[4] - d[2] * (NEAR * NEAR), near_odd = (d[3] - d[1] * (NEAR * NEAR)) * FAR;
    v[0] = d[0] * (NEAR * NEAR * FAR * FAR) - d[2] * (NEAR * NEAR + FAR * FAR) + d[4];
    v[1] = far_even + far_odd;
    v[2] = far_even - far_odd;
    v[3] = near_even + near_odd;
    v[4] = near_even - near_odd;
    v[5] = d[1] * (NEAR * NEAR * FAR * FAR) - d[3] * (NEAR * NEAR + FAR * FAR) + d[5];
}

template <class T>
__device__ __forceinline__ static void transform_output(const T* m, T* y) {
    T near_even = m[1] + m[2], near_odd = m[1] - m[2], far_even = m[3] + m[4], far_odd = m[3] - m[4];
    y[0] = m[0] + near_even + far_even;
    y[1] = near_odd * NEAR + far_odd * FAR;
    y[2] = near_even * (NEAR * NEAR) + far_even * (FAR * FAR);
    y[3] = near_odd * (NEAR * NEAR * NEAR) + far_odd * (FAR * FAR * FAR) + m[5];
}

#endif
