// parser.cpp -- PTX text into functions, variables and statements
//
// PTX has one statement per ';' and nests only by '{}', so no grammar is needed: the text is cut into statements,
// then each is cut into opcode, modifiers and operands. Line numbers are those of the text given.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ptx.h"
#include "text.h"

namespace minicnn::sim {
namespace {

constexpr const char* BLANKS = " \t\r\n";

// Comments become blanks; line ends stay, so that lines can still be counted.
std::string without_comments(const std::string& text) {
  std::string out = text;
  for (size_t i = 0; i + 1 < out.size(); ++i) {
    if (out[i] == '"') {
      i = std::min(out.find('"', i + 1), out.size() - 1);
    } else if (out[i] == '/' && out[i + 1] == '/') {
      for (; i < out.size() && out[i] != '\n'; ++i) out[i] = ' ';
    } else if (out[i] == '/' && out[i + 1] == '*') {
      const size_t end = std::min(out.find("*/", i + 2), out.size() - 2) + 2;
      for (; i < end; ++i) {
        if (out[i] != '\n') out[i] = ' ';
      }
    }
  }
  return out;
}

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(without_comments(text)), module_(std::make_unique<Module>()) {}

  std::unique_ptr<Module> run() {
    while (skip_blanks()) parse_top_level();
    fill_variables();
    return std::move(module_);
  }

 private:
  std::string text_;
  std::unique_ptr<Module> module_;
  size_t at_ = 0;
  int line_ = 1;
  SourceLine source_;

  [[noreturn]] void fail(const std::string& what) const {
    throw Fault{FaultKind::parse, "PTX line " + std::to_string(line_) + ": " + what};
  }

  void step() {
    if (text_[at_] == '\n') ++line_;
    ++at_;
  }

  bool skip_blanks() {
    while (at_ < text_.size() && strchr(BLANKS, text_[at_])) step();
    return at_ < text_.size();
  }

  // Text up to one of the stop characters (not consumed).
  std::string until(const char* stops) {
    std::string out;
    while (at_ < text_.size() && !strchr(stops, text_[at_])) {
      out += text_[at_] == '\n' || text_[at_] == '\t' ? ' ' : text_[at_];
      step();
    }
    return trim(out);
  }

  std::string rest_of_line() { return until("\n"); }

  // The word, and not a longer one that begins alike (.loc and .local).
  bool at_word(const char* word) const {
    const size_t n = strlen(word);
    return text_.compare(at_, n, word) == 0 && at_ + n < text_.size() && strchr(BLANKS, text_[at_ + n]);
  }

  // ".file 1 "a.cu"" and ".loc 1 4 0, function_name ..." end with their line, not with ';'.
  bool line_directive() {
    if (at_word(".file")) {
      const std::string directive = rest_of_line();
      const size_t open = directive.find('"'), close = directive.rfind('"');
      if (open != std::string::npos && close > open) {
        module_->files[atoi(directive.c_str() + 5)] = directive.substr(open + 1, close - open - 1);
      }
      return true;
    }
    if (at_word(".loc")) {
      char* end = nullptr;
      const std::string directive = rest_of_line();
      source_.file = static_cast<int>(strtol(directive.c_str() + 4, &end, 10));
      source_.line = static_cast<int>(strtol(end, nullptr, 10));
      return true;
    }
    for (const char* word : {".version", ".target", ".address_size"}) {
      if (at_word(word)) {
        rest_of_line();
        return true;
      }
    }
    return false;
  }

  void skip_section() {  // debug information: ".section name { ... }"
    until("{");
    until("}");
    if (at_ < text_.size()) step();
  }

  void parse_top_level() {
    if (line_directive()) return;
    if (at_word(".section")) return skip_section();
    std::string head = until("{;=");
    if (at_ >= text_.size()) return fail("the text ends inside '" + head.substr(0, 60) + "'");
    const bool is_function = head.find(".entry") != std::string::npos || head.find(".func") != std::string::npos;
    const char stop = text_[at_];
    step();
    if (is_function) {
      parse_function(head, stop == '{');
    } else if (stop == '=') {
      const std::string initial = until(";");
      step();
      declare_variable(head, initial);
    } else if (stop == ';') {
      if (has_space_directive(head)) declare_variable(head, "");
    } else {
      fail("unexpected '{' after '" + head.substr(0, 60) + "'");
    }
  }

  static bool has_space_directive(const std::string& head) {
    for (const char* space : {".global", ".const", ".shared", ".local"}) {
      if (head.find(space) != std::string::npos) return true;
    }
    return false;
  }

