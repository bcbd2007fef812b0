// memory.cpp -- allocation: filled with NaN, guarded by marks and by pages nobody may touch
#include <sys/mman.h>

#include <cstring>

#include "state.h"

namespace simgpu {
namespace {

constexpr size_t PAGE = 4096, ALIGN = 256;
constexpr unsigned char NAN_BYTE = 0xFF;  // NaN in fp16, bf16, fp32 and fp64
constexpr unsigned char MARK = 0xCB;

size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

bool is_host_kind(Kind kind) { return kind == Kind::pinned || kind == Kind::registered; }

// Device memory belongs to one machine; host and managed memory to all.
template <class F>
void each_user(const Allocation& a, F f) {
  for (Device& d : devices) {
    if (a.kind == Kind::pinned || a.kind == Kind::registered || a.kind == Kind::managed || &d == a.device) f(d);
  }
}

void forget(uintptr_t address) {
  const Allocation a = allocations.at(address);
  each_user(a, [&](Device& d) { sim_unregister(d.machine, address); });
  if (a.kind == Kind::device || a.kind == Kind::managed) a.device->used_bytes -= a.bytes;
  if (a.mapping) munmap(a.mapping, a.mapping_bytes);
  allocations.erase(address);
}

}  // namespace

const Allocation* find_allocation(uintptr_t address, size_t bytes) {
  auto after = allocations.upper_bound(address);
  if (after == allocations.begin()) return nullptr;
  --after;
  return address + bytes <= after->first + after->second.bytes ? &after->second : nullptr;
}

bool is_usable(uintptr_t address, size_t bytes) {
  const Allocation* a = find_allocation(address, bytes);
  return a && (a->kind != Kind::device || a->device == &current_device());
}

// The end of the buffer lies at the guard page, but for the bytes up to a multiple of 256, which are marked.
CUresult allocate(uintptr_t* address, size_t bytes, Kind kind) {
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  Device& device = current_device();
  size_t total = 0;
  cuDeviceTotalMem(&total, device.index);
  const bool counts = kind == Kind::device || kind == Kind::managed;
  if (counts && bytes > total - device.used_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const size_t body = round_up(bytes, ALIGN), pages = round_up(body, PAGE), mapped = pages + 2 * PAGE;
  void* made = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  auto* mapping = static_cast<char*>(made);
  mprotect(mapping, PAGE, PROT_NONE);
  mprotect(mapping + PAGE + pages, PAGE, PROT_NONE);
  char* buffer = mapping + PAGE + pages - body;
  memset(buffer, NAN_BYTE, bytes);
  memset(buffer + bytes, MARK, body - bytes);
  *address = reinterpret_cast<uintptr_t>(buffer);
  const Allocation& a = allocations[*address] = {bytes, kind, &device, mapping, mapped};
  each_user(a, [&](Device& d) { sim_register(d.machine, *address, bytes); });
  if (counts) device.used_bytes += bytes;
  device.high_water_bytes = std::max(device.high_water_bytes, device.used_bytes);
  return CUDA_SUCCESS;
}

CUresult release(uintptr_t address, bool is_host) {
  const auto found = allocations.find(address);
  if (found == allocations.end() || !found->second.mapping) return CUDA_ERROR_INVALID_VALUE;
  const Allocation a = found->second;
  if ((a.kind == Kind::pinned) != is_host) return CUDA_ERROR_INVALID_VALUE;
  const auto* bytes = reinterpret_cast<const unsigned char*>(address);
  size_t damaged = a.bytes;
  while (damaged < round_up(a.bytes, ALIGN) && bytes[damaged] == MARK) ++damaged;
  if (damaged < round_up(a.bytes, ALIGN)) {
    last_fault = "a write past the end of a buffer of " + std::to_string(a.bytes) + " bytes, at byte " +
                 std::to_string(damaged);
    refuse(CUDA_ERROR_ILLEGAL_ADDRESS, last_fault);
    if (current_context()) current_context()->fault = {CUDA_ERROR_ILLEGAL_ADDRESS, last_fault};
  }
  forget(address);
  return CUDA_SUCCESS;
}

void release_all_of(Device& device) {
  std::vector<uintptr_t> left;
  for (const auto& [address, a] : allocations) {
    if (a.device == &device && a.mapping) left.push_back(address);
  }
  if (setting("TRACE", 0) && !left.empty()) {
    fprintf(stderr, "simgpu: %zu allocations left at the end of the last context\n", left.size());
  }
  for (uintptr_t address : left) forget(address);
}

}  // namespace simgpu

using namespace simgpu;

SIMGPU_API cuMemGetInfo(size_t* free_bytes, size_t* total) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  cuDeviceTotalMem(total, current_device().index);
  *free_bytes = *total - current_device().used_bytes;
  return CUDA_SUCCESS;
}

