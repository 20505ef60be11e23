"""Runs scenarios with the stock `openai` client: `acceptance.py NAME...`. Prints each that has passed."""

import sys

import batches
import errors
import files

SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        files.models, files.files, files.uploads, files.asynchronous_files,
        batches.completed, batches.other_endpoints, batches.failed_rows, batches.invalid_file, batches.cancelled,
        batches.expired, batches.repeated, batches.listed, batches.asynchronous_batches,
        errors.wrong_requests, errors.conflicts, errors.limits,
    )
}

for name in sys.argv[1:]:
    SCENARIOS[name]()
    print(f"passed: {name}", flush=True)
