"""Parameters: encoders, heads and the Q-network made of them."""

from lrl.networks.encoders import Encoder, MLPEncoder, NatureEncoder
from lrl.networks.heads import Head, ScalarHead, TDLoss
from lrl.networks.q_network import NetworkRecipe, QNetwork

__all__ = [
    "Encoder",
    "Head",
    "MLPEncoder",
    "NatureEncoder",
    "NetworkRecipe",
    "QNetwork",
    "ScalarHead",
    "TDLoss",
]
