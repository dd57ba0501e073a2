"""Mistakes in settings cost one sentence, which knows what was meant."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from helpers.command_line import Project, quiet_commands
from jsonargparse import ArgumentError

from benchmark.chaos.configs import GOOD, mutants, survey, try_configuration
from lrl.cli.commands import arguments_of
from lrl.cli.exit_status import Outcome
from lrl.cli.main import LrlCLI
from lrl.cli.messages import sentence
from lrl.report.contents import inspect
from lrl.report.page import report

pytestmark = [
    *quiet_commands,
    # Of Box2D's bindings; an import that fails by it crashes when it is tried again.
    pytest.mark.filterwarnings("ignore:builtin type .* has no __module__:DeprecationWarning"),
]

RECIPES = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
KNOWN = [
    "data.env.id",
    "data.replay.capacity",
    "data.replay.batch_size",
    "trainer.max_steps",
    "model.encoder",
]


@pytest.mark.parametrize(
    ("message", "meant"),
    [
        ("unrecognized arguments: --data.replay.capcity 3", "data.replay.capacity"),
        ("Subcommand 'fit' does not accept option 'daqta.replay.capacity'", "data"),
        ("Subcommand 'fit' does not accept option 'data.reply.capacity'", "data.replay"),
        ("module 'lrl.networks' has no attribute 'MLPEncodr'", "MLPEncoder"),
        (
            "given class_path 'lrl.networks.MLPEncoder': Option 'hiden_sizes' is not accepted",
            "hidden_sizes",
        ),
    ],
)
def test_the_nearest_name_is_offered(message, meant):
    import lrl.networks  # noqa: F401

    assert sentence(ValueError(message), KNOWN) == f"{message}: did you mean {meant!r}?"


class ParserOnly(LrlCLI):
    """The command line as far as its parser, which takes seconds to build; nothing runs."""

    def instantiate_classes(self) -> None: ...

    def _run_subcommand(self, subcommand: str) -> None: ...


@pytest.fixture(scope="module")
def parser():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["lrl", "fit"])
        patch.setenv("PL_GLOBAL_SEED", "0")  # restores it
        return ParserOnly(Outcome()).parser


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("--trainer.max_steps=many", "trainer.max_steps is many, but must be a whole number"),
        (
            "--data.rate.samples_per_insert=fast",
            "data.rate.samples_per_insert is fast, but must be a number or null",
        ),
        (
            "--data.replay.n_step=many",
            "data.replay.n_step is many, but must be a whole number or the path of a class",
        ),
        ("--model.encoder=foo", "model.encoder is foo, but must be the path of a class"),
        (
            "--model.encoder=torch.nn.Linear",
            "model.encoder is torch.nn.Linear, but must be a subclass of Encoder",
        ),
        ("--model.encoder=nowhere.Thing", "model.encoder: No module named 'nowhere'"),
        (
            "--model.encoder=lrl.networks.MLPEncoder --model.encoder.hiden_sizes=3",
            "model.encoder.hiden_sizes is no setting: did you mean 'hidden_sizes'?",
        ),
        (
            "--model.head=lrl.networks.ScalarHead --model.head.loss=foo",
            "model.head.loss is foo, but must be 'huber' or 'mse'",
        ),
        (
            "--model.optimizer=torch.optim.Adam --model.optimizer.lr=fast",
            "model.optimizer.lr is fast, but must be a number or the path of a class",
        ),
        (
            "--data.exploration=EpsilonGreedy --data.exploration.schedule=foo",
            "data.exploration.schedule is foo, but must be the path of a class",
        ),
        (
            "--data.inference.num_servers=x",
            "data.inference.num_servers is x, but must be a whole number",
        ),
        (
            "--data.inference.num_serv=1",
            "data.inference.num_serv is no setting: did you mean 'num_servers'?",
        ),
        ("--data.env.kwargs=5", "data.env.kwargs is 5, but must be a mapping"),
        (
            "--data.env=Acrobot-v1",
            "data.env is 'Acrobot-v1', but must hold settings, such as data.env.id",
        ),
        (
            '--model.encoder={"class_path":"lrl.networks.MLPEncoder","hidden_sizes":[8]}',
            "model.encoder: what is set beside class_path goes under init_args",
        ),
        (
            '--trainer.callbacks=[{"class_path":"EarlyStopping"}]',
            "trainer.callbacks: EarlyStopping needs monitor under init_args",
        ),
        (
            '--data.exploration={"class_path":["x"]}',
            "data.exploration is {'class_path': ['x']}, but must be the path of a class or null",
        ),
    ],
)
def test_a_wrong_type_is_told_with_key_and_value_and_what_is_accepted(parser, given, plain):
    with pytest.raises(ArgumentError) as told:
        parser.parse_args(["fit", *given.split()])
    assert sentence(told.value, KNOWN) == plain


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("nowhere.yaml", ""),
        ("configs/cartpole.yaml", ": did you mean 'recipe:cartpole'?"),
        ("configs/algo/rainbow.yaml", ": did you mean 'recipe:algo/rainbow'?"),
        ("", ""),  # a folder
    ],
)
def test_a_missing_configuration_may_be_a_recipe(parser, tmp_path, path, meant):
    with pytest.raises(ArgumentError) as told:
        parser.parse_args(["fit", "--config", str(tmp_path / path)])
    assert sentence(told.value) == f"--config {tmp_path / path}: there is no such file{meant}"


@pytest.mark.parametrize("path", ["runs/a/version_0/checkpoints/best.ckpt", "last", "hub:a/b"])
def test_a_checkpoint_without_its_option_is_told_which(path):
    with pytest.raises(ArgumentError) as told:
        arguments_of("inspect", inspect).parse_args(["--ckpt_path", "best", path])
    expected = f"unrecognized arguments: {path}: did you mean '--ckpt_path {path}'?"
    assert sentence(told.value) == expected


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("--bounds.CartPole-v1 0,500", "bounds.CartPole-v1 is '0,500', but must be a list"),
        ("--bounds.A [500]", "bounds.A is [500], but must be a list of 2 values"),
        ("--bounds {A:[5]}", "bounds is {A:[5]}, but must be a mapping or null"),
    ],
)
def test_a_wrong_entry_of_a_mapping_is_told_with_its_key(given, plain):
    with pytest.raises(ArgumentError) as told:
        arguments_of("report", report).parse_args(["runs/cart", *given.split()])
    assert sentence(told.value) == plain


def test_a_number_in_place_of_a_class_is_told_of_a_file_too(parser, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("data: {env: {atari: 3}}")
    with pytest.raises(ArgumentError) as told:
        parser.parse_args(["fit", "--config", str(path)])
    expected = "data.env.atari is 3, but must be the path of a class or null"
    assert sentence(told.value, KNOWN) == expected


@pytest.mark.parametrize(
    "message",
    [
        "unrecognized arguments: --something.else.entirely 3",
        "Problem with given class_path 'torch.Tensor': Option 'value' is not accepted",
        "Problem with given class_path 'nowhere.Thing': Option 'value' is not accepted",
        "replay.capacity must be at least 1, got 0",
    ],
)
def test_where_nothing_is_near_nothing_is_offered(message):
    assert sentence(ValueError(f"{message}\n "), KNOWN) == message


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({"data": {"actors": {"num_actors": None}}}, ["data.actors.num_actors is null", "2"]),
        ({"data": {"rate": 3}}, ["data.rate is 3 in patch.yaml, but must hold settings"]),
        ({"data": 3}, ["data is 3 in patch.yaml, but must hold settings, such as data."]),
        (
            {"trainer": {"limit_train_batches": 10**30}},
            ["trainer.limit_train_batches is 1000000000", "but must be below 2**63"],
        ),
        ({"data": {"replay": {"capcity": 5}}}, ["did you mean 'data.replay.capacity'?"]),
        (
            {"model": {"optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": -1}}}},
            ["model.optimizer cannot be built: ValueError: Invalid learning rate: -1"],
        ),
        (
            {"model": {"encoder": {
                "class_path": "lrl.networks.MLPEncoder", "init_args": {"hidden_sizes": [10**18]},
            }}},
            ["model.encoder cannot be built"],
        ),
    ],
)  # fmt: skip
def test_what_only_shows_later_is_named_too(tmp_path, monkeypatch, capsys, patch, words):
    project = Project(tmp_path)
    (tmp_path / "patch.yaml").write_text(yaml.safe_dump(patch))
    code, _, err = project.call(
        monkeypatch, capsys, "fit", "--config", "base.yaml", "--config", "patch.yaml"
    )
    assert code == 2
    assert "Traceback" not in err
    (line,) = (line for line in err.splitlines() if line.startswith("lrl: error: "))
    assert all(word in line for word in words), line


def test_mutants_follow_from_their_seed_and_change_one_thing():
    first = [m.change for m in mutants(RECIPES, 40, seed=3)]
    assert first == [m.change for m in mutants(RECIPES, 40, seed=3)]
    assert first != [m.change for m in mutants(RECIPES, 40, seed=4)]
    for mutant in mutants(RECIPES, 40):
        assert mutant.config != yaml.safe_load(mutant.recipe.read_text())
        assert mutant.names


def test_the_survey_tells_good_from_bad():
    def crash() -> None:
        raise RuntimeError("on purpose")

    def mumble() -> int:
        return 2

    config = yaml.safe_load(RECIPES[0].read_text())
    assert try_configuration(config, ("capacity",), crash).verdict == "crashed"
    assert try_configuration(config, ("capacity",), mumble).verdict == "unclear"
    assert try_configuration(config, ("capacity",), lambda: 0).verdict == "accepted"
    assert try_configuration(config, (), lambda: 0, is_wrong=True).verdict == "overlooked"


@pytest.mark.parametrize(
    ("count", "seed"),
    [
        (4, 0),
        pytest.param(40, 1, marks=[pytest.mark.slow, pytest.mark.atari, pytest.mark.timeout(900)]),
    ],
)
def test_wrong_configurations_are_refused_in_a_sentence(count, seed):
    here, paths = Path.cwd(), list(sys.path)
    outcomes = list(survey(RECIPES, count, seed))
    bad = [f"{o.verdict}: {m.change}: {o.message}" for m, o in outcomes if o.verdict not in GOOD]
    assert bad == []
    assert sum(outcome.verdict == "refused" for _, outcome in outcomes) > count // 2
    assert (Path.cwd(), sys.path) == (here, paths)
