// integer.cpp -- integer arithmetic: wrapping, wide and high products, carries, dot products
#include "bind.h"
#include "machine.h"

namespace minicnn::sim {
namespace {

enum Part { LOW, HIGH, WIDE };           // of a product
enum Carry { NO_CARRY, SETS, USES, BOTH };  // .cc and addc

template <class T>
Lane pack(T value) {
  return static_cast<Lane>(static_cast<std::make_unsigned_t<T>>(value));
}

template <class T>
using Unsigned = std::make_unsigned_t<T>;

template <class T>
T divide(T a, T b) {
  if (b == 0) return static_cast<T>(-1);  // what the hardware gives
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) return static_cast<T>(0 - static_cast<Unsigned<T>>(a));
  return static_cast<T>(a / b);
}

template <class T>
T remainder(T a, T b) {
  if (b == 0) return a;
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
  return static_cast<T>(a % b);
}

// Sums, differences and products wrap: they are taken without a sign, in 64 bits.
#define BINARY(name, expression)                                    \
  template <class T>                                                \
  struct name {                                                     \
    static T apply(T a, T b) { return static_cast<T>(expression); } \
  };

BINARY(Add, static_cast<uint64_t>(a) + static_cast<uint64_t>(b))
BINARY(Subtract, static_cast<uint64_t>(a) - static_cast<uint64_t>(b))
BINARY(Multiply, static_cast<uint64_t>(a) * static_cast<uint64_t>(b))
BINARY(Divide, divide(a, b))
BINARY(Remainder, remainder(a, b))
BINARY(Minimum, std::min(a, b))
BINARY(Maximum, std::max(a, b))

template <class T, template <class> class Operation>
void binary(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]);
  Lane* d = w.row(i.dst[0]);
  each_lane(mask, [&](int l) { d[l] = pack(Operation<T>::apply(static_cast<T>(a[l]), static_cast<T>(b[l]))); });
}

template <class T, template <class> class Operation>
void packed_binary(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]);
  Lane* d = w.row(i.dst[0]);
  each_lane(mask, [&](int l) {
    const Lane low = pack(Operation<T>::apply(static_cast<T>(a[l]), static_cast<T>(b[l])));
    const Lane high = pack(Operation<T>::apply(static_cast<T>(a[l] >> 16), static_cast<T>(b[l] >> 16)));
    d[l] = low | high << 16;
  });
}

template <template <class> class Operation>
Handler pick_binary(Type t) {
  switch (t) {
    case Type::u16: return binary<uint16_t, Operation>;
    case Type::s16: return binary<int16_t, Operation>;
    case Type::u32: return binary<uint32_t, Operation>;
    case Type::s32: return binary<int32_t, Operation>;
    case Type::u64: return binary<uint64_t, Operation>;
    case Type::s64: return binary<int64_t, Operation>;
    case Type::u16x2: return packed_binary<uint16_t, Operation>;
    case Type::s16x2: return packed_binary<int16_t, Operation>;
    default: return nullptr;
  }
}

// ---------------------------------------------------------------- any width at once, for what is rare

__extension__ using Wide = __int128;

Wide extend(Type t, Lane v) {
  switch (t) {
    case Type::s16: return static_cast<int16_t>(v);
    case Type::u16: return static_cast<uint16_t>(v);
    case Type::s32: return static_cast<int32_t>(v);
    case Type::u32: return static_cast<uint32_t>(v);
    case Type::s64: return static_cast<int64_t>(v);
    default: return static_cast<uint64_t>(v);
  }
}

Lane truncate(size_t bytes, Wide v) {
  const auto bits = static_cast<uint64_t>(v);
  return bytes >= 8 ? bits : bits & ((1ull << 8 * bytes) - 1);
}

Type doubled(Type t) {
  switch (t) {
    case Type::s16: return Type::s32;
    case Type::u16: return Type::u32;
    case Type::s32: return Type::s64;
    default: return Type::u64;
  }
}

