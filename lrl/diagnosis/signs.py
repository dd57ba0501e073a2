"""Signs that a run does not learn: what each looks at, and from where on it is one.

docs/diagnosis.md has the reasons for the thresholds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from lrl.diagnosis.history import History
from lrl.diagnosis.verdict import starved

_LARGEST_VALUE = 1e4
_FEWEST_BATCHES, _FEWEST_EPISODES = 10, 2
_MOST_SAMPLES_PER_INSERT = 1000


class Finding(NamedTuple):
    """Something that keeps a run from learning.

    Attributes:
        name: What is found, one word of docs/diagnosis.md.
        sentence: What is seen, with its numbers, and what to do.
        setting: The setting to change first.
    """

    name: str
    sentence: str
    setting: str


class Sign(NamedTuple):
    """What to look for, and how early.

    Attributes:
        find: Returns what there is to say, if there is anything.
        from_share: Share of the planned learner steps before which nothing is said.
    """

    find: Callable[[History], Finding | None]
    from_share: float


def no_reward(run: History) -> Finding | None:
    """Find that every reward was 0."""
    returns = [*run.series("rollout/return_mean"), *run.series("eval/return_mean")]
    # Whole returns have values of the network in them.
    rewards = returns if run.settings.gives_returns else run.series("train/reward_abs_max")
    if not rewards or any(rewards) or any(returns):
        return None
    return Finding(
        "no_reward",
        f"every reward in {run.total('count/env_steps'):,.0f} env steps "
        f"({run.total('rollout/episodes'):,.0f} episodes) was 0, so there is nothing to learn "
        "from: check what the environment and its wrappers return (data.env); if a first reward "
        "is hard to find, explore more (data.exploration)",
        "data.env",
    )


def reward_scale(run: History) -> Finding | None:
    """Find rewards that add up to larger values than a network learns in good time."""
    if run.settings.rescales:
        return None
    largest = run.total("train/reward_abs_max")
    size, what = largest, f"rewards of up to {largest:,.4g}"
    horizon = _horizon(run)
    if horizon is not None and not run.settings.gives_returns:
        mean = abs(run.level("train/reward_mean", 1.0) or 0.0)
        if mean * horizon > size:
            size, what = mean * horizon, f"rewards of {mean:,.4g} on average"
    if size <= _LARGEST_VALUE:
        return None
    return Finding(
        "reward_scale",
        f"with {what}, values have to grow to about {size:,.2g}, but a new network's are near 0 "
        "and change little at each learner step: clip rewards (data.env.reward_clip), scale them "
        "down with a wrapper, or rescale values (model.head.value_rescaling)",
        "data.env.reward_clip",
    )


def values_diverge(run: History) -> Finding | None:
    """Find values that no sequence of rewards could add up to."""
    horizon, rewards = _horizon(run), run.total("train/reward_abs_max")
    if horizon is None or not rewards or run.settings.gives_returns:
        return None
    bound = (rewards + run.settings.adds_bonus) * horizon
    names = ["rollout/start_value_mean", *([] if run.settings.rescales else ["train/q_mean"])]
    value = max((run.level(name) or 0.0 for name in names), key=abs)
    if abs(value) <= 2 * bound:
        return None
    return Finding(
        "values_diverge",
        f"values are about {value:,.3g}, but rewards of at most {rewards:,.3g} per transition and "
        f"a discount of {run.settings.gamma:g} allow no more than {bound:,.3g}: learning diverges. "
        f"Lower the learning rate ({_rate(run)}), clip gradients (model.gradient_clip_norm), or "
        "update the target network less often (model.target_update_period_learner_steps)",
        "model.optimizer",
    )


def overestimation(run: History) -> Finding | None:
    """Find values at the start of episodes that are far above what episodes return."""
    value, gamma = run.level("rollout/start_value_mean"), run.settings.gamma
    pairs = [
        (run.level(f"{where}/return_mean"), run.level(f"{where}/length_mean"))
        for where in ("rollout", "eval")
    ]
    known = [(total, length) for total, length in pairs if total is not None and length]
    # Without evaluations nobody knows what the agent earns when it does not explore.
    if value is None or gamma is None or gamma >= 1.0 or len(known) < len(pairs):
        return None
    # An episode that was cut off would have earned on, at the same pace.
    worths = [worth for total, length in known for worth in (total, total / length / (1 - gamma))]
    rewards = run.total("train/reward_abs_max")
    least = rewards + run.settings.adds_bonus / (1 - gamma)
    if not rewards or value <= max(worths) + max(least, *map(abs, worths)):
        return None
    total = max(total for total, _ in known)
    return Finding(
        "overestimation",
        f"the value at the start of episodes is {value:,.3g}, but episodes return {total:,.3g}: "
        "values are overestimated, unless episodes earn early what they lose later. Let the online "
        "network choose the next action (model.bootstrap lrl.learner.DoubleBootstrap), update the "
        f"target network less often, or lower the learning rate ({_rate(run)})",
        "model.bootstrap",
    )


def dead_units(run: History) -> Finding | None:
    """Find a layer in which nearly every unit is dead."""
    share = run.level("train/dead_units")
    if share is None or share < 0.95:
        return None
    return Finding(
        "dead_units",
        f"{share:.0%} of the units of one layer are 0 for every observation of a batch, and no "
        f"longer learn: lower the learning rate ({_rate(run)}), clip gradients "
        "(model.gradient_clip_norm), or normalise layers (model.encoder.init_args.layer_norm)",
        "model.optimizer",
    )


def target_still(run: History) -> Finding | None:
    """Find a target network that was never updated."""
    updates = run.series("train/target_updates")
    if not updates or any(updates) or not run.is_whole:
        return None
    return Finding(
        "target_still",
        f"the target network was not updated once in {run.session_learner_steps:,} learner steps, "
        "so Bellman targets come from a network that has learnt nothing: lower "
        "model.target_update_period_learner_steps",
        "model.target_update_period_learner_steps",
    )


def exploration_stuck(run: History) -> Finding | None:
    """Find actors that act at random though the run is half over."""
    epsilon, returns = run.level("train/epsilon"), run.level("rollout/return_mean")
    if epsilon is None or epsilon < 0.5:
        return None
    seen = "" if returns is None else f", and training episodes return {returns:,.4g}"
    return Finding(
        "exploration_stuck",
        f"epsilon is still {epsilon:.2f} after {run.progress:.0%} of the learner steps{seen}: most "
        "actions are random, and what the agent has learnt is hardly ever tried. Let "
        "data.exploration end at a lower epsilon, or after fewer env steps",
        "data.exploration",
    )


def exploration_over(run: History) -> Finding | None:
    """Find that exploration ended long ago, and that returns never rose."""
    epsilons = run.series("train/epsilon")
    if not epsilons or epsilons[-1] > 0.1 or max(epsilons) < 0.5 or not run.is_flat:
        return None
    ended = sum(epsilon > 1.01 * epsilons[-1] for epsilon in epsilons)
    if ended > 0.75 * len(epsilons):
        return None
    returns = run.series("rollout/return_mean")
    return Finding(
        "exploration_over",
        f"epsilon fell to {epsilons[-1]:.3g} in the first {ended / len(epsilons):.0%} of the run "
        f"so far, and the return has not risen: training episodes returned {returns[0]:,.4g} at "
        f"first and return {returns[-1]:,.4g} now. Let data.exploration take longer, or end at a "
        "higher epsilon",
        "data.exploration",
    )


def replay_small(run: History) -> Finding | None:
    """Find a replay that holds little more than was just experienced."""
    size, env_steps = run.total("replay/size"), run.total("count/env_steps")
    newest = run.newest("replay/size", 0.5)
    is_filling = not newest or min(newest) < 0.8 * max(newest)  # steps at ends of episodes vary
    if is_filling or env_steps < 10 * size:
        return None
    length, batch = run.level("rollout/length_mean") or 0.0, run.settings.samples_per_batch
    if size >= max(_FEWEST_BATCHES * batch, _FEWEST_EPISODES * length):
        return None
    episodes = f", or {size / length:.1f} episodes of {length:,.0f}" if length else ""
    return Finding(
        "replay_small",
        f"the replay holds only {size:,.0f} env steps ({size / batch:.1f} batches{episodes}), so "
        "nothing but the newest experience is learnt from: raise data.replay.capacity",
        "data.replay.capacity",
    )


def replay_old(run: History) -> Finding | None:
    """Find a learner that keeps to the same rows, or gets those of old policies."""
    lag = run.level("sync/policy_lag_mean") or 0.0
    if run.settings.takes_weights and lag > 0.25 * run.learner_steps:
        return Finding(
            "replay_old",
            f"new rows come from policies that are {lag:,.0f} learner steps old, after "
            f"{run.learner_steps:,} learner steps in all: send weights more often "
            "(actor_learner.sync_period_learner_steps), or find out why they arrive late",
            "actor_learner.sync_period_learner_steps",
        )
    learner, env = run.newest("count/learner_steps"), run.newest("count/env_steps")
    if min(len(learner), len(env)) < 2 or env[-1] == env[0] or run.settings.gives_returns:
        return None  # offline no rows come in
    samples = (learner[-1] - learner[0]) * run.settings.samples_per_batch
    rate = samples / (env[-1] - env[0])
    if rate <= _MOST_SAMPLES_PER_INSERT:
        return None
    more = "add actors (data.actors.num_actors)"
    if run.settings.has_own_pool:
        more = "have data.pool bring more rows"
    return Finding(
        "replay_old",
        f"{rate:,.0f} samples are drawn for each new env step, so the network learns the same rows "
        f"by heart: lower data.rate.samples_per_insert, or {more}",
        "data.rate.samples_per_insert",
    )


def priorities_collapsed(run: History) -> Finding | None:
    """Find that prioritised sampling draws a few rows over and over."""
    share, size = run.level("train/distinct_rows"), run.level("replay/size")
    batch = run.settings.samples_per_batch
    if share is None or not size or run.level("replay/priority_max") is None:
        return None
    uniform = size / batch * (1 - (1 - 1 / size) ** batch)
    if share >= 0.5 * uniform:
        return None
    return Finding(
        "priorities_collapsed",
        f"only {share:.0%} of the rows of a batch are distinct, and with uniform sampling "
        f"{uniform:.0%} would be: a few rows hold nearly all of the priority. Lower "
        "data.replay.sampler.init_args.alpha, or clip rewards (data.env.reward_clip)",
        "data.replay.sampler",
    )


def learner_starved(run: History) -> Finding | None:
    """Find a learner that hardly learns, since it waits."""
    waited = run.level("speed/learner_wait_fraction", 0.5)
    if waited is None or waited < 0.9 or not run.is_flat:
        return None
    settings = run.settings
    said = starved(waited, settings.is_synchronous, settings.is_slowed, settings.has_own_pool)
    setting = "data.pool" if settings.has_own_pool else "data.actors.num_actors"
    if run.settings.is_slowed:
        setting = "data.rate.max_learner_steps_per_second"
    return Finding("learner_starved", f"the return has not risen. The run is {said}", setting)


def actors_blocked(run: History) -> Finding | None:
    """Find actors that hardly act, since nobody takes their rows."""
    waited = run.level("speed/actor_wait_fraction", 0.5)
    if waited is None or waited < 0.95 or not run.is_flat:
        return None
    return Finding(
        "actors_blocked",
        f"the return has not risen, and actors waited {waited:.0%} of the time for the learner: "
        "make its updates cheaper (docs/speed.md), or fewer (data.rate.samples_per_insert)",
        "data.rate.samples_per_insert",
    )


_EARLY, _LATE = 0.25, 0.5
SIGNS = (
    Sign(no_reward, _EARLY),
    Sign(reward_scale, _EARLY),
    Sign(values_diverge, _EARLY),
    Sign(target_still, _EARLY),
    Sign(replay_small, _EARLY),
    Sign(replay_old, _EARLY),
    Sign(priorities_collapsed, _EARLY),
    Sign(dead_units, _EARLY),
    Sign(overestimation, _LATE),
    Sign(exploration_stuck, _LATE),
    Sign(exploration_over, _LATE),
    Sign(learner_starved, _LATE),
    Sign(actors_blocked, _LATE),
)
"""All signs, causes before what follows from them."""


def _horizon(run: History) -> float | None:
    """Return how many transitions' rewards the discount adds up; None if it is endless."""
    gamma = run.settings.gamma
    if gamma is None or gamma >= 1.0:
        return None
    return 1.0 / (1.0 - gamma**run.settings.n_step)


def _rate(run: History) -> str:
    rate = run.level("train/lr")
    return "model.optimizer" if rate is None else f"model.optimizer, now {rate:g}"
