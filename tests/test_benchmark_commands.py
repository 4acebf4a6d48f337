"""Every benchmark can be called: what it imports exists, and it tells its options."""

import importlib

import pytest

from benchmarks.__main__ import names


@pytest.mark.parametrize("name", names())
def test_a_benchmark_tells_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(f"benchmarks.{name.replace('-', '_')}")
    with pytest.raises(SystemExit) as end:
        module.main(["--help"])
    assert end.value.code == 0
    assert f"python -m benchmarks {name}" in capsys.readouterr().out
