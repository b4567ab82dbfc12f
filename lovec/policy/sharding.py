"""The layers of the base model split over processes with FSDP2; adapters and all outside of layers stay whole."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lovec.core.decoders import decoder_layers
from lovec.policy.fingerprint import WHOLE, loaded_digest
from lovec.policy.policy import Policy, is_adapter


def shard_base(policy: Policy, mesh: Any, device: torch.device) -> CollectiveForwards:
    """Split every layer of a policy's base over the processes of a mesh, and move the shards to their device.

    The weights of a layer are gathered from all of them while the layer is computed, in the forward and in the backward
    pass. Adapters, embeddings, the last norm and the output layer are on every process as they were, and get the values
    of the first one, so that processes which drew them at random agree.

    Args:
        policy: a policy that has computed nothing yet.
        mesh: one-dimensional mesh of the processes. Every one of them must call this, but they do not wait for each
            other before the call of ``CollectiveForwards.begin``.
        device: the device of this process.

    Returns:
        What the processes need in order to compute forward passes together.

    Raises:
        LovecError: the layers of the model cannot be found.
    """
    from torch.distributed.fsdp import fully_shard

    layers = decoder_layers(policy.model, ", so they cannot be sharded; use --trainer.strategy ddp")
    decoder = policy.model.get_decoder()
    setattr(policy.model, WHOLE, loaded_digest(policy.model))
    adapters = {parameter for name, parameter in policy.named_parameters() if is_adapter(name)}
    split = {parameter for parameter in layers.parameters() if parameter not in adapters}
    whole = [parameter for parameter in policy.parameters() if parameter not in split]
    for layer in layers:
        fully_shard(layer, mesh=mesh, ignored_params=adapters)
    # The root has no weights of its own: it lets the weights of the next layer arrive while a layer is computed.
    fully_shard(decoder, mesh=mesh, ignored_params=set(whole))
    return CollectiveForwards(decoder, whole, mesh.get_group(), device)


class CollectiveForwards:
    """Lets processes that hold shards of one model run forward passes although they need different numbers of them.

    A forward pass of a sharded model gathers weights from all processes, so none can run one alone. Before each, the
    processes tell each other whether they have something to compute. One that has not, because it waits to exchange
    other things, computes a single token meanwhile, without gradient, and forgets it.

    Args:
        decoder: the sharded model without its output layer; every forward pass goes through it.
        whole: its parameters that are not sharded.
        group: the processes.
        device: the device of this process.
    """

    def __init__(self, decoder: nn.Module, whole: list[nn.Parameter], group: Any, device: torch.device) -> None:
        self._decoder = decoder
        self._whole = whole
        self._group = group
        self._device = device
        self._following = False
        decoder.register_forward_pre_hook(self._announce_forward, prepend=True)

    def begin(self) -> None:
        """Give the weights that every process holds the values of the first process. Every process must call it."""
        for parameter in self._whole:
            values = parameter.detach().to(self._device)
            dist.broadcast(values, group=self._group, group_src=0)
            parameter.detach().copy_(values)

    def sync_forwards(self) -> None:
        """Return once every process has called this; take part in the forward passes of the others until then."""
        while int(self._announce(False)):
            self._following = True
            try:
                with torch.no_grad():
                    self._decoder(input_ids=torch.zeros(1, 1, dtype=torch.long, device=self._device), use_cache=False)
            finally:
                self._following = False

    def _announce_forward(self, *_: Any) -> None:
        if not self._following:
            self._announce(True)

    def _announce(self, computes: bool) -> torch.Tensor:
        """Return how many processes are about to compute something of their own."""
        number = torch.tensor(int(computes), device=self._device)
        dist.all_reduce(number, group=self._group)
        return number
