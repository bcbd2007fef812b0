// convert.cpp -- cvt: between integers, floats and halves, with rounding and saturation
//
// Needs -frounding-math, as float.cpp does.
#include <cfenv>
#include <cmath>

#include "bind.h"
#include "halves.h"
#include "machine.h"

namespace minicnn::sim {
namespace {

struct Bounds {
  double low, high;  // as doubles: 64-bit limits are the nearest representable ones inside
};

Bounds bounds_of(Type t) {
  switch (t) {
    case Type::s8: return {-0x1p7, 0x1p7 - 1};
    case Type::u8: return {0, 0x1p8 - 1};
    case Type::s16: return {-0x1p15, 0x1p15 - 1};
    case Type::u16: return {0, 0x1p16 - 1};
    case Type::s32: return {-0x1p31, 0x1p31 - 1};
    case Type::u32: return {0, 0x1p32 - 1};
    case Type::s64: return {-0x1p63, 0x1p63};
    default: return {0, 0x1p64};
  }
}

double round_to_integer(double x, Rounding r) {
  switch (r) {
    case Rounding::zero: return std::trunc(x);
    case Rounding::down: return std::floor(x);
    case Rounding::up: return std::ceil(x);
    default: return std::nearbyint(x);
  }
}

double read_float(Type t, Lane v) {
  switch (t) {
    case Type::f64: return from_lane<double>(v);
    case Type::f16: return half_to_float(static_cast<uint16_t>(v));
    case Type::bf16: return bfloat_to_float(static_cast<uint16_t>(v));
    default: return float_from_bits(static_cast<uint32_t>(v));
  }
}

int64_t read_integer(Type t, Lane v) {
  switch (t) {
    case Type::s8: return static_cast<int8_t>(v);
    case Type::u8: return static_cast<uint8_t>(v);
    case Type::s16: return static_cast<int16_t>(v);
    case Type::u16: return static_cast<uint16_t>(v);
    case Type::s32: return static_cast<int32_t>(v);
    case Type::u32: return static_cast<uint32_t>(v);
    default: return static_cast<int64_t>(v);
  }
}

// The register may be wider than the type: signed results extend their sign over it.
Lane write_integer(Type t, int64_t v) {
  if (t == Type::s16 || t == Type::u16 || t == Type::u8 || t == Type::u32 || t == Type::s8 || t == Type::s32) {
    return static_cast<Lane>(read_integer(t, static_cast<Lane>(v)));
  }
  return static_cast<Lane>(v);
}

// Source of NaN's value: PTX ISA, cvt.
int64_t float_to_integer(Type t, Type from, double x, Rounding r) {
  x = round_to_integer(x, r);
  if (x != x) return from == Type::f64 || type_bytes(t) == 8 ? INT64_MIN >> (64 - 8 * type_bytes(t)) : 0;
  const Bounds b = bounds_of(t);
  if (t == Type::u64) {
    if (x >= b.high) return -1;
    return x <= 0 ? 0 : static_cast<int64_t>(static_cast<uint64_t>(x));
  }
  if (t == Type::s64 && x >= b.high) return INT64_MAX;
  return static_cast<int64_t>(std::min(std::max(x, b.low), b.high));
}

int64_t saturate_integer(Type to, Type from, int64_t v) {
  if (type_bytes(to) >= 8) {
    return to == Type::u64 && is_signed(from) ? std::max<int64_t>(v, 0) : v;
  }
  const bool huge = from == Type::u64 && v < 0;
  const Bounds b = bounds_of(to);
  if (huge) return static_cast<int64_t>(b.high);
  return std::min(std::max(v, static_cast<int64_t>(b.low)), static_cast<int64_t>(b.high));
}

// Whether a directed mode forbids the nearest value, and on which side it lies.
bool too_high(double value, double x, Rounding r) {
  return value > x && (r == Rounding::down || (r == Rounding::zero && x > 0));
}
bool too_low(double value, double x, Rounding r) {
  return value < x && (r == Rounding::up || (r == Rounding::zero && x < 0));
}

uint16_t round_half(double x, Rounding r, Type t) {
  const bool is_half = t == Type::f16;
  const float once = double_to_odd_float(x);
  const uint16_t h = is_half ? float_to_half(once) : float_to_bfloat(once);
  const double value = is_half ? half_to_float(h) : bfloat_to_float(h);
  const bool high = too_high(value, x, r), low = too_low(value, x, r);
  if (!high && !low) return h;
  const bool grows = high ? x < 0 : x > 0;  // the next value is larger in size
  return static_cast<uint16_t>(grows ? h + 1 : h - 1);
}

uint32_t round_tf32(float x, Rounding r) {
  const uint32_t u = float_bits(x);
  if (x != x) return 0x7fffffffu;
  if ((u & 0x7f800000u) == 0x7f800000u) return u;
  if (r == Rounding::zero) return u & ~0x1fffu;
  if (r == Rounding::nearest_away) return (u + 0x1000u) & ~0x1fffu;
  return (u + 0xfffu + (u >> 13 & 1)) & ~0x1fffu;
}

float to_float_rounded(double x, Rounding r) {
  const auto f = static_cast<float>(x);
  if (too_high(f, x, r)) return std::nextafterf(f, -INFINITY);
  if (too_low(f, x, r)) return std::nextafterf(f, INFINITY);
  return f;
}

// fp32 from a 64-bit integer must not go through double, which would round twice.
float integer_to_float(Type from, int64_t v, Rounding r) {
  int mode = FE_TONEAREST;
  if (r == Rounding::zero) mode = FE_TOWARDZERO;
  if (r == Rounding::down) mode = FE_DOWNWARD;
  if (r == Rounding::up) mode = FE_UPWARD;
  fesetround(mode);
  volatile float f = from == Type::u64 ? static_cast<float>(static_cast<uint64_t>(v)) : static_cast<float>(v);
  fesetround(FE_TONEAREST);
  return f;
}

Lane write_float(const Instruction& i, double x) {
  switch (i.type) {
    case Type::f64: return to_lane(x);
    case Type::f16: case Type::bf16: return round_half(x, i.rounding, i.type);
    case Type::tf32: return round_tf32(static_cast<float>(x), i.rounding);
    default: return float_bits(to_float_rounded(x, i.rounding));
  }
}

double limited(const Instruction& i, double x) {
  if (i.saturate) return x > 0 ? std::min(x, 1.0) : 0.0;
  if (i.relu && !(x > 0)) return x != x ? x : 0.0;
  return x;
}

double flush_small(const Instruction& i, Type t, double x) {
  return i.flush && t == Type::f32 && std::fabs(x) < 0x1p-126 ? std::copysign(0.0, x) : x;
}

// cvt.rni.f32.f32 and the like round to an integer value; elsewhere the mode is that of the narrower format
void float_to_float(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane* a = w.row(i.src[0]);
  Lane* d = w.row(i.dst[0]);
  Instruction write = i;
  if (i.variant) write.rounding = Rounding::nearest;
  each_lane(mask, [&](int l) {
    double x = flush_small(i, i.source_type, read_float(i.source_type, a[l]));
    if (i.variant) x = round_to_integer(x, i.rounding);
    d[l] = write_float(write, flush_small(i, i.type, limited(i, x)));
  });
}

void integer_to_any_float(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane* a = w.row(i.src[0]);
  Lane* d = w.row(i.dst[0]);
  each_lane(mask, [&](int l) {
    const int64_t v = read_integer(i.source_type, a[l]);
    if (i.type == Type::f32) {
      d[l] = float_bits(static_cast<float>(limited(i, integer_to_float(i.source_type, v, i.rounding))));
    } else {
      d[l] = write_float(i, i.source_type == Type::u64 ? static_cast<double>(static_cast<uint64_t>(v))
                                                       : static_cast<double>(v));
    }
  });
}

void float_to_any_integer(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane* a = w.row(i.src[0]);
  Lane* d = w.row(i.dst[0]);
  each_lane(mask, [&](int l) {
    const double x = flush_small(i, i.source_type, read_float(i.source_type, a[l]));
    d[l] = write_integer(i.type, float_to_integer(i.type, i.source_type, x, i.rounding));
  });
}

void integer_to_integer(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane* a = w.row(i.src[0]);
  Lane* d = w.row(i.dst[0]);
  each_lane(mask, [&](int l) {
    int64_t v = read_integer(i.source_type, a[l]);
    if (i.saturate) v = saturate_integer(i.type, i.source_type, v);
    d[l] = write_integer(i.type, v);
  });
}

// "cvt.rn.f16x2.f32 d, a, b": a becomes the upper half
void floats_to_pair(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *high = w.row(i.src[0]), *low = w.row(i.src[1]);
  Lane* d = w.row(i.dst[0]);
  Instruction one = i;
  one.type = i.type == Type::f16x2 ? Type::f16 : Type::bf16;
  each_lane(mask, [&](int l) {
    const auto convert = [&](Lane v) { return write_float(one, limited(i, read_float(Type::f32, v))); };
    d[l] = convert(low[l]) | convert(high[l]) << 16;
  });
}

// "cvt.pack.sat.s8.s32.b32 d, a, b, c": a and b saturated below the lower half of c; without c, to 16 bits
void pack_integers(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]);
  Lane* d = w.row(i.dst[0]);
  const size_t bits = 8 * type_bytes(i.type);
  const uint64_t keep = (1ull << bits) - 1;
  each_lane(mask, [&](int l) {
    const auto narrow = [&](Lane v) {
      return static_cast<uint64_t>(saturate_integer(i.type, Type::s32, static_cast<int32_t>(v))) & keep;
    };
    const uint64_t rest = i.src.size() > 2 ? w.row(i.src[2])[l] << 2 * bits : 0;
    d[l] = static_cast<uint32_t>(rest | narrow(a[l]) << bits | narrow(b[l]));
  });
}

}  // namespace

bool bind_convert(const Statement& s, Instruction& i) {
  const Modifiers m(s);
  i.category = Category::convert;
  if (m.has("pack")) {
    i.execute = pack_integers;
    return m.has("sat");
  }
  if (i.type == Type::f16x2 || i.type == Type::bf16x2) {
    i.execute = floats_to_pair;
    return i.source_type == Type::f32;
  }
  const bool to_float = is_float(i.type), from_float = is_float(i.source_type);
  i.variant = to_float && from_float && (m.has("rni") || m.has("rzi") || m.has("rmi") || m.has("rpi"));
  for (const std::string& word : s.modifiers) {  // the 8-bit and smaller floats are not simulated
    for (const char* small : {"e4m3", "e5m2", "e2m", "e3m", "ue8m0"}) {
      if (word.rfind(small, 0) == 0) return false;
    }
  }
  if (to_float) {
    i.execute = from_float ? float_to_float : integer_to_any_float;
  } else {
    i.execute = from_float ? float_to_any_integer : integer_to_integer;
  }
  return i.type != Type::none;
}

}  // namespace minicnn::sim
