// module.cpp -- modules from PTX, functions and their attributes, variables, occupancy
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "state.h"

using namespace simgpu;

namespace {

constexpr int STATIC_SHARED_LIMIT = 48 * 1024;
constexpr int SHARED_OPT_IN = 232'448;           // of a block, as the device attribute says
constexpr int SHARED_OF_MULTIPROCESSOR = 233'472;
constexpr int RESERVED_SHARED = 1024;            // what the system takes of each block's
constexpr int REGISTERS = 32;                    // PTX names virtual registers only: a number for code that asks

// ---------------------------------------------------------------- fat binaries: PTX inside, not compressed

constexpr uint32_t FATBIN_MAGIC = 0xBA55ED50u;
constexpr uint16_t FATBIN_PTX = 1;

struct FatbinHeader {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;
};
struct FatbinEntry {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t bytes;
  uint32_t compressed_bytes, unused;
  uint16_t minor, major;
  uint32_t architecture;
};

CUresult ptx_of_fatbin(const char* image, std::string* text) {
  FatbinHeader header;
  memcpy(&header, image, sizeof header);
  const char* at = image + header.header_bytes;
  const char* end = at + header.bytes;
  bool is_compressed = false;
  uint32_t best = 0;
  while (at + sizeof(FatbinEntry) <= end) {
    FatbinEntry entry;
    memcpy(&entry, at, sizeof entry);
    const bool fits = entry.kind == FATBIN_PTX && entry.architecture <= static_cast<uint32_t>(compute_capability());
    is_compressed |= fits && entry.compressed_bytes != 0;
    if (fits && !entry.compressed_bytes && entry.architecture >= best) {
      best = entry.architecture;
      const char* begin = at + entry.header_bytes;
      text->assign(begin, strnlen(begin, entry.bytes));
    }
    at += entry.header_bytes + entry.bytes;
  }
  if (best) return CUDA_SUCCESS;
  return refuse(CUDA_ERROR_NO_BINARY_FOR_GPU,
                is_compressed ? "the fat binary's PTX is compressed, which is not simulated: build with --no-compress"
                              : "the fat binary holds no PTX for this GPU");
}

CUresult ptx_of_image(const void* image, std::string* text) {
  uint32_t magic;
  memcpy(&magic, image, sizeof magic);
  if (magic == FATBIN_MAGIC) return ptx_of_fatbin(static_cast<const char*>(image), text);
  if (!memcmp(image, "\177ELF", 4)) {
    return refuse(CUDA_ERROR_NO_BINARY_FOR_GPU, "a cubin holds machine code, which is not simulated: load PTX");
  }
  *text = static_cast<const char*>(image);
  return CUDA_SUCCESS;
}

// ---------------------------------------------------------------- what a driver refuses

// CUDA 11 reads PTX 7, CUDA 12 PTX 8, CUDA 13 PTX 9; the minor number is the same.
int newest_ptx() { return (driver_version() / 1000 - 4) * 10 + driver_version() % 1000 / 10; }

CUresult check_version(const std::string& text) {
  const size_t version = text.find(".version"), target = text.find(".target");
  if (version == std::string::npos || target == std::string::npos) return CUDA_ERROR_INVALID_PTX;
  int major = 0, minor = 0, architecture = 0;
  char suffix = 0;
  sscanf(text.c_str() + version, ".version %d.%d", &major, &minor);
  sscanf(text.c_str() + target, ".target sm_%d%c", &architecture, &suffix);
  if (major * 10 + minor > newest_ptx()) {
    return refuse(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "PTX " + std::to_string(major) + "." + std::to_string(minor) +
                  " is newer than the driver reads");
  }
  const bool is_exact = suffix == 'a';
  const int own = compute_capability();
  if (architecture > own || (is_exact && architecture != own)) {
    return refuse(CUDA_ERROR_NO_BINARY_FOR_GPU, "PTX for sm_" + std::to_string(architecture) + (is_exact ? "a" : "") +
                  " on a GPU of sm_" + std::to_string(own));
  }
  return CUDA_SUCCESS;
}

// The log buffer a caller may have given for the compiler's words.
void write_log(unsigned count, CUjit_option* options, void** values, const std::string& text) {
  char* buffer = nullptr;
  size_t bytes = 0;
  for (unsigned k = 0; k < count; ++k) {
    if (options[k] == CU_JIT_ERROR_LOG_BUFFER) buffer = static_cast<char*>(values[k]);
    if (options[k] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) bytes = reinterpret_cast<size_t>(values[k]);
  }
  if (buffer && bytes) snprintf(buffer, bytes, "%s", text.c_str());
}

CUresult load(CUmodule* made, const void* image, unsigned count, CUjit_option* options, void** values) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  if (CUresult r = not_while_capturing()) return r;
  std::string text;
  if (CUresult r = ptx_of_image(image, &text)) return r;
  if (CUresult r = check_version(text)) return r;
  sim_machine* machine = current_device().machine;
  sim_module* sim = sim_load(machine, text.c_str());
  if (!sim) {
    last_fault = sim_last_fault(machine);
    write_log(count, options, values, last_fault);
    return refuse(CUDA_ERROR_INVALID_PTX, last_fault);
  }
  auto* m = new CUmod_st;
  m->context = current_context();
  m->sim = sim;
  m->context->modules.insert(m);
  *made = m;
  return CUDA_SUCCESS;
}

