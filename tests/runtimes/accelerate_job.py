"""One rank of ten steps under Accelerate, whose group is made before it; argv: backend. Says its weights."""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group(sys.argv[1])

from accelerate import Accelerator  # noqa: E402 - behind the group

torch.manual_seed(7)
accelerator = Accelerator(cpu=True)
net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
x = torch.randn(160, 8)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
model, optimizer, data = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1), data)
for inputs, targets in data:
    optimizer.zero_grad()
    accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
    optimizer.step()
total = accelerator.reduce(torch.tensor([float(accelerator.process_index + 1)]), "sum").item()
weights = [p.double().sum().item() for p in net.parameters()]
said = {"backend": dist.get_backend(), "weights": weights, "total": total, "size": accelerator.num_processes}
os.write(1, ("SAY " + json.dumps(said) + "\n").encode())
accelerator.end_training()
