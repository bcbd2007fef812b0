// bits.cpp -- logic, shifts, bit fields and byte permutation
#include "bind.h"
#include "machine.h"

namespace minicnn::sim {
namespace {

uint64_t width_mask(Type t) {
  if (t == Type::predicate) return 1;
  const size_t bits = 8 * type_bytes(t);
  return bits >= 64 ? ~0ull : (1ull << bits) - 1;
}

int bits_of(const Instruction& i) { return static_cast<int>(8 * type_bytes(i.type)); }

bool has_word(const Instruction& i, const char* word) { return i.text.find(word) != std::string::npos; }

// f takes source values (uint64_t) and gives the result; what lies above the type is cut off.
template <class F>
void one(Warp& w, const Instruction& i, uint32_t mask, F f) {
  const Lane* a = w.row(i.src[0]);
  Lane* d = w.row(i.dst[0]);
  const uint64_t keep = width_mask(i.type), flip = i.negated & 1 ? 1 : 0;
  each_lane(mask, [&](int l) { d[l] = f((a[l] ^ flip) & keep) & keep; });
}

template <class F>
void two(Warp& w, const Instruction& i, uint32_t mask, F f) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]);
  Lane* d = w.row(i.dst[0]);
  const uint64_t keep = width_mask(i.type), flip_a = i.negated & 1 ? 1 : 0, flip_b = i.negated & 2 ? 1 : 0;
  each_lane(mask, [&](int l) { d[l] = f(a[l] ^ flip_a, b[l] ^ flip_b) & keep; });
}

void bit_and(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  two(w, i, mask, [](uint64_t a, uint64_t b) { return a & b; });
}
void bit_or(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  two(w, i, mask, [](uint64_t a, uint64_t b) { return a | b; });
}
void bit_xor(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  two(w, i, mask, [](uint64_t a, uint64_t b) { return a ^ b; });
}
void bit_not(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  one(w, i, mask, [](uint64_t a) { return ~a; });
}
void is_zero(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  one(w, i, mask, [](uint64_t a) { return a == 0 ? 1 : 0; });
}
void count_ones(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  one(w, i, mask, [](uint64_t a) { return static_cast<uint64_t>(__builtin_popcountll(a)); });
}
void leading_zeros(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const int bits = bits_of(i);
  one(w, i, mask, [&](uint64_t a) { return static_cast<uint64_t>(a ? __builtin_clzll(a) - (64 - bits) : bits); });
}

void reverse_bits(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const int bits = bits_of(i);
  one(w, i, mask, [&](uint64_t a) {
    uint64_t r = 0;
    for (int k = 0; k < bits; ++k) r |= (a >> k & 1) << (bits - 1 - k);
    return r;
  });
}

// The highest bit that is set (of a negative number: that is clear); .shiftamt: counted from the top
void find_highest(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const int bits = bits_of(i);
  const bool counts_shift = has_word(i, "shiftamt");
  one(w, i, mask, [&](uint64_t a) -> uint64_t {
    if (is_signed(i.type) && (a >> (bits - 1) & 1)) a = ~a & width_mask(i.type);
    if (a == 0) return ~0ull;
    const int highest = 63 - __builtin_clzll(a);
    return static_cast<uint64_t>(counts_shift ? bits - 1 - highest : highest);
  });
}

// ---------------------------------------------------------------- shifts: an amount beyond the width shifts all out

void shift_left(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const auto bits = static_cast<uint32_t>(bits_of(i));
  two(w, i, mask, [&](uint64_t a, uint64_t b) {
    const auto n = static_cast<uint32_t>(b);
    return n >= bits ? 0 : a << n;
  });
}

void shift_right(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const auto bits = static_cast<uint32_t>(bits_of(i));
  const uint64_t keep = width_mask(i.type);
  two(w, i, mask, [&](uint64_t a, uint64_t b) {
    const auto n = static_cast<uint32_t>(b);
    return n >= bits ? 0 : (a & keep) >> n;
  });
}

void shift_right_signed(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const auto bits = static_cast<uint32_t>(bits_of(i));
  two(w, i, mask, [&](uint64_t a, uint64_t b) {
    const uint32_t n = std::min(static_cast<uint32_t>(b), bits - 1);
    const auto extended = static_cast<int64_t>(a << (64 - bits)) >> (64 - bits);
    return static_cast<uint64_t>(extended >> n);
  });
}

