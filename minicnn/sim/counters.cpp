// counters.cpp -- sectors and bank conflicts of one request, and the names of all counters
#include "counters.h"

#include <algorithm>

namespace minicnn::sim {
namespace {

constexpr uint64_t SECTOR_BYTES = 32;
constexpr int BANKS = 32;
constexpr size_t BANK_BYTES = 4;

template <Category category>
uint64_t lanes(const Counters& c) {
  return c.lane_instructions[static_cast<size_t>(category)];
}

template <Category category>
uint64_t warps(const Counters& c) {
  return c.warp_instructions[static_cast<size_t>(category)];
}

template <uint64_t Counters::*field>
uint64_t plain(const Counters& c) {
  return c.*field;
}

// Sectors touched by all lanes together. An aligned access of up to 16 bytes never spans two.
uint64_t distinct_sectors(const uint64_t* addresses, uint32_t mask) {
  uint64_t seen[WARP];
  int count = 0;
  for (; mask; mask &= mask - 1) {
    const uint64_t sector = addresses[__builtin_ctz(mask)] / SECTOR_BYTES;
    if (count > 0 && seen[count - 1] == sector) continue;
    if (std::find(seen, seen + count, sector) == seen + count) seen[count++] = sector;
  }
  return static_cast<uint64_t>(count);
}

// Cycles that the busiest bank needs: the number of different words asked of it.
int bank_cycles(const uint64_t* offsets, uint32_t mask, size_t bytes) {
  uint64_t words[BANKS][WARP];
  int count[BANKS] = {};
  int worst = 0;
  for (; mask; mask &= mask - 1) {
    const uint64_t first = offsets[__builtin_ctz(mask)] / BANK_BYTES;
    const uint64_t last = (offsets[__builtin_ctz(mask)] + bytes - 1) / BANK_BYTES;
    for (uint64_t word = first; word <= last; ++word) {
      const int bank = static_cast<int>(word % BANKS);
      uint64_t* known = words[bank];
      if (std::find(known, known + count[bank], word) != known + count[bank]) continue;
      known[count[bank]++] = word;
      worst = std::max(worst, count[bank]);
    }
  }
  return worst;
}

}  // namespace

void count_global(Counters& counters, const uint64_t* addresses, uint32_t mask, size_t bytes, Access access) {
  const uint64_t asked = static_cast<uint64_t>(__builtin_popcount(mask)) * bytes;
  const uint64_t sectors = distinct_sectors(addresses, mask);
  if (access == Access::load) {
    counters.global_load_requests += 1;
    counters.global_load_bytes += asked;
    counters.global_load_sectors += sectors;
  } else {
    counters.global_store_requests += 1;
    counters.global_store_bytes += asked;
    counters.global_store_sectors += sectors;
    counters.global_atomics += access == Access::atomic;
  }
}

// 8 bytes a lane are served for half a warp at a time, 16 bytes for a quarter.
void count_shared(Counters& counters, const uint64_t* offsets, uint32_t mask, size_t bytes, Access access) {
  const int lanes_at_once = bytes <= BANK_BYTES ? WARP : static_cast<int>(WARP * BANK_BYTES / bytes);
  uint64_t conflicts = 0;
  for (int first = 0; first < WARP; first += lanes_at_once) {
    const uint32_t part = mask & (lanes_at_once == WARP ? FULL_WARP : ((1u << lanes_at_once) - 1) << first);
    if (part) conflicts += static_cast<uint64_t>(bank_cycles(offsets, part, bytes) - 1);
  }
  const uint64_t asked = static_cast<uint64_t>(__builtin_popcount(mask)) * bytes;
  if (access == Access::load) {
    counters.shared_load_requests += 1;
    counters.shared_load_bytes += asked;
    counters.shared_load_conflicts += conflicts;
  } else {
    counters.shared_store_requests += 1;
    counters.shared_store_bytes += asked;
    counters.shared_store_conflicts += conflicts;
    counters.shared_atomics += access == Access::atomic;
  }
}

const NamedCounter COUNTERS[] = {
    {"lane_fp16", lanes<Category::fp16>},
    {"lane_fp32", lanes<Category::fp32>},
    {"lane_fp64", lanes<Category::fp64>},
    {"lane_integer", lanes<Category::integer>},
    {"lane_convert", lanes<Category::convert>},
    {"lane_memory", lanes<Category::memory>},
    {"lane_tensor", lanes<Category::tensor>},
    {"lane_control", lanes<Category::control>},
    {"lane_warp", lanes<Category::warp>},
    {"warp_fp16", warps<Category::fp16>},
    {"warp_fp32", warps<Category::fp32>},
    {"warp_fp64", warps<Category::fp64>},
    {"warp_integer", warps<Category::integer>},
    {"warp_convert", warps<Category::convert>},
    {"warp_memory", warps<Category::memory>},
    {"warp_tensor", warps<Category::tensor>},
    {"warp_control", warps<Category::control>},
    {"warp_warp", warps<Category::warp>},
    {"global_load_requests", plain<&Counters::global_load_requests>},
    {"global_load_bytes", plain<&Counters::global_load_bytes>},
    {"global_load_sectors", plain<&Counters::global_load_sectors>},
    {"global_store_requests", plain<&Counters::global_store_requests>},
    {"global_store_bytes", plain<&Counters::global_store_bytes>},
    {"global_store_sectors", plain<&Counters::global_store_sectors>},
    {"global_atomics", plain<&Counters::global_atomics>},
    {"shared_load_requests", plain<&Counters::shared_load_requests>},
    {"shared_load_bytes", plain<&Counters::shared_load_bytes>},
    {"shared_load_conflicts", plain<&Counters::shared_load_conflicts>},
    {"shared_store_requests", plain<&Counters::shared_store_requests>},
    {"shared_store_bytes", plain<&Counters::shared_store_bytes>},
    {"shared_store_conflicts", plain<&Counters::shared_store_conflicts>},
    {"shared_atomics", plain<&Counters::shared_atomics>},
    {"local_bytes", plain<&Counters::local_bytes>},
    {"branches", plain<&Counters::branches>},
    {"divergent_branches", plain<&Counters::divergent_branches>},
    {"barriers", plain<&Counters::barriers>},
    {"blocks", plain<&Counters::blocks>},
    {"launches", plain<&Counters::launches>},
};

int counter_count() { return static_cast<int>(sizeof COUNTERS / sizeof COUNTERS[0]); }

}  // namespace minicnn::sim
