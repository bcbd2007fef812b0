// state.h -- what the stand-in driver knows: devices, contexts, streams, events, modules, graphs
//
// Device memory is host memory. Streams are lazy: what is put on one runs only when something waits for it, so a
// missing synchronisation shows as stale data, the same in every run. Kernels are interpreted by minicnn/sim.
#pragma once
#include <cuda.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "sim.h"

#if CUDA_VERSION < 13000
#error "the stand-in driver is written for the headers of CUDA 13"
#endif

#define SIMGPU_API extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI

namespace simgpu {

// ---------------------------------------------------------------- settings, from the environment

// SIMGPU_DEVICES 1, SIMGPU_DRIVER_VERSION 13000, SIMGPU_COMPUTE_CAPABILITY 80, SIMGPU_MEMORY_MB 4096,
// SIMGPU_EAGER 0 (streams run at once), SIMGPU_TRACE 0 (launches to stderr), and the simulator's options:
// SIMGPU_SEED, SIMGPU_LATE_ASYNC, SIMGPU_CHECK_RACES, SIMGPU_CHECK_UNINITIALISED, SIMGPU_BUDGET
long setting(const char* name, long otherwise);
int driver_version();
int compute_capability();

// ---------------------------------------------------------------- the objects

struct Device {
  int index = 0;
  sim_machine* machine = nullptr;
  size_t used_bytes = 0, high_water_bytes = 0;
  CUctx_st* primary = nullptr;
  int primary_references = 0;
};

enum class Kind { device, pinned, managed, registered, variable };

struct Allocation {
  size_t bytes;
  Kind kind;
  Device* device;      // where it counts; pinned and managed memory can be used on all
  char* mapping;       // what munmap takes; null: not ours
  size_t mapping_bytes;
};

using Operation = std::function<CUresult()>;

// Raises to every later call in the context, as on a GPU.
struct Fault {
  CUresult code = CUDA_SUCCESS;
  std::string sentence;
};

extern std::recursive_mutex mutex;
extern bool is_initialised;
extern std::vector<Device> devices;
extern std::map<uintptr_t, Allocation> allocations;
extern std::string last_fault;  // the simulator's sentence, for simgpu_last_fault()

class Locked {
  std::lock_guard<std::recursive_mutex> guard_{mutex};
};

CUctx_st* current_context();
CUresult need_context();  // CUDA_SUCCESS, or why the call can't go on: no context, or a fault in it
Device& current_device();
CUresult refuse(CUresult code, const std::string& why);  // prints why to stderr, and returns the code

// memory.cpp
const Allocation* find_allocation(uintptr_t address, size_t bytes);
bool is_usable(uintptr_t address, size_t bytes);  // from the current device
CUresult allocate(uintptr_t* address, size_t bytes, Kind kind);
CUresult release(uintptr_t address, bool is_host);
void release_all_of(Device& device);

// stream.cpp
CUstream_st* stream_of(CUstream handle);  // null: not a stream of the current context
CUresult submit(CUstream_st* stream, Operation operation);
CUresult drain(CUstream_st* stream);
CUresult drain_until(CUstream_st* stream, unsigned long sequence);
CUresult drain_blocking(CUctx_st* context);   // what the legacy default stream waits for
CUresult drain_all(CUctx_st* context);
CUresult record(CUevent_st* event, CUstream_st* stream);

// module.cpp
void unload(CUmod_st* module);

// graph.cpp
CUresult not_while_capturing();  // breaks this thread's capture, as a call that may wait or allocate does
CUresult capture(CUstream_st* stream, Operation operation);
CUresult capture_event(CUevent_st* event, CUstream_st* stream, bool is_external);
CUresult capture_wait(CUstream_st* stream, CUevent_st* event);

}  // namespace simgpu

struct CUstream_st {
  CUctx_st* context = nullptr;
  bool is_blocking = true;  // waits for the legacy default stream, and it for this one
  std::deque<simgpu::Operation> queue;
  unsigned long queued = 0, done = 0;
  CUgraph_st* capture = nullptr;
  bool owns_capture = false;  // began it; others joined by waiting for an event
  bool is_invalidated = false;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
};

struct CUctx_st {
  simgpu::Device* device = nullptr;
  bool is_primary = false;
  int references = 1;
  simgpu::Fault fault;
  CUstream_st default_stream;
  std::set<CUstream_st*> streams;
  std::set<CUmod_st*> modules;
  std::map<int, size_t> limits;
};

struct CUevent_st {
  CUctx_st* context = nullptr;
  unsigned flags = 0;
  CUstream_st* stream = nullptr;
  unsigned long sequence = 0;
  bool is_recorded = false, is_complete = false;
  double time_ms = 0;
  CUgraph_st* captured = nullptr;  // recorded inside a capture: only its waiters may use it
};

struct CUfunc_st {
  CUmod_st* module = nullptr;
  std::string name;
  sim_kernel_info info{};
  std::vector<std::pair<size_t, size_t>> parameters;  // offset, bytes
  int max_dynamic_shared = 48 * 1024;
};

struct CUmod_st {
  CUctx_st* context = nullptr;
  sim_module* sim = nullptr;
  std::map<std::string, std::unique_ptr<CUfunc_st>> functions;
  std::set<uintptr_t> variables;  // asked for, and so among the allocations
};

struct CUgraphNode_st {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  simgpu::Operation operation;
  CUevent_st* event = nullptr;  // an external event record
};

struct CUgraph_st {
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;  // in an order that respects all dependencies
};

struct CUgraphExec_st {
  std::vector<CUgraphNode_st> nodes;
};
