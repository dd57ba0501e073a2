import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from helpers.scripted_envs import Episode, ScriptedEnvs
from helpers.training_runs import make_run, quiet, small_data

import lrl.evaluation.episodes
from lrl import DQN
from lrl.actors.actor import FunctionPolicy
from lrl.actors.slot import TRAINING_SEED_FLOOR, ActorSlot
from lrl.envs import AtariConfig, EnvConfig, make_envs
from lrl.evaluation.episodes import TEST_SEED, VALIDATION_SEED, EvaluationConfig, run_episodes
from lrl.networks import MLPEncoder, NoisyLinear
from lrl.testing import LedgerEnv
from lrl.types import ConfigError

pytestmark = quiet
LEDGER = EnvConfig(id="lrl/Ledger-v0")
IDENTITY = EnvConfig(id="lrl/Identity-v0")
FOREVER = 108_000


def constant(action: int, num_actions: int):
    """Return the values of a policy that always takes one action."""

    def q_function(observation: npt.NDArray) -> npt.NDArray[np.float32]:
        q = np.zeros((len(observation), num_actions), np.float32)
        q[:, action] = 1.0
        return q

    return FunctionPolicy(q_function)


def best_in_identity(observation: npt.NDArray) -> npt.NDArray[np.float32]:
    return observation.astype(np.float32)


BEST_IN_IDENTITY = FunctionPolicy(best_in_identity)


def test_one_episode_for_every_seed():
    started: list[int] = []

    def q_function(observation: npt.NDArray) -> npt.NDArray[np.float32]:
        for instance, episode, time in LedgerEnv.decode(observation).tolist():
            if episode == time == 0 and instance in seeds:  # zeros come of retired ones
                started.append(instance)
        return np.zeros((len(observation), 3), np.float32)

    seeds = [7, 3, *range(1000, 1038)]  # more than one group of environments
    result = run_episodes(
        LEDGER, FunctionPolicy(q_function), seeds, epsilon=0.0, max_frames=FOREVER
    )
    assert started == seeds
    assert result.returns.shape == result.lengths.shape == result.timed_out.shape == (40,)
    assert not result.timed_out.any()
    for length, value in zip(result.lengths, result.returns, strict=True):
        # Only rewards of the first episode count, although its environment may go on.
        assert value == sum(LedgerEnv.reward(0, time, 0) for time in range(length))


@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_an_episode_depends_on_its_seed_alone(epsilon: float):
    def play(*seeds: int):
        return run_episodes(LEDGER, constant(1, 3), seeds, epsilon=epsilon, max_frames=FOREVER)

    seeds = list(range(40))
    together = play(*seeds)
    alone = [play(seed) for seed in seeds]
    assert together.returns.tolist() == [part.returns[0] for part in alone]
    assert together.lengths.tolist() == [part.lengths[0] for part in alone]
    backwards = play(*reversed(seeds))
    assert backwards.returns.tolist() == together.returns[::-1].tolist()
    assert len(set(together.lengths.tolist())) > 5  # otherwise this would say little


def test_rewards_are_raw_whatever_training_clips():
    clipped = EnvConfig(id="lrl/Ledger-v0", reward_clip=1.0)
    results = [
        run_episodes(env, constant(2, 3), range(5), epsilon=0.0, max_frames=FOREVER)
        for env in (LEDGER, clipped)
    ]
    assert results[0].returns.tolist() == results[1].returns.tolist()
    assert abs(results[1].returns / results[1].lengths).max() > 1.0


def test_returns_of_known_policies():
    chain = EnvConfig(id="lrl/Chain-v0", kwargs={"length": 6, "max_moves": 50})
    right = run_episodes(chain, constant(1, 2), [0, 1], epsilon=0.0, max_frames=FOREVER)
    assert right.returns.tolist() == pytest.approx([0.6, 0.6])
    assert right.lengths.tolist() == [5, 5]
    left = run_episodes(chain, constant(0, 2), [0, 1], epsilon=0.0, max_frames=FOREVER)
    assert left.returns.tolist() == pytest.approx([-5.0, -5.0])
    assert left.lengths.tolist() == [50, 50]
    assert not left.timed_out.any()  # the environment's own limit


def test_cartpole():
    def balance(observation: npt.NDArray) -> npt.NDArray[np.float32]:
        falls_right = (observation[:, 2] + observation[:, 3] > 0).astype(np.float32)
        return np.stack([1 - falls_right, falls_right], axis=1)

    result = run_episodes(
        EnvConfig(), FunctionPolicy(balance), range(3), epsilon=0.0, max_frames=120
    )
    assert result.lengths.tolist() == [120] * 3
    assert result.returns.tolist() == [120.0] * 3
    assert result.timed_out.all()
    result = run_episodes(EnvConfig(), constant(0, 2), range(3), epsilon=0.0, max_frames=120)
    assert (result.lengths < 15).all()
    assert result.returns.tolist() == result.lengths.tolist()


