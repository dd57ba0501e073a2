"""Parameters: encoders, recurrent cores, heads and the Q-network made of them."""

from lrl.networks.categorical_head import CategoricalHead
from lrl.networks.categories import EmbeddingEncoder
from lrl.networks.encoders import (
    ConvEncoder,
    Encoder,
    ImpalaEncoder,
    MLPEncoder,
    NatureEncoder,
)
from lrl.networks.heads import BellmanTarget, Head, ReturnDistribution, ScalarHead, TDLoss
from lrl.networks.layers import NoisyLinear
from lrl.networks.linear import Linear, onednn_products
from lrl.networks.multi_encoder import MultiEncoder
from lrl.networks.q_network import NetworkRecipe, QNetwork, Unrolled
from lrl.networks.quantile_heads import ImplicitQuantileHead, QuantileHead
from lrl.networks.recurrent import GRUCore, LSTMCore, RecurrentCore

__all__ = [
    "BellmanTarget",
    "CategoricalHead",
    "ConvEncoder",
    "EmbeddingEncoder",
    "Encoder",
    "GRUCore",
    "Head",
    "ImpalaEncoder",
    "ImplicitQuantileHead",
    "LSTMCore",
    "Linear",
    "MLPEncoder",
    "MultiEncoder",
    "NatureEncoder",
    "NetworkRecipe",
    "NoisyLinear",
    "QNetwork",
    "QuantileHead",
    "RecurrentCore",
    "ReturnDistribution",
    "ScalarHead",
    "TDLoss",
    "Unrolled",
    "onednn_products",
]
