"""A film of the agent in TensorBoard, every now and then."""

from __future__ import annotations

import io
import logging
import time
from typing import Any

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger
from typing_extensions import override

from lrl.envs import make_rendered
from lrl.evaluation.episodes import VALIDATION_SEED
from lrl.learner.datamodule import datamodule_of
from lrl.loggers.records import tell_loggers
from lrl.loggers.tensorboard import TensorBoardOutput
from lrl.parts.renamed import knows_old_names

TAG = "eval/video"
_SECONDS = 30.0

_log = logging.getLogger(__name__)


@knows_old_names
class EpisodeVideo(TensorBoardOutput):
    """Film the first evaluation episode every so many learner steps, for TensorBoard.

    `eval/video` is an animated image of at most 30 seconds of play. Training waits for it; its
    result does not depend on it. A film that fails is reported and left out.

    Args:
        period_learner_steps: Learner steps between films; 0 makes none.

    Attributes:
        seconds: In which training stopped for films.
    """

    setting = "video_period_learner_steps"
    shown = "films"

    def __init__(self, period_learner_steps: int = 0) -> None:
        super().__init__(period_learner_steps)
        self.seconds = 0.0

    @override
    def check(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        make_rendered(datamodule_of(trainer).evaluation_env).close()

    @override
    def show(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        started = time.perf_counter()
        self._film(trainer, pl_module)
        self.seconds += time.perf_counter() - started

    def _film(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        try:
            image = _make_film(trainer, pl_module)
        except Exception:
            _log.exception("no film of step %d; training goes on", trainer.global_step)
            return
        step = trainer.global_step
        tell_loggers(trainer, lambda logger: _write(logger, image, step), TensorBoardLogger)


def _make_film(trainer: L.Trainer, module: Any) -> tuple[bytes, int, int]:
    """Return an animated GIF, its height and its width."""
    # Imports of films: only where there are films.
    from lrl.video.film import FilmedPolicy, film_episode
    from lrl.video.painter import Painter
    from lrl.video.writers import GifWriter, shoot

    datamodule = datamodule_of(trainer)
    env, evaluation = datamodule.evaluation_env, datamodule.evaluation
    rendered = make_rendered(env)
    try:
        painter = Painter(env.id, f"{trainer.global_step:,} learner steps", rendered.action_names)
        cap = max(1, evaluation.max_frames_for(datamodule.env) // rendered.envs.spec.frame_skip)
        frames = film_episode(
            rendered,
            FilmedPolicy(module.online, module.device),
            VALIDATION_SEED,
            epsilon=evaluation.epsilon_for(datamodule.env),
            max_steps=min(cap, round(_SECONDS * rendered.fps)),
            check=datamodule.check,
        )
        file = io.BytesIO()
        writer = GifWriter(file, rendered.fps)
        shoot(writer, frames, painter)
        writer.close()
        return file.getvalue(), *writer.size
    finally:
        rendered.close()


def _write(logger: Any, image: tuple[bytes, int, int], learner_step: int) -> None:
    """Add an image to a TensorBoard logger as it is encoded; torch's own way wants moviepy."""
    from tensorboard.compat.proto import summary_pb2

    proto: Any = summary_pb2
    encoded, height, width = image
    summary = proto.Summary()
    summary.value.add(tag=TAG).image.MergeFrom(
        proto.Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=encoded)
    )
    logger.experiment._get_file_writer().add_summary(summary, learner_step)
    logger.save()
