"""What a run's time went on, and what held it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lrl.actors.handle import ActorStatistics

RATIO = "data.rate.samples_per_insert"
"""The setting of how much is learnt from how much."""
_WAITS, _EVALUATES, _IDLES, _FREE = 0.2, 0.3, 0.5, 0.1


def time_shares(
    seconds: float, wait: float, sample: float, optimise: float, evaluate: float
) -> dict[str, float]:
    """Return the shares of the learner's time.

    `other` is taking in rows, logging, saving, and the Trainer's own.

    Args:
        seconds: From the first learner step's batch to the end of training.
        wait: For environment steps; in synchronous mode that is acting.
        sample: Drawing batches.
        optimise: From a batch to the new weights.
        evaluate: Evaluation that stopped training.

    Example:
        >>> time_shares(10.0, wait=1.0, sample=1.0, optimise=6.0, evaluate=1.5)
        {'wait': 0.1, 'sample': 0.1, 'optimise': 0.6, 'evaluate': 0.15, 'other': 0.05}
    """
    parts = {"wait": wait, "sample": sample, "optimise": optimise, "evaluate": evaluate}
    parts["other"] = max(0.0, seconds - sum(parts.values()))
    return {name: round(part / seconds, 3) if seconds else 0.0 for name, part in parts.items()}


def percent(share: float) -> str:
    """Return a share in words.

    Example:
        >>> percent(0.6), percent(0.001)
        ('60%', 'less than 1%')
    """
    return f"{share:.0%}" if share >= 0.01 else "less than 1%"


def verdict(
    shares: Mapping[str, float],
    actors: Sequence[ActorStatistics],
    is_synchronous: bool,
    is_slowed: bool = False,
    ratio: str = RATIO,
    has_own_pool: bool = False,
) -> str:
    """Say what held a run back.

    Args:
        shares: Of `time_shares`; all 0 where there was no learner step.
        actors: What each actor did.
        is_synchronous: Whether the learner acted itself.
        is_slowed: Whether `rate.max_learner_steps_per_second` is set.
        ratio: The setting of how much is learnt from how much.
        has_own_pool: Whether rows come from a `data.pool`.

    Example:
        >>> verdict({"wait": 0.6, "evaluate": 0.1}, [], is_synchronous=False)
        'environment-bound: the learner waited 60% of the time; add actors (data.actors.num_actors)'
    """
    waited, evaluated = shares["wait"], shares["evaluate"]
    if not any(shares.values()):
        return "it ended before it learnt anything"
    if waited >= _WAITS:
        return starved(waited, is_synchronous, is_slowed, has_own_pool)
    if evaluated >= _EVALUATES:
        return (
            f"evaluation-bound: it took {percent(evaluated)} of the time; evaluate less often "
            "(actor_learner.eval_period_learner_steps), or in the background, if a core is free"
        )
    seconds = sum(actor.seconds for actor in actors)
    idle = sum(actor.wait_seconds for actor in actors) / seconds if seconds else 0.0
    if is_synchronous or idle >= _IDLES or waited + evaluated <= _FREE:
        waiting = "" if is_synchronous else f", and actors waited {percent(idle)}"
        return (
            f"learner-bound: updates took {percent(shares['optimise'])} of the time{waiting}; make "
            f"them cheaper (docs/speed.md), or fewer ({ratio})"
        )
    return "balanced: neither the learner nor its actors waited much"


def starved(
    waited: float, is_synchronous: bool, is_slowed: bool, has_own_pool: bool = False
) -> str:
    """Say of a learner that waited that it did, and why; see `verdict`."""
    if is_slowed:
        return f"held back by rate.max_learner_steps_per_second, {percent(waited)} of the time"
    if has_own_pool:
        return f"environment-bound: the learner waited {percent(waited)} of the time for data.pool"
    if is_synchronous:
        return (
            f"environment-bound: acting took {percent(waited)} of the time; actors in the "
            "background (data.actors.num_actors) act while the learner learns, if a core is free"
        )
    return (
        f"environment-bound: the learner waited {percent(waited)} of the time; add actors "
        "(data.actors.num_actors)"
    )
