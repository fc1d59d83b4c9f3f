"""Registration is Gymnasium's, keeps our fields, and says what is wrong with an id or an argument."""

import subprocess
import sys
import warnings
from importlib import metadata

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

import envgym
from envgym import Step, TextEnv, TruncationReason, registry
from envgym.errors import EnvGymError, EpisodeOrderError, UnknownIdError

BUILTIN = ["envgym/HigherLower-v0", "envgym/PointerChase-v0", "envgym/Upkeep-v0"]


class Countdown(TextEnv):
    """Never ends by itself; the observation counts the steps."""

    max_turns = 4

    def __init__(self, start: int = 0) -> None:
        self.start = start

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = self.start
        return str(self.count), {}

    def step(self, action):
        self.count += 1
        return Step.running(str(self.count), 1.0)


@pytest.fixture
def countdown():
    envgym.register("test/Countdown-v0", f"{__name__}:Countdown", tags=["counting"], kwargs={"start": 10})
    yield "test/Countdown-v0"
    del gymnasium.registry["test/Countdown-v0"]


def episode_length(env):
    env.reset(seed=0)
    for length in range(1, 1000):
        step = env.step("x")
        if step[2] or step[3]:
            return length, step
    raise AssertionError("endless")


def test_the_built_in_environments_are_listed():
    assert set(BUILTIN) <= set(envgym.list_environments())
    tools = envgym.list_environments("tools")
    assert "envgym/PointerChase-v0" in tools and "envgym/HigherLower-v0" not in tools


def test_importing_envgym_imports_no_environment_and_no_torch():
    code = (
        "import sys, envgym; envgym.spec('envgym/Upkeep-v0'); envgym.list_environments();"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'transformers', 'docker', 'sglang')"
        " or m.startswith('envgym.environments')])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("id", "nearest"),
    [
        ("envgym/HigerLower-v0", "envgym/HigherLower-v0"),
        ("envgym/Upkeep", "envgym/Upkeep-v0"),
        ("PointerChase-v0", "envgym/PointerChase-v0"),
    ],
)
def test_an_unknown_id_suggests_the_nearest(id, nearest):
    with pytest.raises(UnknownIdError) as caught:
        envgym.make(id)
    assert str(caught.value) == f"Unknown environment '{id}'. Did you mean '{nearest}'?"


@pytest.mark.parametrize("id", ["envgym/Foo-v0", "envgym/Chess-v0", "envgym/Nothing-v0"])
def test_namespace_and_version_alone_make_no_suggestion(id):
    with pytest.raises(UnknownIdError, match=r"Known are: envgym/Assistant-v0, .*envgym/Wordle-v0\."):
        envgym.spec(id)


def test_a_namespace_nobody_has_registered_says_what_to_import():
    with pytest.raises(UnknownIdError) as caught:
        envgym.spec("nobodys/X-v0")
    assert str(caught.value) == (
        "Unknown environment 'nobodys/X-v0'. Nothing is registered under 'nobodys/'. Import the module that registers "
        "it first, or let it be imported: 'MODULE:nobodys/X-v0'."
    )


def test_an_id_like_no_other_lists_what_there_is():
    with pytest.raises(UnknownIdError, match=r"Known are: .*envgym/Upkeep-v0"):
        envgym.spec("zzzzzzzzzz")


def test_a_gymnasium_environment_is_not_ours():
    with pytest.raises(UnknownIdError, match="not registered through envgym"):
        envgym.make("CartPole-v1")
    assert "CartPole-v1" not in envgym.list_environments()


def test_a_wrong_argument_names_the_accepted_ones(countdown):
    with pytest.raises(ValueError, match=r"takes no argument 'begin'; it takes max_turns, start"):
        envgym.make(countdown, begin=3)


def test_make_passes_arguments_over_the_registered_ones(countdown):
    assert envgym.make(countdown).reset(seed=0)[0] == "10"
    assert envgym.make(countdown, start=0).reset(seed=0)[0] == "0"


def test_the_turn_limit_comes_from_make_then_registration_then_class(countdown):
    assert episode_length(envgym.make(countdown))[0] == 4
    assert episode_length(envgym.make(countdown, max_turns=7))[0] == 7
    envgym.register("test/Shorter-v0", Countdown, max_turns=2)
    assert episode_length(envgym.make("test/Shorter-v0"))[0] == 2
    assert episode_length(envgym.make("test/Shorter-v0", max_turns=3))[0] == 3
    del gymnasium.registry["test/Shorter-v0"]


def test_a_registered_terminal_limit_terminates():
    envgym.register("test/Limit-v0", Countdown, terminal_limits=[TruncationReason.MAX_TURNS])
    _, step = episode_length(envgym.make("test/Limit-v0"))
    assert (step.terminated, step.truncated) == (True, False)
    del gymnasium.registry["test/Limit-v0"]


def test_gymnasium_make_applies_the_turn_limit_and_the_guard_without_a_warning(countdown):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(countdown)
        length, step = episode_length(env)
    assert (length, step.truncated, step.info["truncation_reason"]) == (4, True, "max_turns")
    with pytest.raises(EpisodeOrderError, match=r"test/Countdown-v0: step was called after the episode had ended"):
        env.step("x")


def test_a_spec_round_trips_through_json(countdown):
    envgym.register("test/Full-v0", f"{__name__}:Countdown", max_turns=3, terminal_limits=["max_turns"], tags=["a"])
    restored = EnvSpec.from_json(envgym.spec("test/Full-v0").to_json())
    assert restored == envgym.spec("test/Full-v0")
    length, step = episode_length(envgym.make(restored))
    assert (length, step.terminated) == (3, True)
    made = EnvSpec.from_json(envgym.make(countdown, start=5, max_turns=6).spec.to_json())
    again = gymnasium.make(made)
    assert again.reset(seed=0)[0] == "5" and episode_length(again)[0] == 6
    del gymnasium.registry["test/Full-v0"]


