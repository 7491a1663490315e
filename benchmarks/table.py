#!/usr/bin/env python3
"""Formats the results of benchmarks/neurons.py as a table for docs/benchmarks.md.

    python benchmarks/table.py benchmarks/results/h200.json
    python benchmarks/table.py benchmarks/results/h200.json benchmarks/results/cpu.json --into docs/benchmarks.md

--into replaces the text between the two marks of a file.
"""

import argparse
import json
import pathlib
import sys

BEGIN, END = "<!-- benchmarks -->\n", "<!-- end of benchmarks -->\n"


def cell(result, part="total"):
    return f"{result[part]['median']:.2f}" if part in result else "-"


def table(path):
    record = json.loads(path.read_text())
    rows = [row for row in record["rows"] if row["results"]]
    present = {name for row in rows for name in row["results"]}
    peers = [name for name in ("spikingjelly", "snntorch", "compiled_loop", "plain_loop") if name in present]
    facts = record["machine"]
    lines = [f"{facts['device']}, torch {facts['torch']}, commit {facts['commit']}: `{record['command']}`", "",
             "| " + " | ".join(["case", "spikeforge", "forward", "backward", "memory", *peers]).replace("_", " ") + " |",
             "|---|" + "---|" * (4 + len(peers))]
    for row in rows:
        ours = row["results"].get("spikeforge", {})
        name = row["case"] + (" (× silu)" if row["unit"] == "silu" else "")
        memory = f"{ours['memory']:.2f}" if "memory" in ours else "-"
        cells = [name, cell(ours), cell(ours, "forward"), cell(ours, "backward"), memory]
        lines.append("| " + " | ".join(cells + [cell(row["results"].get(peer, {})) for peer in peers]) + " |")
    return "\n".join(lines) + "\n"


def insert(tables, path):
    text = path.read_text()
    if BEGIN not in text or END not in text:
        sys.exit(f"{path} has no place for the tables: {BEGIN.strip()} ... {END.strip()}")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    path.write_text(f"{before}{BEGIN}{tables}{END}{after}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, nargs="+", help="results of neurons.py --json")
    parser.add_argument("--into", type=pathlib.Path, help="a file with the two marks")
    options = parser.parse_args()
    tables = "\n".join(table(path) for path in options.results)
    insert(tables, options.into) if options.into else print(tables, end="")
