"""What a command line trains with, and what it says when a run ends before its end."""

import itertools

import pytest

from envgym.cli import main
from envgym.config import FolderModel, SGLangPolicyConfig
from envgym.errors import ServerError
from envgym.training.recipes import RECIPES
from envgym.training.run_folder import RunFolder


@pytest.fixture
def configured(monkeypatch):
    """The configuration that a command line trains with."""
    import envgym.training

    seen = []

    def train(config, *, resume):
        seen.append(config)
        raise ServerError("seen")

    monkeypatch.setattr(envgym.training, "train", train)

    def configured(*arguments):
        assert main(["train", *map(str, arguments)]) == 2
        return seen.pop()

    return configured


@pytest.mark.parametrize("order", list(itertools.permutations(["model.kind=folder", "model.path=m2", "seed=4"])))
def test_another_kind_of_a_section_starts_from_its_defaults_in_any_order(configured, order):
    config = configured("quickstart", *(part for change in order for part in ("--set", change)))
    assert config.model == FolderModel(path="m2") and config.seed == 4


def test_a_kind_that_is_there_already_keeps_its_fields(configured):
    config = configured("quickstart", "--set", "model.num_layers=3", "--set", "model.kind=new")
    assert config.model == RECIPES["quickstart"]("r").model.model_copy(update={"num_layers": 3})


def test_a_kind_is_only_what_the_configuration_calls_one(configured, tmp_path):
    """An environment may have an argument of that name, and a file need not name every section."""
    config = configured("quickstart", "--set", 'env.kwargs={"kind": "a", "size": 3}', "--set", "env.kwargs.kind=b")
    assert config.env.kwargs == {"kind": "b", "size": 3}
    (tmp_path / "c.json").write_text('{"run_dir": "r", "env": {"id": "envgym/Upkeep-v0"}}')
    assert configured(tmp_path / "c.json", "--set", "model.hidden_size=32").model.hidden_size == 32
    (tmp_path / "d.json").write_text('{"run_dir": "r", "env": {"id": "envgym/Upkeep-v0"}, "estimator": {"gamma": 0.5}}')
    assert configured(tmp_path / "d.json", "--set", "estimator.kind=gae").estimator.gamma == 0.5
    policy = configured(tmp_path / "c.json", "--set", "policy.urls=[]", "--set", "policy.kind=sglang").policy
    assert policy == SGLangPolicyConfig()


def test_a_file_that_an_earlier_version_wrote_is_read_and_an_old_name_that_is_set_is_refused(
    configured, tmp_path, capsys
):
    file = tmp_path / "config.json"
    file.write_text(
        '{"run_dir": "r", "env": {"id": "envgym/Upkeep-v0"}, "advantages": {"gamma": 0.5}, '
        '"policy_loss": {"clip_low": 0.1}}'
    )
    config = configured(file, "--run-dir", tmp_path / "again", "--set", "estimator.gae_lambda_policy=0.8")
    assert (config.estimator.gamma, config.estimator.gae_lambda_policy, config.loss.clip_low) == (0.5, 0.8, 0.1)
    for arguments in (["quickstart"], [str(file)]):
        assert main(["train", *arguments, "--set", "advantages.gamma=0.5"]) == 2
        assert "the section 'advantages' is called 'estimator' now" in capsys.readouterr().err
    file.write_text('{"run_dir": "r", "env": {"id": "envgym/Upkeep-v0"}, "loss": {}, "policy_loss": {"clip_low": 0.1}}')
    assert main(["train", str(file)]) == 2
    assert "the section 'policy_loss' is called 'loss' now" in capsys.readouterr().err


def test_a_run_is_resumed_with_servers_at_other_addresses(configured, tmp_path):
    begun = configured(
        "quickstart", "--run-dir", tmp_path / "run", "--policy", "sglang", "--set", "policy.colocated=true"
    )
    RunFolder.create(begun).close()
    moved = configured("--resume", tmp_path / "run", "--url", "http://b:1", "--url", "http://c:2")
    assert moved.policy == SGLangPolicyConfig(urls=("http://b:1", "http://c:2"))
    RunFolder.reopen(moved).close()
    assert configured("--resume", tmp_path / "run") == moved
    back = configured("--resume", tmp_path / "run", "--set", "policy.urls=[]", "--set", "num_iterations=99")
    assert back == moved.model_copy(update={"policy": SGLangPolicyConfig(), "num_iterations": 99})
    for others in (["quickstart"], ["--seed", "1"], ["--run-dir", "other"], ["--set", "run_dir=other"]):
        with pytest.raises(IndexError):  # nothing is trained
            configured("--resume", tmp_path / "run", *others)


def test_an_interrupted_run_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    import envgym.training

    def interrupted(config, *, resume):
        config.run_dir.mkdir(parents=True, exist_ok=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(envgym.training, "train", interrupted)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "quickstart"]) == 130
    shown = capsys.readouterr().err
    assert "there is no checkpoint yet; the same command with --run-dir runs/quickstart starts again" in shown
    assert main(["train", "quickstart", "--run-dir", "runs/a"]) == 130
    assert "there is no checkpoint yet; the same command starts again" in capsys.readouterr().err
    (tmp_path / "runs/a/checkpoints/.000000.partial").mkdir(parents=True)
    assert main(["train", "quickstart", "--run-dir", "runs/a"]) == 130
    assert "there is no checkpoint yet" in capsys.readouterr().err
    (tmp_path / "runs/a/checkpoints/000000").mkdir()
    assert main(["train", "quickstart", "--run-dir", "runs/a"]) == 130
    assert "continue with `envgym train --resume runs/a`" in capsys.readouterr().err


def test_an_error_that_ends_a_run_says_how_to_go_on_below_it(monkeypatch, capsys):
    import envgym.training

    def failing(config, *, resume):
        error = ServerError("no server answers")
        error.add_note("continue from iteration 3 with `envgym train --resume runs/a`")
        raise error

    monkeypatch.setattr(envgym.training, "train", failing)
    assert main(["train", "quickstart"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "envgym: no server answers",
        "envgym: continue from iteration 3 with `envgym train --resume runs/a`",
    ]
