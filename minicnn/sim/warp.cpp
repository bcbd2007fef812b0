// warp.cpp -- what the lanes of a warp tell each other: shuffles, votes, matches, reductions
#include "bind.h"
#include "machine.h"

namespace minicnn::sim {
namespace {

enum Shuffle { UP, DOWN, BUTTERFLY, INDEX };

// c holds the last lane of a segment (bits 0-4) and which lane bits select the segment (bits 8-12). The value of a lane
// that does not take part is undefined: it reads as NaN.
void shuffle(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]), *c = w.row(i.src[2]);
  Lane* d = w.row(i.dst[0]);
  Lane* in_range = i.dst.size() > 1 ? w.row(i.dst[1]) : nullptr;
  uint32_t value[WARP];
  for (int l = 0; l < WARP; ++l) value[l] = mask >> l & 1 ? static_cast<uint32_t>(a[l]) : 0xffffffffu;
  each_lane(mask, [&](int l) {
    const int operand = static_cast<int>(b[l] & 31), clamp = static_cast<int>(c[l] & 31);
    const int segment = static_cast<int>(c[l] >> 8 & 31);
    const int last = (l & segment) | (clamp & ~segment), first = l & segment;
    int from = l;
    bool valid = false;
    switch (i.variant) {
      case UP: from = l - operand; valid = from >= last; break;
      case DOWN: from = l + operand; valid = from <= last; break;
      case BUTTERFLY: from = l ^ operand; valid = from <= last; break;
      default: from = first | (operand & ~segment); valid = from <= last; break;
    }
    d[l] = value[valid ? from : l];
    if (in_range) in_range[l] = valid;
  });
}

enum Vote { ALL, ANY, UNIFORM, BALLOT };

void vote(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane* p = w.row(i.src[0]);
  Lane* d = w.row(i.dst[0]);
  const Lane flip = i.negated & 1;
  uint32_t yes = 0;
  each_lane(mask, [&](int l) { yes |= static_cast<uint32_t>((p[l] ^ flip) & 1) << l; });
  Lane result = yes;
  if (i.variant == ALL) result = yes == mask;
  if (i.variant == ANY) result = yes != 0;
  if (i.variant == UNIFORM) result = yes == mask || yes == 0;
  each_lane(mask, [&](int l) { d[l] = result; });
}

enum Match { MATCH_ANY, MATCH_ALL };

void match(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane* a = w.row(i.src[0]);
  Lane* d = w.row(i.dst[0]);
  Lane* all_equal = i.dst.size() > 1 ? w.row(i.dst[1]) : nullptr;
  const uint64_t keep = type_bytes(i.type) == 8 ? ~0ull : 0xffffffffull;
  uint32_t equal[WARP] = {};
  each_lane(mask, [&](int l) {
    each_lane(mask, [&](int other) {
      equal[l] |= static_cast<uint32_t>((a[l] & keep) == (a[other] & keep)) << other;
    });
  });
  each_lane(mask, [&](int l) {
    const bool all = equal[l] == mask;
    d[l] = i.variant == MATCH_ANY ? equal[l] : all ? mask : 0;
    if (all_equal) all_equal[l] = all;
  });
}

enum Reduction { ADD, MIN, MAX, AND, OR, XOR };

void reduce(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane* a = w.row(i.src[0]);
  Lane* d = w.row(i.dst[0]);
  auto total = static_cast<uint32_t>(a[first_lane(mask)]);
  const bool is_sign = is_signed(i.type);
  each_lane(mask & (mask - 1), [&](int l) {
    const auto v = static_cast<uint32_t>(a[l]);
    const bool less = is_sign ? static_cast<int32_t>(v) < static_cast<int32_t>(total) : v < total;
    switch (i.variant) {
      case ADD: total += v; break;
      case MIN: total = less ? v : total; break;
      case MAX: total = less ? total : v; break;
      case AND: total &= v; break;
      case OR: total |= v; break;
      default: total ^= v; break;
    }
  });
  each_lane(mask, [&](int l) { d[l] = total; });
}

void active_mask(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  Lane* d = w.row(i.dst[0]);
  each_lane(mask, [&](int l) { d[l] = mask; });
}

void elect(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  Lane* d = w.row(i.dst[0]);
  Lane* chosen = i.dst.size() > 1 ? w.row(i.dst[1]) : nullptr;
  each_lane(mask, [&](int l) {
    d[l] = static_cast<Lane>(first_lane(mask));
    if (chosen) chosen[l] = l == first_lane(mask);
  });
}

}  // namespace

bool bind_warp(const Statement& s, Instruction& i) {
  const Modifiers m(s);
  i.category = Category::warp;
  if (s.opcode == "activemask") {
    i.execute = active_mask;
    return true;
  }
  if (!m.has("sync")) return false;  // the forms without a mask ended with compute capability 7.0
  i.flow = Flow::collective;
  if (s.opcode == "shfl") {
    i.variant = m.which({"up", "down", "bfly", "idx"});
    i.execute = shuffle;
  } else if (s.opcode == "vote") {
    i.variant = m.which({"all", "any", "uni", "ballot"});
    i.execute = vote;
  } else if (s.opcode == "match") {
    i.variant = m.which({"any", "all"});
    i.execute = match;
  } else if (s.opcode == "redux") {
    i.variant = is_float(i.type) ? -1 : m.which({"add", "min", "max", "and", "or", "xor"});
    i.execute = reduce;
  } else {
    i.variant = 0;
    i.execute = elect;
  }
  return i.variant >= 0;
}

}  // namespace minicnn::sim
