// decode.cpp -- one entry with the functions it calls, flattened into a Program
//
// Names become rows of the register file, symbols become addresses, labels become indices. A device function is
// inlined at each call: its registers get rows of their own, its parameters become the caller's .param variables
// (bytes of the thread's local frame), and its "ret" a branch behind the call.
#include <algorithm>
#include <set>

#include "ptx.h"
#include "text.h"

namespace minicnn::sim {
namespace {

// While building, rows of constants and special registers are numbered from here; finish() moves them.
constexpr int CONSTANT_BASE = 1 << 24;
constexpr int SPECIAL_BASE = 2 << 24;

struct Symbol {
  Space space = Space::generic;
  int64_t address = 0;
  bool is_dynamic_shared = false;
  bool is_kernel_parameter = false;
};

// One inlined function, or the entry itself.
struct Scope {
  const Function* function = nullptr;
  std::vector<std::map<std::string, int>> registers;   // one map per '{'
  std::vector<std::map<std::string, Symbol>> symbols;  // likewise
  std::map<std::string, int> labels;
  std::map<std::string, std::vector<std::string>> branch_targets;
  std::vector<std::pair<int, std::string>> unresolved;        // instruction, label
  std::vector<std::pair<int, std::string>> unresolved_tables;  // instruction, .branchtargets label
  std::vector<int> returns;                                    // "ret" of an inlined function
};

size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

class ProgramBuilder {
 public:
  ProgramBuilder(Module& module, const Function& entry) : module_(module) {
    program_ = std::make_shared<Program>();
    program_->name = entry.name;
    program_->max_threads = entry.max_threads;
    trash_row_ = new_row();  // what "_" writes to
    Scope scope = open(entry);
    for (const Variable& p : entry.parameters) {
      const size_t offset = round_up(program_->parameter_bytes, p.align);
      scope.symbols.back()[p.name] = {Space::parameter, static_cast<int64_t>(offset), false, true};
      program_->parameters.push_back({offset, p.bytes});
      program_->parameter_bytes = offset + p.bytes;
    }
    expand(scope);
    append_exit();
  }

  std::shared_ptr<Program> finish() {
    program_->static_shared = round_up(program_->static_shared, 16);
    program_->local_bytes = round_up(program_->local_bytes, 16);
    for (int constant : dynamic_shared_constants_) program_->constants[constant] += program_->static_shared;
    for (Instruction& i : program_->code) {
      for (int* row : {&i.guard, &i.address, &i.second_address, &i.member_mask}) *row = final_row(*row);
      for (int& row : i.dst) row = final_row(row);
      for (int& row : i.src) row = final_row(row);
      note_shared_granule(i);
    }
    return program_;
  }

 private:
  Module& module_;
  std::shared_ptr<Program> program_;
  std::map<uint64_t, int> constant_rows_;
  std::map<Special, int> special_rows_;
  std::vector<int> dynamic_shared_constants_;
  std::map<std::string, Symbol> module_shared_;  // shared variables at module scope, placed at first use
  std::set<std::string> open_functions_;
  const Statement* now_ = nullptr;
  int trash_row_ = 0;

  [[noreturn]] void fail(FaultKind kind, const std::string& what) const {
    std::string where = "kernel " + program_->name;
    if (now_) where += ", PTX line " + std::to_string(now_->line) + " (" + now_->text + ")";
    throw Fault{kind, what + ", in " + where};
  }

  // -------------------------------------------------------------- rows

  int new_row() { return program_->registers++; }

  int constant(uint64_t bits) {
    const auto [found, is_new] = constant_rows_.try_emplace(bits, static_cast<int>(program_->constants.size()));
    if (is_new) program_->constants.push_back(bits);
    return CONSTANT_BASE + found->second;
  }

  int special(Special s) {
    const auto [found, is_new] = special_rows_.try_emplace(s, static_cast<int>(program_->specials.size()));
    if (is_new) program_->specials.push_back(s);
    return SPECIAL_BASE + found->second;
  }

  int final_row(int row) const {
    const int constants = static_cast<int>(program_->constants.size());
    if (row >= SPECIAL_BASE) return row - SPECIAL_BASE + program_->registers + constants;
    if (row >= CONSTANT_BASE) return row - CONSTANT_BASE + program_->registers;
    return row;
  }

