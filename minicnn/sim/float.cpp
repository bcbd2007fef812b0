// float.cpp -- arithmetic on fp16, bf16, fp32, fp64 and packed halves
//
// Halves are computed in a wider format and rounded once. Directed rounding uses the host's rounding mode, so this file
// must be compiled with -frounding-math. The .approx functions are the host's exact ones: more exact than a GPU.
#include <cfenv>
#include <cmath>

#include "bind.h"
#include "halves.h"
#include "machine.h"

namespace minicnn::sim {
namespace {

// ---------------------------------------------------------------- formats

// Compute is what an operation works in; fma of halves needs Wide for its product to be exact.
struct F32 {
  using Compute = float;
  using Wide = float;
  static float unpack(Lane v) { return float_from_bits(static_cast<uint32_t>(v)); }
  static Lane pack(float x) { return float_bits(x); }
};
struct F64 {
  using Compute = double;
  using Wide = double;
  static double unpack(Lane v) { return from_lane<double>(v); }
  static Lane pack(double x) { return to_lane(x); }
};
struct F16 {
  using Compute = float;
  using Wide = double;
  static float unpack(Lane v) { return half_to_float(static_cast<uint16_t>(v)); }
  static Lane pack(float x) { return float_to_half(x); }
  static Lane pack(double x) { return float_to_half(double_to_odd_float(x)); }
};
struct BF16 {
  using Compute = float;
  using Wide = double;
  static float unpack(Lane v) { return bfloat_to_float(static_cast<uint16_t>(v)); }
  static Lane pack(float x) { return float_to_bfloat(x); }
  static Lane pack(double x) { return float_to_bfloat(double_to_odd_float(x)); }
};

class RoundingScope {
 public:
  explicit RoundingScope(Rounding r) : changed_(r != Rounding::nearest) {
    if (!changed_) return;
    fesetround(r == Rounding::zero ? FE_TOWARDZERO : r == Rounding::down ? FE_DOWNWARD : FE_UPWARD);
  }
  ~RoundingScope() {
    if (changed_) fesetround(FE_TONEAREST);
  }

 private:
  bool changed_;
};

template <class T>
T flushed(T x) {  // subnormal fp32 becomes a zero of its sign
  if constexpr (sizeof(T) == sizeof(float)) {
    if (std::fabs(x) < 0x1p-126f) return std::copysign(T{0}, x);
  }
  return x;
}

template <class T>
T finished(const Instruction& i, T x) {
  if (i.flush) x = flushed(x);
  if (i.saturate) x = x > 0 ? (x < 1 ? x : T{1}) : T{0};  // NaN becomes 0
  if (i.relu && !(x > 0)) x = x != x ? x : T{0};
  return x;
}

bool is_plain(const Instruction& i) { return !i.flush && !i.saturate && !i.relu; }

// ---------------------------------------------------------------- one, two, three operands

template <class Format, class Operation>
Lane apply1(const Instruction& i, Lane a) {
  auto x = Format::unpack(a);
  if (i.flush) x = flushed(x);
  return Format::pack(finished(i, Operation::apply(i, x)));
}

template <class Format, class Operation>
Lane apply2(const Instruction& i, Lane a, Lane b) {
  auto x = Format::unpack(a), y = Format::unpack(b);
  if (i.flush) x = flushed(x), y = flushed(y);
  return Format::pack(finished(i, Operation::apply(i, x, y)));
}

template <class Format, class Operation>
Lane apply3(const Instruction& i, Lane a, Lane b, Lane c) {
  using Wide = typename Format::Wide;
  Wide x = Format::unpack(a), y = Format::unpack(b), z = Format::unpack(c);
  if (i.flush) x = flushed(x), y = flushed(y), z = flushed(z);
  return Format::pack(finished(i, Operation::apply(i, x, y, z)));
}

// A packed pair: the same on the low and the high half.
template <class Format>
struct Pair {
  template <class Operation>
  static Lane one(const Instruction& i, Lane a) {
    return apply1<Format, Operation>(i, a) | apply1<Format, Operation>(i, a >> 16) << 16;
  }
  template <class Operation>
  static Lane two(const Instruction& i, Lane a, Lane b) {
    return apply2<Format, Operation>(i, a, b) | apply2<Format, Operation>(i, a >> 16, b >> 16) << 16;
  }
  template <class Operation>
  static Lane three(const Instruction& i, Lane a, Lane b, Lane c) {
    return apply3<Format, Operation>(i, a, b, c) | apply3<Format, Operation>(i, a >> 16, b >> 16, c >> 16) << 16;
  }
};
template <class Format>
struct Single {
  template <class Operation>
  static Lane one(const Instruction& i, Lane a) { return apply1<Format, Operation>(i, a); }
  template <class Operation>
  static Lane two(const Instruction& i, Lane a, Lane b) { return apply2<Format, Operation>(i, a, b); }
  template <class Operation>
  static Lane three(const Instruction& i, Lane a, Lane b, Lane c) { return apply3<Format, Operation>(i, a, b, c); }
};

template <class Shape, class Operation>
void unary(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane* a = w.row(i.src[0]);
  Lane* d = w.row(i.dst[0]);
  const RoundingScope scope(i.rounding);
  each_lane(mask, [&](int l) { d[l] = Shape::template one<Operation>(i, a[l]); });
}

template <class Shape, class Operation>
void binary(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]);
  Lane* d = w.row(i.dst[0]);
  const RoundingScope scope(i.rounding);
  each_lane(mask, [&](int l) { d[l] = Shape::template two<Operation>(i, a[l], b[l]); });
}

