"""What rows of another making must be, beyond what a single row says: checked before learning."""

from __future__ import annotations

import numpy as np

from lrl.types import RowKind, Rows


class RowCheck:
    """Checks how rows of the user's own pool follow each other, and that rewards are clipped.

    Args:
        num_streams: Streams of the pool.
        reward_clip: `env.reward_clip`, within which rewards must lie; None lets all be.
    """

    def __init__(self, num_streams: int, reward_clip: float | None = None) -> None:
        self._reward_clip = reward_clip
        self._is_cut_off = np.zeros(num_streams, np.bool_)

    def __call__(self, rows: Rows) -> None:
        """Check rows, which come behind those of all earlier calls.

        Raises:
            ValueError: A stream does not exist, a reward is not clipped, or behind the last row of
                an episode that was cut off there is not its final observation.
        """
        num_streams = len(self._is_cut_off)
        outside = (rows.stream < 0) | (rows.stream >= num_streams)
        if outside.any():
            raise ValueError(
                f"stream {rows.stream[outside.argmax()]} is none of the pool's, which are 0 to "
                f"{num_streams - 1} (num_streams)"
            )
        self._check_rewards(rows)
        order = np.argsort(rows.stream, kind="stable")
        stream, kind = rows.stream[order], rows.kind[order]
        is_cut_off = ((rows.kind == RowKind.STEP) & rows.truncated & ~rows.terminated)[order]
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

    def _check_rewards(self, rows: Rows) -> None:
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
