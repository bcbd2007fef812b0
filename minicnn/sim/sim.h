/* sim.h -- the simulator as a plain C library
 *
 * A machine holds the memory kernels may touch, options and counters. A module is PTX text, parsed. Addresses are host
 * addresses: register what a kernel may touch. Functions that can fail return 0 for success and leave one sentence in
 * sim_last_fault(). Not safe to call for one machine from two threads at once.
 */
#ifndef MINICNN_SIM_H
#define MINICNN_SIM_H
#include <stddef.h>
#include <stdint.h>

#define SIM_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sim_machine sim_machine;
typedef struct sim_module sim_module;

enum sim_fault_kind {
  SIM_FINE, SIM_PARSE, SIM_UNSUPPORTED, SIM_OUT_OF_BOUNDS, SIM_MISALIGNED, SIM_UNINITIALISED, SIM_BARRIER,
  SIM_COLLECTIVE, SIM_RACE, SIM_ASYNC_COPY, SIM_ENDLESS, SIM_LAUNCH, SIM_TRAP
};

typedef struct {
  uint64_t parameter_bytes, parameter_count, static_shared_bytes, local_bytes, max_threads;
} sim_kernel_info;

SIM_API sim_machine* sim_create(void);
SIM_API void sim_destroy(sim_machine* machine);

/* seed, late_async (0: cp.async lands at once, 1: at its wait), check_races, check_uninitialised,
 * budget (warp instructions of a block, 0: no limit), shared_limit (bytes of a block) */
SIM_API int sim_set_option(sim_machine* machine, const char* name, int64_t value);

SIM_API int sim_register(sim_machine* machine, uint64_t address, size_t bytes);
SIM_API int sim_unregister(sim_machine* machine, uint64_t address);

/* NULL where the text cannot be parsed. Module variables are registered until sim_unload. */
SIM_API sim_module* sim_load(sim_machine* machine, const char* ptx);
SIM_API void sim_unload(sim_machine* machine, sim_module* module);
SIM_API int sim_kernel_count(const sim_module* module);
SIM_API const char* sim_kernel_name(const sim_module* module, int index);
SIM_API int sim_kernel(sim_machine* machine, sim_module* module, const char* name, sim_kernel_info* info);
SIM_API int sim_parameter(sim_machine* machine, sim_module* module, const char* kernel, int index, size_t* offset,
                  size_t* bytes);
SIM_API int sim_variable(sim_machine* machine, sim_module* module, const char* name, uint64_t* address, size_t* bytes);

SIM_API int sim_launch(sim_machine* machine, sim_module* module, const char* kernel, const unsigned grid[3],
               const unsigned block[3], unsigned dynamic_shared_bytes, const void* parameters, size_t parameter_bytes);

SIM_API const char* sim_last_fault(const sim_machine* machine);
SIM_API int sim_last_fault_kind(const sim_machine* machine);

SIM_API int sim_counter_count(void);
SIM_API const char* sim_counter_name(int index);
SIM_API uint64_t sim_counter(const sim_machine* machine, int index);
SIM_API void sim_reset_counters(sim_machine* machine);

#ifdef __cplusplus
}
#endif
#endif
