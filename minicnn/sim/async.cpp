// async.cpp -- cp.async: 4, 8 or 16 bytes from global to shared memory, in commit groups of each lane
//
// When a copy lands is not defined before its wait. Here it is either at once or at the wait (Options::late_async), and
// in both cases touching its bytes before the wait is a fault.
#include <algorithm>

#include "bind.h"
#include "machine.h"

namespace minicnn::sim {
namespace {

enum Variant { COPY, COPY_IGNORE, COMMIT, WAIT_GROUP, WAIT_ALL };

void land(Block& b, const AsyncCopy& c) {
  memset(b.shared + c.shared_offset, 0, c.bytes);
  if (c.source_bytes) memcpy(b.shared + c.shared_offset, c.from, c.source_bytes);
}

size_t source_bytes_of(Warp& w, const Instruction& i, int lane, size_t bytes) {
  if (i.src.size() < 2) return bytes;
  const Lane operand = w.row(i.src[1])[lane];
  if (i.variant == COPY_IGNORE) return (operand & 1) != (i.negated >> 1 & 1) ? 0 : bytes;
  return static_cast<uint32_t>(operand);
}

void copy(Block& b, Warp& w, const Instruction& i, uint32_t mask) {
  const auto bytes = static_cast<size_t>(w.row(i.src[0])[first_lane(mask)]);
  Block::Pointers from;
  uint32_t reading = 0;
  each_lane(mask, [&](int lane) {
    const size_t wanted = source_bytes_of(w, i, lane, bytes);
    if (wanted > bytes) b.fail(FaultKind::out_of_bounds, "cp.async reads more than it writes", w, lane, &i);
    if (wanted) reading |= 1u << lane;
  });
  while (reading) {  // lanes that read equally much are one request
    const size_t wanted = source_bytes_of(w, i, first_lane(reading), bytes);
    uint32_t same = 0;
    each_lane(reading, [&](int lane) {
      same |= static_cast<uint32_t>(source_bytes_of(w, i, lane, bytes) == wanted) << lane;
    });
    b.resolve(w, i, same, i.second_address, i.second_offset, Space::global, wanted, Access::load, from, bytes);
    reading &= ~same;
  }
  const Lane* to = w.row(i.address);
  uint64_t offsets[WARP];
  each_lane(mask, [&](int lane) {
    const uint64_t address = to[lane] + static_cast<uint64_t>(i.offset);
    if (address % bytes) b.fail(FaultKind::misaligned, "misaligned address: cp.async destination", w, lane, &i);
    AsyncCopy c{};
    c.lane = lane;
    c.group = w.commit_group[lane];
    c.instruction = b.instruction_index(i);
    c.shared_offset = offsets[lane] = b.shared_offset(w, i, lane, address, bytes);
    c.bytes = bytes;
    c.source_bytes = source_bytes_of(w, i, lane, bytes);
    c.from = c.source_bytes ? from.at[lane] : nullptr;
    b.start_copy(w, i, c);
    w.copies.push_back(c);
    if (!b.options.late_async) land(b, c);
  });
  count_shared(b.counters, offsets, mask, bytes, Access::store);
}

void commit(Block&, Warp& w, const Instruction&, uint32_t mask) {
  each_lane(mask, [&](int lane) { ++w.commit_group[lane]; });
}

void wait_group(Block& b, Warp& w, const Instruction& i, uint32_t mask) {
  b.land_copies(w, mask, static_cast<int>(w.row(i.src[0])[first_lane(mask)]));
}

void wait_all(Block& b, Warp& w, const Instruction&, uint32_t mask) {
  each_lane(mask, [&](int lane) { ++w.commit_group[lane]; });
  b.land_copies(w, mask, 0);
}

}  // namespace

void Block::start_copy(Warp& warp, const Instruction& i, const AsyncCopy& c) {
  if (!options.check_races && !options.check_uninitialised) return;
  SharedShadow::Verdict v;
  const int thread = warp.first_thread() + c.lane;
  if (shadow.start_copy(c.shared_offset, c.bytes, thread, c.instruction, checks(), &v)) return;
  report_shared(v, warp, i, c.lane, Access::store);
}

// Lands what the lanes have committed, except their newest groups_kept groups.
void Block::land_copies(Warp& warp, uint32_t mask, int groups_kept) {
  const auto is_due = [&](const AsyncCopy& c) {
    return (mask >> c.lane & 1) && c.group < warp.commit_group[c.lane] - groups_kept;
  };
  for (const AsyncCopy& c : warp.copies) {
    if (!is_due(c)) continue;
    if (options.late_async) land(*this, c);
    shadow.finish_copy(c.shared_offset, c.bytes);
  }
  warp.copies.erase(std::remove_if(warp.copies.begin(), warp.copies.end(), is_due), warp.copies.end());
}

// Copies nobody waited for end with the block.
void Block::forget_copies() {
  for (Warp& warp : warps) {
    for (const AsyncCopy& c : warp.copies) shadow.finish_copy(c.shared_offset, c.bytes);
    warp.copies.clear();
  }
}

bool bind_async(const Statement& s, Instruction& i) {
  const Modifiers m(s);
  i.category = Category::memory;
  if (!m.has("async") || m.has("bulk") || m.has("mbarrier")) return false;
  if (m.has("commit_group")) {
    i.execute = commit;
  } else if (m.has("wait_group")) {
    i.execute = wait_group;
  } else if (m.has("wait_all")) {
    i.execute = wait_all;
  } else {
    // "cp.async.ca.shared.global [d], [s], 16, p" ignores its source where p is true; an integer there is a byte count
    const bool has_predicate = s.operands.size() > 3 && s.operands[3].text.find("%p") != std::string::npos;
    i.variant = has_predicate ? COPY_IGNORE : COPY;
    i.space = Space::shared;
    i.type = Type::u32;
    i.execute = copy;
  }
  return true;
}

}  // namespace minicnn::sim
