// race.h -- who touched each cell of shared memory last, and whether that is ordered before the present access
//
// Time is one counter that every barrier advances. An access is stamped with it. What a warp knows of the others is a
// vector of stamps, joined at barriers (vector clocks): an earlier access races with the present one when its stamp is
// newer than what the present thread knows of its thread, and one of the two writes. That does not depend on which
// warp happened to run first. Within a warp the lanes are ordered by bar.warp.sync only.
//
// Atomics do not race with one another, only with plain accesses: they leave a trace of their own, so that a plain
// write stays to be seen behind the same thread's atomic on the same cell.
//
// A cell is as wide as the narrowest access of the kernel (Program::shared_granule), so nothing is lost by it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ptx.h"

namespace minicnn::sim {

using Stamp = uint32_t;
constexpr Stamp NEVER = 0;

struct Trace {  // one access
  Stamp stamp = NEVER;
  uint16_t thread = 0;
  int instruction = 0;
};

class SharedShadow {
 public:
  void start_launch(size_t shared_bytes, size_t granule, int warps);
  void start_block();  // nothing is initialised, and everything before is ordered

  struct Verdict {
    enum Kind { fine, uninitialised, race, in_flight } kind = fine;
    Trace other;            // race: the earlier access
    bool other_wrote = false;
    size_t offset = 0;      // of the cell
  };
  enum class Kind { read, write, atomic };
  struct Checks {
    bool races, uninitialised;
  };
  // Checks the access and, when it is fine, records it; otherwise says why not.
  bool access(size_t offset, size_t bytes, int thread, int instruction, Kind kind, Checks checks, Verdict* verdict);

  // cp.async: from its start to its wait nobody may touch the bytes; landing counts as a write by the issuing thread.
  bool start_copy(size_t offset, size_t bytes, int thread, int instruction, Checks checks, Verdict* verdict);
  void finish_copy(size_t offset, size_t bytes);

  // Barriers. Known is what the participants of a block barrier have brought together so far.
  struct Known {
    std::vector<Stamp> warps;
  };
  void arrive(int warp, Known& known);              // everything this warp did is known to those who wait
  void wait(int warp, Known& known);                // it has done nothing since: all of it is known
  void leave(int warp, const Known& known);
  void advance() { ++now_; }
  void warp_barrier(int warp, uint32_t mask);

 private:
  static constexpr uint16_t SEVERAL = 0xffff;  // atomics by more than one thread

  struct Cell {
    Trace write;    // plain
    Trace atomic;   // since that write
    Trace read[2];  // of two threads, so that a writer who also read does not hide the other reader
    uint8_t in_flight = 0;
  };

  bool ordered(const Trace& earlier, int thread) const;
  void record_read(Cell& cell, const Trace& now);
  Verdict check(const Cell& cell, const Trace& now, Kind kind, Checks checks) const;
  Stamp& known(int warp, int other) { return known_[static_cast<size_t>(warp * warps_ + other)]; }
  Stamp known(int warp, int other) const { return known_[static_cast<size_t>(warp * warps_ + other)]; }
  Stamp& lane_known(int warp, int lane, int other) {
    return lane_known_[static_cast<size_t>((warp * WARP + lane) * WARP + other)];
  }
  Stamp lane_known(int warp, int lane, int other) const {
    return lane_known_[static_cast<size_t>((warp * WARP + lane) * WARP + other)];
  }
  void refresh(int warp);

  std::vector<Cell> cells_;
  std::vector<Stamp> known_, known_of_all_, lane_known_;
  size_t granule_ = 4;
  int warps_ = 0;
  Stamp now_ = 1, block_start_ = 1;
};

}  // namespace minicnn::sim
