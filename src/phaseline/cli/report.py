"""`phaseline report`: records as one HTML page."""

import argparse
from pathlib import Path

from phaseline.errors import RequestError


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `report` and its options."""
    parser = subparsers.add_parser(
        "report",
        help="records of measure and lab as one HTML page",
        description="Make one HTML page of records that measure, the experiments of lab or guard wrote with --out: "
        "tables, rooflines, curves, timelines, and where all was measured. The page needs no network and no other "
        "file. Nothing is measured for it.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON, a record each, or JSON lines")
    parser.add_argument("--out", type=Path, metavar="FILE", default=Path("report.html"), help="(report.html)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the page and print where it is."""
    from phaseline.cli.facts import check_out
    from phaseline.lab.records import write_text
    from phaseline.lab.report import read_records, report_page

    check_out(args)
    if args.out.exists() and any(args.out.samefile(file) for file in args.files if file.exists()):
        raise RequestError(f"--out {args.out} is one of the records: the page would replace it")
    records = read_records(args.files)
    page = report_page(records)
    write_text(args.out, page)
    print(f"{args.out}: {len(records)} record{'s' * (len(records) != 1)}, {len(page.encode()) / 1e3:.0f} kB")
    return 0
