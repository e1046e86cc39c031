"""Prepare a text on a Dask cluster: a task for each shard, then one merge.

prepare.py SCHEDULER SHARDS OUTPUT_DIR SETTING...; the settings are those of `bertkit prepare`. All workers have bertkit and see
the same files; a task takes one thread of a worker. To resume, repeat the command: it prepares the missing shards.
"""

import subprocess
import sys
import time
from pathlib import Path

from distributed import Client, as_completed

IN_USE = 3  # the exit code for an output directory that another command writes to


def prepare(arguments: list[str], directory: Path) -> tuple[int, str]:
    """Run `bertkit prepare` in a directory; return its exit code and its errors."""
    command = [sys.executable, "-m", "bertkit", "prepare", *arguments]
    while True:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
        if done.returncode != IN_USE:
            return done.returncode, done.stderr
        time.sleep(5)  # the command of a dead worker still runs


def main(scheduler: str, num_shards: int, output_dir: Path, settings: list[str]) -> int:
    """Return the exit code of the first task that failed, or of the merge."""
    output_dir = output_dir.absolute()
    shards = [output_dir.with_name(f"{output_dir.name}.shards") / str(number + 1) for number in range(num_shards)]
    with Client(scheduler) as client:
        tasks = [
            client.submit(
                prepare,
                [*settings, "num_workers=1", f"shard={number}/{num_shards}", f"output_dir={shard}"],
                Path.cwd(),
                pure=False,  # files may have changed, so Dask must not reuse results
            )
            for number, shard in enumerate(shards, 1)
        ]
        for number, (_, (code, errors)) in enumerate(as_completed(tasks, with_results=True), 1):
            if code:
                print(errors, end="", file=sys.stderr)
                client.cancel(tasks)
                return code
            print(f"{number} of {num_shards} shards", flush=True)
    merge = f"merge=[{','.join(map(str, shards))}]"
    return subprocess.run([sys.executable, "-m", "bertkit", "prepare", merge, f"output_dir={output_dir}"]).returncode


if __name__ == "__main__":
    if len(sys.argv) < 5 or not sys.argv[2].isdecimal() or int(sys.argv[2]) < 1:
        sys.exit(
            "usage: prepare.py SCHEDULER SHARDS OUTPUT_DIR corpus.path=TEXT tokenizer.path=VOCABULARY [SETTING...]"
        )
    sys.exit(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]))