Wide product(const Instruction& i, Lane a, Lane b) {
  // A 64 x 64 unsigned product fits 128 bits only when taken as unsigned.
  const Wide full = static_cast<Wide>(static_cast<unsigned __int128>(extend(i.type, a)) *
                                      static_cast<unsigned __int128>(extend(i.type, b)));
  if (i.variant != HIGH) return full;
  const int bits = static_cast<int>(8 * type_bytes(i.type));
  return is_signed(i.type) ? full >> bits : static_cast<Wide>(static_cast<unsigned __int128>(full) >> bits);
}

void multiply_part(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]);
  Lane* d = w.row(i.dst[0]);
  const size_t bytes = type_bytes(i.type) * (i.variant == WIDE ? 2 : 1);
  each_lane(mask, [&](int l) { d[l] = truncate(bytes, product(i, a[l], b[l])); });
}

void multiply_add(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]), *c = w.row(i.src[2]);
  Lane* d = w.row(i.dst[0]);
  const Type sum = i.variant == WIDE ? doubled(i.type) : i.type;
  each_lane(mask, [&](int l) { d[l] = truncate(type_bytes(sum), product(i, a[l], b[l]) + extend(sum, c[l])); });
}

template <class T>
void multiply_add_low(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]), *c = w.row(i.src[2]);
  Lane* d = w.row(i.dst[0]);
  each_lane(mask, [&](int l) {
    d[l] = static_cast<T>(static_cast<T>(a[l]) * static_cast<T>(b[l]) + static_cast<T>(c[l]));
  });
}

// The product wraps in 64 bits, which are all of the result.
template <class T>
void multiply_wide(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]);
  Lane* d = w.row(i.dst[0]);
  each_lane(mask, [&](int l) {
    d[l] = static_cast<Lane>(static_cast<int64_t>(static_cast<T>(a[l]))) *
           static_cast<Lane>(static_cast<int64_t>(static_cast<T>(b[l])));
  });
}

bool is_subtraction(const Instruction& i) { return i.text.find("sub") != std::string::npos; }

// add.cc, addc, sub.cc, subc: multi-word arithmetic
template <class U>
void with_carry(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]);
  Lane* d = w.row(i.dst[0]);
  const bool subtracts = is_subtraction(i);
  each_lane(mask, [&](int l) {
    const U x = static_cast<U>(a[l]), y = static_cast<U>(b[l]);
    const Wide carry = i.variant & USES ? w.carry >> l & 1 : 0;
    const Wide full = subtracts ? static_cast<Wide>(x) - y - carry : static_cast<Wide>(x) + y + carry;
    d[l] = static_cast<U>(full);
    if (!(i.variant & SETS)) return;
    const bool out = full != static_cast<Wide>(static_cast<U>(full));
    w.carry = (w.carry & ~(1u << l)) | static_cast<uint32_t>(out) << l;
  });
}

// mad.lo.cc, madc.hi and their like: the product's part and the carry are added to c
void multiply_add_carry(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]), *c = w.row(i.src[2]);
  Lane* d = w.row(i.dst[0]);
  const size_t bytes = type_bytes(i.type);
  const bool uses = i.text.find("madc") != std::string::npos, sets = i.text.find(".cc") != std::string::npos;
  each_lane(mask, [&](int l) {
    const Wide carry = uses ? w.carry >> l & 1 : 0;
    const Wide full = static_cast<Wide>(truncate(bytes, product(i, a[l], b[l]))) +
                      static_cast<Wide>(truncate(bytes, static_cast<Wide>(c[l]))) + carry;
    d[l] = truncate(bytes, full);
    if (sets) w.carry = (w.carry & ~(1u << l)) | static_cast<uint32_t>((full >> 8 * bytes) != 0) << l;
  });
}

// ---------------------------------------------------------------- the rest

void absolute(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane* a = w.row(i.src[0]);
  Lane* d = w.row(i.dst[0]);
  each_lane(mask, [&](int l) {
    const Wide v = extend(i.type, a[l]);
    d[l] = truncate(type_bytes(i.type), v < 0 ? -v : v);
  });
}

