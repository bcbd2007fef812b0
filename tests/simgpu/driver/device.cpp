// device.cpp -- start-up, the list of devices and their attributes, error texts, entry points by name
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "state.h"

namespace simgpu {

std::recursive_mutex mutex;
bool is_initialised = false;
std::vector<Device> devices;
std::map<uintptr_t, Allocation> allocations;
std::string last_fault;

long setting(const char* name, long otherwise) {
  const char* text = getenv((std::string("SIMGPU_") + name).c_str());
  return text && *text ? strtol(text, nullptr, 0) : otherwise;
}

int driver_version() { return static_cast<int>(setting("DRIVER_VERSION", CUDA_VERSION)); }
int compute_capability() { return static_cast<int>(setting("COMPUTE_CAPABILITY", 80)); }

CUresult refuse(CUresult code, const std::string& why) {
  fprintf(stderr, "simgpu: %s\n", why.c_str());
  return code;
}

namespace {

struct ErrorText {
  CUresult code;
  const char *name, *text;
};

constexpr ErrorText ERRORS[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {CUDA_ERROR_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
     "the provided PTX was compiled with an unsupported toolchain."},
    {CUDA_ERROR_FILE_NOT_FOUND, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
     "too many resources requested for launch"},
    {CUDA_ERROR_LAUNCH_TIMEOUT, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {CUDA_ERROR_ASSERT, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    {CUDA_ERROR_ILLEGAL_INSTRUCTION, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"},
    {CUDA_ERROR_MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {CUDA_ERROR_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a "
     "capturing stream"},
};

const ErrorText* find_error(CUresult code) {
  for (const ErrorText& e : ERRORS) {
    if (e.code == code) return &e;
  }
  return nullptr;
}

void start() {
  devices.resize(static_cast<size_t>(setting("DEVICES", 1)));
  for (size_t k = 0; k < devices.size(); ++k) {
    Device& d = devices[k];
    d.index = static_cast<int>(k);
    d.machine = sim_create();
    for (const char* option : {"seed", "late_async", "check_races", "check_uninitialised", "budget"}) {
      std::string name = option;
      for (char& c : name) c = static_cast<char>(toupper(c));
      const long value = setting(name.c_str(), -1);
      if (value >= 0) sim_set_option(d.machine, option, value);
    }
  }
  is_initialised = true;
}

bool is_device(CUdevice d) { return d >= 0 && d < static_cast<int>(devices.size()); }

// An H100's, so that code which asks for them meets plausible numbers.
int attribute_of(CUdevice_attribute attribute) {
  static const std::map<int, int> VALUES = {
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
      {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
      {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
      {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
      {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
      {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 2619000},
      {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 52428800},
      {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
      {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
      {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
      {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
      {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
      {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
      {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
      {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
      {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
  };
  if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) return compute_capability() / 10;
  if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) return compute_capability() % 10;
  const auto found = VALUES.find(attribute);
  return found == VALUES.end() ? 0 : found->second;
}

}  // namespace
}  // namespace simgpu

using namespace simgpu;

#define NEED_START() \
  if (!is_initialised) return CUDA_ERROR_NOT_INITIALIZED
#define NEED_DEVICE(d) \
  NEED_START();        \
  if (!is_device(d)) return CUDA_ERROR_INVALID_DEVICE

SIMGPU_API cuGetErrorString(CUresult code, const char** text) {
  const ErrorText* e = find_error(code);
  *text = e ? e->text : "unrecognized error code";
  return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIMGPU_API cuGetErrorName(CUresult code, const char** name) {
  const ErrorText* e = find_error(code);
  *name = e ? e->name : "unrecognized error code";
  return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIMGPU_API cuInit(unsigned) {
  Locked lock;
  if (setting("DEVICES", 1) < 1) return CUDA_ERROR_NO_DEVICE;
  if (!is_initialised) start();
  return CUDA_SUCCESS;
}

SIMGPU_API cuDriverGetVersion(int* version) {
  *version = driver_version();
  return CUDA_SUCCESS;
}

SIMGPU_API cuDeviceGetCount(int* count) {
  NEED_START();
  *count = static_cast<int>(devices.size());
  return CUDA_SUCCESS;
}

SIMGPU_API cuDeviceGet(CUdevice* device, int index) {
  NEED_DEVICE(index);
  *device = index;
  return CUDA_SUCCESS;
}

SIMGPU_API cuDeviceGetName(char* name, int bytes, CUdevice d) {
  NEED_DEVICE(d);
  snprintf(name, static_cast<size_t>(bytes), "Simulated GPU %d", d);
  return CUDA_SUCCESS;
}

SIMGPU_API cuDeviceTotalMem(size_t* bytes, CUdevice d) {
  NEED_DEVICE(d);
  *bytes = static_cast<size_t>(setting("MEMORY_MB", 4096)) << 20;
  return CUDA_SUCCESS;
}

SIMGPU_API cuDeviceGetPCIBusId(char* text, int bytes, CUdevice d) {
  NEED_DEVICE(d);
  snprintf(text, static_cast<size_t>(bytes), "0000:%02X:00.0", d + 1);
  return CUDA_SUCCESS;
}

SIMGPU_API cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice d) {
  NEED_DEVICE(d);
  memset(uuid, 0, sizeof *uuid);
  uuid->bytes[0] = static_cast<char>(d + 1);
  return CUDA_SUCCESS;
}

SIMGPU_API cuDeviceComputeCapability(int* major, int* minor, CUdevice d) {
  NEED_DEVICE(d);
  *major = compute_capability() / 10;
  *minor = compute_capability() % 10;
  return CUDA_SUCCESS;
}

SIMGPU_API cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice d) {
  NEED_DEVICE(d);
  *value = attribute_of(attribute);
  return CUDA_SUCCESS;
}

SIMGPU_API cuDeviceCanAccessPeer(int* can, CUdevice a, CUdevice b) {
  NEED_DEVICE(a);
  NEED_DEVICE(b);
  *can = 0;
  return CUDA_SUCCESS;
}

// The newest form of a function, as cuda.h's macros choose it.
SIMGPU_API cuGetProcAddress_v2(const char* name, void** function, int, cuuint64_t,
                               CUdriverProcAddressQueryResult* status) {
  static void* const self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  for (const char* suffix : {"_v4", "_v3", "_v2", ""}) {
    *function = dlsym(self, (std::string(name) + suffix).c_str());
    if (!*function) continue;
    if (status) *status = CU_GET_PROC_ADDRESS_SUCCESS;
    return CUDA_SUCCESS;
  }
  if (status) *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return CUDA_ERROR_NOT_FOUND;
}

SIMGPU_API cuProfilerStart() { return CUDA_SUCCESS; }
SIMGPU_API cuProfilerStop() { return CUDA_SUCCESS; }

// ---------------------------------------------------------------- for tests, beyond CUDA

extern "C" __attribute__((visibility("default"))) const char* simgpu_last_fault() { return last_fault.c_str(); }

// With it, the functions of sim.h (which this library exports too) set options and read counters.
extern "C" __attribute__((visibility("default"))) sim_machine* simgpu_machine(int device) {
  Locked lock;
  return is_initialised && is_device(device) ? devices[static_cast<size_t>(device)].machine : nullptr;
}

extern "C" __attribute__((visibility("default"))) size_t simgpu_high_water(int device) {
  Locked lock;
  return is_initialised && is_device(device) ? devices[static_cast<size_t>(device)].high_water_bytes : 0;
}
