"""Asks a checkpoint unseen cases and counts the right answers.

    python -m samples.demo_training.evaluate samples/demo_model --cases 500 --out report.json

Every case goes the whole way: media files, the chat service's own decoding and encoding, the engine, words. With
--fault the same cases are asked again with broken preprocessing, which must cost accuracy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from samples.demo_training.askers import Asker, LocalAsker, Message, ServerAsker, question
from samples.demo_training.cases import FAMILIES, FLOORS, Case, make_case
from samples.demo_training.faults import FAULTS
from samples.demo_training.score import is_right
from serve_apps.bench import format_table

_STAGES = ("encode_ms", "queue_ms", "prefill_ms", "decode_ms")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A case and what the model said to each of its questions. seconds: from its first question to its last answer.
    stage_ms: summed over the questions. make_s: what the scene and its files took.
    """

    case: Case
    answers: tuple[str, ...]
    seconds: float
    stage_ms: dict[str, float]
    make_s: float

    @property
    def is_right(self) -> bool:
        """A dialogue is right when every answer of it is."""
        return all(
            is_right(answer, turn.answer) for answer, turn in zip(self.answers, self.case.turns, strict=True)
        )


async def evaluate(
    asker: Asker,
    families: Sequence[str],
    num_cases: int,
    folder: Path,
    *,
    at_once: int,
    on_outcome: Callable[[Outcome], object] = lambda outcome: None,
) -> list[Outcome]:
    """The outcomes of cases 0 .. num_cases - 1 of each family. Media files are left in the folder."""
    slots = asyncio.Semaphore(at_once)
    loop = asyncio.get_running_loop()
    # One thread of its own: scenes are made while the model answers, and never crowd out its threads.
    with ThreadPoolExecutor(1, thread_name_prefix="scenes") as maker:

        async def run(family: str, number: int) -> Outcome:
            async with slots:
                case, make_s = await loop.run_in_executor(maker, _timed_case, family, number, folder)
                outcome = await hold(asker, case, make_s=make_s)
            on_outcome(outcome)
            return outcome

        return await asyncio.gather(
            *(run(family, number) for family in families for number in range(num_cases))
        )


def _timed_case(family: str, number: int, folder: Path) -> tuple[Case, float]:
    begin = time.perf_counter()
    return make_case(family, number, folder), time.perf_counter() - begin


async def hold(asker: Asker, case: Case, *, make_s: float = 0.0) -> Outcome:
    """Holds the conversation. The model reads its own earlier answers, right or wrong."""
    messages: list[Message] = []
    answers: list[str] = []
    stage_ms: dict[str, float] = defaultdict(float)
    begin = time.perf_counter()
    for index, turn in enumerate(case.turns):
        files = [(file.modality, file.path) for file in case.files] if index == 0 else []
        messages.append(question(turn.question, files))
        answer = await asker.ask(messages)
        messages.append({"role": "assistant", "content": answer.text})
        answers.append(answer.text)
        for stage in _STAGES:
            stage_ms[stage] += answer.timings.get(stage, 0.0)
    return Outcome(
        case=case,
        answers=tuple(answers),
        seconds=time.perf_counter() - begin,
        stage_ms=dict(stage_ms),
        make_s=make_s,
    )


