from fractions import Fraction

import pytest
import torch
from flint import nmod_mat
from hypothesis import given, settings
from hypothesis import strategies as st

from attnid import exact
from attnid.counting import count
from attnid.exact import certify, directions, frequency_class
from attnid.layer import LayerSpec
from attnid.modular import PRIME, product, random_residues
from attnid.rank import layer_ranks


@st.composite
def layers(draw: st.DrawFn) -> LayerSpec:
    groups = draw(st.integers(1, 2))
    width = draw(st.integers(1, 5))
    return LayerSpec(
        d_model=draw(st.integers(2, 5)),
        n_heads=groups * draw(st.integers(1, 2)),
        n_kv_heads=groups,
        qk_head_dim=width,
        v_head_dim=draw(st.integers(1, 5)),
        rotary_dim=draw(st.integers(0, width // 2)) * 2,
        query_bias=draw(st.booleans()),
        key_bias=draw(st.booleans()),
        value_bias=draw(st.booleans()),
        output_bias=draw(st.booleans()),
        causal=draw(st.booleans()),
    )


@settings(max_examples=40, deadline=None)
@given(layers(), st.integers(0, 10**6))
def test_every_layer_is_certified_at_the_closed_form(spec: LayerSpec, seed: int) -> None:
    certificate = certify(spec, seed)
    assert certificate.certified
    assert certificate.lower == count(spec).identified


@pytest.mark.parametrize("rotary_dim", [0, 2, 4])
@pytest.mark.parametrize("biases", [False, True])
def test_the_lower_bound_is_flints_rank_and_the_float64_rank(rotary_dim: int, biases: bool) -> None:
    spec = LayerSpec.multi_head(8, 2, biases=biases).model_copy(update={"rotary_dim": rotary_dim})
    draws = torch.Generator().manual_seed(1)
    parameters = {name: random_residues(shape, draws) for name, shape in spec.parameter_shapes.items()}
    jacobian = torch.cat([exact._sequence_jacobian(spec, parameters, 8, draws) for _ in range(5)])
    entries = [int(value) % PRIME for value in jacobian.flatten().tolist()]
    assert nmod_mat(*jacobian.shape, entries, PRIME).rank() == certify(spec).lower == layer_ranks(spec).layer.rank


@settings(max_examples=20, deadline=None)
@given(layers())
def test_the_jacobian_annihilates_every_direction(spec: LayerSpec) -> None:
    """The symmetries and the Jacobian are written apart; modulo the prime they must fit exactly."""
    draws = torch.Generator().manual_seed(2)
    parameters = {name: random_residues(shape, draws) for name, shape in spec.parameter_shapes.items()}
    jacobian = exact._sequence_jacobian(spec, parameters, 4, draws)
    assert not product(jacobian, directions(spec, parameters).mT).any()


def test_too_few_rows_lower_the_lower_bound_and_certify_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "SPARE_ROWS", -80)
    monkeypatch.setattr(exact, "_telling_sequences", lambda spec, tokens: 1)
    certificate = certify(LayerSpec.multi_head(8, 2))
    assert certificate.lower < certificate.upper == count(LayerSpec.multi_head(8, 2)).identified
    assert not certificate.certified


def test_a_missing_symmetry_raises_the_upper_bound_and_certifies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "_value_bias_changes", lambda spec, parameters: iter(()))
    certificate = certify(LayerSpec.multi_head(8, 2, biases=True))
    assert certificate.upper == certificate.lower + 8
    assert not certificate.certified


def test_width_one_is_not_certified_and_says_why() -> None:
    certificate = certify(LayerSpec.multi_head(1, 1))
    assert "width of at least 2" in certificate.failed
    assert not certificate.certified


@pytest.mark.parametrize("rotary_dim", [2, 6, 12, 16, 64, 128])
def test_frequency_classes_are_the_real_frequencies(rotary_dim: int) -> None:
    for plane in range(rotary_dim // 2):
        remainder, multiple = frequency_class(plane, rotary_dim)
        assert 0 <= remainder < 1
        assert multiple * 10.0 ** float(-8 - remainder) == pytest.approx(10_000.0 ** (-2 * plane / rotary_dim))


def test_the_dependent_frequencies_of_width_64_are_those_known() -> None:
    """theta_0 = 10 theta_8 ... : 8 classes of 4 planes at rotary width 64."""
    classes = {frequency_class(plane, 64)[0] for plane in range(32)}
    assert classes == {Fraction(k, 8) for k in range(8)}
    assert frequency_class(0, 64)[1] == 10 * frequency_class(8, 64)[1] == 100 * frequency_class(16, 64)[1]