template <class Shape, class Operation>
void ternary(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]), *c = w.row(i.src[2]);
  Lane* d = w.row(i.dst[0]);
  const RoundingScope scope(i.rounding);
  each_lane(mask, [&](int l) { d[l] = Shape::template three<Operation>(i, a[l], b[l], c[l]); });
}

// The inner loops of a network are these three; without flags they need no branches.
template <class Operation>
void plain_f32_binary(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]);
  Lane* d = w.row(i.dst[0]);
  each_lane(mask, [&](int l) { d[l] = F32::pack(Operation::apply(i, F32::unpack(a[l]), F32::unpack(b[l]))); });
}

void plain_f32_fma(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]), *c = w.row(i.src[2]);
  Lane* d = w.row(i.dst[0]);
  each_lane(mask, [&](int l) {
    d[l] = F32::pack(std::fma(F32::unpack(a[l]), F32::unpack(b[l]), F32::unpack(c[l])));
  });
}

// ---------------------------------------------------------------- operations

#define UNARY(name, expression)                          \
  struct name {                                          \
    template <class T>                                   \
    static T apply(const Instruction&, T x) { return static_cast<T>(expression); } \
  };
#define BINARY(name, expression)                              \
  struct name {                                               \
    template <class T>                                        \
    static T apply(const Instruction&, T x, T y) { return static_cast<T>(expression); } \
  };

UNARY(Reciprocal, T{1} / x)
UNARY(SquareRoot, std::sqrt(x))
UNARY(ReciprocalRoot, T{1} / std::sqrt(x))
UNARY(Sine, std::sin(x))
UNARY(Cosine, std::cos(x))
UNARY(Exp2, std::exp2(x))
UNARY(Log2, std::log2(x))
UNARY(Tanh, std::tanh(x))
BINARY(Add, x + y)
BINARY(Subtract, x - y)
BINARY(Multiply, x * y)
BINARY(Divide, x / y)

struct FusedMultiplyAdd {
  template <class T>
  static T apply(const Instruction&, T x, T y, T z) { return std::fma(x, y, z); }
};

// -0 counts as less than +0, as PTX has it; without .NaN a number wins over NaN.
template <bool want_larger>
struct Extremum {
  template <class T>
  static T apply(const Instruction& i, T x, T y) {
    if (x != x || y != y) {
      if (i.nan) return static_cast<T>(NAN);
      return x != x ? y : x;
    }
    if (x == y) return (std::signbit(x) != 0) == want_larger ? y : x;
    return (x > y) == want_larger ? x : y;
  }
  template <class T>
  static T apply(const Instruction& i, T x, T y, T z) { return apply(i, apply(i, x, y), z); }
};

template <class Operation>
Handler pick_unary(Type t) {
  switch (t) {
    case Type::f32: return unary<Single<F32>, Operation>;
    case Type::f64: return unary<Single<F64>, Operation>;
    case Type::f16: return unary<Single<F16>, Operation>;
    case Type::bf16: return unary<Single<BF16>, Operation>;
    case Type::f16x2: return unary<Pair<F16>, Operation>;
    case Type::bf16x2: return unary<Pair<BF16>, Operation>;
    default: return nullptr;
  }
}

