"""A checkpoint is what was saved, bit for bit, or it is not loaded; and a full disk costs no checkpoint."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from full_disk import files_of_at_most
from tiny_learner import EVERYTHING, make_config, make_learner, make_samples, on_ranks, weights_of

from envgym.errors import CheckpointError, StorageError
from envgym.learner.checkpoint import latest_checkpoint, load_checkpoint, load_newest, save_checkpoint


@pytest.fixture(autouse=True)
def _world(one_rank):
    pass


@pytest.fixture(scope="module")
def saved(one_rank, tmp_path_factory):
    """Checkpoints of one learner after one and after two iterations, and its weights at each."""
    folder = tmp_path_factory.mktemp("saved")
    learner, weights = make_learner(make_config()), {}
    for iteration in (1, 2):
        learner.train_on(make_samples(), seed=iteration)
        save_checkpoint(folder, learner, {"sizes": {}}, iteration=iteration, keep=2)
        weights[iteration] = weights_of(learner.actor)
    return folder, weights


@pytest.fixture
def folder(saved, tmp_path):
    shutil.copytree(saved[0], tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


def same(weights, learner):
    return all(torch.equal(tensor, weights[name]) for name, tensor in weights_of(learner.actor).items())


def test_the_manifest_lists_every_file_with_its_size(folder):
    path = folder / "000002"
    files = json.loads((path / "manifest.json").read_text())["files"]
    assert files.keys() == {entry.name for entry in path.iterdir()} - {"manifest.json"}
    assert ".metadata" in files and "state.json" in files and any(name.endswith(".distcp") for name in files)
    assert all(entry["bytes"] == (path / name).stat().st_size for name, entry in files.items())


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", [".metadata", "state.json", "__0_0.distcp"])
def test_one_flipped_bit_anywhere_is_seen_and_the_file_named(folder, name, share):
    path = folder / "000002" / name
    flip(path, round(share * (path.stat().st_size - 1)))
    with pytest.raises(CheckpointError, match=f"000002' cannot be loaded \\({name} does not match its checksum"):
        load_checkpoint(folder / "000002", make_learner(make_config()))


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("state.json", lambda p: p.write_text("{}"), r"state.json has 2 bytes and had \d+"),
        ("state.json", lambda p: p.write_text(p.read_text()[:-9]), r"state.json has \d+ bytes and had \d+"),
        ("state.json", lambda p: p.unlink(), "state.json is missing"),
        ("__0_0.distcp", lambda p: p.unlink(), "__0_0.distcp is missing"),
        ("__0_0.distcp", lambda p: p.write_bytes(b""), "__0_0.distcp has 0 bytes"),
        (".metadata", lambda p: p.unlink(), ".metadata is missing"),
        ("manifest.json", lambda p: p.unlink(), "it has no manifest.json"),
        ("manifest.json", lambda p: p.write_text("{}"), "manifest.json is damaged"),
        ("manifest.json", lambda p: p.write_text('{"files": {}}'), "manifest.json is damaged"),
        ("manifest.json", lambda p: p.write_text('{"files": {"state.json": {"bytes": 3}}}'), "manifest.json is dam"),
        ("manifest.json", lambda p: p.write_text('{"files"'), "manifest.json is damaged"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_and_said_to_be(folder, saved, caplog, name, damage, said):
    damage(folder / "000002" / name)
    learner = make_learner(make_config())
    with pytest.raises(
        CheckpointError, match=rf"cannot be loaded \({said}.*\); load '000001' beside it instead"
    ) as one:
        load_checkpoint(folder / "000002", learner)
    assert "\n" not in str(one.value)
    state = load_newest(folder, learner, needs=("sizes",))
    assert state["learner"]["iteration"] == 1 and same(saved[1][1], learner)
    assert "000002' is damaged" in caplog.text and "000001' is used in its place" in caplog.text
    assert (folder / "000002").is_dir()  # reading alone changes nothing


def test_a_run_that_goes_on_sets_the_damaged_one_aside(folder, caplog):
    flip(folder / "000002" / "__0_0.distcp", 100)
    learner = make_learner(make_config())
    load_newest(folder, learner, set_aside=True)
    assert sorted(entry.name for entry in folder.iterdir()) == ["000001", "000002.damaged"]
    assert "was renamed '000002.damaged'" in caplog.text
    save_checkpoint(folder, learner, {}, iteration=2, keep=2)
    assert load_newest(folder, learner)["learner"]["iteration"] == 2


def test_an_intact_newest_checkpoint_is_loaded_without_a_word(folder, saved, caplog):
    learner = make_learner(make_config())
    assert load_newest(folder, learner, set_aside=True)["learner"]["iteration"] == 2
    assert same(saved[1][2], learner)
    assert not [record for record in caplog.records if record.name.startswith("envgym")]


def test_no_intact_checkpoint_is_one_sentence_that_names_all_and_leaves_them(folder):
    (folder / "000001" / "__0_0.distcp").unlink()
    flip(folder / "000002" / "__0_0.distcp", 100)
    with pytest.raises(
        CheckpointError, match=r"no checkpoint in '.*' is intact \(000002: __0_0.*; 000001: .*missing\); put a copy"
    ):
        load_newest(folder, make_learner(make_config()), set_aside=True)
    assert sorted(entry.name for entry in folder.iterdir()) == ["000001", "000002"]
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        load_newest(folder / "nothing", make_learner(make_config()))


def test_a_state_without_what_the_run_needs_is_named(folder):
    with pytest.raises(CheckpointError, match=r"000002' cannot be loaded \(state.json lacks before, pretraining\)"):
        load_newest(folder, make_learner(make_config()), needs=("before", "sizes", "pretraining"))


def test_a_checkpoint_without_adaptive_kl_does_not_fit_a_run_with_one(tmp_path):
    config = make_config(kl={"beta": 0.01})
    path = save_checkpoint(tmp_path, make_learner(config), {}, iteration=1, keep=1)
    with pytest.raises(CheckpointError, match="without an adaptive KL penalty"):
        load_checkpoint(path, make_learner(make_config(kl=EVERYTHING["kl"])))


# -- a full disk -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_bytes", [100, 20_000])
def test_a_full_disk_leaves_the_checkpoint_before_and_says_so(folder, saved, num_bytes):
    learner = make_learner(make_config())
    with (
        files_of_at_most(num_bytes),
        pytest.raises(StorageError, match=r"'.*000003' could not be written \(.*; it takes [1-9]\d*\.\d MB") as caught,
    ):
        save_checkpoint(folder, learner, {}, iteration=3, keep=1)
    assert "000002' before it is untouched: make room and resume the run" in str(caught.value)
    assert "\n" not in str(caught.value) and "\n" not in str(caught.value.__cause__)
    assert sorted(entry.name for entry in folder.iterdir()) == ["000001", "000002"]  # nothing half-written either
    assert load_newest(folder, learner)["learner"]["iteration"] == 2 and same(saved[1][2], learner)
    save_checkpoint(folder, learner, {}, iteration=3, keep=1)  # there is room again
    assert [entry.name for entry in folder.iterdir()] == ["000003"]


def test_a_full_disk_at_the_first_checkpoint_says_to_start_again(tmp_path):
    with files_of_at_most(100), pytest.raises(StorageError, match="There is no checkpoint before it: make room and st"):
        save_checkpoint(tmp_path, make_learner(make_config()), {}, iteration=0, keep=1)
    assert not list(tmp_path.iterdir())


def test_writing_an_iteration_again_on_a_full_disk_keeps_what_was_there(folder, saved):
    learner = make_learner(make_config())
    with files_of_at_most(100), pytest.raises(StorageError):
        save_checkpoint(folder, learner, {}, iteration=2, keep=2)
    load_checkpoint(latest_checkpoint(folder), learner)
    assert latest_checkpoint(folder).name == "000002" and same(saved[1][2], learner)


def damage_and_fill_on_each_rank(folder):
    """What every rank says when the shard of the second one is damaged, and when the disk of the main one is full."""
    from pathlib import Path

    learner, said = make_learner(make_config()), []
    path = save_checkpoint(Path(folder), learner, {}, iteration=1, keep=2)
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 0:
        flip(path / "__1_0.distcp", 500)
    torch.distributed.barrier()
    try:
        load_checkpoint(path, learner)
    except CheckpointError as error:
        said.append(str(error))
    limit = 100 if torch.distributed.get_rank() == 0 else 10_000_000
    try:
        with files_of_at_most(limit):
            save_checkpoint(Path(folder), learner, {}, iteration=2, keep=2)
    except StorageError as error:
        said.append(str(error))
    return said


@pytest.mark.slow
def test_every_rank_learns_of_what_one_finds_or_cannot_write(tmp_path):
    first, second = on_ranks(2, damage_and_fill_on_each_rank, str(tmp_path))
    assert len(first) == 2 and first[0] == second[0] and len(second) == 2
    assert "__1_0.distcp does not match its checksum" in first[0]
    assert all("000002' could not be written" in said for said in (first[1], second[1]))
    assert [entry.name for entry in tmp_path.iterdir()] == ["000001"]
