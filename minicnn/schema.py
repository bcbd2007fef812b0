"""Everything a record on disk holds: name, dimensions, type, unit and meaning. Names stay, tables grow."""

from __future__ import annotations

from dataclasses import dataclass

FORMAT = "minicnn run"
SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """One thing a record holds.

    dims   () for an attribute of the file, else of a dataset: ("layer",), ("rep",), ("rep", "layer") or
           ("buffer",)
    dtype  "float64" (NaN: not measured), "int64", "bool" (an int8 that says so), "text" (UTF-8),
           "texts" and "mapping": text too, a JSON list or object
    """

    name: str
    dims: tuple[str, ...]
    dtype: str
    unit: str
    long_name: str


def _table(*rows: tuple[str, str, str, str, str]) -> tuple[Quantity, ...]:
    return tuple(
        Quantity(name=name, dims=tuple(dims.split()), dtype=dtype, unit=unit, long_name=long_name)
        for name, dims, dtype, unit, long_name in rows
    )


SCHEMA = _table(
    ("rep", "rep", "int64", "1", "repetition, in the order of time"),
    ("layer", "layer", "text", "", "layer, in the order of execution"),
    ("is_finished", "rep", "bool", "1", "1 once all samples of the repetition are stored"),
    ("is_warmup", "rep", "bool", "1", "1 for a repetition before the steady state"),
    ("is_outlier", "rep", "bool", "1", "1 for a plain run far from the others; it stays in the medians"),
    ("time_us", "rep layer", "float64", "us", "device time between the layer's boundaries, profiled run"),
    ("gap_us", "rep layer", "float64", "us", "device idle before the layer, run with brackets"),
    ("enqueue_us", "rep layer", "float64", "us", "host time to hand the layer, by itself, to the device"),
    ("alone_warm_us", "rep layer", "float64", "us", "the layer by itself, run just before"),
    ("alone_cold_us", "rep layer", "float64", "us", "the layer by itself, caches emptied"),
    ("plain_us", "rep", "float64", "us", "device time from first to last layer, plain run"),
    ("profiled_us", "rep", "float64", "us", "device time from first to last layer, profiled run"),
    ("wall_us", "rep", "float64", "us", "caller's clock from upload to download, plain run"),
    ("profiled_wall_us", "rep", "float64", "us", "caller's clock around a profiled run"),
    ("upload_us", "rep", "float64", "us", "inputs to the device, plain run"),
    ("download_us", "rep", "float64", "us", "outputs from the device, plain run"),
    ("host_us", "rep", "float64", "us", "the engine's own host time, in no layer or transfer, plain run"),
    ("unattributed_us", "rep", "float64", "us", "wall_us - (upload, download, host)_us - sum of time_us"),
    ("preemptions", "rep", "float64", "1", "times the system took a processor from the process"),
    ("op", "layer", "text", "", "operator"),
    ("nodes", "layer", "texts", "", "ONNX nodes the layer stands for"),
    ("variant", "layer", "text", "", "way the operator is computed"),
    ("reason", "layer", "text", "", "why this variant was chosen"),
    ("kernel", "layer", "texts", "", "steps in order; launches with <<<grid, block>>>"),
    ("macs", "layer", "int64", "1", "multiply-adds of the definition"),
    ("flops", "layer", "int64", "1", "floating-point operations of the definition; 2 a multiply-add"),
    ("bytes_min", "layer", "int64", "B", "compulsory traffic: inputs, weights and outputs moved once"),
    ("bytes_moved", "layer", "int64", "B", "traffic that the variant asks for"),
    ("live_bytes", "layer", "int64", "B", "inputs, outputs, activations, workspace alive while it runs"),
    ("workspace_bytes", "layer", "int64", "B", "workspace of the variant"),
    ("resources", "layer", "texts", "", "of each step: registers, shared memory, spills, occupancy; a GPU's"),
    ("fingerprint", "layer", "text", "", "identity of the layer's launches"),
    ("inputs", "layer", "texts", "", "tensors read: name, dtype, shape, layout"),
    ("outputs", "layer", "texts", "", "tensors written: name, dtype, shape, layout"),
    ("is_fallback", "layer", "bool", "1", "1 if it ran through onnx's evaluator on the CPU"),
    ("sources", "layer", "texts", "", "its kernels' files, each with the SHA-256 of it and what it includes"),
    ("energy_uj", "layer", "float64", "uJ", "energy of one run beyond idle, by the device's counter"),
    ("energy_by_power_uj", "layer", "float64", "uJ", "the same, by summing readings of power"),
    ("is_checked", "layer", "bool", "1", "1 if it was held against its definition in float64"),
    ("check_max_abs", "layer", "float64", "1", "largest error"),
    ("check_max_relative", "layer", "float64", "1", "largest error over the largest exact value"),
    ("check_max_ulp", "layer", "float64", "1", "largest error in units of the exact value's last place"),
    ("check_of_bound", "layer", "float64", "1", "largest error over what it may be; above 1 it is wrong"),
    ("check_index", "layer", "text", "", "first element beyond its bound, else the worst: n,c,h,w"),
    ("buffer", "buffer", "text", "", "piece of planned memory"),
    ("buffer_kind", "buffer", "text", "", "input, output, activation, workspace or weight"),
    ("buffer_bytes", "buffer", "int64", "B", "its size"),
    ("buffer_offset", "buffer", "int64", "B", "where it begins: in the arena, weights in theirs"),
    ("buffer_first", "buffer", "int64", "1", "number of the layer that it is alive from"),
    ("buffer_last", "buffer", "int64", "1", "number of the layer that it is alive to"),
    ("format", "", "text", "", "always 'minicnn run'"),
    ("schema_version", "", "int64", "1", "version of this table"),
    ("model_file", "", "text", "", "the model as it was named"),
    ("model_sha256", "", "text", "", "SHA-256 of the model file"),
    ("command", "", "text", "", "what was typed"),
    ("started", "", "text", "", "beginning of the run, ISO 8601, UTC"),
    ("precision", "", "text", "", "fp32, tf32 or fp16"),
    ("input_types", "", "mapping", "", "the network's inputs: name to dtype and shape"),
    ("device", "", "text", "", "the device's own name"),
    ("device_kind", "", "text", "", "host, cuda or sim"),
    ("device_architecture", "", "text", "", "instruction set or compute capability"),
    ("device_memory_bytes", "", "int64", "B", "memory of the device"),
    ("threads", "", "int64", "1", "threads of the host device"),
    ("versions", "", "mapping", "", "minicnn, its commit, libraries, compiler, driver"),
    ("clocks", "", "mapping", "", "clocks of the device; each name ends in its unit"),
    ("seeds", "", "mapping", "", "seeds of random inputs and weights"),
    ("live_peak_bytes", "", "int64", "B", "largest live_bytes of any layer: no plan can be smaller"),
    ("planned_peak_bytes", "", "int64", "B", "size of the planned arena, weights not included"),
    ("touched_peak_bytes", "", "float64", "B", "high-water mark really written in the arena"),
    ("allocated_peak_bytes", "", "float64", "B", "growth of the driver's or process's memory, all included"),
    ("weights_bytes", "", "int64", "B", "weights, as packed for the device"),
    ("inputs_bytes", "", "int64", "B", "inputs of the network"),
    ("outputs_bytes", "", "int64", "B", "outputs of the network"),
    ("activations_bytes", "", "int64", "B", "sum of all activations, as if none shared memory"),
    ("workspaces_bytes", "", "int64", "B", "sum of all workspaces, as if none shared memory"),
    ("closure_residual", "", "float64", "1", "unattributed part of wall_us, a fraction; median"),
    ("closure_residual_low", "", "float64", "1", "lower end of its 95 % interval"),
    ("closure_residual_high", "", "float64", "1", "upper end of its 95 % interval"),
    ("profiling_overhead", "", "float64", "1", "what profiling adds to a plain run, a fraction; median"),
    ("profiling_overhead_low", "", "float64", "1", "lower end of its 95 % interval"),
    ("profiling_overhead_high", "", "float64", "1", "upper end of its 95 % interval"),
    ("profiled_every", "", "int64", "1", "sampling: one run in so many was a profiled one"),
    ("bracket_us", "", "float64", "us", "two events with nothing between; median"),
    ("bracket_spread_us", "", "float64", "us", "distance of its quartiles"),
    ("null_kernel_us", "", "float64", "us", "two events around a kernel that does nothing; median"),
    ("clock_step_us", "", "float64", "us", "smallest difference that the device's clock shows"),
    ("copy_gb_per_s", "", "float64", "GB/s", "memory roof: a large copy, bytes read and written"),
    ("fma_gflop_per_s", "", "float64", "GFLOP/s", "arithmetic roof: multiply-adds in registers, float32"),
    ("drift", "", "float64", "1", "last third of the steady plain runs over the first, less 1"),
    ("drift_low", "", "float64", "1", "lower end of its 95 % interval"),
    ("drift_high", "", "float64", "1", "upper end of its 95 % interval"),
    ("other_load", "", "float64", "1", "processors that others kept busy meanwhile"),
    ("throttled_share", "", "float64", "1", "fraction of repetitions in which the device said it throttled"),
    ("idle_power_w", "", "float64", "W", "power of the device at rest"),
    ("kernel_sources", "", "mapping", "", "text of the kernel files that were brought in by --kernel"),
    ("energy_source", "", "text", "", "what energy was read from, or why it could not be"),
)

_OWN = ("rep", "layer", "buffer", "is_finished", "format", "schema_version")  # the file's own
ATTRIBUTES = {q.name: q for q in SCHEMA if not q.dims and q.name not in _OWN}
SAMPLES = {q.name: q for q in SCHEMA if "rep" in q.dims and q.name not in _OWN}
FACTS = {q.name: q for q in SCHEMA if q.dims == ("layer",) and q.name not in _OWN}
