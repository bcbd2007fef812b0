// compare.cpp -- setp, set, selp, slct, testp, and mov with its packing of vectors
#include <cmath>

#include "bind.h"
#include "halves.h"
#include "machine.h"

namespace minicnn::sim {
namespace {

enum Relation { EQ, NE, LT, LE, GT, GE, LO, LS, HI, HS, EQU, NEU, LTU, LEU, GTU, GEU, NUM, NAN_ };
enum Combine { NONE, AND, OR, XOR };

template <class T>
bool compare_ordered(int relation, T x, T y) {
  switch (relation) {
    case EQ: case EQU: return x == y;
    case NE: case NEU: return x != y;
    case LT: case LO: case LTU: return x < y;
    case LE: case LS: case LEU: return x <= y;
    case GT: case HI: case GTU: return x > y;
    default: return x >= y;
  }
}

bool compare_floats(int relation, double x, double y) {
  const bool unordered = x != x || y != y;
  if (relation == NUM) return !unordered;
  if (relation == NAN_) return unordered;
  if (unordered) return relation >= EQU;
  return compare_ordered(relation, x, y);
}

double float_value(Type t, Lane v) {
  switch (t) {
    case Type::f64: return from_lane<double>(v);
    case Type::f16: case Type::f16x2: return half_to_float(static_cast<uint16_t>(v));
    case Type::bf16: case Type::bf16x2: return bfloat_to_float(static_cast<uint16_t>(v));
    default: return float_from_bits(static_cast<uint32_t>(v));
  }
}

bool compare_as(Type t, int relation, Lane x, Lane y) {
  if (is_float(t)) return compare_floats(relation, float_value(t, x), float_value(t, y));
  switch (t) {
    case Type::s16: return compare_ordered(relation, static_cast<int16_t>(x), static_cast<int16_t>(y));
    case Type::u16: return compare_ordered(relation, static_cast<uint16_t>(x), static_cast<uint16_t>(y));
    case Type::s32: return compare_ordered(relation, static_cast<int32_t>(x), static_cast<int32_t>(y));
    case Type::s64: return compare_ordered(relation, static_cast<int64_t>(x), static_cast<int64_t>(y));
    case Type::u64: return compare_ordered(relation, static_cast<uint64_t>(x), static_cast<uint64_t>(y));
    default: return compare_ordered(relation, static_cast<uint32_t>(x), static_cast<uint32_t>(y));
  }
}

bool combined(int combine, bool value, bool other) {
  switch (combine) {
    case AND: return value && other;
    case OR: return value || other;
    case XOR: return value != other;
    default: return value;
  }
}

int relation_of(const Instruction& i) { return i.variant & 31; }
int combine_of(const Instruction& i) { return i.variant >> 5; }

bool predicate(Warp& w, const Instruction& i, size_t source, int lane) {
  return ((w.row(i.src[source])[lane] & 1) != 0) != ((i.negated >> source & 1) != 0);
}

// Of a packed pair the two results are those of its halves; else the second is the inverse.
void set_predicate(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]);
  Lane* d = w.row(i.dst[0]);
  Lane* second = i.dst.size() > 1 ? w.row(i.dst[1]) : nullptr;
  const Type t = i.source_type;
  const bool is_pair = t == Type::f16x2 || t == Type::bf16x2;
  const int combine = combine_of(i);
  each_lane(mask, [&](int l) {
    const bool low = compare_as(t, relation_of(i), a[l], b[l]);
    const bool other_result = is_pair ? compare_as(t, relation_of(i), a[l] >> 16, b[l] >> 16) : !low;
    const bool other = combine != NONE && predicate(w, i, 2, l);
    d[l] = combined(combine, low, other);
    if (second) second[l] = combined(combine, other_result, other);
  });
}

Lane truth(Type t, bool value) {
  switch (t) {
    case Type::f32: return value ? float_bits(1.0f) : 0;
    case Type::f16: case Type::f16x2: return value ? 0x3c00 : 0;
    case Type::bf16: case Type::bf16x2: return value ? 0x3f80 : 0;
    case Type::u16: case Type::s16: return value ? 0xffff : 0;
    default: return value ? 0xffffffffu : 0;
  }
}

void set_value(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]);
  Lane* d = w.row(i.dst[0]);
  const Type t = i.source_type;
  const bool is_pair = t == Type::f16x2 || t == Type::bf16x2;
  const Type result = is_pair && !is_float(i.type) ? Type::u16 : i.type;
  each_lane(mask, [&](int l) {
    const bool other = combine_of(i) != NONE && predicate(w, i, 2, l);
    const bool low = combined(combine_of(i), compare_as(t, relation_of(i), a[l], b[l]), other);
    d[l] = truth(result, low);
    if (!is_pair) return;
    const bool high = combined(combine_of(i), compare_as(t, relation_of(i), a[l] >> 16, b[l] >> 16), other);
    d[l] |= truth(result, high) << 16;
  });
}

