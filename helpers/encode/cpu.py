"""What this CPU offers: how many cores we may use, and which instructions it has.

The one home of both questions, because two answers would disagree: threads of a session, the number of worker
processes and the choice of the quantisation range all ask here.
"""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from pathlib import Path

import psutil

# Instructions that multiply 8-bit integers and add them up in 32 bits. Without one of them the CPU adds pairs in
# 16 bits first, which overflows ("saturates") when weights use all of int8's range: hence reduce_range.
DOT_PRODUCT_FLAGS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"})

# Other spellings of the same flag: py-cpuinfo reads CPUID itself and leaves the underscore out.
_ALIASES = {"avx512vnni": "avx512_vnni", "avxvnni": "avx_vnni", "dotprod": "asimddp", "feat_dotprod": "asimddp"}


def available_cores() -> int:
    """Number of cores this process may really use (at least 1).

    The machine's count is not the answer: a process may be pinned to some cores (taskset, Slurm) and a container may
    have a CPU quota. A quota of 2.5 cores counts as 2, for a third thread would be stopped half of the time.
    """
    process = psutil.Process()
    affinity = getattr(process, "cpu_affinity", None)  # Linux and Windows; macOS pins no process
    cores = len(affinity()) if affinity else os.cpu_count() or 1
    quota = cgroup_quota()
    return max(1, cores if quota is None else min(cores, int(quota)))


def cgroup_quota(proc: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> float | None:
    """CPU quota in cores (2.5 is two and a half), from cgroup v2 or v1; None if there is none.

    A limit on any group above ours binds us too, so the smallest one on the way up to the root is returned.
    Source: Linux kernel, Documentation/admin-guide/cgroup-v2.rst and scheduler/sched-bwc.rst.
    """
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return None
    limits: list[float] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top = mount
        elif "cpu" in controllers.split(","):
            top = mount / "cpu"
        else:
            continue
        group = top / path.lstrip("/")
        while True:
            limit = _group_limit(group)
            if limit is not None:
                limits.append(limit)
            if group == top or top not in group.parents:
                break
            group = group.parent
    return min(limits, default=None)


def _group_limit(group: Path) -> float | None:
    """Quota of one control group in cores, None if it has none."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()[:2]
        else:
            quota = (group / "cpu.cfs_quota_us").read_text()
            period = (group / "cpu.cfs_period_us").read_text()
        # "max" (v2) and -1 (v1) mean no limit
        return None if quota == "max" or int(quota) <= 0 else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Instruction-set flags of this CPU in lower case, spelled as Linux spells them (avx2, avx512_vnni, asimddp).

    Linux: /proc/cpuinfo. Elsewhere: py-cpuinfo, and on Apple silicon sysctl. An unknown CPU gives an empty set,
    which is the careful answer: no flag, no assumption.
    """
    flags: set[str] = set()
    if platform.system() == "Linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("flags", "Features"):
                flags.update(value.split())
                break
    elif platform.system() == "Darwin" and platform.machine() == "arm64":
        flags.update(_apple_flags())
    else:
        from cpuinfo import get_cpu_info  # about a second: it starts a process, so only where it is needed

        flags.update(get_cpu_info().get("flags", []))
    lower = {flag.lower() for flag in flags}
    return frozenset(_ALIASES.get(flag, flag) for flag in lower)


def _apple_flags() -> set[str]:
    """Flags of Apple silicon: every such CPU has NEON; sysctl tells the dot product and int8 matrix instructions."""
    flags = {"asimd"}
    for name, flag in (("FEAT_DotProd", "asimddp"), ("FEAT_I8MM", "i8mm")):
        command = ["sysctl", "-n", f"hw.optional.arm.{name}"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.stdout.strip() == "1":
            flags.add(flag)
    return flags


def has_vnni() -> bool:
    """Does this CPU multiply int8 into int32 in one step (VNNI, AMX, or Arm's dot product)?

    False means that INT8 weights should use 7 bits (reduce_range=True), and that INT8 gains less speed.
    """
    return not DOT_PRODUCT_FLAGS.isdisjoint(cpu_flags())


@functools.cache
def cpu_name() -> str:
    """The CPU's name as its maker gives it, or its architecture if there is none."""
    if platform.system() == "Linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
        return platform.machine()
    from cpuinfo import get_cpu_info

    return get_cpu_info().get("brand_raw") or platform.machine()