  // "[.visible] .shared .align 16 .b8 name[N][M]" or a parameter "[.param] .u64 .ptr .align 1 name"
  Variable parse_variable(const std::string& declaration) {
    Variable v;
    const size_t bracket = declaration.find('[');
    std::string words = declaration.substr(0, bracket);
    size_t elements = 1;
    for (size_t p = bracket; p != std::string::npos; p = declaration.find('[', p + 1)) {
      elements *= strtoull(declaration.c_str() + p + 1, nullptr, 10);  // "name[]": external, no bytes of its own
    }
    bool is_pointer = false, next_is_align = false;
    for (const std::string& word : split_words(words)) {
      Type type;
      if (next_is_align) {
        if (!is_pointer) v.align = strtoull(word.c_str(), nullptr, 10);  // of a pointer: what it points to
        next_is_align = false;
      } else if (word == ".align") {
        next_is_align = true;
      } else if (word == ".ptr") {
        is_pointer = true;
      } else if (word == ".shared" && !is_pointer) {
        v.space = Space::shared;
      } else if (word == ".const" && !is_pointer) {
        v.space = Space::constant;
      } else if (word == ".local" && !is_pointer) {
        v.space = Space::local;
      } else if (word == ".param") {
        v.space = Space::parameter;
      } else if (word[0] == '.' && type_from_name(word.substr(1), &type)) {
        v.element_bytes = type_bytes(type);
      } else if (word[0] != '.') {
        v.name = word;
      }
    }
    v.align = std::max(v.align, v.element_bytes);
    v.bytes = v.element_bytes * elements;
    return v;
  }

  void declare_variable(const std::string& declaration, std::string initial) {
    Variable v = parse_variable(declaration);
    initial.erase(std::remove_if(initial.begin(), initial.end(), [](char c) { return c == '{' || c == '}'; }),
                  initial.end());
    if (!trim(initial).empty()) v.initial = split_operands(initial);
    ModuleVariable& made = module_->variables[v.name];
    if (v.space != Space::shared && v.bytes > 0) {
      constexpr size_t ALIGN = 256;
      module_->storage.emplace_back(new char[v.bytes + ALIGN]());
      const auto raw = reinterpret_cast<uintptr_t>(module_->storage.back().get());
      made.storage = reinterpret_cast<char*>((raw + ALIGN - 1) / ALIGN * ALIGN);
    }
    made.declared = std::move(v);
  }

  // Last, since an initial value may be the address of a variable declared later.
  void fill_variables() {
    for (auto& [name, variable] : module_->variables) {
      char* out = variable.storage;
      for (std::string text : variable.declared.initial) {
        if (text.rfind("generic(", 0) == 0) {  // "generic(name)+8"
          text.erase(0, 8);
          text.erase(text.find(')'), 1);
        }
        uint64_t bits = 0;
        const auto other = module_->variables.find(text.substr(0, text.find('+')));
        if (other != module_->variables.end()) {
          const size_t plus = text.find('+');
          bits = reinterpret_cast<uint64_t>(other->second.storage) +
                 (plus == std::string::npos ? 0 : strtoull(text.c_str() + plus + 1, nullptr, 0));
        } else if (!parse_number(text, &bits)) {
          fail("initial value '" + text + "' of variable " + name + " is neither a number nor a variable");
        }
        memcpy(out, &bits, variable.declared.element_bytes);
        out += variable.declared.element_bytes;
      }
    }
  }

  // ".visible .entry name(params) .maxntid 256" or ".func (results) name(params)"
  void parse_function(const std::string& head, bool has_body) {
    const bool is_entry = head.find(".entry") != std::string::npos;
    const size_t keyword = head.find(is_entry ? ".entry" : ".func");
    std::string rest = trim(head.substr(keyword + (is_entry ? 6 : 5)));
    Function f;
    f.is_entry = is_entry;
    f.has_body = has_body;
    if (rest[0] == '(') {
      const size_t close = rest.find(')');
      f.results = parse_parameters(rest.substr(1, close - 1));
      rest = trim(rest.substr(close + 1));
    }
    const size_t open = rest.find('(');
    f.name = trim(rest.substr(0, std::min(open, rest.find(' '))));
    if (open != std::string::npos) {
      const size_t close = rest.find(')', open);
      f.parameters = parse_parameters(rest.substr(open + 1, close - open - 1));
    }
    for (const char* limit : {".maxntid", ".reqntid"}) {
      const size_t p = rest.find(limit);
      if (p == std::string::npos) continue;
      f.max_threads = 1;
      for (const std::string& extent : split_operands(rest.substr(p + 8, rest.find('.', p + 1) - p - 8))) {
        f.max_threads *= std::max(1, atoi(extent.c_str()));
      }
    }
    if (has_body) parse_body(f);
    Function& known = module_->functions[f.name];
    if (has_body || !known.has_body) known = std::move(f);
  }

