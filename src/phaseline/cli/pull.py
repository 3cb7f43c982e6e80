"""`phaseline pull`: fetch a model into the cache."""

import argparse
import json


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `pull` and its options."""
    parser = subparsers.add_parser(
        "pull",
        help="fetch a model into the cache",
        description="Fetch a model, check it and keep it in the cache. An interrupted pull is resumed by the next.",
    )
    parser.add_argument("model", help="a known name (smollm2), a URL of a .gguf file, or hf:owner/repo/file.gguf")
    parser.add_argument("--json", action="store_true", help="print name, path, bytes, sha256 and licence as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Pull `args.model`; the progress bar goes to standard error, the result to standard output."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from phaseline.files import zoo

    model = zoo.lookup(args.model)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(model.name, total=None)
        path = zoo.pull(args.model, progress=lambda done, total: bar.update(task, completed=done, total=total))
    size = path.stat().st_size
    if args.json:
        sha256 = model.sha256 or zoo.sha256_of(path)
        record = {"name": model.name, "path": str(path), "bytes": size, "sha256": sha256, "licence": model.licence}
        print(json.dumps(record))
    else:
        print(f"{model.name}: {path} ({size / 1e6:.1f} MB, {model.licence or 'licence not known'})")
    return 0