void negate(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane* a = w.row(i.src[0]);
  Lane* d = w.row(i.dst[0]);
  each_lane(mask, [&](int l) { d[l] = truncate(type_bytes(i.type), -extend(i.type, a[l])); });
}

void sum_of_differences(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]), *c = w.row(i.src[2]);
  Lane* d = w.row(i.dst[0]);
  each_lane(mask, [&](int l) {
    const Wide difference = extend(i.type, a[l]) - extend(i.type, b[l]);
    d[l] = truncate(type_bytes(i.type), extend(i.type, c[l]) + (difference < 0 ? -difference : difference));
  });
}

int64_t element(Lane v, int k, int bits, bool has_sign) {
  const uint64_t raw = v >> (k * bits) & ((1ull << bits) - 1);
  const bool negative = has_sign && raw >> (bits - 1);
  return static_cast<int64_t>(raw) - (negative ? int64_t{1} << bits : 0);
}

// dp4a: four bytes by four bytes; dp2a: two 16-bit halves by the low or high two bytes
void dot_product(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]), *c = w.row(i.src[2]);
  Lane* d = w.row(i.dst[0]);
  const bool four = i.text.find("dp4a") != std::string::npos;
  const int first_byte = i.text.find(".hi") != std::string::npos ? 2 : 0;
  const int count = four ? 4 : 2, bits_a = four ? 8 : 16;
  each_lane(mask, [&](int l) {
    int64_t sum = static_cast<int32_t>(c[l]);
    for (int k = 0; k < count; ++k) {
      sum += element(a[l], k, bits_a, is_signed(i.type)) * element(b[l], k + first_byte, 8, is_signed(i.source_type));
    }
    d[l] = static_cast<uint32_t>(sum);
  });
}

Handler pick_multiply(const Instruction& i) {
  if (i.variant == LOW) return pick_binary<Multiply>(i.type);
  if (i.variant == WIDE && i.type == Type::s32) return multiply_wide<int32_t>;
  if (i.variant == WIDE && i.type == Type::u32) return multiply_wide<uint32_t>;
  return multiply_part;
}

Handler pick_multiply_add(const Statement& s, const Instruction& i) {
  if (s.opcode == "madc" || Modifiers(s).has("cc")) return multiply_add_carry;
  const bool is_low_32 = i.variant == LOW && (i.type == Type::s32 || i.type == Type::u32);
  return is_low_32 ? multiply_add_low<uint32_t> : multiply_add;
}

Handler pick_carry(Type t) { return type_bytes(t) == 8 ? with_carry<uint64_t> : with_carry<uint32_t>; }

}  // namespace

bool bind_integer(const Statement& s, Instruction& i) {
  const Modifiers m(s);
  const std::string& op = s.opcode;
  i.category = Category::integer;
  if (i.saturate || i.relu) return false;
  const bool adds = op == "add" || op == "sub" || op == "addc" || op == "subc";
  if (adds && (m.has("cc") || op.size() == 4)) {
    i.variant = (m.has("cc") ? SETS : NO_CARRY) | (op.size() == 4 ? USES : NO_CARRY);
    i.execute = pick_carry(i.type);
    return true;
  }
  i.variant = m.has("wide") ? WIDE : m.has("hi") ? HIGH : LOW;
  if (op == "add") i.execute = pick_binary<Add>(i.type);
  if (op == "sub") i.execute = pick_binary<Subtract>(i.type);
  if (op == "mul") i.execute = pick_multiply(i);
  if (op == "mad" || op == "madc") i.execute = pick_multiply_add(s, i);
  if (op == "div") i.execute = pick_binary<Divide>(i.type);
  if (op == "rem") i.execute = pick_binary<Remainder>(i.type);
  if (op == "min") i.execute = pick_binary<Minimum>(i.type);
  if (op == "max") i.execute = pick_binary<Maximum>(i.type);
  if (op == "abs") i.execute = absolute;
  if (op == "neg") i.execute = negate;
  if (op == "sad") i.execute = sum_of_differences;
  if (op == "dp4a" || op == "dp2a") i.execute = dot_product;
  return i.execute != nullptr;
}

}  // namespace minicnn::sim
