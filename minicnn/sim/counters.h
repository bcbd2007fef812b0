// counters.h -- what a launch did, as numbers that can be worked out by hand
#pragma once
#include <array>
#include <cstdint>

#include "ptx.h"

namespace minicnn::sim {

struct Counters {
  // per Category, in its order: executions by one lane, and by a warp (issues)
  std::array<uint64_t, static_cast<size_t>(Category::count)> lane_instructions{}, warp_instructions{};
  // Global memory, a warp's instruction being one request. A sector is 32 aligned bytes.
  uint64_t global_load_requests = 0, global_load_bytes = 0, global_load_sectors = 0;
  uint64_t global_store_requests = 0, global_store_bytes = 0, global_store_sectors = 0;
  uint64_t global_atomics = 0;
  // Shared memory: 32 banks of 4 bytes. A conflict is one cycle more than the request needs without conflicts.
  uint64_t shared_load_requests = 0, shared_load_bytes = 0, shared_load_conflicts = 0;
  uint64_t shared_store_requests = 0, shared_store_bytes = 0, shared_store_conflicts = 0;
  uint64_t shared_atomics = 0;
  uint64_t local_bytes = 0;
  uint64_t branches = 0, divergent_branches = 0;  // a warp's; divergent: lanes went both ways
  uint64_t barriers = 0;                          // completed, of a block
  uint64_t blocks = 0, launches = 0;
};

enum class Access : uint8_t { load, store, atomic };

struct NamedCounter {
  const char* name;
  uint64_t (*value)(const Counters&);
};
extern const NamedCounter COUNTERS[];
int counter_count();

// addresses[k] of the lanes in mask, each of them bytes wide
void count_global(Counters& counters, const uint64_t* addresses, uint32_t mask, size_t bytes, Access access);
void count_shared(Counters& counters, const uint64_t* offsets, uint32_t mask, size_t bytes, Access access);

}  // namespace minicnn::sim
