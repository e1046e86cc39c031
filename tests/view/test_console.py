"""The lines of a run, word for word."""

from __future__ import annotations

from bertkit.view.console import health_line, model_line, phase_line, step_line

METRICS = {"mlm_loss": 5.5, "mlm_accuracy": 0.125}
PAIRS = {**METRICS, "nsp_accuracy": 0.75}


def test_the_model() -> None:
    said = model_line(1_234_567, 3, 26, ["masked_lm", "next_sentence"], "fp32 on cpu, 2 process(es)")
    assert said == (
        "BERT with 1.2 M parameters (3 layers of 26), heads: masked_lm, next_sentence; fp32 on cpu, 2 process(es)"
    )


def test_a_phase_names_its_steps_only_where_there_are_others() -> None:
    only = "5,614 examples an epoch, 6.8 epochs; 16 sequences a step in 2 micro-batches"
    assert phase_line(range(2400), None, 16, 5614, 2) == only
    final = "steps 901 to 1000, sequences of up to 512 tokens: 800 examples an epoch, 2.0 epochs; 16 sequences a step in 8 micro-batches"
    assert phase_line(range(900, 1000), 512, 16, 800, 8) == final


def test_a_step() -> None:
    row = {"step": 50, "loss": 6.82261, "mlm_loss": 6.1385, "learning_rate": 9.8e-4, "tokens_per_second": 27043.4}
    said = "step 50/2400  loss 6.8226  mlm 6.1385  lr 9.80e-04  27,043 tokens/s  1m37s left"
    assert step_line(row, 2400, "1m37s") == said
    with_pairs = {**row, "nsp_accuracy": 0.5}
    assert step_line(with_pairs, 2400, "1m37s") == said.replace("  lr", "  nsp acc 0.50  lr")
    left_out = {key: row[key] for key in ("step", "learning_rate", "tokens_per_second")}
    assert step_line(left_out, 2400, "?") == "step 50/2400  left out  lr 9.80e-04  27,043 tokens/s  ? left"


def test_health() -> None:
    said = health_line(METRICS, {"unigram entropy": 6.1})
    assert said == (
        "held-out MLM loss 5.500, unigram entropy 6.100 (below it: learning from context), MLM accuracy 0.125"
    )
    assert "(not below it yet)" in health_line(METRICS, {"unigram entropy": 5.5})
    with_pairs = health_line(PAIRS, {"unigram entropy": 6.1, "guessing": 0.572})
    assert with_pairs == f"{said}; NSP accuracy 0.750, guessing 0.572"
