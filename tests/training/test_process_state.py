"""Importing and training leave the process as it was, and an error of the user's is short."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, os, random, signal, sys, threading, warnings
import gymnasium, numpy, torch, torch.distributed.fsdp, torch.distributed.checkpoint.state_dict, transformers

def state():
    return {
        "random": hash(random.getstate()),
        "numpy": hash(numpy.random.get_state()[1].tobytes()),
        "torch": hash(torch.get_rng_state().numpy().tobytes()),
        "warnings": repr(warnings.filters),
        "showwarning": repr(warnings.showwarning),
        "environ": dict(os.environ),
        "dtype": repr(torch.get_default_dtype()),
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "signals": {s.name: repr(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)},
        "excepthook": repr(sys.excepthook),
        "directory": os.getcwd(),
        "path": list(sys.path),
        "recursion": sys.getrecursionlimit(),
        "running": sorted(thread.name for thread in threading.enumerate()),
    }

def changed(before):
    return sorted(name for name, value in state().items() if value != before[name])

random.seed(1), numpy.random.seed(2), torch.manual_seed(3)
found = state()
import envgym.training
after_import = changed(found)
from tiny_runs import tiny
envgym.training.train(tiny(sys.argv[1] + "/run", num_iterations=1, torch_threads=2))
print(json.dumps([after_import, changed(found)]), flush=True)
envgym.training.train(tiny(sys.argv[1] + "/other", env={"id": "envgym/PointerChas-v0"}))
"""


@pytest.mark.slow
def test_a_script_finds_its_process_as_it_left_it_and_its_mistake_at_the_end_of_a_short_traceback(tmp_path):
    (tmp_path / "script.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout, done.stderr
    assert json.loads(done.stdout) == [[], []]
    trace = done.stderr[done.stderr.index("Traceback") :].splitlines()
    assert "[rank0]" not in done.stderr
    assert trace[-1].startswith("envgym.errors.UnknownIdError: Unknown environment 'envgym/PointerChas-v0'. Did you")
    assert trace.count("Traceback (most recent call last):") == 1 and len(trace) <= 10
    assert 'envgym.training.train(tiny(sys.argv[1] + "/other"' in done.stderr
