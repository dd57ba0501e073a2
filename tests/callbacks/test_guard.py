"""A loss or a gradient that is not finite ends the run, and the weights of before stay."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.command_line import Project, quiet_commands
from helpers.training_runs import make_run, quiet, small_agent, small_data
from torch import Tensor

from lrl import DQN, ActorLearnerCallback, ConfigError, ReplayConfig
from lrl.callbacks import NonFiniteGuard, NonFiniteLossError, PriorityUpdate, guard
from lrl.networks import GRUCore, MLPEncoder
from lrl.replay import PrioritizedSampler, SequenceConfig
from lrl.types import Batch

pytestmark = [*quiet, *quiet_commands, pytest.mark.usefixtures("janitor")]


class Diverging(DQN):
    """The loss of one learner step is NaN, in one row."""

    at = 25

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        if self.trainer.global_step + 1 == self.at:
            batch.reward[3] = math.nan
        return super().training_step(batch, batch_idx)


class _BrokenGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # as of a square root at 0
        return gradients[0] * math.inf


class SteepEncoder(MLPEncoder):
    """Its forward is fine for ever, its backward until a number of calls."""

    def __init__(self, observation_shape: tuple[int, ...], good: int = 24) -> None:
        super().__init__(observation_shape, hidden_sizes=(16,))
        self.good = good
        self.calls = 0

    def forward(self, observation: Tensor) -> Tensor:
        features = super().forward(observation)
        if torch.is_grad_enabled():
            self.calls += 1
            if self.calls > self.good:
                features = _BrokenGradient.apply(features)
        return features  # pyright: ignore[reportReturnType]


def checkpoints(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "checkpoints").glob("*.ckpt")}


def diverging_agent() -> DQN:
    encoder = functools.partial(MLPEncoder, hidden_sizes=(16,))
    return Diverging(encoder=encoder)


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("lag", [0, 2])
def test_a_nan_stops_at_its_step_and_the_checkpoints_of_before_stay(
    tmp_path, monkeypatch, clip, lag
):
    run = make_run(
        tmp_path,
        ActorLearnerCallback(5, 10, 5),
        module=diverging_agent(),
        max_steps=40,
        gradient_clip_val=clip,
    )
    run.callback.guard.lag_learner_steps = lag  # as on a GPU
    with pytest.raises(NonFiniteLossError, match="loss is nan at learner step 25") as caught:
        run.fit()
    assert "best.ckpt" in str(caught.value)
    assert "last.ckpt" in str(caught.value)
    assert run.trainer.global_step == 24 + (lag > 0)  # saving looks at once, so not 26
    for name in checkpoints(run.folder):
        content = torch.load(run.checkpoint(name.removesuffix(".ckpt")), weights_only=True)
        assert content["global_step"] == 20 or name != "last.ckpt"
        assert all(torch.isfinite(t).all() for t in content["state_dict"].values())
    if lag == 0:
        weights = run.module.state_dict().values()
        assert all(torch.isfinite(tensor).all() for tensor in weights)


@pytest.mark.parametrize("accelerator", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_the_batch_is_written_with_its_guilty_row_first(tmp_path, accelerator: str):
    run = make_run(
        tmp_path, module=diverging_agent(), max_steps=40, accelerator=accelerator, devices=1
    )
    with pytest.raises(NonFiniteLossError) as caught:
        run.fit()
    path = run.folder / "batch_at_learner_step_25_rank_0.pt"
    assert str(path) in str(caught.value)
    content = torch.load(path, weights_only=True)
    assert (content["learner_step"], content["rows"], content["rows_of_batch"]) == (25, 8, 8)
    assert math.isnan(content["loss"])
    assert torch.isnan(content["row_loss"]).tolist() == [True] + 7 * [False]
    assert torch.isnan(content["batch"]["reward"]).tolist() == [True] + 7 * [False]
    assert content["batch"]["observation"].shape == (8, 4)


def test_a_batch_with_memory_is_written_by_its_columns(tmp_path):
    module = Diverging(core=functools.partial(GRUCore, hidden_size=5))
    run = make_run(tmp_path, module=module, max_steps=40)
    with pytest.raises(NonFiniteLossError, match="its batch is in"):
        run.fit()
    path = run.folder / "batch_at_learner_step_25_rank_0.pt"
    batch = torch.load(path, weights_only=True)["batch"]
    assert batch["memory.hidden"].shape == batch["next_memory.hidden"].shape == (8, 5)


def test_sequences_are_written_as_they_were_drawn(tmp_path):
    """The guilty sequence first, though its loss is that of many rows."""
    module = Diverging(core=functools.partial(GRUCore, hidden_size=5))
    replay = ReplayConfig(2000, batch_size=8, n_step=2, sequences=SequenceConfig(4, 2, 3))
    run = make_run(tmp_path, module=module, data=small_data(replay=replay), max_steps=40)
    with pytest.raises(NonFiniteLossError, match="its batch is in"):
        run.fit()
    content = torch.load(run.folder / "batch_at_learner_step_25_rank_0.pt", weights_only=True)
    assert torch.isnan(content["row_loss"]).tolist() == [True] + 7 * [False]
    batch = content["batch"]
    assert batch["kind"].shape == (8, 3 + 4 + 2)
    assert batch["frame"].shape == (8, 9, 4)
    assert batch["memory.hidden"].shape == (8, 5)
    assert torch.isnan(batch["reward"]).all(dim=1).tolist() == [True] + 7 * [False]


def test_gradients_that_are_not_finite_never_reach_the_weights(tmp_path):
    agent = DQN(encoder=SteepEncoder)
    run = make_run(tmp_path, module=agent, max_steps=40)
    with pytest.raises(NonFiniteLossError, match=r"gradient norm is (nan|inf) at learner step 25"):
        run.fit()
    assert all(torch.isfinite(tensor).all() for tensor in agent.state_dict().values())
    content = torch.load(run.folder / "batch_at_learner_step_25_rank_0.pt", weights_only=True)
    assert math.isfinite(content["loss"])
    assert not math.isfinite(content["gradient_norm"])


def test_a_step_that_ruins_the_weights_is_not_saved(tmp_path):
    """Loss and gradient are finite, the learning rate is absurd."""
    optimizer = functools.partial(torch.optim.SGD, lr=1e38, weight_decay=1e3)
    agent = small_agent(optimizer=optimizer)
    run = make_run(tmp_path, ActorLearnerCallback(5, 0, 1), module=agent, max_steps=5)
    with pytest.raises(
        NonFiniteLossError, match=r"the weights \S+ are not finite at learner step 1"
    ):
        run.fit()
    assert checkpoints(run.folder) == {}


def test_gradients_are_accumulated_and_the_guilty_batch_is_the_one_written(tmp_path):
    class Early(DQN):
        def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
            if batch_idx == 4:  # the first of the two batches of learner step 3
                batch.reward[:] = math.inf
            return super().training_step(batch, batch_idx)

    agent = Early(encoder=functools.partial(MLPEncoder, hidden_sizes=(16,)))
    run = make_run(tmp_path, module=agent, max_steps=10, accumulate_grad_batches=2)
    with pytest.raises(NonFiniteLossError, match="learner step 3"):
        run.fit()
    content = torch.load(run.folder / "batch_at_learner_step_3_rank_0.pt", weights_only=True)
    assert torch.isinf(content["batch"]["reward"]).all()


def test_priorities_do_not_hide_the_reason(tmp_path):
    data = small_data(replay=ReplayConfig(capacity=2000, batch_size=8, sampler=PrioritizedSampler))
    run = make_run(tmp_path, module=diverging_agent(), data=data, max_steps=40)
    run.callback.guard.lag_learner_steps = 2
    with pytest.raises(NonFiniteLossError, match="loss is nan at learner step 25"):
        run.fit()


def test_priorities_of_accumulated_batches_do_not_hide_it_either(tmp_path):
    data = small_data(replay=ReplayConfig(capacity=2000, batch_size=8, sampler=PrioritizedSampler))
    settings = {"max_steps": 40, "accumulate_grad_batches": 2}
    run = make_run(tmp_path, module=diverging_agent(), data=data, **settings)
    with pytest.raises(NonFiniteLossError, match="loss is nan at learner step 25"):
        run.fit()


@pytest.mark.parametrize("updates_per_step", [1, 2])
def test_a_subclass_that_keeps_its_guards_from_the_run_is_refused(tmp_path, updates_per_step):
    class Forgets(DQN):
        def on_fit_start(self) -> None:
            self.ready = True

    forgets = Forgets(updates_per_step=updates_per_step)
    run = make_run(tmp_path, module=forgets, max_steps=4, log_every_n_steps=2)
    with pytest.raises(ConfigError, match=r"Forgets\.on_fit_start leaves DQN's out.*call super"):
        run.fit()


def test_a_run_without_a_guard_is_told_so(tmp_path, caplog):
    make_run(tmp_path, PriorityUpdate(), max_steps=1).fit()
    assert "no callback looks at losses and gradients" in caplog.text


def test_the_guard_works_alone(tmp_path, caplog):
    run = make_run(tmp_path, NonFiniteGuard(), module=diverging_agent(), max_steps=40)
    with pytest.raises(NonFiniteLossError, match="learner step 25, its batch is in"):
        run.fit()
    assert "no callback" not in caplog.text


def test_infinite_gradients_are_left_to_a_loss_scaler(tmp_path):
    scaled: Any = SimpleNamespace(
        log_dir=tmp_path, global_rank=0, precision_plugin=SimpleNamespace(scaler=object())
    )
    looking = NonFiniteGuard()
    looking.on_fit_start(scaled, DQN())
    infinite, batch = [torch.tensor([math.inf])], batch_of(4)
    looking.remember(batch, torch.ones(4), torch.tensor(1.0))
    looking.check(1, infinite, None)
    looking.remember(batch, torch.ones(4), torch.tensor(math.inf))
    with pytest.raises(NonFiniteLossError, match="loss is inf at learner step 2"):
        looking.check(2, infinite, None)


def test_a_dump_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(guard, "_DUMP_BYTES", 3 * row_bytes(batch_of(8)))
    looking = NonFiniteGuard()
    looking.folder = tmp_path
    losses = torch.ones(8)
    losses[6] = math.nan
    looking.remember(batch_of(8), losses, losses.mean())
    with pytest.raises(NonFiniteLossError):
        looking.check(7, [], torch.tensor(1.0))
    content = torch.load(tmp_path / "batch_at_learner_step_7_rank_0.pt", weights_only=True)
    assert content["batch"]["action"].tolist() == [6, 0, 1]
    assert (content["rows"], content["rows_of_batch"]) == (3, 8)


def test_leaves_are_dumped_by_their_names(tmp_path):
    batch = batch_of(8)
    leaves = {"image": batch.observation, "speed": batch.reward}
    looking = NonFiniteGuard()
    looking.folder = tmp_path
    batch = replace(batch, observation=leaves, next_observation=leaves)
    looking.remember(batch, torch.full((8,), math.nan), torch.tensor(math.nan))
    with pytest.raises(NonFiniteLossError):
        looking.check(7, [], torch.tensor(1.0))
    content = torch.load(tmp_path / "batch_at_learner_step_7_rank_0.pt", weights_only=True)
    for name, leaf in leaves.items():
        torch.testing.assert_close(content["batch"][f"observation.{name}"], leaf)
        torch.testing.assert_close(content["batch"][f"next_observation.{name}"], leaf)


def test_a_batch_that_cannot_be_written_hides_nothing(tmp_path, caplog):
    looking = NonFiniteGuard()
    (tmp_path / "file").touch()
    looking.folder = tmp_path / "file"
    looking.remember(batch_of(2), torch.ones(2), torch.tensor(math.nan))
    with pytest.raises(NonFiniteLossError, match="loss is nan at learner step 1"):
        looking.check(1, [], torch.tensor(1.0))
    assert "the batch cannot be written" in caplog.text


def test_the_command_line_ends_with_one_sentence(tmp_path, monkeypatch, capsys):
    project = Project(tmp_path)
    arguments = (
        "--data.actors.num_actors", "0", "--model.optimizer.init_args.lr", "1e38",
        "--trainer.enable_progress_bar", "false",
    )  # fmt: skip
    code, _, err = project.call(monkeypatch, capsys, "fit", "--config", "base.yaml", *arguments)
    assert code == 1
    assert "Traceback" not in err
    (line,) = (line for line in err.splitlines() if line.startswith("lrl: error: "))
    assert "at learner step" in line


def batch_of(rows: int) -> Batch:
    observation = torch.zeros(rows, 2)
    return Batch(
        observation=observation,
        action=torch.arange(rows),
        reward=torch.zeros(rows),
        discount=torch.ones(rows),
        next_observation=observation,
        weights=torch.ones(rows),
        keys=torch.zeros(rows, 2, dtype=torch.int64),
    )


def row_bytes(batch: Batch) -> int:
    tensors = [value for value in vars(batch).values() if value is not None]
    return sum(tensor.nbytes for tensor in tensors) // len(batch.action)