def report(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Accuracy of each family and task, and every wrong answer."""
    families: dict[str, Any] = {}
    for family in dict.fromkeys(outcome.case.family for outcome in outcomes):
        of_family = [outcome for outcome in outcomes if outcome.case.family == family]
        tasks = sorted({outcome.case.task for outcome in of_family})
        families[family] = {
            **_share(of_family),
            "floor": FLOORS.get(family),
            "tasks": {
                task: _share([outcome for outcome in of_family if outcome.case.task == task])
                for task in tasks
            },
        }
    return {
        "families": families,
        "failures": [_failure(outcome) for outcome in outcomes if not outcome.is_right],
        "mean_ms": {
            "make": _mean([1e3 * outcome.make_s for outcome in outcomes]),
            **{
                stage.removesuffix("_ms"): _mean([outcome.stage_ms[stage] for outcome in outcomes])
                for stage in _STAGES
            },
        },
    }


def is_good_enough(families: dict[str, Any]) -> bool:
    """Whether every family of a report reaches its floor."""
    return all(family["accuracy"] >= (family["floor"] or 0) for family in families.values())


def table(families: dict[str, Any], broken: dict[str, Any] | None = None) -> str:
    """Families and their tasks; with the families of a broken run, what the fault costs."""
    header = ["", "cases", "right %", "floor %", *(["broken %", "fall"] if broken else [])]
    rows: list[list[object]] = []
    for name, family in families.items():
        floor = "-" if family["floor"] is None else f"{100 * family['floor']:.0f}"
        rows.append([name, family["cases"], _percent(family), floor])
        rows += [
            [f"  {task}", share["cases"], _percent(share), ""] for task, share in family["tasks"].items()
        ]
        if broken:
            pairs = [(family, broken[name])]
            pairs += [(share, broken[name]["tasks"][task]) for task, share in family["tasks"].items()]
            for row, (whole, faulty) in zip(rows[-len(pairs) :], pairs, strict=True):
                fall = 100 * (whole["accuracy"] - faulty["accuracy"])
                row += [_percent(faulty), f"{fall:.1f}"]
    return format_table(header, rows)


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m samples.demo_training.evaluate", description=(__doc__ or "").splitlines()[0]
    )
    add = parser.add_argument
    add("checkpoint", type=Path, nargs="?", help="folder in hub format; left out with --url")
    add("--url", help="ask this server instead of loading the checkpoint")
    add("--cases", type=int, default=500, help="of each family (default: %(default)s)")
    add("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES), metavar="F")
    add(
        "--fault",
        choices=list(FAULTS),
        help="ask again with broken preprocessing, of the families it touches",
    )
    add("--at-once", type=int, default=16, help="conversations under way at once (default: %(default)s)")
    add("--out", type=Path, help="write the report here as JSON")
    add("--show", type=int, default=0, metavar="N", help="print up to N wrong answers of each family")
    add("--keep", type=Path, metavar="DIR", help="leave the media files here")
    add("--check", action="store_true", help="exit with 1 when a family is below its floor")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; the exit status is 0 unless --check finds a family below its floor."""
    options = parser()
    args = options.parse_args(arguments)
    if (args.checkpoint is None) == (args.url is None):
        options.error("give either a checkpoint folder or --url")
    if args.fault and args.url:
        options.error("--fault breaks the preprocessing of this process; give a checkpoint folder, not --url")
    if args.cases < 1 or args.at_once < 1:
        options.error(f"--cases is {args.cases} and --at-once {args.at_once}; both must be at least 1")
    if args.fault:
        args.families = [name for name in args.families if name in FAULTS[args.fault].families]
    begin = time.perf_counter()
    result = _run(args, fault=None)
    broken = None
    if args.fault:
        broken = _run(args, fault=args.fault)["families"]
        result["fault"] = {"name": args.fault, "families": broken}
    result = {
        "asked": str(args.checkpoint or args.url),
        "cases": args.cases,
        "seconds": round(time.perf_counter() - begin, 1),
        **result,
    }
    print(table(result["families"], broken))
    _print_failures(result["failures"], args.show)
    means = ", ".join(f"{name} {value:.0f}" for name, value in result["mean_ms"].items())
    print(f"{result['seconds']:.0f} s in all; mean ms of a case, {args.at_once} at once: {means}")
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    return int(args.check and not is_good_enough(result["families"]))


def _run(args: argparse.Namespace, *, fault: str | None) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory() as scratch,
        FAULTS[fault].applied() if fault else nullcontext(),
        tqdm(total=args.cases * len(args.families), desc=fault or "cases", unit="case") as bar,
    ):
        folder = args.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)

        async def run() -> list[Outcome]:
            asker: Asker = ServerAsker(args.url) if args.url else LocalAsker(args.checkpoint)
            try:
                return await evaluate(
                    asker,
                    args.families,
                    args.cases,
                    folder,
                    at_once=args.at_once,
                    on_outcome=lambda outcome: bar.update(),
                )
            finally:
                await asker.close()

        return report(asyncio.run(run()))


def _share(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    num_right = sum(outcome.is_right for outcome in outcomes)
    return {"accuracy": round(num_right / len(outcomes), 4), "right": num_right, "cases": len(outcomes)}


def _failure(outcome: Outcome) -> dict[str, Any]:
    case = outcome.case
    return {
        "case": case.name,
        "task": case.task,
        "files": [file.path.name for file in case.files],
        "turns": [
            {"question": turn.question, "expected": turn.answer, "answer": answer}
            for turn, answer in zip(case.turns, outcome.answers, strict=True)
        ],
    }


def _print_failures(failures: Sequence[dict[str, Any]], most: int) -> None:
    shown: dict[str, int] = defaultdict(int)
    for failure in failures:
        family = failure["case"].rpartition("-")[0]
        shown[family] += 1
        if shown[family] > most:
            continue
        print(f"{failure['case']} ({failure['task']}) {' '.join(failure['files'])}")
        for turn in failure["turns"]:
            print(f"  {turn['question']}\n    expected {turn['expected']!r}\n    answered {turn['answer']!r}")


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 1)


def _percent(share: dict[str, Any]) -> str:
    return f"{100 * share['accuracy']:.1f}"


if __name__ == "__main__":
    sys.exit(main())