CUresult make_function(CUmod_st* m, const char* name, CUfunc_st* f) {
  sim_machine* machine = m->context->device->machine;
  bool is_kernel = false;
  for (int k = 0; k < sim_kernel_count(m->sim); ++k) is_kernel |= !strcmp(sim_kernel_name(m->sim, k), name);
  if (!is_kernel) return CUDA_ERROR_NOT_FOUND;
  f->module = m;
  f->name = name;
  if (const int failed = sim_kernel(machine, m->sim, name, &f->info)) {
    last_fault = sim_last_fault(machine);
    return refuse(failed == SIM_PARSE ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_NOT_SUPPORTED, last_fault);
  }
  if (f->info.static_shared_bytes > STATIC_SHARED_LIMIT) {
    return refuse(CUDA_ERROR_INVALID_PTX, f->name + " declares more than 48 KB of static shared memory");
  }
  for (uint64_t k = 0; k < f->info.parameter_count; ++k) {
    size_t offset = 0, bytes = 0;
    sim_parameter(machine, m->sim, name, static_cast<int>(k), &offset, &bytes);
    f->parameters.emplace_back(offset, bytes);
  }
  return CUDA_SUCCESS;
}

bool is_module(CUmod_st* m) { return current_context()->modules.count(m) > 0; }

int blocks_of_multiprocessor(CUfunction f, int threads, size_t dynamic_shared) {
  const int warps = (threads + 31) / 32;
  const int shared = static_cast<int>(f->info.static_shared_bytes + dynamic_shared) + RESERVED_SHARED;
  const int by_threads = 2048 / (warps * 32), by_shared = SHARED_OF_MULTIPROCESSOR / shared;
  const int by_registers = 65536 / (REGISTERS * warps * 32);
  return std::min({by_threads, by_shared, by_registers, 32});
}

}  // namespace

void simgpu::unload(CUmod_st* m) {
  for (uintptr_t address : m->variables) allocations.erase(address);
  sim_unload(m->context->device->machine, m->sim);
  delete m;
}

SIMGPU_API cuModuleLoadData(CUmodule* made, const void* image) { return load(made, image, 0, nullptr, nullptr); }

SIMGPU_API cuModuleLoadDataEx(CUmodule* made, const void* image, unsigned count, CUjit_option* options, void** values) {
  return load(made, image, count, options, values);
}

SIMGPU_API cuModuleLoadFatBinary(CUmodule* made, const void* image) { return load(made, image, 0, nullptr, nullptr); }

