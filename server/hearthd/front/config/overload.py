"""The `[overload]` section: at which load of the front new work is refused."""

from __future__ import annotations

from pydantic import Field, model_validator

from hearthd.front.config.section import Bytes, Seconds, Section


class OverloadSettings(Section):
    """Two thresholds for each resource. From the first on, new sessions and large requests are refused with a time to
    come again, from the second on new work of open sessions as well."""

    enabled: bool = True
    loop_lag: Seconds = Field(default=0.5, gt=0)  # how late the event loop runs what is due
    loop_lag_critical: Seconds = Field(default=2.0, gt=0)
    memory: Bytes = Field(default=0, ge=0)  # of the front's own, shared memory excepted; 0: 1 GiB, or 1/8 of the host's
    memory_critical: Bytes = Field(default=0, ge=0)  # 0: twice `memory`
    group_memory: float = Field(default=0.92, gt=0, le=1)  # share of its control group's limit, page cache excepted
    group_memory_critical: float = Field(default=0.97, gt=0, le=1)
    descriptors: float = Field(default=0.85, gt=0, le=1)  # share of the limit on open files
    descriptors_critical: float = Field(default=0.95, gt=0, le=1)

    @model_validator(mode="after")
    def _ordered(self) -> OverloadSettings:
        for name in ("loop_lag", "memory", "group_memory", "descriptors"):
            first, second = getattr(self, name), getattr(self, f"{name}_critical")
            if second and first > second:
                raise ValueError(f"{name} = {first} is above {name}_critical = {second}; the second is the higher one")
        return self