  std::vector<Variable> parse_parameters(const std::string& list) {
    std::vector<Variable> out;
    for (const std::string& item : split_operands(list)) {
      out.push_back(parse_variable(item));
      out.back().space = Space::parameter;
    }
    return out;
  }

  void parse_body(Function& f) {
    source_ = {};
    for (int depth = 1; depth > 0;) {
      if (!skip_blanks()) fail("the body of " + f.name + " does not end");
      if (line_directive()) continue;
      Statement s;
      s.line = line_;
      s.source = source_;
      if (text_[at_] == '{' || text_[at_] == '}') {
        const bool opens = text_[at_] == '{';
        depth += opens ? 1 : -1;
        s.kind = opens ? Statement::open_scope : Statement::close_scope;
        step();
        if (depth > 0) f.body.push_back(s);
        continue;
      }
      parse_statement(f, std::move(s));
    }
  }

  bool at_label_end() const {
    return text_[at_] == ':' && text_.compare(at_, 2, "::") != 0 && text_[at_ - 1] != ':';
  }

  void parse_statement(Function& f, Statement s) {
    while (at_ < text_.size() && text_[at_] != ';' && !at_label_end()) {
      s.text += strchr(BLANKS, text_[at_]) ? ' ' : text_[at_];
      step();
    }
    if (at_ >= text_.size()) fail("a statement does not end: '" + s.text.substr(0, 60) + "'");
    const bool is_label = text_[at_] == ':';
    step();
    s.text = squeeze(s.text);
    if (s.text.empty()) return;
    if (is_label) {
      s.kind = Statement::label;
      s.name = s.text;
      if (trim(text_.substr(at_, 16)).rfind(".branchtargets", 0) == 0) s.text = until(";");
      f.body.push_back(std::move(s));
    } else if (s.text.rfind(".reg", 0) == 0) {
      parse_registers(f, s);
    } else if (s.text[0] == '.') {
      if (!has_space_directive(s.text) && s.text.rfind(".param", 0) != 0) return;
      s.kind = Statement::variable;
      s.declared = parse_variable(s.text);
      f.body.push_back(std::move(s));
    } else {
      parse_instruction(s);
      f.body.push_back(std::move(s));
    }
  }

  void parse_registers(Function& f, const Statement& s) {  // ".reg .b32 %r<10>" or ".reg .b32 a, b"
    const size_t type = s.text.find('.', 4);
    for (const std::string& name : split_operands(s.text.substr(s.text.find(' ', type)))) {
      Statement one = s;
      one.kind = Statement::registers;
      const size_t range = name.find('<');
      one.name = name.substr(0, range);
      if (range != std::string::npos) one.count = atoi(name.c_str() + range + 1);
      f.body.push_back(std::move(one));
    }
  }

  static OperandText parse_operand(const std::string& text) {
    OperandText o;
    o.text = text;
    if (text[0] == '[') {
      o.kind = OperandText::address;
      o.text = trim(text.substr(1, text.size() - 2));
    } else if (text[0] == '{' || text[0] == '(') {
      o.kind = OperandText::group;
      o.parts = split_operands(text.substr(1, text.size() - 2));
    } else if (text.find('|') != std::string::npos) {
      o.kind = OperandText::group;
      const size_t bar = text.find('|');
      o.parts = {trim(text.substr(0, bar)), trim(text.substr(bar + 1))};
    }
    return o;
  }

  static void parse_instruction(Statement& s) {
    std::string rest = s.text;
    if (rest[0] == '@') {
      s.guard_negated = rest[1] == '!';
      const size_t begin = s.guard_negated ? 2 : 1, end = rest.find(' ');
      s.guard = rest.substr(begin, end - begin);
      rest = trim(rest.substr(end));
    }
    const size_t blank = rest.find(' ');
    std::vector<std::string> words = split(rest.substr(0, blank), '.');
    s.opcode = words[0];
    s.modifiers.assign(words.begin() + 1, words.end());
    if (blank == std::string::npos) return;
    for (const std::string& operand : split_operands(rest.substr(blank))) s.operands.push_back(parse_operand(operand));
  }
};

}  // namespace

std::unique_ptr<Module> parse(const std::string& text) { return Parser(text).run(); }

}  // namespace minicnn::sim
