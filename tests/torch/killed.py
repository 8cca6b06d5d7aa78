"""A rank that is killed while it trains; the others say when they learned it, and by what words. A script of a rank."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("rdmaring")
rank = dist.get_rank()
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
for step in range(100_000):
    if rank == 2 and step == 5:
        Path(sys.argv[1]).write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        model(torch.ones(4, 64)).sum().backward()
    except RuntimeError as error:
        print(f"RAISED {time.time()} {' '.join(str(error).split())}", flush=True)
        break
os._exit(0)
