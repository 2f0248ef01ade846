"""Modules, functions and globals of sessions.

Modules are compiled by compile workers, loaded here, and kept while they are in use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.backend.compiler import Assembly, Image, Job, LinkJob, Source
from hearthd.device.compiler import device_functions
from hearthd.device.compiler.options import valid_options
from hearthd.device.compiler.service import Callback, Compiled
from hearthd.device.context import DeviceContext
from hearthd.device.operation import Operation, Origin, destruction
from hearthd.device.printf_capture import may_print
from hearthd.device.resources.idle_work import Waiting
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.module import FunctionEntry, ModuleEntry
from hearthd.device.session.session import DeviceSession

MAX_INPUTS = 256
"""Most inputs of a module that is linked."""

LINKED_KINDS = (commands_pb2.CODE_KIND_LTO_IR, commands_pb2.CODE_KIND_LIBRARY)
"""Kinds of code that no device can load before it is linked."""


class ModuleCommands:
    """Executes the module commands.

    Every session loads a separate copy of a module, with separate `__device__` variables.
    """

    def __init__(self, device: DeviceContext) -> None:
        self._device = device
        self._compilations: dict[ModuleEntry, tuple[Job, Callback]] = {}
        """Modules whose code is being compiled or assembled, with the job and its callback."""
        self._pending_loads: dict[ModuleEntry, Waiting] = {}
        """Modules whose code waits to be loaded while no kernel runs."""

    def load(self, origin: Origin, command: commands_pb2.LoadModule) -> Operation | None:
        """Creates the module and starts its compile or load.

        The returned operation answers when the module is loaded; None if no answer was requested.
        """
        session = origin.session
        entry = session.modules.add(command.module, ModuleEntry(command.module))
        try:
            job = _job(command)
        except Refusal as refusal:
            self._fail(entry, refusal)
        else:
            if isinstance(job, Assembly):
                self._assemble(session, entry, job.code)
            else:
                self._submit(session, entry, job)
        if not origin.answered:
            return None
        return self._describe(origin, entry)

    def _assemble(self, session: DeviceSession, entry: ModuleEntry, code: bytes) -> None:
        """Loads binary code directly, or has it assembled first.

        The driver's assembler would stall the device for all sessions, so it is used only if no other assembler is
        available.
        """
        unassembled = Compiled(Image(code=code), None, False, 0)
        try:
            assembly = self._device.server.compiler.assembly(code)
        except Refusal as refusal:
            self._fail(entry, refusal)
            return
        if assembly is None:
            self._load(session, entry, unassembled)
        else:
            self._submit(session, entry, assembly, unassembled)

    def _submit(self, session: DeviceSession, entry: ModuleEntry, job: Job, fallback: Compiled | None = None) -> None:
        def compiled(outcome: Compiled) -> None:
            del self._compilations[entry]
            self._count(outcome)
            if outcome.error is not None and outcome.error.reason is Reason.NO_COMPILER and fallback is not None:
                outcome = fallback
            self._load(session, entry, outcome)
            self._device.kick(session)

        self._compilations[entry] = job, compiled
        self._device.compiler.submit(job, compiled, session.channel)

    def _count(self, outcome: Compiled) -> None:
        telemetry = self._device.telemetry
        error = outcome.error
        if error is None:
            if outcome.cached:
                telemetry.compile_cache_hits += 1
            else:
                telemetry.compile_cache_misses += 1
                telemetry.compile.observe(outcome.elapsed_ns)
        elif error.reason is Reason.COMPILE_LIMIT or "signal" in error.details:
            telemetry.compile_crashes += 1

    def _fail(self, entry: ModuleEntry, error: Refusal | None) -> None:
        self._device.telemetry.compile_failures += 1
        entry.pending = False
        entry.error = error

    def _load(self, session: DeviceSession, entry: ModuleEntry, outcome: Compiled) -> None:
        if outcome.image is None:
            self._fail(entry, outcome.error)
            return
        entry.cached = outcome.cached
        entry.compile_ns = outcome.elapsed_ns
        if may_print(outcome.image.code):
            entry.prints = session
        entry.log = outcome.image.log
        self._load_when_idle(session, entry, outcome.image)

    def _load_when_idle(self, session: DeviceSession, entry: ModuleEntry, image: Image) -> None:
        """Loads the module when no kernel runs.

        If that takes longer than the time limit, the commands that wait for the module are refused, and later commands
        try again.
        """
        idle_work = self._device.idle_work

        def retry(may_succeed: Callable[[], bool]) -> None:
            if may_succeed():
                entry.pending, entry.error, entry.retry_load = True, None, None
                self._load_when_idle(session, entry, image)

        def refuse(refusal: Refusal) -> None:
            del self._pending_loads[entry]
            self._device.telemetry.loads_refused += 1
            entry.pending, entry.error, entry.retry_load = False, refusal, partial(retry, idle_work.retry_condition())
            self._device.kick(session)

        waiting = idle_work.load(
            session, f"the load of module {entry.handle}", lambda: self._load_now(session, entry, image), refuse
        )
        if waiting is not None:
            self._pending_loads[entry] = waiting

    def _load_now(self, session: DeviceSession, entry: ModuleEntry, image: Image) -> None:
        """Loads the module, unless its handle has been destroyed and nothing holds it any more."""
        self._pending_loads.pop(entry, None)
        entry.pending = False
        if entry.released and not entry.holders:
            return
        try:
            entry.module = self._device.server.load(image)
            self._device.telemetry.modules_loaded += 1
        except Refusal as refusal:
            entry.error = refusal
        self._device.kick(session)

    def unload(self, origin: Origin, command: commands_pb2.UnloadModule) -> Operation:
        """Unloads the module after waiting launches; a running kernel keeps the code until it is done.

        Abandons a compile that is under way: the commands that waited for it were submitted earlier.
        """
        session = origin.session
        entry = session.modules.pop(command.module)
        for handle in [h for h, function in session.functions.items.items() if function.module is entry]:
            del session.functions.items[handle]
        for handle in [h for h, buffer in session.buffers.items.items() if buffer.module is entry]:
            session.buffers.pop(handle)
        return destruction(origin, partial(self.release, session, entry), (entry, *entry.variables.values()))

    def release(self, session: DeviceSession, entry: ModuleEntry) -> None:
        """Marks the module's handle as destroyed, and unloads its code if no holder is left, after its last launch."""
        entry.released = True
        if not entry.holders:
            self._unload(session, entry)

    def hold(self, entry: ModuleEntry) -> None:
        """Keeps the code loaded until `unhold`, even after the handle is destroyed.

        Used by graphs and prepared launches.
        """
        entry.holders += 1

    def unhold(self, session: DeviceSession, entry: ModuleEntry) -> None:
        """Ends one `hold`. `session` is the session that owns the module."""
        entry.holders -= 1
        if entry.released and not entry.holders:
            self._unload(session, entry)

    def _unload(self, session: DeviceSession, entry: ModuleEntry) -> None:
        compilation = self._compilations.pop(entry, None)
        if compilation is not None:
            self._device.compiler.abandon(*compilation)
        entry.retry_load = None
        pending_load = self._pending_loads.pop(entry, None)
        if pending_load is not None:
            self._device.idle_work.drop(pending_load)
        module, entry.module = entry.module, None
        if module is not None:
            server = self._device.server
            self._device.telemetry.modules_unloaded += 1
            # Unloaded after the running kernels, including those of graphs; not urgent, because no client waits for
            # the unload.
            self._device.tracks.after_all(
                session.tracks(), lambda: self._device.idle_work.run(lambda: server.unload(module), urgent=False)
            )

    def describe(self, origin: Origin, command: commands_pb2.DescribeModule) -> Operation:
        """Returns the operation that answers with the module's functions and globals as soon as it is loaded."""
        return self._describe(origin, origin.session.modules.find(command.module))

    def _describe(self, origin: Origin, entry: ModuleEntry) -> Operation:
        entry.ensure_loading()

        def answer() -> commands_pb2.Result:
            module = entry.loaded()
            result = commands_pb2.ModuleResult(
                functions=module.functions,
                globals=module.globals,
                log=entry.log,
                cached=entry.cached,
                compile_ns=entry.compile_ns,
            )
            return commands_pb2.Result(module=result)

        return self._when_ready(origin, entry, answer)

    def get_function(self, origin: Origin, command: commands_pb2.GetFunction) -> Operation | None:
        """Creates the function handle.

        The function is resolved at its first use, so that this command does not wait for the compile.
        """
        session = origin.session
        module = session.modules.find(command.module)
        entry = session.functions.add(command.function, FunctionEntry(command.function, module, command.name))
        return self._describe_function(origin, entry) if origin.answered else None

    def describe_function(self, origin: Origin, command: commands_pb2.DescribeFunction) -> Operation:
        """Returns the operation that answers with the function's parameters and attributes.

        It runs as soon as the module is loaded, and first sets the attribute that the command has, if any.
        """
        carveout = None
        if command.HasField("preferred_shared_memory_carveout"):
            carveout = command.preferred_shared_memory_carveout
            if not -1 <= carveout <= 100:
                raise Refusal(
                    Reason.INVALID_ARGUMENT,
                    f"a preferred shared memory of {carveout} % is not from 0 to 100, or -1 for the driver's default",
                    fix="pass a number in this range",
                )
        return self._describe_function(origin, origin.session.functions.find(command.function), carveout)

    def _describe_function(self, origin: Origin, entry: FunctionEntry, carveout: int | None = None) -> Operation:
        optin = self._device.limits.shared_mem_per_block_optin
        entry.module.ensure_loading()

        def answer() -> commands_pb2.Result:
            function = entry.resolve()
            if carveout is not None:
                function.prefer_shared(carveout)
            attributes = function.attributes
            result = commands_pb2.FunctionResult(
                name=function.name,
                parameters=[commands_pb2.Parameter(offset=offset, size=size) for offset, size in function.parameters],
                registers=attributes.registers,
                static_shared_bytes=attributes.static_shared_bytes,
                local_bytes=attributes.local_bytes,
                constant_bytes=attributes.constant_bytes,
                max_threads_per_block=attributes.max_threads_per_block,
                max_dynamic_shared_bytes=max(0, optin - attributes.static_shared_bytes),
                ptx_version=attributes.ptx_version,
                binary_version=attributes.binary_version,
                cache_mode_ca=bool(attributes.cache_mode_ca),
                preferred_shared_memory_carveout=attributes.carveout,
            )
            return commands_pb2.Result(function=result)

        return self._when_ready(origin, entry.module, answer)

    def get_global(self, origin: Origin, command: commands_pb2.GetGlobal) -> Operation:
        """Creates a buffer handle for a global variable of the module.

        The returned operation sets the buffer's address and size, and answers with the size, as soon as the module is
        loaded.
        """
        session = origin.session
        entry = session.modules.find(command.module)
        session.buffers.check_new(command.buffer)
        entry.ensure_loading()
        buffer: Buffer | None = entry.variables.get(command.name)
        if buffer is None:
            buffer = entry.variables[command.name] = Buffer(command.buffer, 0)
            buffer.module = entry
        session.buffers.items[command.buffer] = variable = buffer

        def run() -> bool:
            if entry.pending:
                return False
            try:
                variable.address, variable.size = entry.loaded().global_(command.name)
                variable.lost = None  # an earlier attempt may have failed
            except Refusal as refusal:
                variable.lost = refusal
                raise
            result = commands_pb2.Result()
            # "global" is a keyword in Python, but a normal field name in other languages.
            getattr(result, "global").size = variable.size
            origin.reply(result)
            return True

        return Operation(origin, run, writes=(origin.stream, variable), reads=(entry,))

    @staticmethod
    def _when_ready(origin: Origin, entry: ModuleEntry, answer: Callable[[], commands_pb2.Result]) -> Operation:
        def run() -> bool:
            if entry.pending:
                return False
            origin.reply(answer())
            return True

        return Operation(origin, run, reads=(entry,))