template <class Operation>
Handler pick_binary(const Instruction& i) {
  switch (i.type) {
    case Type::f32:
      if (is_plain(i) && i.rounding == Rounding::nearest) return plain_f32_binary<Operation>;
      return binary<Single<F32>, Operation>;
    case Type::f64: return binary<Single<F64>, Operation>;
    case Type::f16: return binary<Single<F16>, Operation>;
    case Type::bf16: return binary<Single<BF16>, Operation>;
    case Type::f16x2: return binary<Pair<F16>, Operation>;
    case Type::bf16x2: return binary<Pair<BF16>, Operation>;
    default: return nullptr;
  }
}

template <class Operation>
Handler pick_ternary(Type t) {
  switch (t) {
    case Type::f32: return ternary<Single<F32>, Operation>;
    case Type::f64: return ternary<Single<F64>, Operation>;
    case Type::f16: return ternary<Single<F16>, Operation>;
    case Type::bf16: return ternary<Single<BF16>, Operation>;
    case Type::f16x2: return ternary<Pair<F16>, Operation>;
    case Type::bf16x2: return ternary<Pair<BF16>, Operation>;
    default: return nullptr;
  }
}

Handler pick_fma(const Instruction& i) {
  const bool is_common = i.type == Type::f32 && is_plain(i) && i.rounding == Rounding::nearest;
  return is_common ? plain_f32_fma : pick_ternary<FusedMultiplyAdd>(i.type);
}

// ---------------------------------------------------------------- signs: bits only, so that NaN payloads stay

uint64_t sign_bits(Type t) {
  switch (t) {
    case Type::f16: case Type::bf16: return 0x8000;
    case Type::f16x2: case Type::bf16x2: return 0x80008000u;
    case Type::f64: return 1ull << 63;
    default: return 1u << 31;
  }
}

void absolute(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane* a = w.row(i.src[0]);
  Lane* d = w.row(i.dst[0]);
  const uint64_t sign = sign_bits(i.type);
  each_lane(mask, [&](int l) { d[l] = a[l] & ~sign; });
}

void negate(Block&, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane* a = w.row(i.src[0]);
  Lane* d = w.row(i.dst[0]);
  const uint64_t sign = sign_bits(i.type);
  each_lane(mask, [&](int l) { d[l] = a[l] ^ sign; });
}

void copy_sign(Block&, Warp& w, const Instruction& i, uint32_t mask) {  // the sign of a on the size of b
  const Lane *a = w.row(i.src[0]), *b = w.row(i.src[1]);
  Lane* d = w.row(i.dst[0]);
  const uint64_t sign = sign_bits(i.type);
  each_lane(mask, [&](int l) { d[l] = (b[l] & ~sign) | (a[l] & sign); });
}

}  // namespace

bool bind_float(const Statement& s, Instruction& i) {
  const Modifiers m(s);
  i.category = category_of(i.type);
  const std::string& op = s.opcode;
  if (m.has("xorsign")) return false;
  if (op == "add") i.execute = pick_binary<Add>(i);
  if (op == "sub") i.execute = pick_binary<Subtract>(i);
  if (op == "mul") i.execute = pick_binary<Multiply>(i);
  if (op == "div") i.execute = pick_binary<Divide>(i);
  const bool three = s.operands.size() > 3;
  if (op == "min") i.execute = three ? pick_ternary<Extremum<false>>(i.type) : pick_binary<Extremum<false>>(i);
  if (op == "max") i.execute = three ? pick_ternary<Extremum<true>>(i.type) : pick_binary<Extremum<true>>(i);
  if (op == "fma" || op == "mad") i.execute = pick_fma(i);
  if (op == "rcp") i.execute = pick_unary<Reciprocal>(i.type);
  if (op == "sqrt") i.execute = pick_unary<SquareRoot>(i.type);
  if (op == "rsqrt") i.execute = pick_unary<ReciprocalRoot>(i.type);
  if (op == "sin") i.execute = pick_unary<Sine>(i.type);
  if (op == "cos") i.execute = pick_unary<Cosine>(i.type);
  if (op == "ex2") i.execute = pick_unary<Exp2>(i.type);
  if (op == "lg2") i.execute = pick_unary<Log2>(i.type);
  if (op == "tanh") i.execute = pick_unary<Tanh>(i.type);
  if (op == "abs") i.execute = absolute;
  if (op == "neg") i.execute = negate;
  if (op == "copysign") i.execute = copy_sign;
  return i.execute != nullptr;
}

}  // namespace minicnn::sim
