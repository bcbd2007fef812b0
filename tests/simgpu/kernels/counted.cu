// counted.cu -- kernels whose sectors and bank conflicts follow from the definition
//
// One warp each. A sector is 32 bytes; a bank is 4 bytes wide, there are 32.

extern "C" __global__ void coalesced(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }

extern "C" __global__ void stride_2(const float* x, float* y) { y[threadIdx.x] = x[2 * threadIdx.x]; }

extern "C" __global__ void stride_32(const float* x, float* y) { y[threadIdx.x] = x[32 * threadIdx.x]; }

#define SHARED_STRIDE(name, stride)                                     \
  extern "C" __global__ void name(const float* x, float* y) {           \
    __shared__ float kept[32 * (stride)];                               \
    kept[(stride) * threadIdx.x] = x[threadIdx.x];                      \
    __syncwarp();                                                       \
    y[threadIdx.x] = kept[(stride) * ((threadIdx.x + 1) & 31)];         \
  }

SHARED_STRIDE(conflict_free, 1)
SHARED_STRIDE(conflict_2_way, 2)
SHARED_STRIDE(conflict_32_way, 32)

extern "C" __global__ void wide_shared(const float4* x, float4* y) {
  __shared__ float4 kept[32];
  kept[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  y[threadIdx.x] = kept[31 - threadIdx.x];
}

extern "C" __global__ void half_of_each_warp(const int* x, int* y) {
  const int i = threadIdx.x;
  if (i & 1) {
    y[i] = x[i] * 3;
  } else {
    y[i] = x[i + 64] / 5;
  }
}
