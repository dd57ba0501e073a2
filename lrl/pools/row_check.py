"""What rows of the user's own pool must be: checked before they are learnt from."""

from __future__ import annotations

import numpy as np

from lrl.types import ConfigError, EnvSpec, RowKind, Rows


class RowCheck:
    """Checks each row, how rows follow each other, and that rewards are clipped.

    Args:
        whose: What delivers the rows, for messages.
        spec: The environment, with what rows have to carry.
        num_streams: Streams of the pool.
        reward_clip: `env.reward_clip`, within which rewards must lie; None lets all be.
    """

    def __init__(
        self, whose: str, spec: EnvSpec, num_streams: int, reward_clip: float | None = None
    ) -> None:
        self._whose, self._spec = whose, spec
        self._reward_clip = reward_clip
        self._is_cut_off = np.zeros(num_streams, np.bool_)

    def __call__(self, rows: Rows) -> None:
        """Check rows, which come behind those of all earlier calls.

        Raises:
            ConfigError: A row is none that the environment could have given (`check_rows`), a
                column is missing or has another type or shape, a stream does not exist, a reward is
                not clipped, or behind the last row of an episode that was cut off there is not its
                final observation.
        """
        try:
            check_rows(rows, self._spec)
            rows.complete(self._spec.carried_columns())
            self._check_streams(rows)
            self._check_clipped(rows)
            self._check_ends(rows)
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"{self._whose} delivered wrong rows: {error}") from error

    def _check_streams(self, rows: Rows) -> None:
        num_streams = len(self._is_cut_off)
        outside = (rows.stream < 0) | (rows.stream >= num_streams)
        if outside.any():
            raise ValueError(
                f"stream {rows.stream[outside.argmax()]} is none of the pool's, which are 0 to "
                f"{num_streams - 1} (num_streams)"
            )

    def _check_ends(self, rows: Rows) -> None:
        order = np.argsort(rows.stream, kind="stable")
        stream, kind = rows.stream[order], rows.kind[order]
        is_cut_off = (rows.truncated & ~rows.terminated)[order]
        is_first = np.diff(stream, prepend=-1) != 0
        before = np.where(is_first, self._is_cut_off[stream], np.roll(is_cut_off, 1))
        wrong = before & (kind != RowKind.BOUNDARY) & (kind != RowKind.GAP)
        if wrong.any():
            at = int(wrong.argmax())
            raise ValueError(
                f"in stream {stream[at]} a {RowKind(kind[at]).name} comes behind a row that is "
                "truncated: send the final observation of the episode first, as a BOUNDARY, or a "
                "GAP if it is not known"
            )
        self._is_cut_off[stream] = is_cut_off  # of the last row of each, since order is kept

    def _check_clipped(self, rows: Rows) -> None:
        if self._reward_clip is None:
            return
        rewards = rows.reward[rows.kind == RowKind.STEP].astype(np.float32)  # as it is stored
        outside = np.abs(rewards) > np.float32(self._reward_clip)
        if outside.any():
            raise ValueError(
                f"reward is {rewards[outside.argmax()]}, but env.reward_clip is "
                f"{self._reward_clip}, by which a pool of your own has to clip: clip it there, or "
                "leave env.reward_clip out"
            )


def check_rows(rows: Rows, spec: EnvSpec) -> None:
    """Check of each row by itself what no environment of lrl's can give.

    Raises:
        ValueError: A kind, an action or a category does not exist, a number is not finite in
            float32, a row other than a STEP ends an episode, or a mask allows nothing.
    """
    if (rows.kind > max(RowKind)).any():
        raise ValueError(f"kind {rows.kind.max()} is none of {[kind.name for kind in RowKind]}")
    misplaced = (rows.terminated | rows.truncated) & (rows.kind != RowKind.STEP)
    if misplaced.any():
        row = int(misplaced.argmax())
        raise ValueError(
            f"row {row}, a {RowKind(rows.kind[row]).name}, is terminated or truncated: these "
            "belong to the STEP whose action ended the episode"
        )
    _check_actions(rows, spec)
    for name, column in rows.columns().items():
        if np.issubdtype(column.dtype, np.floating):
            with np.errstate(over="ignore"):
                stored = column.astype(np.float32)
            if not np.isfinite(stored).all():
                raise ValueError(f"{name} holds NaN or numbers that are infinite in float32")
    for name, column in spec.frame_columns().items():
        if column.categories and not column.holds(rows.columns()[name]):
            raise ValueError(f"{name} holds a category that does not exist")


def _check_actions(rows: Rows, spec: EnvSpec) -> None:
    shape = (len(rows), *spec.action.column.shape)
    if rows.action.shape != shape:
        raise ValueError(f"action has the shape {rows.action.shape}, expected {shape}")
    acted = rows.action[rows.kind == RowKind.STEP]
    outside = spec.action.outside(acted)
    if outside.any():
        sizes = spec.action.branches
        known = f"the {sizes[0]} actions" if len(sizes) == 1 else f"those of branches {sizes}"
        raise ValueError(f"action {acted[outside.argmax()]} is not one of {known}")
    is_seen = (rows.kind == RowKind.STEP) | (rows.kind == RowKind.BOUNDARY)
    for mask in spec.action.split(rows.action_mask if spec.action.masks else None):
        allows = True if mask is None else mask.any(axis=1) | ~is_seen
        if not np.all(allows):
            row = int(np.argmin(allows))
            raise ValueError(
                f"action_mask of row {row}, a {RowKind(rows.kind[row]).name}, allows nothing: "
                "where no action is chosen, let it allow all"
            )
