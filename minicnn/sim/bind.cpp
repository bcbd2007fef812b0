// bind.cpp -- opcode to family, and what all families read from the modifiers
#include "bind.h"

#include <map>

#include "machine.h"

namespace minicnn::sim {

const std::string Modifiers::EMPTY;

Category category_of(Type type) {
  switch (type) {
    case Type::f16: case Type::f16x2: case Type::bf16: case Type::bf16x2: return Category::fp16;
    case Type::f32: case Type::tf32: return Category::fp32;
    case Type::f64: return Category::fp64;
    default: return Category::integer;
  }
}

namespace {

void nothing(Block&, Warp&, const Instruction&, uint32_t) {}

void trap(Block& b, Warp& w, const Instruction& i, uint32_t mask) {
  const bool is_assert = i.text.find("__assertfail") != std::string::npos;
  const bool is_trap = i.text.find("trap") != std::string::npos;
  const auto kind = is_assert || is_trap ? FaultKind::trap : FaultKind::unsupported;
  const char* what = is_assert ? "assertion failed"
                     : is_trap ? "trap executed"
                               : "printf, malloc and free are not simulated";
  b.fail(kind, what, w, first_lane(mask), &i);
}

bool bind_control(const Statement& s, Instruction& i) {
  i.category = Category::control;
  if (s.opcode == "bra") i.flow = Flow::branch;
  if (s.opcode == "brx") i.flow = Flow::indexed_branch;
  if (s.opcode == "ret" || s.opcode == "exit") i.flow = Flow::exit;
  return true;
}

bool bind_trap(const Statement&, Instruction& i) {
  i.category = Category::control;
  i.execute = trap;
  return true;
}

// Fences order nothing here: the executor's memory is sequentially consistent, and races are found by barriers.
bool bind_nothing(const Statement&, Instruction& i) {
  i.category = Category::control;
  i.execute = nothing;
  return true;
}

bool bind_barrier(const Statement& s, Instruction& i) {
  const Modifiers m(s);
  i.category = Category::control;
  i.flow = m.has("warp") ? Flow::warp_barrier : Flow::barrier;
  if (m.has("cluster")) return false;
  i.aligned = s.opcode == "bar" || m.has("aligned");
  i.variant = m.has("arrive") ? 1 : m.has("red") ? 2 + m.which({"popc", "and", "or"}) : 0;
  return true;
}

bool bind_arithmetic(const Statement& s, Instruction& i) {
  return is_float(i.type) ? bind_float(s, i) : bind_integer(s, i);
}

void set_common(const Statement& s, Instruction& i) {
  const Modifiers m(s);
  for (const std::string& word : s.modifiers) {
    Type t;
    if (!type_from_name(word, &t)) continue;
    if (i.type == Type::none) i.type = t;
    i.source_type = t;
  }
  if (m.has("global")) i.space = Space::global;
  if (m.has("shared") || m.has("shared::cta")) i.space = Space::shared;
  if (m.has("local")) i.space = Space::local;
  if (m.has("const")) i.space = Space::constant;
  if (m.has("param") || m.has("param::entry") || m.has("param::func")) i.space = Space::parameter;
  i.saturate = m.has("sat");
  i.relu = m.has("relu");
  i.flush = m.has("ftz");
  i.nan = m.has("NaN");
  i.transposed = m.has("trans");
  if (m.has("rz") || m.has("rzi")) i.rounding = Rounding::zero;
  if (m.has("rm") || m.has("rmi")) i.rounding = Rounding::down;
  if (m.has("rp") || m.has("rpi")) i.rounding = Rounding::up;
  if (m.has("rni")) i.rounding = Rounding::nearest_integer;
  if (m.has("rna")) i.rounding = Rounding::nearest_away;
}

using Binder = bool (*)(const Statement&, Instruction&);

const std::map<std::string, Binder>& families() {
  static const std::map<std::string, Binder> FAMILIES = {
      {"ld", bind_memory}, {"ldu", bind_memory}, {"st", bind_memory}, {"cvta", bind_memory},
      {"isspacep", bind_memory}, {"atom", bind_atomic}, {"red", bind_atomic}, {"cp", bind_async},
      {"add", bind_arithmetic}, {"sub", bind_arithmetic}, {"mul", bind_arithmetic}, {"div", bind_arithmetic},
      {"min", bind_arithmetic}, {"max", bind_arithmetic}, {"abs", bind_arithmetic}, {"neg", bind_arithmetic},
      {"fma", bind_arithmetic}, {"mad", bind_arithmetic}, {"rcp", bind_float}, {"sqrt", bind_float},
      {"rsqrt", bind_float}, {"sin", bind_float}, {"cos", bind_float}, {"ex2", bind_float}, {"lg2", bind_float},
      {"tanh", bind_float}, {"copysign", bind_float},
      {"addc", bind_integer}, {"subc", bind_integer}, {"madc", bind_integer}, {"rem", bind_integer},
      {"sad", bind_integer}, {"dp4a", bind_integer},
      {"dp2a", bind_integer},
      {"and", bind_bits}, {"or", bind_bits}, {"xor", bind_bits}, {"not", bind_bits}, {"cnot", bind_bits},
      {"shl", bind_bits}, {"shr", bind_bits}, {"shf", bind_bits}, {"prmt", bind_bits}, {"bfe", bind_bits},
      {"bfi", bind_bits}, {"bfind", bind_bits}, {"popc", bind_bits}, {"clz", bind_bits}, {"brev", bind_bits},
      {"lop3", bind_bits},
      {"cvt", bind_convert},
      {"setp", bind_compare}, {"set", bind_compare}, {"selp", bind_compare}, {"slct", bind_compare},
      {"testp", bind_compare}, {"mov", bind_move},
      {"shfl", bind_warp}, {"vote", bind_warp}, {"match", bind_warp}, {"redux", bind_warp},
      {"activemask", bind_warp}, {"elect", bind_warp},
      {"ldmatrix", bind_matrix}, {"stmatrix", bind_matrix}, {"mma", bind_matrix}, {"wmma", bind_wmma},
      {"bar", bind_barrier}, {"barrier", bind_barrier},
      {"bra", bind_control}, {"brx", bind_control}, {"ret", bind_control}, {"exit", bind_control},
      {"trap", bind_trap},
      {"membar", bind_nothing}, {"fence", bind_nothing}, {"prefetch", bind_nothing}, {"prefetchu", bind_nothing},
      {"griddepcontrol", bind_nothing}, {"nanosleep", bind_nothing}, {"brkpt", bind_nothing},
      {"pmevent", bind_nothing}, {"discard", bind_nothing}, {"applypriority", bind_nothing}};
  return FAMILIES;
}

}  // namespace

bool bind(const Statement& statement, Instruction& instruction) {
  set_common(statement, instruction);
  const auto family = families().find(statement.opcode);
  return family != families().end() && family->second(statement, instruction);
}

}  // namespace minicnn::sim
