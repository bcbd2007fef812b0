// faults.cu -- kernels with one planted fault each; the name says which
#include <assert.h>
#include <stdint.h>
#include <stdio.h>

#define FULL 0xffffffffu

extern "C" __global__ void global_out_of_bounds(float* x, int n) { x[threadIdx.x + n] = 1.f; }

extern "C" __global__ void shared_out_of_bounds(float* x, int step) {
  __shared__ float kept[32];
  kept[threadIdx.x * step] = 1.f;
  x[threadIdx.x] = kept[threadIdx.x];
}

extern "C" __global__ void local_out_of_bounds(float* x, int n) {
  float kept[8];
  for (int k = 0; k < 8; ++k) kept[k] = x[k];
  kept[n + threadIdx.x] = 2.f;
  float sum = 0;
  for (int k = 0; k < 8; ++k) sum += kept[(k + n) & 7];
  x[threadIdx.x] = sum;
}

extern "C" __global__ void misaligned(const float* x, float* y) {
  const float4 v = *(const float4*)(x + 1);
  y[threadIdx.x] = v.x + v.w;
}

extern "C" __global__ void uninitialised_shared(float* y) {
  __shared__ float kept[32];
  if (threadIdx.x < 31) kept[threadIdx.x] = 1.f;
  __syncthreads();
  y[threadIdx.x] = kept[threadIdx.x];
}

extern "C" __global__ void uninitialised_local(const int* index, float* y) {
  float kept[16];
  for (int k = 0; k < 15; ++k) kept[k] = y[k];
  y[threadIdx.x] = kept[index[threadIdx.x]];
}

extern "C" __global__ void divergent_barrier(float* y) {
  if (threadIdx.x < 16) __syncthreads();
  y[threadIdx.x] = 1.f;
}

extern "C" __global__ void early_return_before_barrier(float* y) {
  if (threadIdx.x >= 64) return;
  __syncthreads();
  y[threadIdx.x] = 1.f;
}

extern "C" __global__ void two_barriers_for_one(float* y) {
  if (threadIdx.x & 1) {
    y[threadIdx.x] = 1.f;
    asm volatile("bar.sync 0;");
  } else {
    y[threadIdx.x] = 2.f;
    asm volatile("bar.sync 0;");
    y[threadIdx.x] = 3.f;
  }
}

extern "C" __global__ void partial_shuffle(float* y) {
  float v = y[threadIdx.x];
  if (threadIdx.x < 16) v += __shfl_xor_sync(FULL, v, 1);
  y[threadIdx.x] = v;
}

extern "C" __global__ void partial_syncwarp(float* y) {
  if (threadIdx.x < 16) __syncwarp(FULL);
  else asm volatile("bar.sync 3, 32;");
  y[threadIdx.x] = 1.f;
}

extern "C" __global__ void missing_barrier(float* y) {  // between warps
  __shared__ float kept[256];
  kept[threadIdx.x] = -1.f;  // so that it isn't found as an uninitialised read, which depends on the order
  __syncthreads();
  kept[threadIdx.x] = threadIdx.x;
  y[threadIdx.x] = kept[(threadIdx.x + 64) % 256];
}

extern "C" __global__ void missing_second_barrier(const float* x, float* y, int n) {  // write after read
  __shared__ float kept[128];
  float sum = 0;
  for (int k = 0; k < n; ++k) {
    kept[threadIdx.x] = x[k * 128 + threadIdx.x];
    __syncthreads();
    sum += kept[127 - threadIdx.x];
  }
  y[threadIdx.x] = sum;
}

extern "C" __global__ void missing_syncwarp(float* y) {  // between lanes of one warp
  __shared__ volatile float kept[32];
  kept[threadIdx.x] = threadIdx.x;
  y[threadIdx.x] = kept[31 - threadIdx.x];
}

extern "C" __global__ void barrier_of_half(float* y) {  // barrier 1 orders warps 0 and 1 only
  __shared__ float kept[128];
  kept[threadIdx.x] = -1.f;
  __syncthreads();
  kept[threadIdx.x] = threadIdx.x;
  if (threadIdx.x < 64) asm volatile("bar.sync 1, 64;" ::: "memory");
  else asm volatile("bar.sync 2, 64;" ::: "memory");
  y[threadIdx.x] = kept[threadIdx.x ^ 64];
}

extern "C" __global__ void plain_beside_atomic(int* y) {
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, 1);
  y[threadIdx.x] = sum;
}

extern "C" __global__ void last_thread_reads_the_sum(int* y) {  // others added beside it
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, 1);
  if (threadIdx.x == 63) y[threadIdx.x] = sum;
}

extern "C" __global__ void reset_beside_atomics(int* y) {  // thread 0 may well be first: then its own atomic follows
  __shared__ int sum;
  if (threadIdx.x == 0) sum = -1;
  __syncthreads();
  if (threadIdx.x == 0) *(volatile int*)&sum = 0;
  if (threadIdx.x % 32 == 0) atomicAdd(&sum, 1);
  __syncthreads();
  y[threadIdx.x] = sum;
}

extern "C" __global__ void reset_after_atomics(int* y) {
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  if (threadIdx.x % 32 == 0) atomicAdd(&sum, 1);
  if (threadIdx.x == 32) *(volatile int*)&sum = 0;
  __syncthreads();
  y[threadIdx.x] = sum;
}

__device__ __forceinline__ void fetch(float* to, const float* from) {
  const uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
}

extern "C" __global__ void missing_async_wait(const float* x, float* y) {
  __shared__ __align__(16) float kept[256];
  fetch(kept + threadIdx.x * 4, x + threadIdx.x * 4);
  __syncthreads();
  y[threadIdx.x] = kept[threadIdx.x];
}

extern "C" __global__ void wait_leaves_one_too_many(const float* x, float* y) {
  __shared__ __align__(16) float kept[2][256];
  fetch(kept[0] + threadIdx.x * 4, x + threadIdx.x * 4);
  fetch(kept[1] + threadIdx.x * 4, x + threadIdx.x * 4);
  asm volatile("cp.async.wait_group 1;" ::: "memory");
  __syncthreads();
  y[threadIdx.x] = kept[1][threadIdx.x];
}

extern "C" __global__ void missing_barrier_after_wait(const float* x, float* y) {
  __shared__ __align__(16) float kept[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) kept[i] = -1.f;
  __syncthreads();
  fetch(kept + threadIdx.x * 4, x + threadIdx.x * 4);
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  y[threadIdx.x] = kept[threadIdx.x];
}

extern "C" __global__ void endless(int* y) {
  while (*(volatile int*)y == 0) {
  }
  y[1] = 1;
}

extern "C" __global__ void unsupported(int* y) {
  asm volatile("{ .reg .b64 s; mbarrier.init.shared.b64 [%0], 1; }" ::"r"(0));
  y[0] = 1;
}

extern "C" __global__ void traps(int* y) {
  if (y[threadIdx.x] < 0) __trap();
  y[threadIdx.x] = 1;
}

extern "C" __global__ void asserts(int* y) {
  assert(y[threadIdx.x] >= 0);
  y[threadIdx.x] = 1;
}

extern "C" __global__ void prints(int* y) {
  printf("%d\n", y[0]);
}
