// copy.cpp -- copies and fills, every range checked
#include <algorithm>
#include <cstring>

#include "state.h"

using namespace simgpu;

namespace {

CUresult move_bytes(void* to, const void* from, size_t bytes) {
  memmove(to, from, bytes);
  return CUDA_SUCCESS;
}

CUresult check_range(CUdeviceptr address, size_t bytes) {
  if (bytes == 0 || is_usable(address, bytes)) return CUDA_SUCCESS;
  return refuse(CUDA_ERROR_INVALID_VALUE, "a copy or fill of " + std::to_string(bytes) +
                " bytes leaves its allocation, or belongs to another device");
}

bool is_pinned(const void* host, size_t bytes) {
  return find_allocation(reinterpret_cast<uintptr_t>(host), bytes) != nullptr;
}

// What a copy without a stream waits for.
CUresult synchronise_default() {
  if (CUresult r = not_while_capturing()) return r;
  drain_blocking(current_context());
  return drain(&current_context()->default_stream);
}

template <class T>
CUresult fill(CUdeviceptr address, T value, size_t count, CUstream handle) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  if (CUresult r = check_range(address, count * sizeof(T))) return r;
  CUstream_st* s = stream_of(handle);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  return submit(s, [=] {
    std::fill_n(reinterpret_cast<T*>(address), count, value);
    return CUDA_SUCCESS;
  });
}

CUresult check_2d(const CUDA_MEMCPY2D& c) {
  if (c.srcMemoryType == CU_MEMORYTYPE_ARRAY || c.dstMemoryType == CU_MEMORYTYPE_ARRAY) return CUDA_ERROR_NOT_SUPPORTED;
  if (c.Height == 0) return CUDA_SUCCESS;
  const auto extent = [&](size_t pitch, size_t x) { return (c.Height - 1) * pitch + x + c.WidthInBytes; };
  if (c.srcMemoryType == CU_MEMORYTYPE_DEVICE) {
    if (CUresult r = check_range(c.srcDevice + c.srcY * c.srcPitch, extent(c.srcPitch, c.srcXInBytes))) return r;
  }
  if (c.dstMemoryType != CU_MEMORYTYPE_DEVICE) return CUDA_SUCCESS;
  return check_range(c.dstDevice + c.dstY * c.dstPitch, extent(c.dstPitch, c.dstXInBytes));
}

CUresult copy_2d(const CUDA_MEMCPY2D& c) {
  const bool from_host = c.srcMemoryType == CU_MEMORYTYPE_HOST, to_host = c.dstMemoryType == CU_MEMORYTYPE_HOST;
  const char* from = from_host ? static_cast<const char*>(c.srcHost) : reinterpret_cast<const char*>(c.srcDevice);
  char* to = to_host ? static_cast<char*>(c.dstHost) : reinterpret_cast<char*>(c.dstDevice);
  for (size_t y = 0; y < c.Height; ++y) {
    memmove(to + (c.dstY + y) * c.dstPitch + c.dstXInBytes, from + (c.srcY + y) * c.srcPitch + c.srcXInBytes,
            c.WidthInBytes);
  }
  return CUDA_SUCCESS;
}

}  // namespace

SIMGPU_API cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  if (CUresult r = check_range(to, bytes)) return r;
  if (CUresult r = synchronise_default()) return r;
  return move_bytes(reinterpret_cast<void*>(to), from, bytes);
}

SIMGPU_API cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  if (CUresult r = check_range(from, bytes)) return r;
  if (CUresult r = synchronise_default()) return r;
  return move_bytes(to, reinterpret_cast<void*>(from), bytes);
}

SIMGPU_API cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  if (CUresult r = check_range(to, bytes)) return r;
  if (CUresult r = check_range(from, bytes)) return r;
  CUstream_st* s = stream_of(handle);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  return submit(s, [=] { return move_bytes(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes); });
}

SIMGPU_API cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return cuMemcpyDtoDAsync(to, from, bytes, nullptr);
}

// Pageable memory is read before the call returns; pinned memory when the copy runs.
SIMGPU_API cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream handle) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  if (CUresult r = check_range(to, bytes)) return r;
  CUstream_st* s = stream_of(handle);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (is_pinned(from, bytes) || s->capture) {
    return submit(s, [=] { return move_bytes(reinterpret_cast<void*>(to), from, bytes); });
  }
  const auto* begin = static_cast<const char*>(from);
  const auto staged = std::make_shared<std::vector<char>>(begin, begin + bytes);
  return submit(s, [=] { return move_bytes(reinterpret_cast<void*>(to), staged->data(), bytes); });
}

// To pageable memory: complete when the call returns.
SIMGPU_API cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream handle) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  if (CUresult r = check_range(from, bytes)) return r;
  CUstream_st* s = stream_of(handle);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  const bool is_lazy = is_pinned(to, bytes) || s->capture;
  const CUresult r = submit(s, [=] { return move_bytes(to, reinterpret_cast<void*>(from), bytes); });
  return r || is_lazy ? r : drain(s);
}

SIMGPU_API cuMemsetD8(CUdeviceptr a, unsigned char v, size_t n) { return fill(a, v, n, nullptr); }
SIMGPU_API cuMemsetD16(CUdeviceptr a, unsigned short v, size_t n) { return fill(a, v, n, nullptr); }
SIMGPU_API cuMemsetD32(CUdeviceptr a, unsigned v, size_t n) { return fill(a, v, n, nullptr); }
SIMGPU_API cuMemsetD8Async(CUdeviceptr a, unsigned char v, size_t n, CUstream s) { return fill(a, v, n, s); }
SIMGPU_API cuMemsetD16Async(CUdeviceptr a, unsigned short v, size_t n, CUstream s) { return fill(a, v, n, s); }
SIMGPU_API cuMemsetD32Async(CUdeviceptr a, unsigned v, size_t n, CUstream s) { return fill(a, v, n, s); }

SIMGPU_API cuMemcpy2D(const CUDA_MEMCPY2D* c) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  if (CUresult r = check_2d(*c)) return r;
  if (CUresult r = synchronise_default()) return r;
  return copy_2d(*c);
}

SIMGPU_API cuMemcpy2DUnaligned(const CUDA_MEMCPY2D* c) { return cuMemcpy2D(c); }

SIMGPU_API cuMemcpy2DAsync(const CUDA_MEMCPY2D* c, CUstream handle) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  if (CUresult r = check_2d(*c)) return r;
  CUstream_st* s = stream_of(handle);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  const CUDA_MEMCPY2D copy = *c;
  return submit(s, [=] { return copy_2d(copy); });
}
