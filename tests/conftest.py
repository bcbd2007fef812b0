"""Which device the tests run on that take one: pytest --device cuda tests/test_relu.py ..."""

import pytest

import harness


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        default="host",
        help="of the tests that take one: host (default), cuda, cuda:N, sim. Any but host: only those. "
        "With the real PyCUDA on a simulated driver: tests/test_on_simgpu.py",
    )


def pytest_configure(config: pytest.Config) -> None:
    harness.DEVICES = (config.getoption("--device"),)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    device = config.getoption("--device")
    if device == "host":
        return
    chosen = [item for item in items if _device_of(item) == device]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def _device_of(item: pytest.Item) -> str | None:
    return item.callspec.params.get("device") if hasattr(item, "callspec") else None
