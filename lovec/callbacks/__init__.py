"""Lightning callbacks of a run: its progress, free-form probes, and warnings when calibration or format breaks."""

from lovec.callbacks.monitor import Limits, Monitor
from lovec.callbacks.probe import Probe
from lovec.callbacks.progress import ProgressLine

__all__ = ["Limits", "Monitor", "Probe", "ProgressLine"]