void funnel_shift(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *low = w.row(i.src[0]), *high = w.row(i.src[1]), *amount = w.row(i.src[2]);
  Lane* d = w.row(i.dst[0]);
  const bool wraps = has_word(i, ".wrap"), left = has_word(i, "shf.l");
  each_lane(mask, [&](int l) {
    const uint64_t both = static_cast<uint32_t>(low[l]) | high[l] << 32;
    const auto asked = static_cast<uint32_t>(amount[l]);
    const uint32_t n = wraps ? asked & 31 : std::min(asked, 32u);
    d[l] = static_cast<uint32_t>(left ? (n == 0 ? both >> 32 : both >> (32 - n)) : both >> n);
  });
}

// ---------------------------------------------------------------- bit fields and bytes

uint64_t low_bits(uint32_t count) { return count >= 64 ? ~0ull : (1ull << count) - 1; }

void extract_field(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *position = w.row(i.src[1]), *length = w.row(i.src[2]);
  Lane* d = w.row(i.dst[0]);
  const auto bits = static_cast<uint32_t>(bits_of(i));
  const uint64_t keep = width_mask(i.type);
  each_lane(mask, [&](int l) {
    const uint32_t at = position[l] & 255, n = length[l] & 255;
    const uint64_t value = a[l] & keep;
    uint64_t field = at >= bits ? 0 : value >> at & low_bits(n);
    if (is_signed(i.type) && n > 0) {
      const uint32_t sign_at = std::min(at + n - 1, bits - 1);
      if (value >> sign_at & 1) field |= ~low_bits(at >= bits ? 0 : std::min(n, bits - at));
    }
    d[l] = field & keep;
  });
}

void insert_field(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]), *position = w.row(i.src[2]), *length = w.row(i.src[3]);
  Lane* d = w.row(i.dst[0]);
  const auto bits = static_cast<uint32_t>(bits_of(i));
  const uint64_t keep = width_mask(i.type);
  each_lane(mask, [&](int l) {
    const uint32_t at = position[l] & 255, n = length[l] & 255;
    const uint64_t field = at >= bits ? 0 : low_bits(n) << at;
    d[l] = ((b[l] & ~field) | (a[l] << (at & 63) & field)) & keep;
  });
}

void permute_bytes(Block& block, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]), *selector = w.row(i.src[2]);
  Lane* d = w.row(i.dst[0]);
  for (const char* mode : {".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"}) {
    if (has_word(i, mode)) block.fail(FaultKind::unsupported, "prmt mode not supported", w, first_lane(mask), &i);
  }
  each_lane(mask, [&](int l) {
    const uint64_t bytes = static_cast<uint32_t>(a[l]) | b[l] << 32;
    uint32_t out = 0;
    for (int k = 0; k < 4; ++k) {
      const uint32_t pick = selector[l] >> (4 * k) & 15;
      uint32_t byte = bytes >> (8 * (pick & 7)) & 255;
      if (pick & 8) byte = byte & 128 ? 255 : 0;  // its sign, repeated
      out |= byte << (8 * k);
    }
    d[l] = out;
  });
}

void logic_of_three(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]), *c = w.row(i.src[2]), *table = w.row(i.src[3]);
  Lane* d = w.row(i.dst[0]);
  each_lane(mask, [&](int l) {
    uint64_t out = 0;
    for (int k = 0; k < 8; ++k) {  // bit k of the table: the result where the inputs are the bits of k
      if (!(table[l] >> k & 1)) continue;
      out |= (k & 4 ? a[l] : ~a[l]) & (k & 2 ? b[l] : ~b[l]) & (k & 1 ? c[l] : ~c[l]);
    }
    d[l] = static_cast<uint32_t>(out);
  });
}

}  // namespace

bool bind_bits(const Statement& s, Instruction& i) {
  const std::string& op = s.opcode;
  i.category = Category::integer;
  if (op == "and") i.execute = bit_and;
  if (op == "or") i.execute = bit_or;
  if (op == "xor") i.execute = bit_xor;
  if (op == "not") i.execute = bit_not;
  if (op == "cnot") i.execute = is_zero;
  if (op == "shl") i.execute = shift_left;
  if (op == "shr") i.execute = is_signed(i.type) ? shift_right_signed : shift_right;
  if (op == "shf") i.execute = funnel_shift;
  if (op == "prmt") i.execute = permute_bytes;
  if (op == "bfe") i.execute = extract_field;
  if (op == "bfi") i.execute = insert_field;
  if (op == "bfind") i.execute = find_highest;
  if (op == "popc") i.execute = count_ones;
  if (op == "clz") i.execute = leading_zeros;
  if (op == "brev") i.execute = reverse_bits;
  if (op == "lop3") i.execute = logic_of_three;
  return i.execute != nullptr;
}

}  // namespace minicnn::sim
