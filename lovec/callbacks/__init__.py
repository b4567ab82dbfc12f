"""Lightning callbacks of a training run: free-form probes, and warnings when calibration or format breaks."""

from lovec.callbacks.monitor import Limits, Monitor
from lovec.callbacks.probe import Probe

__all__ = ["Limits", "Monitor", "Probe"]
