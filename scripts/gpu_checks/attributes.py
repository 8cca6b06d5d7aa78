"""All attributes of device 0 by their names, as far as binding and driver know them; run as a process of its own."""

from __future__ import annotations

import json

import cuda.bindings.driver as driver
from cuda_sim.child import check


def main() -> None:
    check(driver.cuInit(0))
    device = check(driver.cuDeviceGet(0))
    found: dict[str, int] = {}
    for member in driver.CUdevice_attribute:
        code, value = driver.cuDeviceGetAttribute(member, device)
        if int(code) == 0:
            found[member.name.removeprefix("CU_DEVICE_ATTRIBUTE_")] = int(value)
    name = check(driver.cuDeviceGetName(256, device)).partition(b"\0")[0].decode(errors="replace")
    print(json.dumps({"name": name, "driver_version": check(driver.cuDriverGetVersion()), "attributes": found}))


if __name__ == "__main__":
    main()