SIMGPU_API cuModuleLoad(CUmodule* made, const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  const std::string image((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return load(made, image.c_str(), 0, nullptr, nullptr);
}

SIMGPU_API cuModuleUnload(CUmodule m) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  if (!is_module(m)) return CUDA_ERROR_INVALID_HANDLE;
  drain_all(m->context);
  m->context->modules.erase(m);
  unload(m);
  return CUDA_SUCCESS;
}

SIMGPU_API cuModuleGetFunction(CUfunction* function, CUmodule m, const char* name) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  if (!is_module(m)) return CUDA_ERROR_INVALID_HANDLE;
  auto& known = m->functions[name];
  if (!known) {
    auto f = std::make_unique<CUfunc_st>();
    if (CUresult r = make_function(m, name, f.get())) return r;
    known = std::move(f);
  }
  *function = known.get();
  return CUDA_SUCCESS;
}

SIMGPU_API cuModuleGetGlobal(CUdeviceptr* address, size_t* bytes, CUmodule m, const char* name) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  if (!is_module(m)) return CUDA_ERROR_INVALID_HANDLE;
  uint64_t found = 0;
  size_t size = 0;
  if (sim_variable(m->context->device->machine, m->sim, name, &found, &size)) return CUDA_ERROR_NOT_FOUND;
  // So that copies may use it; its memory is the module's.
  m->variables.insert(found);
  allocations[found] = {size, Kind::variable, m->context->device, nullptr, 0};
  if (address) *address = found;
  if (bytes) *bytes = size;
  return CUDA_SUCCESS;
}

// Asking for an attribute loads the function, which must not happen in a capture.
SIMGPU_API cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction f) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = static_cast<int>(f->info.max_threads); break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = f->max_dynamic_shared; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = static_cast<int>(f->info.static_shared_bytes); break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = static_cast<int>(f->info.local_bytes); break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = REGISTERS; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = compute_capability(); break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}

SIMGPU_API cuFuncSetAttribute(CUfunction f, CUfunction_attribute attribute, int value) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  if (CUresult r = not_while_capturing()) return r;
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
  const int limit = SHARED_OPT_IN - static_cast<int>(f->info.static_shared_bytes);
  if (value < 0 || value > limit) return CUDA_ERROR_INVALID_VALUE;
  f->max_dynamic_shared = value;
  return CUDA_SUCCESS;
}

SIMGPU_API cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
SIMGPU_API cuFuncSetBlockShape(CUfunction, int, int, int) { return CUDA_SUCCESS; }  // PyCUDA's plain call still uses it

SIMGPU_API cuFuncGetParamInfo(CUfunction f, size_t index, size_t* offset, size_t* bytes) {
  if (index >= f->parameters.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = f->parameters[index].first;
  if (bytes) *bytes = f->parameters[index].second;
  return CUDA_SUCCESS;
}

SIMGPU_API cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction f, int threads,
                                                                size_t dynamic_shared, unsigned) {
  if (threads < 1 || threads > static_cast<int>(f->info.max_threads)) return CUDA_ERROR_INVALID_VALUE;
  *blocks = blocks_of_multiprocessor(f, threads, dynamic_shared);
  return CUDA_SUCCESS;
}

SIMGPU_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction f, int threads, size_t dynamic_shared) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, threads, dynamic_shared, 0);
}

SIMGPU_API cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction f, CUoccupancyB2DSize dynamic_of,
                                            size_t dynamic, int limit) {
  const int most = limit > 0 ? std::min(limit, static_cast<int>(f->info.max_threads))
                             : static_cast<int>(f->info.max_threads);
  int best = 0;
  for (int threads = most; threads >= 32; threads -= 32) {
    const int blocks = blocks_of_multiprocessor(f, threads, dynamic_of ? dynamic_of(threads) : dynamic);
    if (blocks * threads <= best) continue;
    best = blocks * threads;
    *block = threads;
    *grid = blocks * 132;
  }
  return CUDA_SUCCESS;
}
