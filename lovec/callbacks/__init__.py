"""Lightning callbacks of a run: its progress, probes, warnings, its end by a signal, and the adapter that it writes."""

from lovec.callbacks.monitor import Limits, Monitor
from lovec.callbacks.probe import Probe
from lovec.callbacks.progress import ProgressLine

__all__ = ["Limits", "Monitor", "Probe", "ProgressLine"]