def _job(command: commands_pb2.LoadModule) -> Job:
    """Returns the job for the module's code: a `LinkJob` for several inputs, and for code that must be linked.

    Raises Refusal(COMPILE_FAILED), Refusal(MODULE_INVALID).
    """
    inputs = [(command.kind, command.code), *((item.kind, item.code) for item in command.inputs)]
    if len(inputs) > MAX_INPUTS:
        raise Refusal(
            Reason.COMPILE_FAILED,
            f"the module has {len(inputs)} inputs; the maximum is {MAX_INPUTS}",
            fix="link some of them before, or send an archive",
            details={"inputs": len(inputs), "allowed": MAX_INPUTS},
            fields=["code"],
        )
    options = tuple(command.options)
    headers = tuple(sorted(command.headers.items()))
    jobs: list[Source | Assembly] = []
    for index, (kind, code) in enumerate(inputs):
        if kind != commands_pb2.CODE_KIND_CUDA_CPP:
            device_functions.check_binary(code)
            jobs.append(Assembly(code))
            continue
        try:
            names = () if index else tuple(command.name_expressions)
            jobs.append(Source(code.decode(), options, names, headers))
        except UnicodeDecodeError as error:
            where = f"input {index}" if len(inputs) > 1 else "the source"
            raise Refusal(
                Reason.COMPILE_FAILED,
                f"{where} is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}",
                fix="send the source as UTF-8 text",
                fields=["code"],
            ) from error
    parsed = valid_options(options)
    if len(jobs) == 1 and command.kind not in LINKED_KINDS and not parsed.linked:
        return jobs[0]
    if parsed.has("fsanitize"):
        raise Refusal(
            Reason.COMPILE_FAILED,
            "-fsanitize=address cannot be combined with code that is linked: its accesses would not be checked",
            fix="compile one source without -rdc=true, -dc and -dlto, or leave out -fsanitize=address",
            fields=["options"],
        )
    return LinkJob(tuple(jobs), options)