  // A constant of its own, since it grows by the size of the static shared memory, known only at the end.
  int dynamic_shared_address(int64_t offset) {
    dynamic_shared_constants_.push_back(static_cast<int>(program_->constants.size()));
    program_->constants.push_back(static_cast<uint64_t>(offset));
    return CONSTANT_BASE + dynamic_shared_constants_.back();
  }

  void note_shared_granule(const Instruction& i) {
    const bool touches_shared = i.address >= 0 && (i.space == Space::shared || i.space == Space::generic);
    if (!touches_shared) return;
    program_->shared_granule = std::min(program_->shared_granule, type_bytes(i.type) * i.width);
  }

  // -------------------------------------------------------------- scopes and names

  static Scope open(const Function& function) {
    Scope scope;
    scope.function = &function;
    scope.registers.emplace_back();
    scope.symbols.emplace_back();
    return scope;
  }

  static int find_register(const Scope& scope, const std::string& name) {
    for (auto level = scope.registers.rbegin(); level != scope.registers.rend(); ++level) {
      const auto found = level->find(name);
      if (found != level->end()) return found->second;
    }
    return -1;
  }

  bool find_symbol(const Scope& scope, const std::string& name, Symbol* symbol) {
    for (auto level = scope.symbols.rbegin(); level != scope.symbols.rend(); ++level) {
      const auto found = level->find(name);
      if (found == level->end()) continue;
      *symbol = found->second;
      return true;
    }
    const auto found = module_.variables.find(name);
    if (found == module_.variables.end()) return false;
    const ModuleVariable& v = found->second;
    if (v.declared.space == Space::shared) {
      *symbol = place_module_shared(v.declared);
    } else {
      *symbol = {v.declared.space, reinterpret_cast<int64_t>(v.storage)};
    }
    return true;
  }

  Symbol place_module_shared(const Variable& v) {
    if (v.bytes == 0) return {Space::shared, 0, true};
    const auto placed = module_shared_.find(v.name);
    if (placed != module_shared_.end()) return placed->second;
    return module_shared_[v.name] = {Space::shared, static_cast<int64_t>(reserve(program_->static_shared, v))};
  }

  static size_t reserve(size_t& used, const Variable& v) {
    const size_t offset = round_up(used, v.align);
    used = offset + v.bytes;
    return offset;
  }

  void declare(Scope& scope, const Variable& v) {
    Symbol symbol;
    if (v.space == Space::shared) {
      symbol = {Space::shared, static_cast<int64_t>(reserve(program_->static_shared, v))};
    } else {  // .local, and the .param of a call, which lives in the local frame too
      symbol = {Space::local, static_cast<int64_t>(reserve(program_->local_bytes, v))};
    }
    scope.symbols.back()[v.name] = symbol;
  }

  void declare_registers(Scope& scope, const Statement& s) {
    if (s.count < 0) {
      scope.registers.back()[s.name] = new_row();
      return;
    }
    for (int k = 0; k < s.count; ++k) scope.registers.back()[s.name + std::to_string(k)] = new_row();
  }

  // -------------------------------------------------------------- operands

  int row_of(const Scope& scope, const std::string& text) {
    if (text == "_") return trash_row_;
    const int row = find_register(scope, text);
    if (row >= 0) return row;
    Special s;
    if (special_from_name(text, &s)) return special(s);
    if (text == "WARP_SZ") return constant(WARP);
    uint64_t bits = 0;
    if (parse_number(text, &bits)) return constant(bits);
    int64_t offset = 0;
    const std::string base = split_offset(text, &offset);
    Symbol symbol;
    if (find_symbol(scope, base, &symbol)) {
      if (symbol.is_dynamic_shared) return dynamic_shared_address(offset);
      return constant(static_cast<uint64_t>(symbol.address + offset));
    }
    fail(FaultKind::parse, "operand '" + text + "' is not declared");
  }

  static std::string split_offset(const std::string& text, int64_t* offset) {  // "name+16" or "name+-16"
    const size_t plus = text.find('+');
    if (plus == std::string::npos) return text;
    uint64_t bits = 0;
    parse_number(trim(text.substr(plus + 1)), &bits);
    *offset = static_cast<int64_t>(bits);
    return trim(text.substr(0, plus));
  }

  void set_address(const Scope& scope, const std::string& text, Instruction& i, int* row, int64_t* offset) {
    const std::string base = split_offset(text, offset);
    Symbol symbol;
    if (find_register(scope, base) < 0 && find_symbol(scope, base, &symbol)) {
      if (i.space == Space::generic || i.space == Space::parameter) i.space = symbol.space;
    } else if (i.space == Space::parameter && !scope.function->is_entry) {
      i.space = Space::local;
    }
    *row = row_of(scope, base);
  }

