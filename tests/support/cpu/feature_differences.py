"""Differences between the CPU backend and a GPU, with a snippet if a program can observe the difference."""

from __future__ import annotations

from tests.support.cpu.feature_table import Differs

DIFFERENCES = [
    Differs(
        "rounding",
        "math functions are within the bounds of the CUDA Math API; `__sinf` and similar functions are "
        "approximations",
        "math functions are those of the C library, and `__sinf` and similar functions are as exact as "
        "`sinf`; the last bits differ",
        "compare with a tolerance",
        "if (threadIdx.x == 0) out[0] = __sinf(10.f) == sinf(10.f);",
        [1],
    ),
    Differs(
        "fused multiply-add",
        "NVRTC fuses `a * b + c` unless `--fmad=false`",
        "the C++ compiler fuses if the processor can; other operations of an expression may be fused than on "
        "a GPU",
        "`fmaf` if fusing matters, `__fmul_rn` and `__fadd_rn` if it must not happen",
    ),
    Differs(
        "subnormal numbers",
        "flushed to zero with `--ftz=true` and `--use_fast_math`",
        "always kept",
        "",
        "volatile float tiny = 1e-38f; if (threadIdx.x == 0) out[0] = tiny / 4 > 0;",
        [1],
        options=("--use_fast_math",),
    ),
    Differs(
        "casts out of range",
        "`(int)1e10f` is the nearest `int`, and 0 for a NaN",
        "undefined, as in C++: on x86 usually the lowest `int`, or the number itself if the cast is optimised "
        "away. `__float2int_rz` and similar functions saturate on both",
        "`__float2int_rz`, or a comparison before the cast",
        "if (threadIdx.x == 0) { out[0] = __float2int_rz(1e10f); out[1] = __float2int_rz(nanf(\"\")); }",
        [2**31 - 1, 0],
    ),
    Differs(
        "races within a block",
        "the threads of a block run at the same time; a race gives a different result now and then",
        "a thread runs until its next meeting point (a barrier, a warp function, a group operation), then "
        "another one runs; a race gives the same result each time, which may be right by chance",
        "a barrier between each write and the reads of other threads; "
        "[`HEARTH_CPU_RACECHECK=1`](operations.md#finding-races-on-a-laptop) finds where one is missing",
    ),
    Differs(
        "races between blocks",
        "blocks run at the same time",
        "as many blocks run at the same time as the machine has cores, except in cooperative launches",
        "atomic functions",
    ),
    Differs(
        "lanes of a warp",
        "since Volta, lanes are scheduled independently, but code without branches usually runs in step",
        "each lane runs until its next meeting point: a *warp-synchronous* program, which reads what other "
        "lanes have written without `__syncwarp()`, reads old values, even if the memory is `volatile`",
        "`__syncwarp()` between write and read (see below)",
    ),
    Differs(
        "spin-waits within a block",
        "other threads of the block make progress meanwhile",
        "a thread runs until its next meeting point, or until it yields: in atomic functions that change "
        "nothing, fences, `__nanosleep`, `cuda::atomic` loads, and each iteration of a `while`, `do` or `for` "
        "loop of a source that mentions `volatile`. A loop made of `goto` that polls a `volatile` variable "
        "never ends",
        "a loop, or a barrier",
        """
        __shared__ volatile int flag; if (threadIdx.x == 0) flag = 0; __syncthreads();
        if (threadIdx.x == 31) flag = 7;
        else while (flag == 0) {}
        out[threadIdx.x] = flag;
        """,
        [7] * 32,
    ),
    Differs(
        "spin-waits between blocks",
        "blocks that are resident at the same time can wait for each other",
        "a block may start only after another one has ended",
        "a cooperative launch, whose blocks all run at the same time",
    ),
    Differs(
        "`printf`",
        "shown at the next synchronisation, in no defined order between warps; returns the number of "
        "arguments",
        "shown at the end of the launch, for the threads of a block in the order in which they run, and in no "
        "defined order between blocks; returns the number of characters",
        "printing by one thread only",
    ),
    Differs(
        "`clock()`, `clock64()`",
        "cycles of the multiprocessor",
        "the processor's time-stamp counter; the time of a thread includes that of the threads that ran "
        "meanwhile",
        "events around the launch",
        "const long long begin = clock64(); if (threadIdx.x == 0) out[0] = clock64() >= begin;",
        [1],
    ),
    Differs(
        "occupancy",
        "of the device",
        "modelled: each core counts as a multiprocessor with the 2,048 threads and 228 KiB of shared memory of "
        "an H100, and 16 blocks. It limits cooperative launches; other launches are limited only by the "
        "shared memory of one block",
        "",
    ),
    Differs(
        "`__CUDA_ARCH__`",
        "of the device",
        "700, so that code paths in PTX for later devices are left out; `__HEARTH_CPU__` is defined",
        "`#ifdef __HEARTH_CPU__` around code that needs another form for the CPU",
        """
        if (threadIdx.x == 0) out[0] = __CUDA_ARCH__;
        #ifdef __HEARTH_CPU__
        if (threadIdx.x == 0) out[1] = 1;
        #endif
        """,
        [700, 1],
    ),
    Differs(
        "compile options",
        "control code generation",
        "`-fmad=false` has the same effect; `--use_fast_math` defines `__USE_FAST_MATH__` and changes no "
        "result; `--ftz`, `--prec-div`, `--prec-sqrt`, `-G`, `-lineinfo`, `--maxrregcount`, `--restrict`, "
        "`--extra-device-vectorization` change nothing. Both backends refuse the same options",
        "",
        "if (threadIdx.x == 0) out[0] = __USE_FAST_MATH__;",
        [1],
        options=("--use_fast_math",),
    ),
    Differs(
        "headers of the C++ standard library",
        "NVRTC has none",
        "`<vector>`, `<algorithm>` and the others are those of the C++ compiler, and can be used",
        "`cuda/std`, or headers that the program sends along",
        "std::vector<int> v(3, 2); if (threadIdx.x == 0) out[0] = v[0] + v.size();",
        [5],
        includes=("vector",),
    ),
    Differs(
        "out of bounds",
        "a fault if the address is not mapped",
        "the same (the device process ends, and a new one starts); an access to other memory of the process "
        "is not noticed",
        "`compute-sanitizer` on a GPU",
    ),
    Differs(
        "division by zero",
        "of integers: no fault, the result is undefined",
        "no fault on x86 either: all bits of the quotient are set, and the remainder is the dividend",
        "",
        "volatile int zero = 0; if (threadIdx.x == 0) { out[0] = 7 / zero; out[1] = 7 % zero; }",
        [-1, 7],
    ),
    Differs(
        "stacks",
        "the local memory of a thread: 512 KiB, of which a launch reserves what its kernels need",
        "580 KiB for a thread that reaches a meeting point; 8 MiB, or the limit of the process, for a thread "
        "that does not",
        "large arrays in device memory",
        "float own[6000]; for (int i = 0; i < 6000; ++i) own[i] = i; __syncthreads(); out[threadIdx.x] = "
        "own[5999 - threadIdx.x];",
        [5999 - t for t in range(32)],
    ),
    Differs(
        "shared memory",
        "undefined before it is written; 48 KiB static",
        "undefined before it is written: it contains what an earlier block has left; static arrays may be "
        "larger than 48 KiB",
        "write before reading; dynamic shared memory beyond 48 KiB",
    ),
]  # fmt: skip
