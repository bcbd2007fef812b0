// race.cpp -- the shared-memory shadow (race.h tells the idea)
#include "race.h"

#include <algorithm>

namespace minicnn::sim {

void SharedShadow::start_launch(size_t shared_bytes, size_t granule, int warps) {
  granule_ = granule;
  warps_ = warps;
  now_ = 1;
  cells_.assign((shared_bytes + granule - 1) / granule, Cell{});
  known_.assign(static_cast<size_t>(warps * warps), NEVER);
  known_of_all_.assign(static_cast<size_t>(warps), NEVER);
  lane_known_.assign(static_cast<size_t>(warps * WARP * WARP), NEVER);
}

// Older stamps than the block's start count as ordered, so the cells need no clearing.
void SharedShadow::start_block() {
  std::fill(known_.begin(), known_.end(), now_);
  std::fill(known_of_all_.begin(), known_of_all_.end(), now_);
  block_start_ = ++now_;
}

bool SharedShadow::ordered(const Trace& earlier, int thread) const {
  const int warp = thread / WARP;
  if (earlier.stamp <= known_of_all_[static_cast<size_t>(warp)]) return true;
  if (earlier.thread == thread) return true;
  if (earlier.thread == SEVERAL) return false;
  const int other = earlier.thread / WARP;
  if (earlier.stamp <= known(warp, other)) return true;
  return warp == other && earlier.stamp <= lane_known(warp, thread % WARP, earlier.thread % WARP);
}

SharedShadow::Verdict SharedShadow::check(const Cell& cell, const Trace& now, Kind kind, Checks checks) const {
  Verdict v;
  if (checks.races && cell.in_flight) {
    v.kind = Verdict::in_flight;
    v.other = cell.write;
    return v;
  }
  if (checks.uninitialised && kind != Kind::write && cell.write.stamp < block_start_) {
    v.kind = Verdict::uninitialised;
    return v;
  }
  if (!checks.races) return v;
  const Trace* writer = nullptr;
  if (kind != Kind::atomic && !ordered(cell.atomic, now.thread)) writer = &cell.atomic;
  if (!ordered(cell.write, now.thread)) writer = &cell.write;
  if (writer) {
    v.kind = Verdict::race;
    v.other = *writer;
    v.other_wrote = true;
    return v;
  }
  if (kind == Kind::read) return v;
  for (const Trace& reader : cell.read) {
    if (ordered(reader, now.thread)) continue;
    v.kind = Verdict::race;
    v.other = reader;
    return v;
  }
  return v;
}

// Two readers are kept, of two warps where possible: a writer is ordered after at most one of two unordered readers,
// unless it knows both.
void SharedShadow::record_read(Cell& cell, const Trace& now) {
  for (Trace& slot : cell.read) {
    if (slot.thread == now.thread || ordered(slot, now.thread)) {
      slot = now;
      return;
    }
  }
  const bool same_warp = cell.read[0].thread / WARP == cell.read[1].thread / WARP;
  if (same_warp && now.thread / WARP != cell.read[0].thread / WARP) cell.read[1] = now;
}

bool SharedShadow::access(size_t offset, size_t bytes, int thread, int instruction, Kind kind, Checks checks,
                          Verdict* verdict) {
  const Trace now{now_, static_cast<uint16_t>(thread), instruction};
  const Stamp settled = known_of_all_[static_cast<size_t>(thread / WARP)];  // up to here all is ordered before now
  const size_t first = offset / granule_, last = (offset + bytes - 1) / granule_;
  for (size_t k = first; k <= last; ++k) {
    Cell& cell = cells_[k];
    // Nearly all accesses read what was written before the last barrier: no more than this for them.
    const bool is_quiet = !cell.in_flight && cell.write.stamp <= settled && cell.write.stamp >= block_start_ &&
                          cell.atomic.stamp <= settled;
    if (is_quiet && kind == Kind::read) {
      Trace& reader = cell.read[0];
      if (reader.stamp <= settled || reader.thread == now.thread) {
        reader = now;
      } else {
        record_read(cell, now);
      }
      continue;
    }
    const Verdict v = check(cell, now, kind, checks);
    if (v.kind != Verdict::fine) {
      *verdict = v;
      verdict->offset = k * granule_;
      return false;
    }
    if (kind == Kind::read) {
      record_read(cell, now);
      continue;
    }
    if (kind == Kind::write) {
      cell.write = now;
      cell.atomic = Trace{};  // ordered before this write, and so before all that is ordered after it
    } else {
      const bool joins_others = !ordered(cell.atomic, thread);
      cell.atomic = now;
      if (joins_others) cell.atomic.thread = SEVERAL;
    }
  }
  return true;
}

bool SharedShadow::start_copy(size_t offset, size_t bytes, int thread, int instruction, Checks checks,
                              Verdict* verdict) {
  if (!access(offset, bytes, thread, instruction, Kind::write, checks, verdict)) return false;
  for (size_t k = offset / granule_; k <= (offset + bytes - 1) / granule_; ++k) cells_[k].in_flight = 1;
  return true;
}

void SharedShadow::finish_copy(size_t offset, size_t bytes) {
  for (size_t k = offset / granule_; k <= (offset + bytes - 1) / granule_; ++k) {
    cells_[k].in_flight = 0;
    cells_[k].write.stamp = now_;
  }
}

void SharedShadow::refresh(int warp) {
  const auto row = known_.begin() + warp * warps_;
  known_of_all_[static_cast<size_t>(warp)] = *std::min_element(row, row + warps_);
}

void SharedShadow::arrive(int warp, Known& brought) {
  brought.warps.resize(static_cast<size_t>(warps_), NEVER);
  for (int other = 0; other < warps_; ++other) {
    Stamp& stamp = brought.warps[static_cast<size_t>(other)];
    stamp = std::max(stamp, other == warp ? now_ : known(warp, other));
  }
  ++now_;  // what the warp does from here on is newer than what it brought
}

void SharedShadow::wait(int warp, Known& brought) { brought.warps[static_cast<size_t>(warp)] = now_; }

void SharedShadow::leave(int warp, const Known& brought) {
  for (int other = 0; other < warps_; ++other) {
    known(warp, other) = std::max(known(warp, other), brought.warps[static_cast<size_t>(other)]);
  }
  refresh(warp);
}

void SharedShadow::warp_barrier(int warp, uint32_t mask) {
  Stamp joined[WARP] = {};
  for (uint32_t lanes = mask; lanes; lanes &= lanes - 1) {
    const int lane = __builtin_ctz(lanes);
    for (int other = 0; other < WARP; ++other) joined[other] = std::max(joined[other], lane_known(warp, lane, other));
  }
  for (uint32_t lanes = mask; lanes; lanes &= lanes - 1) joined[__builtin_ctz(lanes)] = now_;
  for (uint32_t lanes = mask; lanes; lanes &= lanes - 1) {
    const int lane = __builtin_ctz(lanes);
    for (int other = 0; other < WARP; ++other) lane_known(warp, lane, other) = joined[other];
  }
  ++now_;
}

}  // namespace minicnn::sim