static CUresult allocate_checked(uintptr_t* address, size_t bytes, Kind kind) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  if (CUresult r = not_while_capturing()) return r;
  return allocate(address, bytes, kind);
}

SIMGPU_API cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  uintptr_t made = 0;
  const CUresult r = allocate_checked(&made, bytes, Kind::device);
  *address = made;
  return r;
}

SIMGPU_API cuMemAllocPitch(CUdeviceptr* address, size_t* pitch, size_t width, size_t height, unsigned) {
  *pitch = (width + 511) / 512 * 512;
  return cuMemAlloc(address, *pitch * height);
}

SIMGPU_API cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned) {
  uintptr_t made = 0;
  const CUresult r = allocate_checked(&made, bytes, Kind::managed);
  *address = made;
  return r;
}

SIMGPU_API cuMemHostAlloc(void** address, size_t bytes, unsigned) {
  uintptr_t made = 0;
  const CUresult r = allocate_checked(&made, bytes, Kind::pinned);
  *address = reinterpret_cast<void*>(made);
  return r;
}

SIMGPU_API cuMemAllocHost(void** address, size_t bytes) { return cuMemHostAlloc(address, bytes, 0); }

static CUresult free_checked(uintptr_t address, bool is_host) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  if (CUresult r = not_while_capturing()) return r;
  drain_all(current_context());  // a free waits for the device
  return release(address, is_host);
}

SIMGPU_API cuMemFree(CUdeviceptr address) { return address ? free_checked(address, false) : CUDA_SUCCESS; }

SIMGPU_API cuMemFreeHost(void* address) { return free_checked(reinterpret_cast<uintptr_t>(address), true); }

SIMGPU_API cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream) { return cuMemAlloc(address, bytes); }

SIMGPU_API cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  CUstream_st* s = stream_of(handle);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  return submit(s, [=] { return release(address, false); });
}

SIMGPU_API cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  auto after = allocations.upper_bound(address);
  if (after == allocations.begin() || !find_allocation(address, 1)) return CUDA_ERROR_NOT_FOUND;
  --after;
  if (base) *base = after->first;
  if (bytes) *bytes = after->second.bytes;
  return CUDA_SUCCESS;
}

SIMGPU_API cuMemHostGetDevicePointer(CUdeviceptr* address, void* host, unsigned) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  if (!find_allocation(reinterpret_cast<uintptr_t>(host), 1)) return CUDA_ERROR_INVALID_VALUE;
  *address = reinterpret_cast<CUdeviceptr>(host);
  return CUDA_SUCCESS;
}

SIMGPU_API cuMemHostGetFlags(unsigned* flags, void* host) {
  Locked lock;
  if (!find_allocation(reinterpret_cast<uintptr_t>(host), 1)) return CUDA_ERROR_INVALID_VALUE;
  *flags = CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

SIMGPU_API cuMemHostRegister(void* host, size_t bytes, unsigned) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  const auto address = reinterpret_cast<uintptr_t>(host);
  if (find_allocation(address, 1)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  const Allocation& a = allocations[address] = {bytes, Kind::registered, &current_device(), nullptr, 0};
  each_user(a, [&](Device& d) { sim_register(d.machine, address, bytes); });
  return CUDA_SUCCESS;
}

SIMGPU_API cuMemHostUnregister(void* host) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  drain_all(current_context());
  const auto found = allocations.find(reinterpret_cast<uintptr_t>(host));
  if (found == allocations.end() || found->second.kind != Kind::registered) {
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  forget(found->first);
  return CUDA_SUCCESS;
}

SIMGPU_API cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  Locked lock;
  const Allocation* a = find_allocation(address, 1);
  if (!a) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(value) = is_host_kind(a->kind) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      *static_cast<uintptr_t*>(value) = address;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<int*>(value) = a->kind == Kind::managed;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(value) = a->device->index;
      return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}
