// atomic.cpp -- atom and red: lanes take effect one after another, in lane order
#include "bind.h"
#include "halves.h"
#include "machine.h"

namespace minicnn::sim {
namespace {

enum Operation { ADD, MIN, MAX, INC, DEC, AND, OR, XOR, EXCH, CAS };

template <class T>
Lane combine_integer(Operation op, Lane old_bits, Lane operand_bits, Lane swap_bits) {
  using U = std::make_unsigned_t<T>;
  const auto old = static_cast<T>(old_bits), operand = static_cast<T>(operand_bits);
  switch (op) {
    case ADD: return static_cast<U>(static_cast<U>(old) + static_cast<U>(operand));
    case MIN: return static_cast<U>(std::min(old, operand));
    case MAX: return static_cast<U>(std::max(old, operand));
    case INC: return static_cast<U>(old) >= static_cast<U>(operand) ? 0 : static_cast<U>(old + 1);
    case DEC: return old == 0 || static_cast<U>(old) > static_cast<U>(operand) ? static_cast<U>(operand)
                                                                                  : static_cast<U>(old - 1);
    case AND: return static_cast<U>(old & operand);
    case OR: return static_cast<U>(old | operand);
    case XOR: return static_cast<U>(old ^ operand);
    case EXCH: return static_cast<U>(operand);
    case CAS: return static_cast<U>(old == operand ? static_cast<T>(swap_bits) : old);
  }
  return 0;
}

template <class F>
F combine_float(Operation op, F old, F operand) {
  if (op == MIN) return std::fmin(old, operand);
  if (op == MAX) return std::fmax(old, operand);
  return old + operand;
}

uint16_t combine_half(Operation op, uint64_t old, uint64_t operand) {
  return float_to_half(combine_float(op, half_to_float(static_cast<uint16_t>(old)),
                                     half_to_float(static_cast<uint16_t>(operand))));
}

uint16_t combine_bfloat(Operation op, uint64_t old, uint64_t operand) {
  return float_to_bfloat(combine_float(op, bfloat_to_float(static_cast<uint16_t>(old)),
                                       bfloat_to_float(static_cast<uint16_t>(operand))));
}

Lane combine(Type type, Operation op, Lane old, Lane operand, Lane swap) {
  switch (type) {
    case Type::f32: return to_lane(combine_float(op, from_lane<float>(old), from_lane<float>(operand)));
    case Type::f64: return to_lane(combine_float(op, from_lane<double>(old), from_lane<double>(operand)));
    case Type::f16: return combine_half(op, old, operand);
    case Type::bf16: return combine_bfloat(op, old, operand);
    case Type::f16x2: return combine_half(op, old, operand) | Lane{combine_half(op, old >> 16, operand >> 16)} << 16;
    case Type::bf16x2:
      return combine_bfloat(op, old, operand) | Lane{combine_bfloat(op, old >> 16, operand >> 16)} << 16;
    case Type::s32: return combine_integer<int32_t>(op, old, operand, swap);
    case Type::s64: return combine_integer<int64_t>(op, old, operand, swap);
    case Type::u64: return combine_integer<uint64_t>(op, old, operand, swap);
    case Type::u16: return combine_integer<uint16_t>(op, old, operand, swap);
    default: return combine_integer<uint32_t>(op, old, operand, swap);
  }
}

void atomic(Block& b, Warp& w, const Instruction& i, uint32_t mask) {
  const size_t element = type_bytes(i.type);
  Block::Pointers at;
  b.resolve(w, i, mask, i.address, i.offset, i.space, element * static_cast<size_t>(i.width), Access::atomic, at);
  each_lane(mask, [&](int lane) {
    for (int k = 0; k < i.width; ++k) {
      char* cell = at.at[lane] + element * static_cast<size_t>(k);
      Lane old = 0;
      memcpy(&old, cell, element);
      const Lane swap = i.variant == CAS ? w.row(i.src[1])[lane] : 0;
      const Lane made = combine(i.type, static_cast<Operation>(i.variant), old,
                                w.row(i.src[static_cast<size_t>(k)])[lane], swap);
      memcpy(cell, &made, element);
      if (!i.dst.empty()) w.row(i.dst[static_cast<size_t>(k)])[lane] = old;
    }
  });
}

}  // namespace

bool bind_atomic(const Statement& s, Instruction& i) {
  const Modifiers m(s);
  i.variant = m.which({"add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas"});
  i.width = m.has("v4") ? 4 : m.has("v2") ? 2 : 1;
  i.category = Category::memory;
  i.execute = atomic;
  return i.variant >= 0 && i.type != Type::none && !m.has("async");
}

}  // namespace minicnn::sim
