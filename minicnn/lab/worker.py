"""A process of its own in which a user's kernel runs: `python -m minicnn.lab.worker`, one JSON job on stdin.

It says on stdout, a JSON object a line, which case it begins and how that ended; what becomes of the process
itself (a fault, an endless loop, a sanitizer's verdict) its parent sees. minicnn.lab.runner is that parent.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from minicnn.device import open_device
from minicnn.device.base import Device
from minicnn.device.host import HostDevice
from minicnn.device.host_build import Check
from minicnn.errors import MinicnnError
from minicnn.lab.checking import arrays_of, cases, check_case, problem_of_case, refusal
from minicnn.lab.files import BroughtIn, bring_in
from minicnn.registry import Case, Target


def main() -> None:
    job = json.load(sys.stdin)
    try:
        (found,) = [b for b in bring_in(job["file"]) if b.variant.name == job["variant"]]
        {"check": check, "bench": bench}[job["task"]](found, job)
    except MinicnnError as error:
        facts = {name: str(fact) for name, fact in error.facts.items()}
        say(state="refused", kind=type(error).__name__, sentence=error.sentence, facts=facts)


def check(found: BroughtIn, job: dict[str, Any]) -> None:
    device: Device | None = None
    for name, case in all_cases(found, job).items():
        if job["case"] not in ("", name):
            continue
        kinds = found.variant.devices
        is_for_it = not kinds or job["device"] in kinds
        problem = problem_of_case(case, arrays_of(case))
        reason = refusal(found.variant, problem) if is_for_it else f"is made for {' and '.join(kinds)}"
        if reason:
            say(case=name, state="skipped", text=reason)
            continue
        say(case=name, state="begun")
        try:
            device = device or opened(job)
            runs = check_case(case, found.variant, device)
        except MinicnnError as error:
            say(case=name, state="wrong", text=str(error), kind=type(error).__name__)
            if job["device"] == "cuda":
                return  # nothing more runs in a context that had a fault
            continue
        say(case=name, state="right", runs=runs)


def bench(found: BroughtIn, job: dict[str, Any]) -> None:
    from minicnn.engine import load, target_of
    from minicnn.lab import race
    from minicnn.lab.layers import plan_with

    device = open_device(job["device"], threads=job["threads"])
    model = load(job["model"], job["shapes"], batch=job["batch"])
    plan = plan_with(found.op, model, target_of(device))
    for bout in race.bouts(found, plan, device, counters=job["counters"], begin=begin):
        say(state="bout", bout=asdict(bout))


def begin(case: str) -> None:
    say(case=case, state="begun")


def all_cases(found: BroughtIn, job: dict[str, Any]) -> dict[str, Case]:
    """The operator's own cases, and the distinct layers of a model."""
    result = dict(cases(found.op))
    if job["model"]:
        result |= model_cases(found, job)
    return result


def model_cases(found: BroughtIn, job: dict[str, Any]) -> dict[str, Case]:
    from minicnn.choose import problem_key
    from minicnn.engine import load
    from minicnn.lab.layers import plan_with

    result: dict[str, Case] = {}
    seen = set()
    model = load(job["model"], job["shapes"], batch=job["batch"])
    for layer in plan_with(found.op, model, Target()).layers:
        problem = layer.problem
        if problem is None or layer.op != found.op or problem_key(problem) in seen:
            continue
        seen.add(problem_key(problem))
        inputs = problem.inputs
        result[f"layer {layer.name}"] = Case(
            operator=problem.operator,
            shapes=tuple(None if o is None else o.shape for o in inputs),
            constants=tuple(i for i, o in enumerate(inputs) if o is not None and o.is_constant),
            dtypes={i: o.dtype for i, o in enumerate(inputs) if o is not None},
            epilogue=problem.epilogue,
        )
    return result


def opened(job: dict[str, Any]) -> Device:
    if job["device"] == "host" and job["check"] is not None:
        return HostDevice(check=Check(**job["check"]))
    return open_device(job["device"])


def say(**words: object) -> None:
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    main()
