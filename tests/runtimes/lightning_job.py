"""One rank of two epochs under Lightning, by torchrun's variables; argv: backend. Says its weights."""

from __future__ import annotations

import json
import os
import sys
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy

warnings.simplefilter("ignore")


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        x, y = batch
        return torch.nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


seed_everything(7, verbose=False)
x = torch.randn(64, 8)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
strategy = DDPStrategy(process_group_backend=sys.argv[1], cluster_environment=TorchElasticEnvironment())
trainer = Trainer(
    accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy=strategy, max_epochs=2, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
model = Model()
trainer.fit(model, data)
weights = [p.double().sum().item() for p in model.parameters()]
backend = torch.distributed.get_backend()
os.write(1, ("SAY " + json.dumps({"backend": backend, "weights": weights}) + "\n").encode())
