// machine.h -- the state of a launch: machine, block, warp; and the handlers' common tools
#pragma once
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "counters.h"
#include "ptx.h"
#include "race.h"

namespace minicnn::sim {

using Lane = uint64_t;  // one register of one lane; narrower values sit in the low bits

struct Options {
  int64_t seed = 0;                 // order in which the warps of a block take turns; 0: by number
  int64_t late_async = 0;           // cp.async lands at its wait instead of at once
  int64_t check_races = 1;
  int64_t check_uninitialised = 1;  // shared and local memory
  int64_t budget = 200'000'000;     // instructions that the warps of one block may execute together; 0: no limit
  int64_t shared_limit = 232'448;   // bytes a block may have
};

struct Range {
  uint64_t begin = 1, end = 0;  // empty: contains nothing
  bool contains(uint64_t address, size_t bytes) const { return address >= begin && address + bytes <= end; }
};

// What outlives a launch: memory that kernels may touch, options, counters.
class Machine {
 public:
  Options options;
  Counters counters;

  void add_range(uint64_t address, size_t bytes) { ranges_[address] = address + bytes; }
  bool remove_range(uint64_t address) { return ranges_.erase(address) > 0; }
  bool find(uint64_t address, size_t bytes, Range* range) const;
  std::string describe(uint64_t address) const;  // for a fault: where that is, relative to the nearest range

  void launch(Module& module, const std::string& kernel, const unsigned grid[3], const unsigned block[3],
              unsigned dynamic_shared, const void* parameters, size_t parameter_bytes);

 private:
  std::map<uint64_t, uint64_t> ranges_;  // begin -> end
};

struct AsyncCopy {
  int lane;
  int group;  // the lane's commit group
  int instruction;
  size_t shared_offset;
  const char* from;
  size_t bytes, source_bytes;  // the rest is filled with zeros
};

struct Warp {
  int index = 0;
  uint32_t live = 0;             // lanes that have not left the kernel
  uint32_t at_barrier = 0;       // wait at a block barrier
  uint32_t at_warp_barrier = 0;  // wait at bar.warp.sync
  uint32_t parked = 0;           // wait at a shuffle or the like for the rest of its member mask
  uint32_t worked = 0;           // lanes that went on with something while others were parked
  uint32_t deserted = 0;         // of those, lanes that then left the kernel
  int pc[WARP] = {};
  int barrier[WARP] = {};        // number of the barrier a lane waits at
  uint32_t carry = 0;            // the carry flag of each lane
  std::vector<Lane> rows;
  std::vector<AsyncCopy> copies;
  int commit_group[WARP] = {};   // the group each lane is filling

  Lane* row(int r) { return &rows[static_cast<size_t>(r) * WARP]; }
  uint32_t ready() const { return live & ~(at_barrier | at_warp_barrier | parked); }
  int first_thread() const { return index * WARP; }
};

struct Barrier {
  int arrived = 0;   // threads
  int expected = 0;  // 0: nobody is here
  uint32_t votes = 0, yes = 0;
  SharedShadow::Known known;
};

// One block while it runs; reused for all blocks of a launch.
class Block {
 public:
  Block(Machine& machine, Module& module, const Program& program, const unsigned grid[3], const unsigned block[3],
        unsigned dynamic_shared, const void* parameters);
  void run(unsigned x, unsigned y, unsigned z);

  Machine& machine;
  Module& module;
  const Program& program;
  Counters& counters;
  const Options& options;
  std::vector<Warp> warps;
  char* shared = nullptr;
  size_t shared_bytes = 0;
  SharedShadow shadow;

  // Faults. The sentence gets kernel, block, thread and lines appended.
  [[noreturn]] void fail(FaultKind kind, const std::string& what, const Warp& warp, int lane,
                         const Instruction* where) const;
  std::string thread_name(int thread) const;  // "(x,y,z)"
  std::string line_of(const Instruction& i) const;

