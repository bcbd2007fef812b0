// barrier.cpp -- block barriers (bar, barrier; named, counted, with reduction), bar.warp.sync, and deadlock
#include <algorithm>

#include "machine.h"

namespace minicnn::sim {
namespace {

enum Variant { SYNC, ARRIVE, POPC, AND, OR };  // of Instruction::variant, as bind_barrier sets it

constexpr int BARRIERS = 16;

bool is_reduction(const Instruction& i) { return i.variant >= POPC; }

// bar.red has the predicate behind barrier and count: "bar.red.popc.u32 d, a{, b}, p"
int predicate_of(const Instruction& i) { return static_cast<int>(i.src.size()) - 1; }

int thread_count_of(const Instruction& i, Warp& warp, int lane, int all) {
  const size_t operands = i.src.size() - (is_reduction(i) ? 1 : 0);
  return operands > 1 ? static_cast<int>(warp.row(i.src[1])[lane]) : all;
}

}  // namespace

// Lanes of one group name the same barrier, except where the number is computed per lane: then they are taken apart.
void Block::arrive_at_barrier(Warp& warp, const Instruction& i, uint32_t mask) {
  while (mask) {
    const int lane = first_lane(mask);
    const auto number = static_cast<uint32_t>(warp.row(i.src[0])[lane]);
    if (number >= BARRIERS) fail(FaultKind::barrier, "there are only 16 barriers", warp, lane, &i);
    uint32_t same = 0;
    each_lane(mask, [&](int l) {
      same |= static_cast<uint32_t>(static_cast<uint32_t>(warp.row(i.src[0])[l]) == number) << l;
    });
    mask &= ~same;
    Barrier& barrier = barriers_[number];
    const int expected = thread_count_of(i, warp, lane, threads_);
    const int whole_warps = (threads_ + WARP - 1) / WARP * WARP;
    if (expected <= 0 || (expected % WARP && expected != threads_) || expected > whole_warps) {
      fail(FaultKind::barrier, "a barrier of " + std::to_string(expected) + " threads; the count must be a multiple "
           "of 32 within the block", warp, lane, &i);
    }
    if (barrier.expected && barrier.expected != expected) {
      fail(FaultKind::barrier, "a barrier of " + std::to_string(expected) + " threads, which others entered as one "
           "of " + std::to_string(barrier.expected), warp, lane, &i);
    }
    barrier.expected = expected;
    barrier.arrived += __builtin_popcount(same);
    shadow.arrive(warp.index, barrier.known);
    if (is_reduction(i)) {
      const int p = predicate_of(i);
      each_lane(same, [&](int l) {
        const bool vote = (warp.row(i.src[p])[l] & 1) != (i.negated >> p & 1);
        ++barrier.votes;
        barrier.yes += vote;
      });
    }
    if (i.variant != ARRIVE) {
      warp.at_barrier |= same;
      each_lane(same, [&](int l) { warp.barrier[l] = static_cast<int>(number); });
    }
    if (barrier.arrived >= barrier.expected) complete_barrier(static_cast<int>(number));
  }
}

void Block::complete_barrier(int number) {
  Barrier barrier = barriers_[number];
  barriers_[number] = Barrier{};
  ++counters.barriers;
  for (const Warp& warp : warps) {
    uint32_t waiting = 0;
    for (int lane = 0; lane < WARP; ++lane) {
      waiting |= static_cast<uint32_t>((warp.at_barrier >> lane & 1) && warp.barrier[lane] == number) << lane;
    }
    if (waiting && waiting == warp.live) shadow.wait(warp.index, barrier.known);
  }
  shadow.advance();
  for (Warp& warp : warps) {
    uint32_t released = 0;
    int pc = -1;
    for (uint32_t lanes = warp.at_barrier; lanes; lanes &= lanes - 1) {
      const int lane = first_lane(lanes);
      if (warp.barrier[lane] != number) continue;
      const Instruction& waited = program.code[static_cast<size_t>(warp.pc[lane] - 1)];
      if (waited.aligned && pc >= 0 && pc != warp.pc[lane]) {
        fail(FaultKind::barrier, "divergent barrier: lanes of one warp wait at different barrier instructions", warp,
             lane, &waited);
      }
      pc = warp.pc[lane];
      released |= 1u << lane;
      if (!is_reduction(waited)) continue;
      const Lane result = waited.variant == POPC ? barrier.yes
                          : waited.variant == AND ? barrier.yes == barrier.votes
                                                  : barrier.yes > 0;
      warp.row(waited.dst[0])[lane] = result;
    }
    if (!released) continue;
    warp.at_barrier &= ~released;
    shadow.leave(warp.index, barrier.known);
  }
}

// Waits for the members that are still in the kernel; they may wait at different instructions.
void Block::arrive_at_warp_barrier(Warp& warp, const Instruction& i, uint32_t mask) {
  warp.at_warp_barrier |= mask;
  const auto members = static_cast<uint32_t>(warp.row(i.src[0])[first_lane(mask)]);
  if (mask & ~members) {
    fail(FaultKind::collective, "executed by a lane that its member mask does not name", warp,
         first_lane(mask & ~members), &i);
  }
  if (members & warp.live & ~warp.at_warp_barrier) return;
  shadow.warp_barrier(warp.index, members & warp.at_warp_barrier);
  warp.at_warp_barrier &= ~members;
}

// Every thread waits, so none will ever go on. Names a thread that waits and one that is missing.
void Block::report_deadlock() const {
  for (const Warp& warp : warps) {
    if (!warp.at_warp_barrier) continue;
    const int lane = first_lane(warp.at_warp_barrier);
    fail(FaultKind::collective, "reached by only part of its member mask", warp, lane,
         &program.code[static_cast<size_t>(warp.pc[lane] - 1)]);
  }
  for (const Warp& warp : warps) {
    if (!warp.at_barrier) continue;
    const int lane = first_lane(warp.at_barrier), number = warp.barrier[lane];
    std::string missing;
    for (const Warp& other : warps) {
      for (int l = 0; l < WARP && other.first_thread() + l < threads_ && missing.empty(); ++l) {
        const bool waits_here = (other.at_barrier >> l & 1) && other.barrier[l] == number;
        if (waits_here) continue;
        const bool left = !(other.live >> l & 1);
        missing = ", but thread " + thread_name(other.first_thread() + l) +
                  (left ? " has left the kernel" : " waits elsewhere");
      }
    }
    fail(FaultKind::barrier, "divergent barrier: barrier " + std::to_string(number) + " waits for " +
         std::to_string(barriers_[number].expected) + " threads, " + std::to_string(barriers_[number].arrived) +
         " have come" + missing, warp, lane, &program.code[static_cast<size_t>(warp.pc[lane] - 1)]);
  }
  throw Fault{FaultKind::barrier, "kernel " + program.name + " waits for ever"};
}

}  // namespace minicnn::sim