def test_tags_select(countdown):
    assert envgym.list_environments("counting") == [countdown]
    assert envgym.list_environments("no such tag") == []


@pytest.mark.parametrize("id", BUILTIN)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vector_environments_step_and_reset_themselves(id, mode):
    options = {"shared_memory": False} if mode == "async" else {}
    envs = gymnasium.make_vec(id, num_envs=2, vectorization_mode=mode, vector_kwargs=options)
    try:
        observations, _ = envs.reset(seed=3)
        assert observations[0] == envgym.make(id).reset(seed=3)[0]
        envs.action_space.seed(0)
        ended = 0
        for _ in range(60):
            observations, rewards, terminated, truncated, _ = envs.step(envs.action_space.sample())
            ended += int((terminated | truncated).sum())
            assert all(isinstance(text, str) for text in observations) and rewards.shape == (2,)
        assert ended >= 2
    finally:
        envs.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"id": "a b/c", "entry_point": "m:C"}, "cannot register 'a b/c'"),
        ({"id": "test/X-v0", "entry_point": "module.Class"}, "'module:Class'"),
        ({"id": "test/X-v0", "entry_point": "m:C", "max_turns": 0}, "at least 1"),
        ({"id": "test/X-v0", "entry_point": "m:C", "terminal_limits": ["soon"]}, "soon"),
        ({"id": "test/X", "entry_point": "m:C"}, "an id ends with its version, for example 'test/X-v0'"),
        ({"id": "test/X-v0", "entry_point": Countdown()}, "is an instance of Countdown; register the class"),
        ({"id": "test/X-v0", "entry_point": 3}, "must be a class, a factory or 'module:Class', got 3"),
        ({"id": "test/X-v0", "entry_point": dict}, "is dict; derive that from envgym.TextEnv"),
        ({"id": "envgym/Upkeep-v0", "entry_point": "m:C"}, "registered already, for envgym.environments.upkeep:Upkeep"),
    ],
)
def test_a_malformed_registration_is_refused(arguments, message):
    before = dict(gymnasium.registry)
    with pytest.raises(ValueError, match=message):
        envgym.register(**arguments)
    assert gymnasium.registry == before


def test_the_same_entry_point_may_register_again_and_another_only_by_force(countdown):
    class Other(Countdown):
        pass

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        envgym.register(countdown, Countdown, kwargs={"start": 20})  # the class itself, where its name was before
        assert envgym.make(countdown).reset(seed=0)[0] == "20"
        with pytest.raises(ValueError, match=r"for test_registry:Countdown; choose another id .* force=True"):
            envgym.register(countdown, Other)
        assert envgym.make(countdown).reset(seed=0)[0] == "20"
        envgym.register(countdown, Other, force=True)
    assert type(envgym.make(countdown).unwrapped) is Other and envgym.list_environments("counting") == []


def test_what_cannot_be_made_says_so(countdown):
    envgym.register("test/Gone-v0", "no_such_module_anywhere:Game")
    envgym.register("test/Renamed-v0", f"{__name__}:Countup")
    envgym.register("test/Needs-v0", lambda size: Countdown(size))
    try:
        with pytest.raises(EnvGymError, match=r"'no_such_module_anywhere:Game' of 'test/Gone-v0' cannot be imported"):
            envgym.make("test/Gone-v0")
        with pytest.raises(EnvGymError, match=r"AttributeError: .*Countup"):
            envgym.make("test/Renamed-v0")
        with pytest.raises(ValueError, match=r"cannot be made with no arguments: .*missing 1 required.*'size'"):
            envgym.make("test/Needs-v0")
        assert envgym.make("test/Needs-v0", size=3).reset(seed=0)[0] == "3"
    finally:
        for name in ("Gone", "Renamed", "Needs"):
            del gymnasium.registry[f"test/{name}-v0"]


def test_a_turn_limit_of_zero_is_refused_when_made():
    with pytest.raises(ValueError, match="max_turns must be at least 1, got 0"):
        envgym.make("envgym/Upkeep-v0", max_turns=0)


def test_registering_the_built_ins_again_changes_nothing():
    before = dict(gymnasium.registry)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registry.register_builtin()
    assert gymnasium.registry == before


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Installs two packages for this process: a sound one and a broken one."""

    def install(package, module, source):
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[envgym.environments]\n{module} = {module}:setup\n")

    install("broken-games", "broken_games", "raise RuntimeError('no board')")
    install(
        "sound-games",
        "sound_games",
        f"import envgym\ndef setup():\n    envgym.register('sound/Count-v0', '{__name__}:Countdown')\n",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_plugins_loaded", False)
    yield
    gymnasium.registry.pop("sound/Count-v0", None)


def test_a_broken_plug_in_is_named_and_does_not_break_the_others(installed):
    assert {entry.name for entry in metadata.entry_points(group="envgym.environments")} >= {
        "broken_games",
        "sound_games",
    }
    assert "sound/Count-v0" not in gymnasium.registry
    with pytest.warns(UserWarning, match=r"package 'broken-games' could not be loaded \(RuntimeError: no board\)"):
        env = envgym.make("sound/Count-v0")
    assert env.reset(seed=0)[0] == "0"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "sound/Count-v0" in envgym.list_environments()


def test_a_module_before_the_id_is_imported_first(tmp_path, monkeypatch):
    (tmp_path / "late_games.py").write_text(
        f"import envgym\nenvgym.register('late/Count-v0', '{__name__}:Countdown')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert envgym.make("late_games:late/Count-v0").reset(seed=0)[0] == "0"
    del gymnasium.registry["late/Count-v0"]