  // memory.cpp: addresses of all lanes in mask checked and counted; one pointer per lane
  struct Pointers {
    char* at[WARP];
  };
  void resolve(Warp& warp, const Instruction& i, uint32_t mask, int row, int64_t offset, Space space, size_t bytes,
               Access access, Pointers& out, size_t align = 0);  // align 0: bytes
  void check_shared(Warp& warp, const Instruction& i, int lane, size_t offset, size_t bytes, Access access);
  [[noreturn]] void report_shared(const SharedShadow::Verdict& v, const Warp& warp, const Instruction& i, int lane,
                                  Access access) const;
  size_t shared_offset(Warp& warp, const Instruction& i, int lane, uint64_t address, size_t bytes);
  char* local_frame(int thread) { return local_.data() + static_cast<size_t>(thread) * program.local_bytes; }
  Range local_window() const;
  uint64_t local_base(const Warp& warp, int lane) {
    return reinterpret_cast<uint64_t>(local_frame(warp.first_thread() + lane));
  }
  uint64_t shared_base() const { return reinterpret_cast<uint64_t>(shared); }
  uint64_t parameter_base() const { return reinterpret_cast<uint64_t>(parameters_); }
  const char* parameters() const { return parameters_; }

  // barrier.cpp
  void arrive_at_barrier(Warp& warp, const Instruction& i, uint32_t mask);
  void arrive_at_warp_barrier(Warp& warp, const Instruction& i, uint32_t mask);
  [[noreturn]] void report_deadlock() const;

  // async.cpp
  void start_copy(Warp& warp, const Instruction& i, const AsyncCopy& c);
  void land_copies(Warp& warp, uint32_t mask, int groups_kept);
  void forget_copies();

  uint64_t executed() const { return executed_; }
  int instruction_index(const Instruction& i) const { return static_cast<int>(&i - program.code.data()); }
  SharedShadow::Checks checks() const { return {options.check_races != 0, options.check_uninitialised != 0}; }

 private:
  void start(unsigned x, unsigned y, unsigned z);
  void fill_constants(Warp& warp);
  Lane special_value(Special s, int thread) const;
  void run_warp(Warp& warp);
  bool pick_group(Warp& warp, uint32_t* mask, int* pc, int* limit);
  uint32_t run_group(Warp& warp, uint32_t mask, int& pc, int limit);
  bool wait_for_members(Warp& warp, const Instruction& i, uint32_t mask, uint32_t active, int pc);
  uint32_t members_of(Warp& warp, const Instruction& i, uint32_t mask);
  uint32_t branch(Warp& warp, const Instruction& i, uint32_t mask, uint32_t taken, int& pc);
  uint32_t indexed_branch(Warp& warp, const Instruction& i, uint32_t mask, int& pc);
  void spend(const Instruction& i, const Warp& warp, uint32_t mask, uint32_t active);
  void complete_barrier(int number);
  char* global_pointer(Warp& warp, const Instruction& i, int lane, uint64_t address, size_t bytes);
  char* local_pointer(Warp& warp, const Instruction& i, int lane, char* at, size_t bytes, Access access);
  void shuffle_order(std::vector<int>& order);

  unsigned grid_[3], block_[3], position_[3] = {};
  int threads_ = 0;
  const char* parameters_;
  unsigned dynamic_shared_ = 0;
  std::vector<char> shared_storage_, local_;
  std::vector<uint8_t> local_written_;
  std::vector<Range> last_range_;  // per instruction: where its last global access fell
  Barrier barriers_[16];
  uint64_t executed_ = 0, random_ = 0;
};

// Calls f(lane) for the lanes in mask. The full warp is a plain loop, which the compiler vectorises.
template <class F>
inline void each_lane(uint32_t mask, F f) {
  if (mask == FULL_WARP) {
    for (int lane = 0; lane < WARP; ++lane) f(lane);
    return;
  }
  for (; mask; mask &= mask - 1) f(__builtin_ctz(mask));
}

template <class T>
inline T from_lane(Lane bits) {
  T value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

template <class T>
inline Lane to_lane(T value) {
  Lane bits = 0;
  memcpy(&bits, &value, sizeof value);
  return bits;
}

inline int first_lane(uint32_t mask) { return __builtin_ctz(mask); }

}  // namespace minicnn::sim