  void add_source(const Scope& scope, std::string text, Instruction& i) {
    if (text[0] == '!') {
      i.negated |= 1u << i.src.size();
      text = trim(text.substr(1));
    }
    i.src.push_back(row_of(scope, text));
  }

  // The first operand is the destination, unless the opcode has none; addresses are kept apart.
  void set_operands(const Scope& scope, const Statement& s, Instruction& i) {
    static const std::set<std::string> NO_DESTINATION = {"st", "red", "bar", "barrier", "cp", "stmatrix",
                                                         "prefetch", "membar", "fence", "nanosleep"};
    bool has_destination = NO_DESTINATION.count(s.opcode) == 0;
    if (s.opcode == "wmma" && s.modifiers[0] == "store") has_destination = false;
    if (i.flow == Flow::barrier) {
      has_destination = std::count(s.modifiers.begin(), s.modifiers.end(), "red") > 0;
    }
    int groups = 0;
    for (size_t k = 0; k < s.operands.size(); ++k) {
      const OperandText& o = s.operands[k];
      if (o.kind == OperandText::address) {
        const bool first = i.address < 0;
        set_address(scope, o.text, i, first ? &i.address : &i.second_address, first ? &i.offset : &i.second_offset);
      } else if (k == 0 && has_destination) {
        if (o.kind == OperandText::plain) i.dst.push_back(row_of(scope, o.text));
        for (const std::string& part : o.parts) i.dst.push_back(row_of(scope, part));
      } else if (o.kind == OperandText::group) {
        for (const std::string& part : o.parts) add_source(scope, part, i);
        ++groups;
        if (groups == 1) i.count_a = static_cast<int>(o.parts.size());
        if (groups == 2) i.count_b = static_cast<int>(o.parts.size());
      } else {
        add_source(scope, o.text, i);
      }
    }
  }

  // -------------------------------------------------------------- statements

  Instruction& append(const Statement& s) {
    Instruction& i = program_->code.emplace_back();
    i.line = s.line;
    i.source = s.source;
    i.text = s.text;
    return i;
  }

  int next_index() const { return static_cast<int>(program_->code.size()); }

  void append_exit() {
    Statement ret;
    ret.opcode = ret.text = "ret";
    Instruction& i = append(ret);
    i.flow = Flow::exit;
    i.category = Category::control;
  }

  void expand(Scope& scope) {
    if (!open_functions_.insert(scope.function->name).second) {
      fail(FaultKind::unsupported, "recursive call of " + scope.function->name + " is not supported");
    }
    for (const Statement& s : scope.function->body) {
      now_ = &s;
      switch (s.kind) {
        case Statement::open_scope:
          scope.registers.emplace_back();
          scope.symbols.emplace_back();
          break;
        case Statement::close_scope:
          scope.registers.pop_back();
          scope.symbols.pop_back();
          break;
        case Statement::label: label(scope, s); break;
        case Statement::registers: declare_registers(scope, s); break;
        case Statement::variable: declare(scope, s.declared); break;
        case Statement::instruction: instruction(scope, s); break;
      }
    }
    resolve_labels(scope);
    open_functions_.erase(scope.function->name);
  }

  void label(Scope& scope, const Statement& s) {
    scope.labels[s.name] = next_index();
    if (s.text.rfind(".branchtargets", 0) == 0) scope.branch_targets[s.name] = split_operands(s.text.substr(14));
  }

  void resolve_labels(Scope& scope) {
    const auto index_of = [&](const std::string& name) {
      const auto found = scope.labels.find(name);
      if (found == scope.labels.end()) fail(FaultKind::parse, "label '" + name + "' is not defined");
      return found->second;
    };
    for (const auto& [index, name] : scope.unresolved) program_->code[index].target = index_of(name);
    for (const auto& [index, table] : scope.unresolved_tables) {
      for (const std::string& name : scope.branch_targets[table]) {
        program_->code[index].targets.push_back(index_of(name));
      }
    }
  }

