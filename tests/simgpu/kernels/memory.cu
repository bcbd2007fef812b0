// memory.cu -- every space and width: vectors, local arrays, constants, generic pointers, atomics, device functions
#include <stdint.h>

__constant__ float coefficients[4] = {1.f, -2.f, 3.f, 0.5f};
__constant__ const float* table_pointer;
__device__ int counter = 5;
__device__ float table[8] = {0, 1, 4, 9, 16, 25, 36, 49};
__device__ float* table_alias = table + 2;

struct Options {
  int scale;
  float weights[3];
};

extern "C" __global__ void vectors(const float4* x, const uchar4* y, const double2* z, const short2* s, float* out) {
  const int i = threadIdx.x;
  const float4 a = x[i];
  const uchar4 b = y[i];
  const double2 c = z[i];
  const short2 d = s[i];
  ((float4*)out)[i] = make_float4(a.w + b.x, a.z + b.w, a.y + (float)c.y, a.x + d.y);
}

extern "C" __global__ void local_array(const int* index, const float* x, float* y) {
  float kept[16];
  for (int k = 0; k < 16; ++k) kept[k] = x[k] * (threadIdx.x + 1);
  y[threadIdx.x] = kept[index[threadIdx.x] & 15] + kept[(index[threadIdx.x] + 3) & 15];
}

extern "C" __global__ void constants(const float* x, float* y) {
  const int i = threadIdx.x;
  y[i] = coefficients[i & 3] * x[i] + table[i & 7] + table_alias[i & 3];
}

extern "C" __global__ void parameters(char a, double b, short c, float* out, long long d, unsigned char e, float4 f,
                                      Options options) {
  const int i = threadIdx.x;
  if (i == 0) {
    out[0] = a;
    out[1] = (float)b;
    out[2] = c;
    out[3] = (float)d;
    out[4] = e;
    out[5] = f.x;
    out[6] = f.w;
  }
  out[7 + i] = options.weights[i % 3] * options.scale;
}

extern "C" __global__ void generic_pointers(const float* x, float* y, int n) {
  __shared__ float near[32];
  float own[4] = {1, 2, 3, 4};
  const int i = threadIdx.x;
  near[i] = x[i] * 2;
  __syncthreads();
  const float* from = n > 16 ? near : x;  // known only at run time
  const float* small = n > 16 ? own : x;
  y[i] = from[31 - i] + small[i & 3];
}

extern "C" __global__ void dynamic_shared(const float* x, float* y) {
  extern __shared__ float kept[];
  __shared__ float fixed[32];
  const int i = threadIdx.x;
  kept[i] = x[i];
  if (i < 32) fixed[i] = 1.f;
  __syncthreads();
  y[i] = kept[blockDim.x - 1 - i] + fixed[(i + 1) & 31];
}

extern "C" __global__ void atomics(int* integers, float* floats, unsigned long long* longs, const int* x) {
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  const int v = x[blockIdx.x * blockDim.x + threadIdx.x];
  atomicAdd(&sum, v);
  atomicAdd(&integers[0], v);
  atomicMax(&integers[1], v);
  atomicMin(&integers[2], v);
  atomicOr(&integers[3], v);
  atomicXor(&integers[4], v);
  atomicInc((unsigned*)&integers[5], 9);
  atomicAdd(&floats[0], (float)v);
  atomicAdd(&longs[0], (unsigned long long)v);
  atomicAdd(&counter, 1);
  int seen = integers[6], expected;
  do {
    expected = seen;
    seen = atomicCAS(&integers[6], expected, expected + 2);
  } while (seen != expected);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(&integers[7], sum);
}

__device__ __noinline__ float4 turn(float4 v, int times) {
  for (int k = 0; k < times; ++k) v = make_float4(v.w, v.x, v.y, v.z);
  return v;
}

__device__ __noinline__ double power(double base, int exponent) {
  double out = 1;
  for (int k = 0; k < exponent; ++k) out *= base;
  return out;
}

extern "C" __global__ void calls(const float4* x, const double* d, float4* y, double* z) {
  const int i = threadIdx.x;
  float4 v = turn(x[i], i & 3);
  if (i & 1) v = turn(v, 2);  // only some lanes call
  y[i] = v;
  z[i] = power(d[i], i % 7);
}

extern "C" __global__ void switched(const int* x, int* y) {
  const int i = threadIdx.x;
  switch (x[i]) {
    case 0: y[i] = i * i + 7; break;
    case 1: y[i] = i ^ 0x55; break;
    case 2: y[i] = -i; break;
    case 3: y[i] = i << 4; break;
    case 4: y[i] = i / 3; break;
    case 5: y[i] = i % 3; break;
    case 6: y[i] = __popc(i); break;
    default: y[i] = 1000; break;
  }
}
