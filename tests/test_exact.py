from fractions import Fraction

import pytest
import torch
from flint import nmod_mat
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layers import VARIANTS, layers

from attnid import directions as symmetries
from attnid import exact
from attnid.attention import random_parameters
from attnid.counting import NoClosedFormError, count
from attnid.exact import certify
from attnid.layer import LayerSpec
from attnid.modular import PRIME, Field
from attnid.rank import UnclearRankError, jacobian, layer_ranks
from attnid.residues import frequency_class

FIELD = Field()
PRIMES = (PRIME, 8_388_571, 1_048_583)


def random_jacobian(spec: LayerSpec, sequences: int, tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A layer's Jacobian and its symmetries' directions at the same random residues."""
    draws = torch.Generator().manual_seed(seed)
    parameters, known = exact._at_random(spec, FIELD, draws)
    return exact._jacobian(spec, parameters, FIELD, draws, sequences, tokens), known


def float64_rank(spec: LayerSpec, seed: int) -> int | None:
    """None where float64 cannot tell."""
    try:
        return layer_ranks(spec, seed).layer.rank
    except UnclearRankError:
        return None


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), seed=st.integers(0, 10**6), prime=st.sampled_from(PRIMES))
def test_closed_form_float64_rank_and_certified_rank_are_one_number(
    variant: str, data: st.DataObject, seed: int, prime: int
) -> None:
    """Over random layers of every variant, whatever the seed and the prime."""
    spec = data.draw(layers(variant))
    certificate = certify(spec, seed, prime)
    measured = float64_rank(spec, seed)
    if measured is not None:
        assert measured <= certificate.layer.upper
        assert certificate.failed or certificate.layer.lower == measured
    try:
        counted = count(spec)
    except NoClosedFormError:
        return
    assert certificate.certified
    assert certificate.layer.lower == counted.identified
    if certificate.sides:
        of_sides = [bounds.lower for bounds in certificate.sides]
        assert of_sides == [counted.identified_query_key, counted.identified_value_output]


@settings(max_examples=60, deadline=None)
@given(layers(), st.integers(0, 10**6))
def test_the_jacobian_annihilates_every_direction(spec: LayerSpec, seed: int) -> None:
    """The symmetries and the forward pass are written apart; modulo the prime they must fit exactly."""
    modular, known = random_jacobian(spec, sequences=1, tokens=5, seed=seed)
    assert not FIELD.product(modular, known.mT.to(modular.dtype)).any()


@pytest.mark.parametrize("rotary_dim", [0, 2, 4])
@pytest.mark.parametrize("biases", [False, True])
def test_the_lower_bound_is_flints_rank(rotary_dim: int, biases: bool) -> None:
    spec = LayerSpec.multi_head(8, 2, biases=biases).model_copy(update={"rotary_dim": rotary_dim})
    modular, _ = random_jacobian(spec, sequences=5, tokens=8, seed=1)
    entries = [int(value) % PRIME for value in modular.flatten().tolist()]
    assert nmod_mat(*modular.shape, entries, PRIME).rank() == certify(spec).layer.lower


@pytest.mark.parametrize("variant", ["query/key norm", "latent", "plain", "sinks", "soft cap", "pre-norm"])
def test_the_columns_of_each_parameter_have_their_float64_rank(variant: str) -> None:
    features: dict[str, dict[str, object]] = {
        "query/key norm": {"qk_norm": "head", "key_bias": True},
        "latent": {"kv_latent_dim": 5, "q_latent_dim": 4, "rotary_dim": 2},
        "sinks": {"sinks": True, "key_bias": True, "value_bias": True},
        "soft cap": {"soft_cap": 3.0, "key_bias": True},
        "pre-norm": {"pre_norm": "layer", "pre_norm_bias": True},
    }
    spec = LayerSpec.model_validate(LayerSpec.multi_head(6, 2).model_dump() | features.get(variant, {}))
    modular, _ = random_jacobian(spec, sequences=8, tokens=6, seed=1)
    for name, columns in _columns(spec).items():
        alone = FIELD.rank_(modular[:, columns].clone())
        assert alone == _float_rank_of(spec, columns), name


def _columns(spec: LayerSpec) -> dict[str, slice]:
    result, first = {}, 0
    for name, shape in spec.parameter_shapes.items():
        size = int(torch.tensor(shape).prod())
        result[name] = slice(first, first + size)
        first += size
    return result


def _float_rank_of(spec: LayerSpec, columns: slice) -> int:
    draws = torch.Generator().manual_seed(3)
    x = torch.randn(8, 6, spec.d_model, generator=draws, dtype=torch.float64)
    derivative = jacobian(spec, random_parameters(spec, draws, 0.6), x)[:, columns]
    return int(torch.linalg.matrix_rank(derivative, rtol=1e-10))


def test_too_few_rows_lower_the_lower_bound_and_certify_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "fewest_sequences", lambda *_, **__: 2)
    monkeypatch.setattr(exact, "MOST_NUMBERS", 2 * 8 * 8 * 256 + 1)
    certificate = certify(LayerSpec.multi_head(8, 2))
    assert certificate.layer.lower < certificate.layer.upper == count(LayerSpec.multi_head(8, 2)).identified
    assert not certificate.certified


def test_twice_as_many_rows_are_tried_until_the_bounds_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "fewest_sequences", lambda *_, **__: 1)
    certificate = certify(LayerSpec.multi_head(8, 2))
    assert certificate.certified
    assert certificate.sequences == 4


def test_a_missing_symmetry_raises_the_upper_bound_and_certifies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symmetries._Symmetries, "_value_constants", lambda self: iter(()))
    certificate = certify(LayerSpec.multi_head(8, 2, biases=True))
    assert certificate.layer.upper == certificate.layer.lower + 8
    assert not certificate.certified


def layer(**fields: object) -> LayerSpec:
    return LayerSpec.model_validate(LayerSpec.multi_head(4, 2).model_dump() | fields)


@pytest.mark.parametrize(
    ("spec", "condition"),
    [
        (LayerSpec.multi_head(1, 1, causal=False), "inputs that vary in one dimension only"),
        (layer(d_model=2, pre_norm="layer"), "inputs that vary in one dimension only"),
        (layer(d_model=1, qk_norm="head"), "inputs that vary in one dimension only"),
        (layer(qk_norm="head", qk_head_dim=1), "what is normalised has one dimension only"),
        (layer(qk_norm="full", n_kv_heads=1, qk_head_dim=1), "what is normalised has one dimension only"),
        (layer(kv_latent_dim=3, q_latent_dim=1), "what is normalised has one dimension only"),
    ],
)
def test_where_the_argument_fails_nothing_is_certified_and_the_reason_given(spec: LayerSpec, condition: str) -> None:
    certificate = certify(spec)
    assert certificate.failed == condition
    assert certificate.layer.lower == 0
    assert not certificate.certified


def test_in_one_dimension_a_causal_layer_is_certified() -> None:
    certificate = certify(LayerSpec.multi_head(1, 1))
    assert certificate.certified
    assert certificate.layer.lower == 2


def test_a_certificate_says_what_it_rests_on() -> None:
    certificate = certify(layer(rotary_dim=2, qk_norm="head"), seed=5, prime=PRIMES[1])
    assert (certificate.prime, certificate.seed) == (8_388_571, 5)
    assert certificate.assumed == (
        "generic weights and independent tokens, RoPE's frequencies for base 10000, whatever base the model has, "
        "norms with an epsilon of 0"
    )


def test_the_same_seed_gives_the_same_certificate() -> None:
    assert certify(layer(qk_norm="full"), seed=3) == certify(layer(qk_norm="full"), seed=3)


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
