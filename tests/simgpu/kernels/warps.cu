// warps.cu -- lanes and barriers: shuffles, votes, named barriers, reductions over the block, divergence
#include <stdint.h>

#define FULL 0xffffffffu

extern "C" __global__ void shuffles(const int* x, int* out) {
  const int i = threadIdx.x, n = blockDim.x, v = x[i];
  int row = 0;
  out[n * row++ + i] = __shfl_sync(FULL, v, (i * 7) & 31);
  out[n * row++ + i] = __shfl_up_sync(FULL, v, 3);
  out[n * row++ + i] = __shfl_down_sync(FULL, v, 5);
  out[n * row++ + i] = __shfl_xor_sync(FULL, v, 9);
  out[n * row++ + i] = __shfl_sync(FULL, v, 3, 8);
  out[n * row++ + i] = __shfl_down_sync(FULL, v, 2, 16);
  out[n * row++ + i] = (int)__ballot_sync(FULL, v & 1);
  out[n * row++ + i] = __any_sync(FULL, v == x[0]);
  out[n * row++ + i] = __all_sync(FULL, v > -1000000);
  out[n * row++ + i] = (int)__match_any_sync(FULL, v & 3);
  out[n * row++ + i] = (int)__reduce_add_sync(FULL, v);
  out[n * row++ + i] = __reduce_max_sync(FULL, v);
  out[n * row++ + i] = (int)__reduce_xor_sync(FULL, (unsigned)v);
  int part = 0;
  if ((i & 31) < 12) part = __shfl_xor_sync(0xfffu, v, 1);
  out[n * row++ + i] = part;
  out[n * row++ + i] = (int)__activemask();
  out[n * row++ + i] = __shfl_up_sync(FULL, v, 2, 8);
  out[n * row++ + i] = __all_sync(FULL, v > 0);
}

// The two sides of a branch meet a shuffle each at its own place; then all meet again
extern "C" __global__ void branches(const int* x, int* y) {
  const int i = threadIdx.x;
  int v = x[i];
  if (i & 1) {
    for (int k = 0; k < (i & 7); ++k) v += k * v;
  } else {
    v = __shfl_xor_sync(0x55555555u, v, 2);
  }
  while (v > 100) v /= 2;
  y[i] = v + __shfl_sync(FULL, v, 0);
}

// Half of the block makes what the other half uses: barrier 1 says "full", barrier 2 "empty"
extern "C" __global__ void producer_consumer(const float* x, float* y, int rounds) {
  __shared__ float box[64];
  const int i = threadIdx.x & 63;
  if (threadIdx.x < 64) {
    for (int r = 0; r < rounds; ++r) {
      asm volatile("bar.sync 2, 128;" ::: "memory");
      box[i] = x[r * 64 + i];
      asm volatile("bar.arrive 1, 128;" ::: "memory");
    }
  } else {
    for (int r = 0; r < rounds; ++r) {
      asm volatile("bar.arrive 2, 128;" ::: "memory");
      asm volatile("bar.sync 1, 128;" ::: "memory");
      y[r * 64 + i] = box[63 - i] * 2;
    }
  }
}

extern "C" __global__ void counted_barriers(const int* x, int* out) {
  const int i = threadIdx.x, n = blockDim.x;
  out[i] = __syncthreads_count(x[i] > 0);
  out[n + i] = __syncthreads_and(x[i] > -1000000);
  out[2 * n + i] = __syncthreads_or(x[i] == x[3]);
}

// Each half of the warp has its own __syncwarp, at its own place in the code
extern "C" __global__ void split_warp(const float* x, float* y) {
  __shared__ float kept[32];
  const int i = threadIdx.x;
  kept[i] = x[i];
  if (i < 16) {
    __syncwarp(0x0000ffffu);
    y[i] = kept[15 - i];
  } else {
    __syncwarp(0xffff0000u);
    y[i] = kept[47 - i] * 3;
  }
}

extern "C" __global__ void block_sum(const float* x, float* y, int n) {
  __shared__ float part[32];
  float v = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[blockIdx.x * n + i];
  for (int offset = 16; offset; offset >>= 1) v += __shfl_down_sync(FULL, v, offset);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x < 32) {
    v = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.f;
    for (int offset = 16; offset; offset >>= 1) v += __shfl_down_sync(FULL, v, offset);
    if (threadIdx.x == 0) y[blockIdx.x] = v;
  }
}
