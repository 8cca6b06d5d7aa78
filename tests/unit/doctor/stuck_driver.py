"""Run as the child that asks the driver (python -m): it says a part and then ends, or not, as STUCK_DRIVER wants."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

print('{"binding": "13.5.0"}\n{"at": "cuInit"}', flush=True)
print('{"init_error": ""}\nthe driver mumbles\n{"driver_version": 13000}', flush=True)
print('{"at": "ipc of GPU 0"}\n{"ipc": [0, ""]}\n{"at": "ipc of GPU 1"}\n{"ipc": [1', end="", flush=True)
match os.environ["STUCK_DRIVER"]:
    case "hangs":
        # Its own child holds standard output, too: it has to go with its parent.
        subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"])
    case "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(60)
    case "fails":
        raise SystemExit("no such device")