void select(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]), *p = w.row(i.src[2]);
  Lane* d = w.row(i.dst[0]);
  const Lane flip = i.negated >> 2 & 1;
  each_lane(mask, [&](int l) { d[l] = ((p[l] ^ flip) & 1) ? a[l] : b[l]; });
}

void select_by_sign(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]), *c = w.row(i.src[2]);
  Lane* d = w.row(i.dst[0]);
  each_lane(mask, [&](int l) {
    const double sign = is_float(i.source_type) ? float_value(i.source_type, c[l]) : static_cast<int32_t>(c[l]);
    d[l] = sign >= 0 ? a[l] : b[l];
  });
}

enum Property { FINITE, INFINITE, NUMBER, NOT_A_NUMBER, NORMAL, SUBNORMAL };

void test_property(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane* a = w.row(i.src[0]);
  Lane* d = w.row(i.dst[0]);
  each_lane(mask, [&](int l) {
    const double x = float_value(i.type, a[l]);
    const int kind = i.type == Type::f64 ? std::fpclassify(x) : std::fpclassify(static_cast<float>(x));
    bool value = false;
    switch (i.variant) {
      case FINITE: value = kind != FP_INFINITE && kind != FP_NAN; break;
      case INFINITE: value = kind == FP_INFINITE; break;
      case NUMBER: value = kind != FP_NAN; break;
      case NOT_A_NUMBER: value = kind == FP_NAN; break;
      case NORMAL: value = kind == FP_NORMAL; break;
      default: value = kind == FP_SUBNORMAL; break;
    }
    d[l] = value;
  });
}

// ---------------------------------------------------------------- mov

void move(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane* a = w.row(i.src[0]);
  Lane* d = w.row(i.dst[0]);
  each_lane(mask, [&](int l) { d[l] = a[l]; });
}

uint64_t part_mask(int bits) { return bits >= 64 ? ~0ull : (1ull << bits) - 1; }

void pack(Block&, Warp& w, const Instruction& i, uint32_t mask) {  // mov.b64 d, {low, high}
  Lane* d = w.row(i.dst[0]);
  const int bits = static_cast<int>(8 * type_bytes(i.type) / i.src.size());
  each_lane(mask, [&](int l) {
    Lane out = 0;
    for (size_t k = 0; k < i.src.size(); ++k) {
      out |= (w.row(i.src[k])[l] & part_mask(bits)) << (bits * static_cast<int>(k));
    }
    d[l] = out;
  });
}

void unpack(Block&, Warp& w, const Instruction& i, uint32_t mask) {  // mov.b64 {low, high}, a
  const Lane* a = w.row(i.src[0]);
  const int bits = static_cast<int>(8 * type_bytes(i.type) / i.dst.size());
  each_lane(mask, [&](int l) {
    const Lane value = a[l];  // a destination may be the source
    for (size_t k = 0; k < i.dst.size(); ++k) {
      w.row(i.dst[k])[l] = value >> (bits * static_cast<int>(k)) & part_mask(bits);
    }
  });
}

void read_clock(Block& b, Warp& w, const Instruction& i, uint32_t mask) {  // instructions, not cycles
  Lane* d = w.row(i.dst[0]);
  each_lane(mask, [&](int l) { d[l] = b.executed(); });
}

}  // namespace

bool bind_move(const Statement& s, Instruction& i) {
  i.category = Category::integer;
  if (s.operands.size() != 2) return false;
  const OperandText &to = s.operands[0], &from = s.operands[1];
  Special special;
  const bool is_clock = special_from_name(from.text, &special) && special == Special::clock;
  i.execute = is_clock                             ? read_clock
              : to.kind == OperandText::group      ? unpack
              : from.kind == OperandText::group    ? pack
                                                   : move;
  return true;
}

bool bind_compare(const Statement& s, Instruction& i) {
  const Modifiers m(s);
  i.category = s.opcode == "selp" ? Category::integer : category_of(i.source_type);
  if (s.opcode == "testp") {
    i.variant = m.which({"finite", "infinite", "number", "notanumber", "normal", "subnormal"});
    i.execute = test_property;
    return i.variant >= 0;
  }
  if (s.opcode == "selp" || s.opcode == "slct") {
    i.execute = s.opcode == "selp" ? select : select_by_sign;
    return true;
  }
  static const char* const RELATIONS[] = {"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi",
                                          "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
  int relation = -1;
  for (int k = 0; k < 18; ++k) {
    if (m.first() == RELATIONS[k]) relation = k;
  }
  i.variant = relation | (m.which({"and", "or", "xor"}) + 1) << 5;
  i.execute = s.opcode == "setp" ? set_predicate : set_value;
  return relation >= 0;
}

}  // namespace minicnn::sim
