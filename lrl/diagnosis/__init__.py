"""What a run shows of how it learns: why it may not, what held it back, what TensorBoard shows."""

from lrl.diagnosis.findings import diagnose
from lrl.diagnosis.signs import Finding

__all__ = ["Finding", "diagnose"]