  void instruction(Scope& scope, const Statement& s) {
    const bool inlined = !scope.function->is_entry;
    if (s.opcode == "call") return call(scope, s);
    Instruction& i = append(s);
    if (!s.guard.empty()) {
      i.guard = find_register(scope, s.guard);
      i.guard_negated = s.guard_negated;
      if (i.guard < 0) fail(FaultKind::parse, "predicate '" + s.guard + "' is not declared");
    }
    if (!bind(s, i)) fail(FaultKind::unsupported, "instruction not supported by the simulator");
    if (i.flow == Flow::branch) {
      scope.unresolved.emplace_back(next_index() - 1, s.operands.at(0).text);
    } else if (i.flow == Flow::indexed_branch) {
      i.src.push_back(row_of(scope, s.operands.at(0).text));
      scope.unresolved_tables.emplace_back(next_index() - 1, s.operands.at(1).text);
    } else if (i.flow == Flow::exit && inlined && s.opcode == "ret") {
      i.flow = Flow::branch;
      scope.returns.push_back(next_index() - 1);
    } else {
      set_operands(scope, s, i);
      if (i.flow == Flow::collective) set_member_mask(s, i);
    }
  }

  // shfl, vote, match and redux name their lanes in the last operand; the tensor instructions mean the whole warp.
  void set_member_mask(const Statement& s, Instruction& i) {
    static const std::set<std::string> NAMES_LANES = {"shfl", "vote", "match", "redux", "elect"};
    if (NAMES_LANES.count(s.opcode) == 0) return;
    i.member_mask = i.src.back();
    i.src.pop_back();
  }

  // "call (result), function, (arguments)"; results and arguments may be missing
  void call(Scope& scope, const Statement& s) {
    std::vector<std::string> results, arguments;
    std::string name;
    for (const OperandText& o : s.operands) {
      if (o.kind != OperandText::group) {
        name = o.text;
      } else {
        (name.empty() ? results : arguments) = o.parts;
      }
    }
    if (name == "vprintf" || name == "__assertfail" || name == "malloc" || name == "free") {
      return call_of_system(scope, s, name);
    }
    const auto callee = module_.functions.find(name);
    if (callee == module_.functions.end() || !callee->second.has_body) {
      fail(FaultKind::unsupported, "call of '" + name + "' which this module does not define");
    }
    Scope inner = open(callee->second);
    link(scope, results, callee->second.results, inner);
    link(scope, arguments, callee->second.parameters, inner);
    const int skip = guard_call(scope, s);
    expand(inner);
    now_ = &s;
    for (int index : inner.returns) program_->code[index].target = next_index();
    if (skip >= 0) program_->code[skip].target = next_index();
  }

  // The callee's names for parameters and results are the caller's variables.
  void link(const Scope& caller, const std::vector<std::string>& given, const std::vector<Variable>& formal,
            Scope& inner) {
    if (given.size() != formal.size()) fail(FaultKind::parse, "the call's arguments do not fit the function's");
    for (size_t k = 0; k < given.size(); ++k) {
      Symbol symbol;
      if (!find_symbol(caller, given[k], &symbol)) {
        fail(FaultKind::unsupported, "argument '" + given[k] + "' passed in a register");
      }
      inner.symbols.back()[formal[k].name] = symbol;
    }
  }

  // A predicated call becomes a branch around the inlined body. Returns its index, or -1.
  int guard_call(const Scope& scope, const Statement& s) {
    if (s.guard.empty()) return -1;
    Instruction& i = append(s);
    i.flow = Flow::branch;
    i.category = Category::control;
    i.guard = find_register(scope, s.guard);
    i.guard_negated = !s.guard_negated;
    return next_index() - 1;
  }

  // A failed assert is the kernel's own word that something is wrong; printf and the heap are not simulated.
  void call_of_system(const Scope& scope, const Statement& s, const std::string& name) {
    Statement trap = s;
    trap.opcode = "trap";
    trap.modifiers = {name};
    Instruction& i = append(s);
    if (!s.guard.empty()) i.guard = find_register(scope, s.guard);
    i.guard_negated = s.guard_negated;
    bind(trap, i);
  }
};

}  // namespace

std::shared_ptr<Program> decode(Module& module, const std::string& entry) {
  const auto done = module.programs.find(entry);
  if (done != module.programs.end()) return done->second;
  const auto function = module.functions.find(entry);
  if (function == module.functions.end() || !function->second.is_entry) {
    throw Fault{FaultKind::launch, "the module has no kernel named '" + entry + "'"};
  }
  ProgramBuilder builder(module, function->second);
  return module.programs[entry] = builder.finish();
}

}  // namespace minicnn::sim
