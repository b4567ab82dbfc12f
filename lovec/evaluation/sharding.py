"""Lightning's FSDP2 strategy for a frozen base with adapters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import ModelParallelStrategy, Strategy

from lovec.core.settings import Count, checked
from lovec.policy import Policy
from lovec.policy.sharding import CollectiveForwards, shard_base
from lovec.types import LovecError


@checked("trainer.strategy.{}")
class ShardedStrategy(ModelParallelStrategy):
    """Splits the layers of the base model over processes (FSDP2); adapters are whole on every process, as in DDP.

    So the gradients of adapters are summed, their optimisers, of whatever kind, are stepped, and checkpoints are
    written and read as without sharding, and a checkpoint goes on under any number of processes.

    Args:
        copies: how many copies of the base the processes hold together, each split over an equal number of neighbouring
            processes. With one per node, only gradients of adapters travel between nodes.
        process_group_backend: how processes communicate; null is nccl on GPUs and gloo on CPUs.

    Raises:
        LovecError: ``copies`` is out of range, or does not divide the number of processes.
    """

    def __init__(self, copies: Count = 1, process_group_backend: str | None = None) -> None:
        super().__init__(
            tensor_parallel_size=1,
            save_distributed_checkpoint=False,
            process_group_backend=process_group_backend,
        )
        self.copies = copies
        self._shards: Any = None
        self._forwards: CollectiveForwards | None = None

    def setup_environment(self) -> None:
        """Connect the processes, and group those that share a copy of the base."""
        from torch.distributed.device_mesh import init_device_mesh

        processes = self.num_nodes * self.num_processes
        if processes % self.copies:
            raise LovecError(
                f"trainer.strategy.copies is {self.copies}, which does not divide the {processes} processes; give 1, "
                "or the number of nodes"
            )
        self._data_parallel_size = processes
        super().setup_environment()
        shape = (self.copies, processes // self.copies)
        mesh = init_device_mesh(self.root_device.type, shape, mesh_dim_names=("copies", "shards"))
        self._shards = mesh["shards"]

    def setup(self, trainer: Trainer) -> None:
        """Set up as the base class does, and evaluate without inference mode.

        Weights that are gathered in inference mode could not be used to train again.
        """
        loops = (trainer.fit_loop.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop, trainer.predict_loop)
        for loop in loops:
            loop.inference_mode = False
        super().setup(trainer)

    def load_sharded(self, load: Callable[[], Policy]) -> tuple[Policy | None, CollectiveForwards | None, str | None]:
        """Load a policy and split its base.

        The processes of a node load one after the other, so that the node holds one whole base at a time.

        Args:
            load: loads the policy on the CPU.

        Returns:
            The policy; what ``begin`` takes once all processes have loaded theirs; and what is wrong, in one line,
            where it cannot be loaded or split, else None.
        """
        policy, forwards, problem, self._forwards = None, None, None, None
        for turn in range(self.num_processes):
            if turn == self.local_rank:
                try:
                    policy = load()
                    forwards = shard_base(policy, self._shards, self.root_device)
                except LovecError as error:
                    problem = str(error)
            super().barrier()
        return policy, forwards, problem

    def begin(self, forwards: CollectiveForwards) -> None:
        """Make the adapters of all processes equal, and compute together from now on. Every process must call it.

        Args:
            forwards: what ``load_sharded`` has returned, on every process: one that has none never meets the others.
        """
        self._forwards = forwards
        forwards.begin()

    def sync_forwards(self) -> None:
        """Wait until every process calls this, see ``CollectiveForwards``; needed before they exchange values."""
        if self._forwards is not None:
            self._forwards.sync_forwards()

    # What Lightning exchanges

    def barrier(self, name: str | None = None) -> None:
        """Wait for all processes."""
        self.sync_forwards()
        super().barrier(name)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return the object of one process on all of them."""
        self.sync_forwards()
        return super().broadcast(obj, src)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Reduce a tensor over all processes."""
        self.sync_forwards()
        return super().reduce(tensor, group, reduce_op)

    def all_gather(self, tensor: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """Gather a tensor from all processes."""
        self.sync_forwards()
        return super().all_gather(tensor, group, sync_grads)

    # Checkpoints leave out the base; the rest is whole on every process: all as in a run of one process.

    restore_checkpoint_after_setup = Strategy.restore_checkpoint_after_setup
    lightning_restore_optimizer = Strategy.lightning_restore_optimizer
    lightning_module_state_dict = Strategy.lightning_module_state_dict
    load_model_state_dict = Strategy.load_model_state_dict
    optimizer_state = Strategy.optimizer_state
    load_optimizer_state_dict = Strategy.load_optimizer_state_dict
    save_checkpoint = Strategy.save_checkpoint
    load_checkpoint = Strategy.load_checkpoint