@pytest.mark.parametrize(
    ("max_frames", "length", "timed_out"), [(4, 4, True), (9, 9, True), (10, 10, False)]
)
def test_episodes_are_cut_off_at_max_frames(max_frames: int, length: int, timed_out: bool):
    result = run_episodes(IDENTITY, BEST_IN_IDENTITY, [0, 1], epsilon=0.0, max_frames=max_frames)
    assert result.lengths.tolist() == [length] * 2
    assert result.returns.tolist() == [length] * 2
    assert result.timed_out.tolist() == [timed_out] * 2


def test_a_long_episode_makes_one_ask_for_its_limit(monkeypatch, caplog):
    monkeypatch.setattr(lrl.evaluation.episodes, "_LONG", 20)
    cliff = EnvConfig("CliffWalking-v1")  # where up leads nowhere, and nothing ends
    for _ in range(2):
        run_episodes(cliff, constant(0, 4), [0, 1], epsilon=0.0, max_frames=30)
    (said,) = caplog.messages
    assert "set data.env.max_episode_steps" in said
    assert "env.id 'CliffWalking-v1'" in said


def test_only_what_still_runs_is_timed_out(monkeypatch: pytest.MonkeyPatch):
    """The first environment begins another episode, which is truncated: it is nobody's."""
    first = [Episode((1.0, 1.0)), Episode((1.0,), "truncated")]
    envs = ScriptedEnvs([first, [Episode((2.0,) * 9)]])  # 4 frames a step
    monkeypatch.setattr(lrl.evaluation.episodes, "make_envs", lambda *args, **kwargs: envs)
    game = EnvConfig("ALE/Pong-v5")  # where truncation is a time-out
    result = run_episodes(game, constant(0, 5), [0, 1], epsilon=0.0, max_frames=23)
    assert result.lengths.tolist() == [2, 5]
    assert result.returns.tolist() == [2.0, 10.0]
    assert result.timed_out.tolist() == [False, True]


@pytest.mark.atari
def test_a_game_that_reaches_its_own_limit_is_timed_out_as_well():
    atari = AtariConfig(max_frames_per_episode=40, noop_max=0)
    env = EnvConfig("ALE/Pong-v5", atari=atari)
    result = run_episodes(env, constant(0, 6), [0], epsilon=0.0, max_frames=FOREVER)
    assert result.lengths.tolist() == [10]
    assert result.timed_out.tolist() == [True]


def test_a_lost_life_does_not_end_an_episode(monkeypatch: pytest.MonkeyPatch):
    envs = ScriptedEnvs([[Episode((1.0,) * 3, lives_lost_at=(0, 1))]])
    monkeypatch.setattr(lrl.evaluation.episodes, "make_envs", lambda *args, **kwargs: envs)
    result = run_episodes(LEDGER, constant(0, 5), [0], epsilon=0.0, max_frames=FOREVER)
    assert result.lengths.tolist() == [3]


def test_epsilon_decides_how_random_actions_are():
    means = [
        run_episodes(
            IDENTITY,
            BEST_IN_IDENTITY,
            range(100),
            epsilon=epsilon,
            max_frames=FOREVER,
        ).returns.mean()
        for epsilon in (0.0, 0.5, 1.0)
    ]
    # 10 steps, 4 actions; the standard error of a mean of 1000 steps is below 0.16.
    assert means[0] == 10.0
    assert abs(means[1] - 10 * (0.5 + 0.5 / 4)) < 0.8
    assert abs(means[2] - 2.5) < 0.8


def test_forbidden_actions_are_neither_chosen_nor_drawn():
    """Masked raises where one is taken."""

    def q_function(observation: npt.NDArray) -> npt.NDArray[np.float32]:
        q = np.zeros((len(observation), 4), np.float32)
        q[np.arange(len(q)), (observation.argmax(axis=1) + 2) % 4] = 9.0  # forbidden
        return q

    masked = EnvConfig("lrl/Masked-v0", action_masks=True)
    lengths = []
    for epsilon in (0.0, 0.5, 1.0):
        result = run_episodes(
            masked, FunctionPolicy(q_function), range(32), epsilon=epsilon, max_frames=FOREVER
        )
        assert (result.returns == -result.lengths).all()
        lengths.append(result.lengths.mean())
    # Of two allowed actions of equal value the one of the lower number is greedy: at place 3 it
    # walks left, for ever. Random ones come through.
    assert lengths[0] == 50
    assert max(lengths[1:]) < 50


