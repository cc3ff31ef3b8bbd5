"""Unusual and malformed input: a defined value, or an error that says what was expected."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.errors import ConfigError, InputError, NonFiniteError
from stepgrad.losses.ranking.metrics import ndcg
from tests.losses.ranking.cases import LOSSES, Case

each_loss = pytest.mark.parametrize("case", LOSSES.values(), ids=LOSSES.keys())
NAN, INF = float("nan"), float("inf")


def on_graph(case: Case, relevance: list[float], **options: object) -> tuple[float, list[float]]:
    """The loss and the gradient at all scores 0."""
    scores = torch.zeros(len(relevance), requires_grad=True)
    loss = case.make(2, **options)(scores, torch.tensor(relevance))
    loss.backward()
    assert scores.grad is not None
    return loss.item(), scores.grad.tolist()


@each_loss
@pytest.mark.parametrize(("empty", "value"), [("skip", 0.0), ("zero", 1.0), ("one", 0.0)])
def test_no_relevant_document_has_a_defined_value_and_no_gradient(case: Case, empty: str, value: float) -> None:
    assert on_graph(case, [0.0, 0.0, 0.0], empty=empty) == (value, [0.0, 0.0, 0.0])


@each_loss
def test_no_document_is_like_no_relevant_document(case: Case) -> None:
    assert on_graph(case, []) == (0.0, [])


@each_loss
def test_one_document_has_no_gradient(case: Case) -> None:
    assert on_graph(case, [2.0])[1] == [0.0]


@each_loss
def test_all_tied_has_a_finite_gradient(case: Case) -> None:
    for estimator in ("mee", "sde", "radius"):
        for min_step in (0.0, 0.1):
            value, gradient = on_graph(case, [0.0, 2.0, 1.0, 0.0, 3.0], estimator=estimator, min_step=min_step)
            assert np.isfinite([value, *gradient]).all()


def test_of_tied_documents_the_first_wins() -> None:
    assert sg.ranking.MRRLoss()(torch.zeros(3), torch.tensor([0, 0, 1])) == pytest.approx(1 - 1 / 3)
    assert sg.ranking.MRRLoss()(torch.zeros(3), torch.tensor([1, 0, 0])) == 0.0


@each_loss
def test_skipped_queries_do_not_count_in_the_mean(case: Case) -> None:
    scores, query = torch.tensor([1.0, 2.0, 1.0, 2.0]), torch.tensor([0, 0, 1, 1])
    relevance = torch.tensor([1.0, 0.0, 0.0, 0.0])
    loss = case.make(1)
    alone = loss(scores[:2], relevance[:2])
    assert loss(scores, relevance, query) == alone
    assert np.isnan(loss.metrics["per_query"]).tolist() == [False, True]


@each_loss
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_non_finite_numbers_are_an_error(case: Case, bad: float) -> None:
    fine, spoilt = torch.tensor([1.0, 0.5, 0.0]), torch.tensor([1.0, bad, 0.0])
    with pytest.raises(NonFiniteError, match="finite scores but document 1"):
        case.make(2)(spoilt, fine)
    with pytest.raises(NonFiniteError, match="finite relevance but document 1"):
        case.make(2)(fine, spoilt)


@each_loss
def test_negative_relevance_is_an_error_except_for_spearman(case: Case) -> None:
    scores, relevance = torch.tensor([1.0, 0.0]), torch.tensor([1.0, -1.0])
    if case is LOSSES["spearman"]:
        assert case.make(2)(scores, relevance) == 0.0
    else:
        with pytest.raises(InputError, match="relevance >= 0 but document 1"):
            case.make(2)(scores, relevance)


@pytest.mark.parametrize("k", [0, -1, 2.5, True, "3"])
@pytest.mark.parametrize("loss", [sg.NDCGLoss, sg.ranking.PrecisionAtKLoss, sg.ranking.RecallAtKLoss])
def test_k_is_a_positive_integer(loss: type, k: object) -> None:
    with pytest.raises(ConfigError, match="to be a whole number >= 1"):
        loss(k=k)


@pytest.mark.parametrize(
    "options",
    [
        {"estimator": "mean"},
        {"balance": "class"},
        {"reduction": "avg"},
        {"empty": "nan"},
        {"radius": 0.0},
        {"min_step": -1.0},
        {"eps": 0.0},
        {"gains": "exp"},
    ],
)
def test_unknown_options_are_an_error(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="Expected"):
        sg.NDCGLoss(**options)


def test_no_logarithm_of_a_metric_that_can_be_negative() -> None:
    with pytest.raises(ConfigError, match="log=False"):
        sg.ranking.SpearmanLoss(log=True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((torch.zeros(3), torch.zeros(2)), "relevance in the shape"),
        ((torch.zeros(3).long(), torch.zeros(3)), "floating-point scores"),
        ((torch.zeros(1, 2, 3), torch.zeros(1, 2, 3)), "floating-point scores"),
        ((torch.zeros(3), [0, 1, 2]), "relevance to be a tensor"),
        ((torch.zeros(3), torch.zeros(3), torch.zeros(3)), "one integer per score"),
        ((torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 3).long()), "every row is a query"),
        ((torch.zeros(3), torch.zeros(3), None, torch.zeros(3)), "torch.bool"),
    ],
)
def test_wrong_shapes_and_types_are_an_error(arguments: tuple[object, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        sg.APLoss()(*arguments)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_gradient_has_the_dtype_of_the_scores(dtype: torch.dtype) -> None:
    scores = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 2.0]], dtype=dtype, requires_grad=True)
    loss = sg.NDCGLoss()(scores, torch.tensor([[1, 0, 2], [1, 0, 0]]))
    loss.backward()
    assert scores.grad is not None
    assert scores.grad.dtype == dtype
    assert scores.grad.abs().sum() > 0
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_reductions_agree() -> None:
    scores, relevance = (
        torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
        torch.tensor([[0, 1, 2, 0, 1, 0]] * 4),
    )
    each = sg.NDCGLoss(reduction="none")(scores, relevance)
    assert each.shape == (4,)
    assert sg.NDCGLoss(reduction="sum")(scores, relevance).item() == pytest.approx(each.sum().item(), rel=1e-14)
    assert sg.NDCGLoss()(scores, relevance).item() == pytest.approx(each.mean().item(), rel=1e-14)


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor:UserWarning"
)  # torch asks for it where a graph ends
def test_the_loss_works_inside_a_compiled_function() -> None:
    loss_fn, relevance = sg.NDCGLoss(k=3), torch.tensor([0, 1, 2, 0, 0, 1])
    start = torch.randn(6, generator=torch.Generator().manual_seed(0))

    def step(scores: torch.Tensor) -> torch.Tensor:
        return loss_fn(0.2 * scores, relevance)

    gradients = []
    for run in (step, torch.compile(step, backend="eager")):
        leaf = start.clone().requires_grad_()
        run(leaf).backward()
        gradients.append(leaf.grad)
    assert torch.equal(gradients[0], gradients[1])
    assert gradients[0].any()


def test_padding_has_no_steps() -> None:
    scores, mask = torch.tensor([[3.0, 2.0, 1.0, 9.0]]), torch.tensor([[True, True, True, False]])
    steps = sg.APLoss().steps(scores, torch.tensor([[0, 1, 0, 1]]), mask=mask)
    alone = sg.APLoss().steps(scores[:, :3], torch.tensor([[0, 1, 0]]))
    for name in ("up_at", "up_value", "down_at", "down_value"):
        assert torch.equal(getattr(steps, name)[:, :3], getattr(alone, name)), name
    told = [getattr(steps, name)[0, 3].item() for name in ("up_at", "up_value", "down_at", "down_value")]
    assert told == [float("inf"), 0.0, -float("inf"), 0.0]


def test_complex_numbers_have_no_order_in_any_argument() -> None:
    scores, relevance, query = torch.ones(3), torch.tensor([0, 1, 0]), torch.zeros(3, dtype=torch.int64)
    for given in (
        (scores, relevance.to(torch.complex64), query),
        (scores, relevance.to(torch.complex64)),
        (scores, relevance, query.to(torch.complex64)),
    ):
        with pytest.raises(InputError, match="complex"):
            sg.APLoss()(*given)


def test_unknown_gains_of_the_metric_are_an_error() -> None:
    with pytest.raises(ConfigError, match="Expected gains"):
        ndcg([1.0, 2.0], [0, 1], gains="exp")
