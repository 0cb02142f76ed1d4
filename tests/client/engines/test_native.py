"""What only the native engine promises: threads, bounds, and a life without a compiler."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import perennial.client.engines as engines
from perennial.client.engines import compiler, network
from perennial.client.engines.engine import Received
from perennial.client.engines.native import NativeEngine
from perennial.common.command.errors import InputError
from perennial.common.data.examples import Signature
from perennial.common.task import models
from tests.client.engines import reference
from tests.client.engines.marks import needs_compiler

SHAPE = (3, 32, 32)


@needs_compiler
@pytest.mark.parametrize("threads", [2, 3, 7])
def test_results_do_not_depend_on_the_number_of_threads(threads: int) -> None:
    module = models.build("cnn", SHAPE, 10)
    work = reference.clients(np.random.default_rng(0), SHAPE, 10, 11, 2, 3, integers=True)
    chains = [Received(reference.vector(module), 0.05)] * 2
    one, many = (NativeEngine(module, SHAPE, count).train(chains, work) for count in (1, threads))
    for left, right in zip(one, many, strict=True):
        assert np.array_equal(left.params, right.params)
        assert np.array_equal(left.train_losses, right.train_losses)
        assert np.array_equal(left.losses, right.losses)


@needs_compiler
def test_rows_and_labels_out_of_bounds_are_errors() -> None:
    module = models.build("cnn", SHAPE, 10)
    engine, chain = NativeEngine(module, SHAPE), Received(reference.vector(module), 0.05)
    work = reference.clients(np.random.default_rng(0), SHAPE, 10, 1, 2, 3, integers=True)[0]
    with pytest.raises(ValueError, match="row"):
        engine.train([chain], [replace(work, steps=work.steps + 20)])
    with pytest.raises(ValueError, match="label"):
        engine.train([chain], [replace(work, y=work.y + 10)])


@needs_compiler
def test_the_library_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    module = nn.Sequential(nn.Linear(3, 2))
    NativeEngine(module, (3,))
    monkeypatch.setattr(compiler, "_compile", None)
    NativeEngine(module, (3,))
    assert len(list((tmp_path / "perennial").iterdir())) == 1


def test_without_a_compiler_auto_takes_the_next_engine_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    module = models.build("mlp", (1, 8, 8), 10)
    with caplog.at_level(logging.WARNING, logger="perennial"):
        chosen = [engines.choose("auto", module, Signature.labelled((1, 8, 8), 10)).name for _ in range(2)]
    assert chosen == ["stacked", "stacked"]
    assert len(caplog.records) == 1
    with pytest.raises(InputError, match="compiler"):
        engines.choose("native", module, Signature.labelled((1, 8, 8), 10))


def test_a_compiler_that_fails_is_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\n[ $1 = --version ] || { echo error: broken >&2; exit 1; }\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(compiler.NoCompiler, match="broken"):
        NativeEngine(nn.Sequential(nn.Linear(3, 2)), (3,))


@needs_compiler
def test_a_library_that_is_damaged_is_no_compiler_once_and_then_compiled_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    layers = network.read(nn.Sequential(nn.Linear(3, 2)), (3,))
    compiler.library(network.header(layers)).write_bytes(b"ELF?")
    with pytest.raises(compiler.NoCompiler, match="cannot be loaded"):
        NativeEngine(nn.Sequential(nn.Linear(3, 2)), (3,))
    NativeEngine(nn.Sequential(nn.Linear(3, 2)), (3,))
