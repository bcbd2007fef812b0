// ptx.h -- what a PTX module is once it has been read
//
// Two stages. The parser turns text into a Module: functions as lists of Statements whose operands are still names.
// decode() turns one entry into a Program: a flat list of Instructions whose operands are rows of the register file.
// Device functions are inlined on the way, so the executor knows no call stack.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace minicnn::sim {

constexpr int WARP = 32;
constexpr uint32_t FULL_WARP = ~0u;

// The untyped .b8 ... .b64 are read as unsigned: no instruction treats them differently.
enum class Type : uint8_t {
  none, u8, u16, u32, u64, s8, s16, s32, s64, f16, bf16, tf32, f32, f64, f16x2, bf16x2, u16x2, s16x2, predicate
};
enum class Space : uint8_t { generic, global, shared, local, constant, parameter };
enum class Rounding : uint8_t { nearest, zero, down, up, nearest_integer, nearest_away };

size_t type_bytes(Type type);
bool type_from_name(const std::string& name, Type* type);

enum class FaultKind {
  none, parse, unsupported, out_of_bounds, misaligned, uninitialised, barrier, collective, race, async_copy,
  endless, launch, trap
};

struct Fault {
  FaultKind kind;
  std::string message;
};

// ---------------------------------------------------------------- what the parser makes

struct SourceLine {
  int file = 0;  // the number given by .file; 0: unknown
  int line = 0;
};

struct Variable {
  std::string name;
  Space space = Space::global;
  size_t align = 1;
  size_t bytes = 0;
  size_t element_bytes = 1;
  std::vector<std::string> initial;  // one text per element
};

struct OperandText {
  enum Kind { plain, address, group } kind = plain;
  std::string text;                // without its brackets
  std::vector<std::string> parts;  // of a {vector}, a (list) or a pair p|q
};

struct Statement {
  enum Kind { open_scope, close_scope, label, registers, variable, instruction } kind = instruction;
  std::string name;      // label, or the register's name or prefix
  int count = -1;        // registers declared as prefix<count>; -1: a single one
  Variable declared;     // kind variable
  std::string guard;     // predicate register of "@p"
  bool guard_negated = false;
  std::string opcode;
  std::vector<std::string> modifiers;
  std::vector<OperandText> operands;
  std::string text;
  int line = 0;
  SourceLine source;
};

struct Function {
  std::string name;
  bool is_entry = false;
  std::vector<Variable> parameters, results;
  std::vector<Statement> body;
  int max_threads = 1024;
  bool has_body = false;
};

struct Program;

struct ModuleVariable {
  Variable declared;
  char* storage = nullptr;  // null for shared memory, which each block has for itself
};

struct Module {
  std::map<std::string, Function> functions;
  std::map<std::string, ModuleVariable> variables;
  std::map<int, std::string> files;
  std::vector<std::unique_ptr<char[]>> storage;
  std::map<std::string, std::shared_ptr<Program>> programs;  // entries decoded so far
};

std::unique_ptr<Module> parse(const std::string& text);

// ---------------------------------------------------------------- what decode makes

class Block;
struct Warp;
struct Instruction;

// Executes one instruction for the lanes in mask (never empty).
using Handler = void (*)(Block&, Warp&, const Instruction&, uint32_t mask);

// What the executor itself has to do with an instruction; everything else is the handler's.
enum class Flow : uint8_t { next, branch, indexed_branch, exit, barrier, warp_barrier, collective };

enum class Category : uint8_t { fp16, fp32, fp64, integer, convert, memory, tensor, control, warp, count };

struct Instruction {
  Handler execute = nullptr;
  Flow flow = Flow::next;
  Category category = Category::integer;
  Type type = Type::none;         // first type named by the opcode
  Type source_type = Type::none;  // last one
  Space space = Space::generic;
  Rounding rounding = Rounding::nearest;
  bool saturate = false, relu = false, flush = false, nan = false, transposed = false, aligned = true;
  int guard = -1;  // row of the predicate
  bool guard_negated = false;
  std::vector<int> dst, src;  // rows
  uint32_t negated = 0;       // bit k: source k is a predicate read inverted
  int address = -1;           // row of the address, to which offset is added
  int64_t offset = 0;
  int second_address = -1;    // cp.async: where it reads from
  int64_t second_offset = 0;
  int width = 1;              // elements of type moved at once (.v2, .v4)
  int variant = 0;            // meaning private to the handler
  int member_mask = -1;       // row of the lanes that must take part; -1: all lanes
  int tile_m = 0, tile_n = 0, tile_k = 0;
  int count_a = 0, count_b = 0;  // registers of the first two fragments
  int target = -1;            // branch: index of an instruction
  std::vector<int> targets;   // brx.idx
  int line = 0;
  SourceLine source;
  std::string text;
};

struct Parameter {
  size_t offset = 0, bytes = 0;
};

enum class Special : uint8_t {
  tid_x, tid_y, tid_z, ntid_x, ntid_y, ntid_z, ctaid_x, ctaid_y, ctaid_z, nctaid_x, nctaid_y, nctaid_z,
  laneid, warpid, nwarpid, smid, lanemask_eq, lanemask_lt, lanemask_le, lanemask_gt, lanemask_ge,
  dynamic_shared_bytes, total_shared_bytes, clock
};
bool special_from_name(const std::string& name, Special* special);

// Rows of the register file: first the registers, then constants, then special registers.
struct Program {
  std::string name;
  std::vector<Instruction> code;
  std::vector<Parameter> parameters;
  size_t parameter_bytes = 0;
  size_t static_shared = 0;    // bytes, rounded up to 16: dynamic shared memory starts there
  size_t local_bytes = 0;      // of each thread
  size_t shared_granule = 16;  // no access to shared memory is narrower: the shadow's cell
  int max_threads = 1024;
  int registers = 0;
  std::vector<uint64_t> constants;
  std::vector<Special> specials;
  int rows() const { return registers + static_cast<int>(constants.size() + specials.size()); }
};

// Cached in the module. Throws Fault: parse, or unsupported with the line.
std::shared_ptr<Program> decode(Module& module, const std::string& entry);

// Gives an instruction its handler, from its opcode and modifiers; false when the opcode is unknown.
bool bind(const Statement& statement, Instruction& instruction);

}  // namespace minicnn::sim
