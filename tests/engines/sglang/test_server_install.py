"""SGLang's virtual environment: when it counts as installed, what a server's process sees of this one, and what a model
folder must have."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

from envgym.cli import main
from envgym.engines.sglang import install as sglang_install
from envgym.engines.sglang.install import (
    REQUIREMENTS,
    SGLANG_VERSION,
    STAMP,
    STAND_IN,
    install,
    server_environment,
    sglang_python,
    venv_folder,
)
from envgym.errors import MissingDependencyError


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that is to hold SGLang; it does not exist."""
    monkeypatch.setenv("ENVGYM_SGLANG_VENV", str(tmp_path / "venv"))
    return tmp_path / "venv"


@pytest.fixture
def own_venv(venv: Path) -> Path:
    """A virtual environment of the user's, named in the place of one for SGLang."""
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\n")
    return venv


@pytest.fixture
def finished(own_venv: Path) -> Path:
    """A folder that looks like a finished installation for the CPU."""
    (own_venv / "lib" / "python3.11" / "site-packages" / f"sglang-{SGLANG_VERSION}.dist-info").mkdir(parents=True)
    sglang_install._write_stamp(own_venv, "cpu", finished=True)
    return own_venv


@pytest.fixture
def no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be installed."""
    monkeypatch.setitem(REQUIREMENTS, "cpu", ("--no-index", "--find-links", str(tmp_path), "no-such-package"))


def test_a_finished_installation_is_found_and_left_alone(finished: Path) -> None:
    before = (finished / STAMP).read_bytes()
    assert sglang_python("cpu") == finished / "bin" / "python"
    assert install("cpu") == finished / "bin" / "python"
    assert (finished / STAMP).read_bytes() == before


def test_one_that_was_interrupted_or_is_of_another_version_does_not_count(finished: Path) -> None:
    sglang_install._write_stamp(finished, "cpu", finished=False)
    with pytest.raises(MissingDependencyError, match="was not finished; run `envgym serve --install --device cpu`"):
        sglang_python("cpu")
    sglang_install._write_stamp(finished, "cpu", finished=True)
    packages = finished / "lib" / "python3.11" / "site-packages"
    (packages / f"sglang-{SGLANG_VERSION}.dist-info").rename(packages / "sglang-0.4.9.dist-info")
    needed = f"holds SGLang 0.4.9, but envgym is made for {SGLANG_VERSION}; run `envgym serve"
    with pytest.raises(MissingDependencyError, match=needed):
        sglang_python("cpu")


@pytest.mark.parametrize(("field", "value"), [("sglang", "0.4.9"), ("requirements", "0"), ("device", "cuda")])
def test_a_stamp_of_another_installation_does_not_count(finished: Path, field: str, value: str) -> None:
    stamp = json.loads((finished / STAMP).read_text())
    (finished / STAMP).write_text(json.dumps({**stamp, field: value}))
    with pytest.raises(MissingDependencyError, match="envgym serve --install --device cpu"):
        sglang_python("cpu")


def test_the_command_says_how_to_install_it(
    venv: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(tiny_model_folder), "--device", "cpu", "--port", "0"]) == 2
    assert "run `envgym serve --install --device cpu`" in capsys.readouterr().err


def test_a_failed_installation_does_not_count_and_names_the_command(venv: Path, no_package: None) -> None:
    with pytest.raises(MissingDependencyError, match=r"pip failed \(exit status 1.*no-such-package"):
        install("cpu")
    assert json.loads((venv / STAMP).read_text())["unfinished"]
    with pytest.raises(MissingDependencyError, match="was not finished"):
        sglang_python("cpu")


def test_an_unfinished_one_that_does_not_work_is_made_again(venv: Path, no_package: None) -> None:
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").write_text("cut off")
    sglang_install._write_stamp(venv, "cpu", finished=False)
    with pytest.raises(MissingDependencyError, match="pip failed"):
        install("cpu")
    assert (venv / "pyvenv.cfg").is_file()


def test_an_environment_that_envgym_did_not_make_is_not_taken_for_an_unfinished_one_and_not_installed_into(
    own_venv: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = f"'{own_venv}' holds no SGLang {SGLANG_VERSION} that envgym installed.*unset ENVGYM_SGLANG_VENV, or"
    with pytest.raises(MissingDependencyError, match=problem):
        sglang_python("cpu")
    assert main(["serve", "--install", "--device", "cpu"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "a virtual environment that envgym did not make; unset ENVGYM_SGLANG_VENV" in line
    assert sorted(entry.name for entry in own_venv.iterdir()) == ["bin", "pyvenv.cfg"]
    assert list(own_venv.parent.iterdir()) == [own_venv]


def test_a_folder_that_is_something_else_is_not_deleted(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.mkdir()
    thesis = venv / "chapter.txt"
    thesis.write_text("years of work")
    for use in (install, sglang_python):
        with pytest.raises(MissingDependencyError, match="something that envgym did not make; unset"):
            use("cpu")
    assert thesis.exists()
    monkeypatch.setenv("ENVGYM_SGLANG_VENV", str(thesis))
    with pytest.raises(MissingDependencyError, match="something that envgym did not make"):
        sglang_python("cpu")


def test_one_in_the_cache_is_to_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENVGYM_SGLANG_VENV", raising=False)
    monkeypatch.setenv("ENVGYM_CACHE", str(tmp_path))
    venv_folder("cpu").mkdir()
    (venv_folder("cpu") / "file").touch()
    with pytest.raises(MissingDependencyError, match="remove it, or name another folder in ENVGYM_SGLANG_VENV"):
        install("cpu")


def test_where_it_is_installed_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENVGYM_SGLANG_VENV", "ENVGYM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    name = f"sglang-{SGLANG_VERSION}-cuda"
    assert venv_folder("cuda") == Path.home() / ".cache" / "envgym" / name
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert venv_folder("cuda") == tmp_path / "xdg" / "envgym" / name
    monkeypatch.setenv("ENVGYM_CACHE", str(tmp_path / "cache"))
    assert venv_folder("cuda") == tmp_path / "cache" / name


def test_every_package_for_the_cpu_has_one_version_and_sglang_the_tested_one() -> None:
    lines = [line for line in Path(REQUIREMENTS["cpu"][-1]).read_text().splitlines() if not line.startswith("#")]
    assert all(line.count("==") == 1 for line in lines)
    assert f"sglang=={SGLANG_VERSION}" in lines
    assert REQUIREMENTS["cuda"] == (f"sglang=={SGLANG_VERSION}",)


def test_a_server_sees_the_stand_in_on_a_cpu_only_and_nothing_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PYTHONPATH": "mine", "RANK": "1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("no_proxy", "example.org")
    cpu, cuda = server_environment("cpu", 2), server_environment("cuda")
    assert cpu["PYTHONPATH"] == str(STAND_IN)
    assert "PYTHONPATH" not in cuda
    assert (cpu["OMP_NUM_THREADS"], cpu["SGLANG_USE_CPU_ENGINE"]) == ("2", "1")
    assert not {"OMP_NUM_THREADS", "SGLANG_USE_CPU_ENGINE"} & set(cuda)
    for environment in (cpu, cuda):
        assert not {"RANK", "MASTER_PORT", "TORCHELASTIC_RUN_ID"} & set(environment)
        assert environment["no_proxy"] == "example.org,127.0.0.1,localhost"
        assert environment["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "0"


def test_any_kernel_can_be_imported_from_the_stand_in_and_none_can_be_called() -> None:
    program = """
import multiprocessing
import sgl_kernel, sgl_kernel.kvcacheio
from sgl_kernel import verify_tree_greedy_cpu
from sgl_kernel.scalar_type import scalar_types
assert not hasattr(sgl_kernel, "__version__")
scalar_types.uint4b8
multiprocessing.set_start_method("spawn", force=True)
assert multiprocessing.get_start_method() == "fork"
try:
    verify_tree_greedy_cpu(1)
except NotImplementedError as error:
    print(error)
"""
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=server_environment("cpu"), capture_output=True, text=True)
    assert "sgl_kernel.verify_tree_greedy_cpu is a compiled kernel" in result.stdout, result.stderr


def test_importing_the_stand_in_by_another_name_changes_nothing() -> None:
    import envgym.engines.sglang.stand_in.sgl_kernel
    import envgym.engines.sglang.stand_in.sitecustomize  # noqa: F401

    assert multiprocessing.set_start_method.__module__ == "multiprocessing.context"
    assert not any(type(finder).__module__.startswith("envgym.engines.sglang.stand_in") for finder in sys.meta_path)
