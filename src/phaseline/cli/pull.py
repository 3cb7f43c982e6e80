"""`phaseline pull`: fetch a model into the cache."""

import argparse
import json

from phaseline.cli.progress import progress_bar


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `pull` and its options."""
    parser = subparsers.add_parser(
        "pull",
        help="fetch a model into the cache",
        description="Fetch a model, check it and keep it in the cache. An interrupted pull is resumed by the next.",
    )
    parser.add_argument(
        "model", metavar="MODEL", help="a known name (smollm2), a URL of a .gguf file, or hf:owner/repo/file.gguf"
    )
    parser.add_argument("--json", action="store_true", help="print name, path, bytes, sha256 and licence as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Pull `args.model`; the progress bar goes to standard error, the result to standard output."""
    from phaseline.files import zoo

    model = zoo.lookup(args.model)
    with progress_bar(model.name, of_bytes=True) as progress:
        path = zoo.pull(args.model, progress=lambda done, total: progress(done, total, model.name))
    size = path.stat().st_size
    if args.json:
        sha256 = model.sha256 or zoo.sha256_of(path)
        record = {"name": model.name, "path": str(path), "bytes": size, "sha256": sha256, "licence": model.licence}
        print(json.dumps(record))
    else:
        print(f"{model.name}: {path} ({size / 1e6:.1f} MB, {model.licence or 'licence not known'})")
    return 0