def test_the_network_acts_without_noise_whatever_its_mode(tmp_path, monkeypatch):
    encoder = functools.partial(MLPEncoder, hidden_sizes=(16,), noisy=True)
    module = DQN(encoder=encoder)
    run = make_run(tmp_path, module=module, data=small_data("lrl/Ledger-v0"), max_steps=5).fit()
    run.trainer.strategy.connect(module)
    module.train()
    module.online.sample_noise()  # what training drew last
    state, drawn = torch.get_rng_state(), []
    monkeypatch.setattr(NoisyLinear, "sample_noise", lambda layer: drawn.append(layer))
    loader = run.data.val_dataloader()
    (noisy_mode,) = loader
    assert module.online.training
    module.eval()
    (eval_mode,) = loader
    assert torch.equal(noisy_mode["return"], eval_mode["return"])
    assert torch.equal(torch.get_rng_state(), state)
    assert not drawn


def test_environments_are_for_evaluation_and_closed(monkeypatch: pytest.MonkeyPatch):
    built = []

    def recording(*args, **kwargs):
        built.append((make_envs(*args, **kwargs), kwargs["training"]))
        return built[-1][0]

    monkeypatch.setattr(lrl.evaluation.episodes, "make_envs", recording)
    run_episodes(IDENTITY, BEST_IN_IDENTITY, range(33), epsilon=0.0, max_frames=3)
    assert [envs.num_envs for envs, _ in built] == [32, 1]
    assert [training for _, training in built] == [False, False]
    for envs, _ in built:
        with pytest.raises(RuntimeError, match="closed"):
            envs.reset([0] * envs.num_envs)


def test_check_may_end_it_early_and_nothing_stays_open(monkeypatch: pytest.MonkeyPatch):
    class Enough(Exception):
        pass

    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 4:
            raise Enough

    envs = make_envs(IDENTITY, 2, training=False)
    monkeypatch.setattr(lrl.evaluation.episodes, "make_envs", lambda *args, **kwargs: envs)
    with pytest.raises(Enough):
        run_episodes(
            IDENTITY,
            BEST_IN_IDENTITY,
            [0, 1],
            epsilon=0.0,
            max_frames=FOREVER,
            check=check,
        )
    with pytest.raises(RuntimeError, match="closed"):
        envs.step(np.zeros(2, np.int64))


def test_check_is_called_once_for_every_step():
    calls = []
    run_episodes(
        IDENTITY, BEST_IN_IDENTITY, [0], epsilon=0.0, max_frames=FOREVER,
        check=lambda: calls.append(1),
    )  # fmt: skip
    assert len(calls) == 10


# --- Configuration --------------------------------------------------------------------------


def test_epsilon_follows_the_environment_unless_it_is_set():
    pong = EnvConfig(id="ALE/Pong-v5")
    assert EvaluationConfig().epsilon_for(pong) == 0.001
    assert EvaluationConfig().epsilon_for(EnvConfig()) == 0.0
    assert EvaluationConfig(epsilon=0.05).epsilon_for(pong) == 0.05
    assert EvaluationConfig(epsilon=0.0).epsilon_for(pong) == 0.0


def test_validation_and_test_play_seeds_of_their_own():
    data = small_data()
    assert list(data.val_dataloader().seeds) == [0, 1]
    assert list(data.test_dataloader().seeds) == [TEST_SEED + number for number in range(4)]


def test_seeds_of_validation_test_and_training_never_meet():
    config = EvaluationConfig(
        episodes=TEST_SEED - VALIDATION_SEED, test_episodes=TRAINING_SEED_FLOOR - TEST_SEED
    )
    assert VALIDATION_SEED + config.episodes <= TEST_SEED
    last_test_seed = TEST_SEED + config.test_episodes - 1
    assert last_test_seed < min(ActorSlot(0, envs_per_actor=100).env_seeds())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("episodes", 0),
        ("test_episodes", 0),
        ("max_frames_per_episode", 0),
        ("episodes", 2**20 + 1),
        ("test_episodes", 2**24 - 2**20 + 1),
        ("epsilon", -0.1),
        ("epsilon", 1.1),
        ("epsilon", math.nan),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(name: str, value):
    with pytest.raises(ConfigError, match=rf"evaluation\.{name} .*{value}"):
        EvaluationConfig(**{name: value})


def test_a_function_is_told_how_to_become_a_policy():
    function: Any = best_in_identity
    with pytest.raises(TypeError, match=r"must be a behaviour policy: wrap a function in lrl"):
        run_episodes(IDENTITY, function, [0], epsilon=0.0, max_frames=1)
