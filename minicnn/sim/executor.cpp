// executor.cpp -- blocks, warps and the order of instructions
//
// A warp executes the group of lanes with the lowest pc until it branches apart, waits, or reaches the next group, so
// lanes that went different ways meet again by themselves. Warps take turns: each runs until all its lanes wait.
#include <algorithm>
#include <limits>

#include "machine.h"

namespace minicnn::sim {

bool Machine::find(uint64_t address, size_t bytes, Range* range) const {
  auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return false;
  --after;
  *range = {after->first, after->second};
  return range->contains(address, bytes);
}

std::string Machine::describe(uint64_t address) const {
  const auto after = ranges_.upper_bound(address);
  std::string out = "which belongs to no allocation";
  if (after != ranges_.begin()) {
    const auto& [begin, end] = *std::prev(after);
    if (address < end) return "inside an allocation of " + std::to_string(end - begin) + " bytes, at byte " +
                              std::to_string(address - begin) + " but reaching past its end";
    out = std::to_string(address - end) + " bytes past an allocation of " + std::to_string(end - begin) + " bytes";
  }
  if (after != ranges_.end() && after->first - address < 4096) {
    out += ", " + std::to_string(after->first - address) + " bytes before another";
  }
  return out;
}

void Machine::launch(Module& module, const std::string& kernel, const unsigned grid[3], const unsigned block[3],
                     unsigned dynamic_shared, const void* parameters, size_t parameter_bytes) {
  const std::shared_ptr<Program> program = decode(module, kernel);
  const auto refuse = [&](const std::string& why) {
    throw Fault{FaultKind::launch, "kernel " + kernel + ": " + why};
  };
  const uint64_t threads = uint64_t{block[0]} * block[1] * block[2];
  if (threads == 0 || threads > static_cast<uint64_t>(program->max_threads)) {
    refuse("a block of " + std::to_string(threads) + " threads; it takes 1 to " +
           std::to_string(program->max_threads));
  }
  if (uint64_t{grid[0]} * grid[1] * grid[2] == 0) refuse("the grid is empty");
  if (parameter_bytes != program->parameter_bytes) {
    refuse("it takes " + std::to_string(program->parameter_bytes) + " parameter bytes, the launch gave " +
           std::to_string(parameter_bytes));
  }
  const size_t shared = program->static_shared + dynamic_shared;
  if (shared > static_cast<size_t>(options.shared_limit)) {
    refuse(std::to_string(shared) + " bytes of shared memory; a block can have " +
           std::to_string(options.shared_limit));
  }
  ++counters.launches;
  Block running(*this, module, *program, grid, block, dynamic_shared, parameters);
  for (unsigned z = 0; z < grid[2]; ++z) {
    for (unsigned y = 0; y < grid[1]; ++y) {
      for (unsigned x = 0; x < grid[0]; ++x) running.run(x, y, z);
    }
  }
}

Block::Block(Machine& machine, Module& module, const Program& program, const unsigned grid[3], const unsigned block[3],
             unsigned dynamic_shared, const void* parameters)
    : machine(machine), module(module), program(program), counters(machine.counters), options(machine.options),
      parameters_(static_cast<const char*>(parameters)), dynamic_shared_(dynamic_shared) {
  std::copy(grid, grid + 3, grid_);
  std::copy(block, block + 3, block_);
  threads_ = static_cast<int>(block[0] * block[1] * block[2]);
  shared_bytes = program.static_shared + dynamic_shared;
  constexpr size_t ALIGN = 1024;  // as the hardware aligns a block's shared memory at least
  shared_storage_.resize(shared_bytes + ALIGN);
  const auto raw = reinterpret_cast<uintptr_t>(shared_storage_.data());
  shared = reinterpret_cast<char*>((raw + ALIGN - 1) / ALIGN * ALIGN);
  local_.resize(program.local_bytes * static_cast<size_t>(threads_));
  local_written_.resize(local_.size());
  last_range_.resize(program.code.size());
  random_ = static_cast<uint64_t>(options.seed);
  warps.resize(static_cast<size_t>((threads_ + WARP - 1) / WARP));
  shadow.start_launch(shared_bytes, program.shared_granule, static_cast<int>(warps.size()));
  for (size_t w = 0; w < warps.size(); ++w) {
    warps[w].index = static_cast<int>(w);
    warps[w].rows.resize(static_cast<size_t>(program.rows()) * WARP);
    fill_constants(warps[w]);
  }
}

void Block::fill_constants(Warp& warp) {
  for (size_t k = 0; k < program.constants.size(); ++k) {
    Lane* row = warp.row(program.registers + static_cast<int>(k));
    std::fill(row, row + WARP, program.constants[k]);
  }
}

Lane Block::special_value(Special s, int thread) const {
  const auto t = static_cast<unsigned>(thread);
  const uint32_t bit = 1u << (t % WARP);
  switch (s) {
    case Special::tid_x: return t % block_[0];
    case Special::tid_y: return t / block_[0] % block_[1];
    case Special::tid_z: return t / (block_[0] * block_[1]);
    case Special::ntid_x: return block_[0];
    case Special::ntid_y: return block_[1];
    case Special::ntid_z: return block_[2];
    case Special::ctaid_x: return position_[0];
    case Special::ctaid_y: return position_[1];
    case Special::ctaid_z: return position_[2];
    case Special::nctaid_x: return grid_[0];
    case Special::nctaid_y: return grid_[1];
    case Special::nctaid_z: return grid_[2];
    case Special::laneid: return t % WARP;
    case Special::warpid: return t / WARP;
    case Special::nwarpid: return warps.size();
    case Special::lanemask_eq: return bit;
    case Special::lanemask_lt: return bit - 1;
    case Special::lanemask_le: return bit | (bit - 1);
    case Special::lanemask_gt: return static_cast<uint32_t>(~(bit | (bit - 1)));
    case Special::lanemask_ge: return static_cast<uint32_t>(~(bit - 1));
    case Special::dynamic_shared_bytes: return dynamic_shared_;
    case Special::total_shared_bytes: return shared_bytes;
    case Special::smid: case Special::clock: break;  // one multiprocessor; the clock is set while running
  }
  return 0;
}

void Block::start(unsigned x, unsigned y, unsigned z) {
  position_[0] = x;
  position_[1] = y;
  position_[2] = z;
  executed_ = 0;
  memset(shared, 0xFF, shared_bytes);  // NaN in every float format
  memset(local_.data(), 0xFF, local_.size());
  std::fill(local_written_.begin(), local_written_.end(), 0);
  shadow.start_block();
  for (Barrier& b : barriers_) b = Barrier{};
  for (Warp& w : warps) {
    const int count = std::min(WARP, threads_ - w.first_thread());
    w.live = count == WARP ? FULL_WARP : (1u << count) - 1;
    w.at_barrier = w.at_warp_barrier = w.parked = w.worked = w.deserted = w.carry = 0;
    std::fill(w.pc, w.pc + WARP, 0);
    std::fill(w.commit_group, w.commit_group + WARP, 0);
    std::fill(w.rows.begin(), w.rows.begin() + program.registers * WARP, 0);
    for (size_t k = 0; k < program.specials.size(); ++k) {
      Lane* row = w.row(program.registers + static_cast<int>(program.constants.size() + k));
      for (int lane = 0; lane < WARP; ++lane) row[lane] = special_value(program.specials[k], w.first_thread() + lane);
    }
  }
}

void Block::shuffle_order(std::vector<int>& order) {
  if (options.seed == 0) return;
  for (size_t k = order.size(); k > 1; --k) {
    random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;  // Knuth's MMIX generator
    std::swap(order[k - 1], order[(random_ >> 33) % k]);
  }
}

void Block::run(unsigned x, unsigned y, unsigned z) {
  start(x, y, z);
  std::vector<int> order(warps.size());
  for (size_t k = 0; k < order.size(); ++k) order[k] = static_cast<int>(k);
  for (bool alive = true; alive;) {
    shuffle_order(order);
    alive = false;
    bool progress = false;
    for (int w : order) {
      Warp& warp = warps[static_cast<size_t>(w)];
      if (warp.ready()) {
        run_warp(warp);
        progress = true;
      }
      alive |= warp.live != 0;
    }
    if (alive && !progress) report_deadlock();
  }
  forget_copies();
  ++counters.blocks;
}

void Block::spend(const Instruction& i, const Warp& warp, uint32_t mask, uint32_t active) {
  const auto category = static_cast<size_t>(i.category);
  counters.lane_instructions[category] += static_cast<uint64_t>(__builtin_popcount(active));
  counters.warp_instructions[category] += 1;
  if (++executed_ > static_cast<uint64_t>(options.budget) && options.budget > 0) {
    fail(FaultKind::endless, "endless loop? the block has executed more than " + std::to_string(options.budget) +
         " warp instructions", warp, first_lane(mask), &i);
  }
}

// The lanes with the lowest pc, and the pc of the group after them. False when every lane waits.
bool Block::pick_group(Warp& warp, uint32_t* mask, int* pc, int* limit) {
  if (!warp.ready() && warp.parked) warp.parked = 0;  // tried once more: lanes may have left since
  const uint32_t ready = warp.ready();
  if (!ready) return false;
  *pc = *limit = std::numeric_limits<int>::max();
  for (uint32_t lanes = ready; lanes; lanes &= lanes - 1) *pc = std::min(*pc, warp.pc[first_lane(lanes)]);
  *mask = 0;
  for (uint32_t lanes = ready; lanes; lanes &= lanes - 1) {
    const int lane = first_lane(lanes);
    if (warp.pc[lane] == *pc) {
      *mask |= 1u << lane;
    } else {
      *limit = std::min(*limit, warp.pc[lane]);
    }
  }
  return true;
}

void Block::run_warp(Warp& warp) {
  uint32_t mask = 0;
  int pc = 0, limit = 0;
  while (pick_group(warp, &mask, &pc, &limit)) {
    const uint32_t left = run_group(warp, mask, pc, limit);
    for (uint32_t lanes = left; lanes; lanes &= lanes - 1) warp.pc[first_lane(lanes)] = pc;
  }
}

// Straight ahead until the group splits, waits, leaves or reaches limit. Returns the lanes whose pc the caller must
// set; those that went elsewhere have theirs already.
uint32_t Block::run_group(Warp& warp, uint32_t mask, int& pc, int limit) {
  const auto stop_at = [&](uint32_t lanes, int at) {
    for (; lanes; lanes &= lanes - 1) warp.pc[first_lane(lanes)] = at;
  };
  for (;;) {
    const Instruction& i = program.code[static_cast<size_t>(pc)];
    uint32_t active = mask;
    if (i.guard >= 0) {
      const Lane* predicate = warp.row(i.guard);
      active = 0;
      each_lane(mask, [&](int lane) {
        active |= static_cast<uint32_t>((predicate[lane] & 1) != i.guard_negated) << lane;
      });
    }
    spend(i, warp, mask, active);
    switch (i.flow) {
      case Flow::next:
        if (active) i.execute(*this, warp, i, active);
        if (warp.parked && i.category != Category::control) warp.worked |= active;
        break;
      case Flow::branch: {
        mask = branch(warp, i, mask, active, pc);
        if (!mask || pc >= limit) return mask;
        continue;
      }
      case Flow::indexed_branch:
        return indexed_branch(warp, i, mask, pc);
      case Flow::exit:
        warp.live &= ~active;
        if (warp.parked) warp.deserted |= active & warp.worked;
        mask &= ~active;
        if (!mask) return 0;
        break;
      case Flow::barrier:
        stop_at(mask, pc + 1);
        if (active) arrive_at_barrier(warp, i, active);
        return 0;
      case Flow::warp_barrier:
        stop_at(mask, pc + 1);
        if (active) arrive_at_warp_barrier(warp, i, active);
        return 0;
      case Flow::collective:
        if (!active) break;
        if (!wait_for_members(warp, i, mask, active, pc)) return 0;
        i.execute(*this, warp, i, active);
        warp.deserted = 0;
        break;
    }
    if (++pc >= limit) return mask;
  }
}

// True when all members are here. Otherwise the group is parked until the others come, from code further down; if
// nobody is left to run, they never will. A member may leave the kernel instead, but only by the straight way (the
// lanes of "if (i >= n) return;"): one that goes on working and never comes was meant to take part.
bool Block::wait_for_members(Warp& warp, const Instruction& i, uint32_t mask, uint32_t active, int pc) {
  const uint32_t members = members_of(warp, i, active);
  const uint32_t missing = members & warp.live & ~active;
  if (!missing && !(members & warp.deserted)) return true;
  each_lane(mask, [&](int lane) { warp.pc[lane] = pc; });
  uint32_t parked_here = 0;
  for (uint32_t lanes = warp.parked; lanes; lanes &= lanes - 1) {
    if (warp.pc[first_lane(lanes)] == pc) parked_here |= lanes & -lanes;
  }
  if (missing && (missing & ~parked_here) == 0) {
    warp.parked &= ~parked_here;  // the group starts again, complete
    return false;
  }
  if ((warp.ready() & ~mask) == 0) {
    fail(FaultKind::collective, "reached by only part of its member mask: thread " +
         thread_name(warp.first_thread() + first_lane((missing & ~parked_here) | (members & warp.deserted))) +
         " is missing", warp, first_lane(active), &i);
  }
  if (!warp.parked) warp.worked = 0;
  warp.parked |= mask;
  return false;
}

uint32_t Block::members_of(Warp& warp, const Instruction& i, uint32_t mask) {
  if (i.member_mask < 0) {
    if (warp.live == FULL_WARP) return FULL_WARP;
    fail(FaultKind::collective, "needs all 32 lanes of the warp, which has fewer", warp, first_lane(mask), &i);
  }
  const auto members = static_cast<uint32_t>(warp.row(i.member_mask)[first_lane(mask)]);
  if (mask & ~members) {
    fail(FaultKind::collective, "executed by a lane that its member mask does not name", warp,
         first_lane(mask & ~members), &i);
  }
  return members;
}

// Returns the lanes that stay together, with pc set; none if the group came apart.
uint32_t Block::branch(Warp& warp, const Instruction& i, uint32_t mask, uint32_t taken, int& pc) {
  ++counters.branches;
  if (taken == mask) {
    pc = i.target;
    return mask;
  }
  if (!taken) {
    ++pc;
    return mask;
  }
  ++counters.divergent_branches;
  each_lane(mask, [&](int lane) { warp.pc[lane] = (taken >> lane & 1) ? i.target : pc + 1; });
  return 0;
}

uint32_t Block::indexed_branch(Warp& warp, const Instruction& i, uint32_t mask, int& pc) {
  ++counters.branches;
  const Lane* index = warp.row(i.src[0]);
  bool apart = false;
  each_lane(mask, [&](int lane) {
    const auto k = static_cast<uint32_t>(index[lane]);
    if (k >= i.targets.size()) fail(FaultKind::unsupported, "branch index beyond its table", warp, lane, &i);
    warp.pc[lane] = i.targets[k];
    apart |= warp.pc[lane] != warp.pc[first_lane(mask)];
  });
  counters.divergent_branches += apart;
  pc = warp.pc[first_lane(mask)];
  return 0;
}

}  // namespace minicnn::sim
