// api.cpp -- the C interface of sim.h: no exception and no C++ type gets out
#include "sim.h"

#include <map>

#include "machine.h"

using minicnn::sim::Fault;
using minicnn::sim::FaultKind;
using minicnn::sim::Machine;
using minicnn::sim::Module;

struct sim_machine {
  Machine machine;
  Fault fault{FaultKind::none, ""};
};

struct sim_module {
  std::unique_ptr<Module> module;
  std::vector<std::string> kernels;
};

namespace {

template <class F>
int guarded(sim_machine* m, F f) {
  try {
    f();
    m->fault = {FaultKind::none, ""};
    return 0;
  } catch (const Fault& fault) {
    m->fault = fault;
  } catch (const std::exception& e) {
    m->fault = {FaultKind::unsupported, std::string("the simulator failed: ") + e.what()};
  }
  return static_cast<int>(m->fault.kind);
}

}  // namespace

extern "C" {

sim_machine* sim_create(void) { return new sim_machine; }

void sim_destroy(sim_machine* m) { delete m; }

int sim_set_option(sim_machine* m, const char* name, int64_t value) {
  auto& o = m->machine.options;
  const std::map<std::string, int64_t*> known = {
      {"seed", &o.seed}, {"late_async", &o.late_async}, {"check_races", &o.check_races},
      {"check_uninitialised", &o.check_uninitialised}, {"budget", &o.budget}, {"shared_limit", &o.shared_limit}};
  return guarded(m, [&] {
    const auto found = known.find(name);
    if (found == known.end()) throw Fault{FaultKind::launch, std::string("no option is called '") + name + "'"};
    *found->second = value;
  });
}

int sim_register(sim_machine* m, uint64_t address, size_t bytes) {
  return guarded(m, [&] { m->machine.add_range(address, bytes); });
}

int sim_unregister(sim_machine* m, uint64_t address) {
  return guarded(m, [&] {
    if (!m->machine.remove_range(address)) throw Fault{FaultKind::launch, "no memory is registered at that address"};
  });
}

sim_module* sim_load(sim_machine* m, const char* ptx) {
  auto loaded = std::make_unique<sim_module>();
  const int failed = guarded(m, [&] {
    loaded->module = minicnn::sim::parse(ptx);
    for (const auto& [name, function] : loaded->module->functions) {
      if (function.is_entry) loaded->kernels.push_back(name);
    }
    for (const auto& [name, variable] : loaded->module->variables) {
      if (variable.storage) {
        m->machine.add_range(reinterpret_cast<uint64_t>(variable.storage), variable.declared.bytes);
      }
    }
  });
  return failed ? nullptr : loaded.release();
}

void sim_unload(sim_machine* m, sim_module* module) {
  for (const auto& [name, variable] : module->module->variables) {
    if (variable.storage) m->machine.remove_range(reinterpret_cast<uint64_t>(variable.storage));
  }
  delete module;
}

int sim_kernel_count(const sim_module* module) { return static_cast<int>(module->kernels.size()); }

const char* sim_kernel_name(const sim_module* module, int index) {
  const auto k = static_cast<size_t>(index);
  return k < module->kernels.size() ? module->kernels[k].c_str() : "";
}

int sim_kernel(sim_machine* m, sim_module* module, const char* name, sim_kernel_info* info) {
  return guarded(m, [&] {
    const auto program = minicnn::sim::decode(*module->module, name);
    *info = {program->parameter_bytes, program->parameters.size(), program->static_shared, program->local_bytes,
             static_cast<uint64_t>(program->max_threads)};
  });
}

int sim_parameter(sim_machine* m, sim_module* module, const char* kernel, int index, size_t* offset, size_t* bytes) {
  return guarded(m, [&] {
    const auto program = minicnn::sim::decode(*module->module, kernel);
    if (index < 0 || static_cast<size_t>(index) >= program->parameters.size()) {
      throw Fault{FaultKind::launch, std::string(kernel) + " has no parameter " + std::to_string(index)};
    }
    *offset = program->parameters[static_cast<size_t>(index)].offset;
    *bytes = program->parameters[static_cast<size_t>(index)].bytes;
  });
}

int sim_variable(sim_machine* m, sim_module* module, const char* name, uint64_t* address, size_t* bytes) {
  return guarded(m, [&] {
    const auto found = module->module->variables.find(name);
    if (found == module->module->variables.end() || !found->second.storage) {
      throw Fault{FaultKind::launch, std::string("the module has no variable named '") + name + "'"};
    }
    *address = reinterpret_cast<uint64_t>(found->second.storage);
    *bytes = found->second.declared.bytes;
  });
}

int sim_launch(sim_machine* m, sim_module* module, const char* kernel, const unsigned grid[3],
               const unsigned block[3], unsigned dynamic_shared_bytes, const void* parameters,
               size_t parameter_bytes) {
  return guarded(m, [&] {
    m->machine.launch(*module->module, kernel, grid, block, dynamic_shared_bytes, parameters, parameter_bytes);
  });
}

const char* sim_last_fault(const sim_machine* m) { return m->fault.message.c_str(); }
int sim_last_fault_kind(const sim_machine* m) { return static_cast<int>(m->fault.kind); }

int sim_counter_count(void) { return minicnn::sim::counter_count(); }
const char* sim_counter_name(int index) { return minicnn::sim::COUNTERS[index].name; }
uint64_t sim_counter(const sim_machine* m, int index) {
  return minicnn::sim::COUNTERS[index].value(m->machine.counters);
}
void sim_reset_counters(sim_machine* m) { m->machine.counters = {}; }

}  // extern "C"
