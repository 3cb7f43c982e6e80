"""From a model's name to an engine that serves it."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from phaseline.engine.engine import Engine
from phaseline.engine.memory import fit
from phaseline.engine.policy import ItlBudget, policy_named
from phaseline.engine.scheduler import Scheduler
from phaseline.engine.step_cost import Reach, StepCost
from phaseline.errors import FileFormatError, PhaselineError, RequestError, UnsupportedError
from phaseline.execute.base import Executor
from phaseline.execute.host import usable_cores
from phaseline.execute.native import KV_TYPES, NativeExecutor
from phaseline.execute.reference import ReferenceExecutor
from phaseline.families import model_program
from phaseline.files.base import ModelFile
from phaseline.files.model_file import open_model_file, open_tokenizer
from phaseline.files.recode import RecodedFile
from phaseline.files.zoo import resolve
from phaseline.program.ops import Experts
from phaseline.state.pages import PageTable

MODES = ("walk", "eager", "layer", "dispatch", "chunk")
NUMERICS = ("fast", "invariant", "reference")


def load(
    model: str | Path,
    *,
    threads: int | None = None,
    chunk: int = 512,
    mode: str = "chunk",
    numerics: str = "fast",
    context: int | None = None,
    memory: int | None = None,
    max_running: int = 16,
    policy: str = "mixed",
    kv_type: str = "bf16",
    weights: str | None = None,
    level: str | None = None,
    itl_budget_ms: float | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Engine:
    """Load a pulled model by name, or by path a .gguf file (of a split one any part) or a Hugging Face folder.

    threads: default the cores this process may use. chunk: most prompt tokens per step. mode: how a prompt is read:
    chunk (the product), or, as controls, walk (one token a step), eager (one call per operation), layer (one row at a
    time inside each layer), dispatch (of a sparse model, one row at a time inside its experts). numerics: fast and
    invariant are one and the same here, bit for bit; reference runs the numpy specification in float32. context,
    memory (bytes): limits, refused early where they can't be met. kv_type: bf16 or f32. weights: hold matrices as bf16
    or q8_0 instead of as in the file (rounded, of another size). level: an instruction-set level instead of the widest.
    itl_budget_ms: while others decode, read only as much of a prompt per step as keeps the time between their tokens
    below this. progress: told how many bytes of weights are ready, of how many.

    Raises a PhaselineError that says why and what would work.
    """
    _choose("mode", mode, MODES)
    _choose("numerics", numerics, NUMERICS)
    _choose("kv_type", kv_type, tuple(KV_TYPES))
    threads = _positive("threads", usable_cores() if threads is None else threads, 512)
    chunk = _positive("chunk", chunk, 1 << 16)
    max_running = _positive("max_running", max_running, 4096)
    context = None if context is None else _positive("context", context, 1 << 30)
    memory = None if memory is None else _positive("memory", memory, 1 << 60)
    policy_named(policy, itl_budget=itl_budget_ms is not None)
    itl_budget = None if itl_budget_ms is None else ItlBudget(itl_budget_ms)
    if mode == "walk":
        chunk = 1
    reference = numerics == "reference"
    if reference and (mode in ("eager", "layer", "dispatch") or level is not None):
        raise UnsupportedError("numerics reference runs in numpy: it has no mode eager, layer or dispatch and no level")
    with closing(open_model_file(resolve(str(model)))) as opened:
        file: ModelFile = opened if weights is None else RecodedFile(opened, weights)
        try:
            program = model_program(file)[1]
            tokenizer = open_tokenizer(file)
            if mode == "dispatch" and not any(isinstance(op, Experts) for op in program.ops):
                raise UnsupportedError("mode dispatch reads experts row by row: this model has none")
        except PhaselineError as error:
            said = str(error)  # what folders say names them already
            raise type(error)(said if said.startswith(str(file.path)) else f"{file.path}: {said}") from None
        if tokenizer.vocab_size != program.vocab:
            raise FileFormatError(
                f"{file.path}: the tokenizer has {tokenizer.vocab_size} tokens, the model {program.vocab}"
            )
        room = fit(
            program,
            context=context,
            memory=memory,
            kv_type="f32" if reference else kv_type,
            max_running=max_running,
            chunk=chunk,
            decoded=reference,
        )
        executor: Executor
        if reference:
            executor = ReferenceExecutor(file, program, room.pages)
        else:
            executor = NativeExecutor(
                file,
                program,
                room.pages,
                threads=threads,
                level=level,
                kv_type=kv_type,
                max_rows=min(chunk, room.context * max_running) + max_running,
                mode="chunk" if mode == "walk" else mode,
                progress=progress,
            )
    max_pages = -(-room.context // executor.page_size)
    table = PageTable(room.pages, executor.page_size, max_running, max_pages, program.state)
    if itl_budget:
        itl_budget = replace(itl_budget, cost=StepCost(Reach.of(program)))
    scheduler = Scheduler(
        table, context=room.context, chunk=chunk, max_running=max_running, policy=policy, itl_budget=itl_budget
    )
    return Engine(executor, scheduler, tokenizer)


def _choose(name: str, value: str, accepted: tuple[str, ...]) -> None:
    if value not in accepted:
        raise UnsupportedError(f"{name} {value!r} is not one of {', '.join(accepted)}")


def _positive(name: str, value: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
        raise RequestError(f"{name} = {value!r}: it must be a whole number from 1 to {high}")
    return value
