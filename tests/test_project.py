"""Rules of the project that no linter knows. Import directions are import-linter contracts in pyproject.toml."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from serve_apps.cli import COMMANDS, parse
from tests import public_surface

ROOT = Path(__file__).parents[1]
PACKAGES = ("kernels", "mm_pipeline", "llm_core", "serve_apps")
MAX_LINES = 450
TOP_LEVEL = {
    ".ci",
    ".gitignore",
    ".pre-commit-config.yaml",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "kernels",
    "llm_core",
    "mm_pipeline",
    "pyproject.toml",
    "samples",
    "serve_apps",
    "tests",
}


def tracked_files() -> list[str]:
    result = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        pytest.skip("not a git work tree")
    return result.stdout.splitlines()


def package_files() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def run_python(code: str) -> str:
    """Output of `code` in a fresh interpreter that sees the work tree first, and nothing of this one."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_top_level_is_the_agreed_list() -> None:
    assert {file.split("/")[0] for file in tracked_files()} == TOP_LEVEL


def test_no_python_file_outgrows_its_noun() -> None:
    lengths = {
        file: len((ROOT / file).read_text().splitlines())
        for file in tracked_files()
        if file.endswith(".py") and (ROOT / file).exists()
    }
    assert {file: length for file, length in lengths.items() if length > MAX_LINES} == {}


def test_every_package_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in package_files()
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_no_work_is_left_as_a_note() -> None:
    notes = re.compile(r"\b(TODO|FIXME|XXX)\b")
    assert [str(path.relative_to(ROOT)) for path in package_files() if notes.search(path.read_text())] == []


def test_packages_do_not_import_tests_or_samples() -> None:
    offenders = []
    for path in package_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            else:
                continue
            offenders += [
                f"{path.relative_to(ROOT)}: {name}"
                for name in modules
                if name.split(".")[0] in ("tests", "samples")
            ]
    assert offenders == []


def test_scheduler_and_page_pools_run_without_torch() -> None:
    loaded = run_python(
        "import sys, llm_core.core, llm_core.errors, llm_core.scheduler, llm_core.kv.pages, llm_core.kv.dual\n"
        "print([name for name in ('torch', 'numpy', 'transformers') if name in sys.modules])"
    )
    assert loaded.strip() == "[]"


def test_decoder_processes_run_without_torch() -> None:
    loaded = run_python(
        "import sys, mm_pipeline.decoding, serve_apps.decoders.worker\n"
        "print([name for name in ('torch', 'torchvision', 'transformers', 'pydantic') if name in sys.modules])"
    )
    assert loaded.strip() == "[]"


def test_kernels_package_is_light_and_has_no_version() -> None:
    output = run_python(
        "import sys, kernels\n"
        "print(kernels.__file__, 'torch' in sys.modules, hasattr(kernels, '__version__'))"
    )
    assert output.split() == [str(ROOT / "kernels" / "__init__.py"), "False", "False"]


def test_transformers_runs_with_our_kernels_package_on_the_path() -> None:
    """transformers probes a Hugging Face package that is also named `kernels`."""
    output = run_python(
        "import kernels, torch, transformers\n"
        "torch.set_num_threads(1)\n"
        "config = transformers.Qwen3MoeConfig(vocab_size=32, hidden_size=16, intermediate_size=16,\n"
        "    moe_intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,\n"
        "    head_dim=8, num_experts=2, num_experts_per_tok=1)\n"
        "model = transformers.Qwen3MoeForCausalLM(config).eval()\n"
        "ids = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=2, min_new_tokens=2, do_sample=False)\n"
        "print(ids.shape[1])"
    )
    assert output.split()[-1] == "5"


def test_ci_runs_what_a_developer_runs() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().rstrip().endswith("make test")


def test_public_names_and_flags_change_only_on_purpose() -> None:
    frozen = json.loads(public_surface.FROZEN.read_text())
    assert public_surface.current() == frozen, "deliberate? then run python -m tests.public_surface"


def readme_blocks(language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )


def test_readme_shell_blocks_name_commands_that_exist() -> None:
    """Most need a server, so they are parsed: by bash, by make, and by each command's own argument parser."""
    for block in readme_blocks("bash"):
        subprocess.run(["bash", "-n"], input=block, text=True, check=True)
        for line in block.replace("\\\n", " ").splitlines():
            if not line.startswith(("make ", "mmserve ", "python ")):
                continue
            words = shlex.split(line, comments=True)
            if words[:1] == ["make"]:
                subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, capture_output=True)
            elif words[:1] == ["mmserve"]:
                module, summary = COMMANDS[words[1]]
                parse(f"mmserve {words[1]}", module, summary, [word for word in words[2:] if word != "&"])
            elif words[:1] == ["python"] and words[1].endswith(".py"):
                assert (ROOT / words[1]).is_file(), line


def test_readme_python_blocks_run() -> None:
    """Those that talk to a server are only compiled."""
    for block in readme_blocks("python"):
        compile(block, "README.md", "exec")
        if "http://" not in block:
            run_python(block)
