"""Solve CartPole with two background actors, the defaults and an ordinary Lightning Trainer."""

import lightning as L

import lrl

if __name__ == "__main__":  # actors import this file
    L.seed_everything(0)
    experience = lrl.ReplayDataModule(lrl.EnvConfig("CartPole-v1"), seed=0)
    callback = lrl.ActorLearnerCallback()
    trainer = L.Trainer(devices=1, max_steps=5000, callbacks=[callback])
    trainer.fit(lrl.DQN(), datamodule=experience)

    (score,) = trainer.test(datamodule=experience, ckpt_path="best", verbose=False)
    print(f"mean return of 100 episodes: {score['eval/return_mean']:.1f}")
    policy = lrl.DQN.load_from_checkpoint(callback.best_model_path)  # acts without environment
