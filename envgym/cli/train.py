"""`envgym train`, `quickstart` and `export`: from the arguments of the command line to a run and back."""

from __future__ import annotations

import argparse
import json
import sys
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envgym.cli.options import assign

if TYPE_CHECKING:
    from envgym.config import TrainConfig


def add_training_commands(commands: Any) -> None:
    """Adds the commands and their arguments to those of `envgym`."""
    quickstart = commands.add_parser("quickstart", help="train a small policy to use tools, in a few minutes on a CPU")
    quickstart.add_argument("--run-dir", type=Path, help="folder of the run (default runs/quickstart)")
    quickstart.add_argument("--seed", type=int)
    quickstart.set_defaults(run=_train, config="quickstart", set=[], resume=None)

    train = commands.add_parser("train", help="train a policy")
    train.add_argument("config", nargs="?", help="name of a recipe, or a config.json")
    train.add_argument("--run-dir", type=Path, help="folder of the run (default runs/NAME)")
    train.add_argument("--seed", type=int, help="seed of the run")
    train.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="change a field: actor.learning_rate=1e-4"
    )
    for command in (train, quickstart):
        command.add_argument(
            "--policy", choices=("embedded", "sglang"), help="what samples: the embedded engine (default), or SGLang"
        )
        command.add_argument(
            "--url",
            action="append",
            metavar="URL",
            help="an SGLang server that runs already, also of a run to resume; none starts one",
        )
    train.add_argument("--resume", type=Path, metavar="RUN", help="continue a run from its newest checkpoint")
    train.set_defaults(run=_train)

    export = commands.add_parser("export", help="write the model of an unfinished run's newest checkpoint")
    export.add_argument("run_dir", type=Path, metavar="RUN")
    export.set_defaults(run=_export)


def _train(arguments: argparse.Namespace) -> None:
    """Trains as the command line says, or goes on with a run, and shows before and after."""
    from rich.console import Console

    from envgym.cli.tables import episode_text, print_tables, report_tables
    from envgym.training import train

    if arguments.resume is not None:
        config = _to_resume(arguments)
    elif arguments.config is None:
        raise ValueError("name a recipe or a config.json to train, or a run to --resume")
    else:
        config = _configured(arguments)
    try:
        result = train(config, resume=arguments.resume is not None)
    except KeyboardInterrupt:
        print(f"\nenvgym: {_how_to_go_on(arguments, config)}", file=sys.stderr)
        raise
    console = Console(highlight=False)
    columns = {
        f"{kind} {when}": reports[kind]
        for kind in ("sampled", "greedy")
        for when, reports in (("before", result.before), ("after", result.after))
    }
    title = f"{config.env.id} on {config.evaluation.episodes} held-out seeds"
    console.print(title, markup=False, soft_wrap=True)
    print_tables(console, report_tables(columns, console.width))
    command = f"envgym eval --agent {result.run_dir} --env {config.env.id} --episodes 256"
    lines = [
        "\nOne episode of the trained policy:",
        episode_text(result.example),
        f"\nRun folder: {result.run_dir}",
        f"Evaluate it: {command}",
    ]
    console.print("\n".join(lines), markup=False, soft_wrap=True)


def _how_to_go_on(arguments: argparse.Namespace, config: TrainConfig) -> str:
    """What to do after an interruption: before its first checkpoint a run holds nothing to continue."""
    from envgym.training.run_folder import has_checkpoint

    if has_checkpoint(config.run_dir):
        return f"continue with `envgym train --resume {config.run_dir}`"
    chosen = arguments.run_dir is None and not Path(arguments.config or "").is_file()
    where = f" with --run-dir {config.run_dir}" if chosen else ""
    return f"there is no checkpoint yet; the same command{where} starts again"


def _configured(arguments: argparse.Namespace) -> TrainConfig:
    """The recipe or file that was named, with the changes that were asked for.

    Raises:
        ValueError: There is no such recipe or file, or a change does not fit.
    """
    from envgym.config import stored_fields
    from envgym.training.recipes import RECIPES

    name = arguments.config
    if name in RECIPES:
        fields: dict[str, Any] = RECIPES[name]("run").model_dump(mode="json")
        fields["run_dir"] = str(arguments.run_dir or _free_folder(Path("runs") / name))
    elif Path(name).is_file():
        try:
            fields = stored_fields(Path(name).read_bytes())
        except ValueError as error:
            raise ValueError(f"'{name}' holds no configuration: {error}") from error
        if arguments.run_dir is not None:
            fields["run_dir"] = str(arguments.run_dir)
    elif Path(name).is_dir():
        raise ValueError(f"'{name}' is a folder; continue a run with --resume {name}, or name its config.json")
    else:
        raise ValueError(f"'{name}' is neither a recipe ({', '.join(sorted(RECIPES))}) nor a configuration file")
    if arguments.seed is not None:
        fields["seed"] = arguments.seed
    return _changed(fields, arguments)


def _to_resume(arguments: argparse.Namespace) -> TrainConfig:
    """The configuration of the run to go on with, with the changes that were asked for.

    Raises:
        CheckpointError: There is no such run.
        ValueError: Something was given that a run cannot change, or that does not fit.
    """
    from envgym.training.run_folder import read_config

    config = _changed(read_config(arguments.resume).model_dump(mode="json"), arguments)
    others = (arguments.config, arguments.run_dir, arguments.seed)
    if any(other is not None for other in others) or config.run_dir != arguments.resume:
        raise ValueError(
            "--resume continues a run as it was configured; it goes with --url and --set alone, for what does not "
            "change what is learned"
        )
    return config


def _changed(fields: dict[str, Any], arguments: argparse.Namespace) -> TrainConfig:
    """The configuration of these fields, with `--policy`, `--url` and `--set` put into them.

    Raises:
        ValueError: A change does not fit, or there are addresses of servers for a policy that has none.
    """
    from envgym.config import TrainConfig

    kind, urls = arguments.policy, arguments.url
    if urls and kind == "embedded":
        raise ValueError("--url names SGLang servers; it does not go with --policy embedded")
    changes = [f"policy.kind={kind or 'sglang'}"] if kind or urls else []
    if urls:  # servers that run already are beside the learner
        changes += [f"policy.urls={json.dumps(urls)}", "policy.colocated=false"]
    unions = {name: field for name, field in TrainConfig.model_fields.items() if field.discriminator is not None}
    for name, field in unions.items():
        default = field.get_default(call_default_factory=True).model_dump(mode="json")
        if isinstance(section := fields.get(name, default), dict):
            fields[name] = {"kind": default["kind"], **section}
    return TrainConfig.model_validate(assign(fields, [*changes, *arguments.set], kinds=unions))


def _free_folder(path: Path) -> Path:
    """The path, with a number behind it if it is taken."""
    if not path.exists():
        return path
    return next(numbered for n in count(2) if not (numbered := path.with_name(f"{path.name}-{n}")).exists())


def _export(arguments: argparse.Namespace) -> None:
    """Writes the model of a run that has none yet, and prints its folder."""
    from envgym.training import export_run

    print(export_run(arguments.run_dir))
