import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attnid import cli

LAYER = {"d_model": 8, "n_heads": 4, "n_kv_heads": 2, "qk_head_dim": 4, "v_head_dim": 2, "rotary_dim": 4}


def run(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert cli.main(arguments) == status
    captured = capsys.readouterr()
    return captured.err if status else captured.out


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    path = tmp_path / "layer.json"
    path.write_text(json.dumps(LAYER))
    return path


def test_a_layer_file_is_counted_and_proved(capsys: pytest.CaptureFixture[str], layer: Path) -> None:
    """G D = 8 query/key directions and G C^2 = 8 value/output directions of 8 (4 + 2) (4 + 2) = 288 parameters."""
    found = json.loads(run(capsys, "count", str(layer), "--rank", "float64", "--certify", "--json"))
    assert found["parameters"] == 8 * (4 + 2) * (4 + 2)
    assert found["unidentified"] == 16
    assert {name: number for name, number in found["sources"].items() if number} == {
        "query_key_gauge": 8,
        "value_output_gauge": 8,
    }
    assert found["identified"] == found["rank_float64"] == found["rank_exact_lower"] == found["rank_exact_upper"] == 272
    assert found["certified"] is True
    kept, dropped = found["gap"]
    assert kept > 1e-9 > 1e-12 > dropped
    assert "10000" in found["assumed"]


def test_a_shipped_model_is_counted_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "count", "llama-2-70b", "--json"))
    assert found["sources"]["query_key_gauge"] == 8 * 128
    assert found["sources"]["value_output_gauge"] == 8 * 128**2
    assert found["model"]["unidentified"] == 80 * (8 * 128 + 8 * 128**2)
    assert "query key gauge      1,024" in run(capsys, "count", "Llama-2-70B")


def test_a_model_of_several_kinds_of_layers_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    """T5's encoder never uses one of its 32 buckets, so its table has two free numbers a head, the decoder's one."""
    found = json.loads(run(capsys, "count", "t5-base", "--json"))
    layers = {layer["role"]: layer for layer in found["layers"]}
    assert sum(layer["number"] for layer in found["layers"]) == 36
    assert layers["encoder self, with table"]["sources"]["relative_table"] == 2 * 12
    assert layers["decoder self, with table"]["sources"]["relative_table"] == 12
    assert layers["cross"]["sources"]["relative_table"] == 0
    assert found["unidentified"] == layers["encoder self, with table"]["unidentified"]
    assert found["model"]["parameters"] == 36 * 4 * 768**2 + 2 * 12 * 32


def test_a_block_has_the_norm_before_the_layer(capsys: pytest.CaptureFixture[str]) -> None:
    alone = json.loads(run(capsys, "count", "gpt2", "--json"))
    block = json.loads(run(capsys, "count", "gpt2", "--block", "--json"))
    assert block["parameters"] - alone["parameters"] == 2 * 768
    assert block["unidentified"] - alone["unidentified"] == 5 * 768


def test_a_hugging_face_configuration_is_counted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Qwen3-8B: H + G + D/2 = 104 of queries and keys, G C^2 of values and output."""
    config = tmp_path / "config.json"
    sizes = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    config.write_text(json.dumps({"model_type": "qwen3", "num_hidden_layers": 36} | sizes))
    found = json.loads(run(capsys, "count", str(config), "--json"))
    assert found == json.loads(run(capsys, "count", "qwen3-8b", "--json"))
    assert found["unidentified"] == 32 + 8 + 64 + 8 * 128**2


def test_without_closed_form_a_layer_says_so_and_gets_its_rank(capsys: pytest.CaptureFixture[str], layer: Path) -> None:
    wide = {"d_model": 3, "qk_norm": "head", "rotary_dim": 0}
    layer.write_text(json.dumps(LAYER | wide))
    found = json.loads(run(capsys, "count", str(layer), "--rank", "float64", "--certify", "--json"))
    assert found["identified"] is found["unidentified"] is found["identified_fraction"] is None
    assert "wider than their input" in found["no_closed_form"]
    assert found["rank_exact_lower"] == found["rank_float64"] < found["parameters"]
    assert "no closed form" in run(capsys, "count", str(layer))


def test_where_nothing_is_proved_the_condition_is_named(capsys: pytest.CaptureFixture[str], layer: Path) -> None:
    layer.write_text(json.dumps(LAYER | {"qk_head_dim": 1, "rotary_dim": 0, "qk_norm": "head"}))
    found = json.loads(run(capsys, "count", str(layer), "--certify", "--json"))
    assert (found["certified"], found["rank_exact_lower"]) == (False, 0)
    assert found["failed"] == "what is normalised has one dimension only"


def test_a_rank_over_too_many_positions_is_refused(capsys: pytest.CaptureFixture[str], layer: Path) -> None:
    layer.write_text(json.dumps(LAYER | {"relative_buckets": 8, "relative_distance": 100_000}))
    assert "smaller relative_distance" in run(capsys, "count", str(layer), "--certify", status=2)
    assert "relative table" in run(capsys, "count", str(layer))
    layer.write_text(json.dumps(LAYER | {"relative_buckets": 8, "relative_distance": 10**9}))
    assert "less than or equal to 100000" in run(capsys, "count", str(layer), status=2)


@pytest.mark.parametrize("seed", ["-1", str(2**63), "one", "1.5"])
def test_a_seed_that_is_none_is_refused(capsys: pytest.CaptureFixture[str], layer: Path, seed: str) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["count", str(layer), "--certify", f"--seed={seed}"])
    assert ended.value.code == 2
    assert seed in capsys.readouterr().err


def test_another_seed_gives_the_same_rank(capsys: pytest.CaptureFixture[str], layer: Path) -> None:
    proofs = [json.loads(run(capsys, "count", str(layer), "--certify", "--json", "--seed", seed)) for seed in "05"]
    assert [proof["seed"] for proof in proofs] == [0, 5]
    assert proofs[0]["rank_exact_lower"] == proofs[1]["rank_exact_lower"]


def test_every_listed_model_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    names = json.loads(run(capsys, "count", "--list", "--json"))
    assert len(names) == 55
    assert names == run(capsys, "count", "--list").splitlines()
    for name in names:
        assert "all attention layers:" in run(capsys, "count", name)
        assert "unknown" not in run(capsys, "count", name, "--block")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["count"], "no layer given"),
        (["count", "Llama-2-7C"], "neither a file nor a shipped model; near it: Llama-2-7B"),
        (["count", "nowhere.json"], "nowhere.json: cannot be read"),
        (["count", ""], "'' is neither a file nor a shipped model"),
        (["count", "."], "'.' is neither a file nor a shipped model"),
        (["count", "a" * 5000], "neither a file nor a shipped model"),
        (["count", "a" * 5000 + ".json"], "cannot be read"),
        (["count", "gpt2-xl", "--certify"], "out of reach; allowed: at most 20,000"),
    ],
)
def test_a_mistake_is_one_sentence(capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    error = run(capsys, *arguments, status=2)
    assert sentence in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rotary": 2}, "rotary is not a key; allowed beside it: d_model, n_heads"),
        ({"rotary_dim": 3}, "rotary_dim must be even, not 3"),
        ({"rotary_dim": 6}, "rotary_dim must be at most qk_head_dim = 4, not 6"),
        ({"n_kv_heads": 3}, "n_kv_heads must divide n_heads = 4, not 3"),
        ({"d_model": 0}, "d_model is 0; input should be greater than or equal to 1"),
        ({"d_model": "8"}, "d_model is '8'; input should be a valid integer"),
    ],
)
def test_a_layer_that_cannot_be_is_one_sentence(
    capsys: pytest.CaptureFixture[str], layer: Path, change: dict[str, object], sentence: str
) -> None:
    layer.write_text(json.dumps(LAYER | change))
    error = run(capsys, "count", str(layer), status=2)
    assert f"{layer}: " in error
    assert sentence in error


@pytest.mark.parametrize("content", ["", "[1]", "{", "null", '"text"', "\x00", "[" * 10**5, "9" * 5000])
def test_a_file_that_is_no_layer_is_one_sentence(capsys: pytest.CaptureFixture[str], layer: Path, content: str) -> None:
    layer.write_text(content)
    error = run(capsys, "count", str(layer), status=2)
    assert error.startswith(f"attnid: {layer}: ")
    assert error.count("\n") == 1


def test_a_key_that_stands_twice_is_refused(capsys: pytest.CaptureFixture[str], layer: Path) -> None:
    layer.write_text('{"d_model": 8, ' + json.dumps(LAYER)[1:])
    assert "d_model stands in it twice" in run(capsys, "count", str(layer), status=2)


def test_a_byte_order_mark_is_read_over(capsys: pytest.CaptureFixture[str], layer: Path) -> None:
    layer.write_text(json.dumps(LAYER), encoding="utf-8-sig")
    assert "parameters           288" in run(capsys, "count", str(layer))


def test_a_reader_that_stops_reading_is_no_error() -> None:
    code = "import sys; from attnid.cli import main; sys.exit(main(['count', '--list']))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_counting_imports_neither_torch_nor_pandas() -> None:
    code = (
        "import sys; from attnid.cli import main; main(['count', 'gpt2-xl']);"
        "sys.exit(bool({'torch', 'pandas', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_a_layer_file_names_what_differs_from_a_plain_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "layer.json"
    path.write_text('{"d_model": 16, "n_heads": 4}')
    assert cli.main(["count", str(path), "--json"]) == 0
    short = json.loads(capsys.readouterr().out)
    path.write_text('{"d_model": 16, "n_heads": 4, "n_kv_heads": 4, "qk_head_dim": 4, "v_head_dim": 4}')
    assert cli.main(["count", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == short
    assert short["layer"] == "E 16, H 4, D 4"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ('{"d_model": 16, "heads": 4}', "heads is not a key"),
        ('{"d_model": 16, "n_heads": 3}', "qk_head_dim is missing"),
        ('{"d_model": 16, "n_heads": 4, "causal": "no"}', "causal is 'no'; input should be a valid boolean"),
        ('{"d_model": 16, "n_heads": 4, "query_bias": 1}', "query_bias is 1; input should be a valid boolean"),
        ('{"d_model": 16, "n_heads": 4, "soft_cap": true}', "soft_cap is True; input should be a valid number"),
        ("[1]", "it is [1]"),
    ],
)
def test_a_wrong_layer_file_is_one_sentence(
    fields: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "layer.json"
    path.write_text(fields)
    assert cli.main(["count", str(path)]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert sentence in found.err
    assert len(found.err.splitlines()) == 1


def test_block_is_for_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "layer.json"
    path.write_text('{"d_model": 16, "n_heads": 4}')
    assert cli.main(["count", str(path), "--block"]) == 2
    assert "a layer file has pre_norm" in capsys.readouterr().err


def test_bounds_that_do_not_meet_and_a_missing_closed_form_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "layer.json"
    path.write_text('{"d_model": 8, "n_heads": 2, "qk_head_dim": 8, "v_head_dim": 4, "qk_norm": "full"}')
    assert cli.main(["count", str(path), "--certify", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["rank_exact_lower"] < result["rank_exact_upper"]
    assert result["failed"] == "the two bounds do not meet"
    assert "--rank float64 measures, --certify bounds it" in result["no_closed_form"]


def test_numbers_that_contradict_each_other_are_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "layer.json"
    path.write_text('{"d_model": 4, "n_heads": 2}')
    monkeypatch.setattr(cli, "_closed_form", lambda spec: {"identified": 1, "sources": {}})
    assert cli.main(["count", str(path), "--certify"]) == 2
    assert (
        "has 1 identified parameters by its closed form, no by float64 rank and 48 by proof" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"d_model": 13, "n_heads": 1, "qk_head_dim": 1, "v_head_dim": 12, "kv_latent_dim": 13},
        {"d_model": 11, "n_heads": 1, "qk_head_dim": 11, "v_head_dim": 9, "query_bias": True, "qk_norm": "head"},
    ],
)
def test_layers_whose_inputs_tell_little_are_measured_and_certified(
    fields: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "layer.json"
    path.write_text(json.dumps(fields))
    result = json.loads(run(capsys, "count", str(path), "--rank", "float64", "--certify", "--json"))
    assert result["certified"]
    assert result["rank_float64"] == result["rank_exact_lower"] == result["identified"]


def test_a_rank_without_closed_form_is_measured_with_inputs_until_it_grows_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "layer.json"
    path.write_text('{"d_model": 12, "n_heads": 1, "qk_head_dim": 2, "v_head_dim": 10, "kv_latent_dim": 14}')
    result = json.loads(run(capsys, "count", str(path), "--rank", "float64", "--certify", "--json"))
    assert result["rank_float64"] == result["rank_exact_lower"] == 261


OUT_OF_REACH = [
    ('{"d_model": 16, "n_heads": 1, "qk_head_dim": 312, "v_head_dim": 312}', "numbers at a time is out of reach"),
    ('{"d_model": 1, "n_heads": 1, "qk_head_dim": 400, "v_head_dim": 1}', "numbers at a time is out of reach"),
    ('{"d_model": 1' + "0" * 4299 + ', "n_heads": 2}', "input should be less than or equal to 1000000000"),
    ('{"model_type": "llama", "hidden_size": 1' + "0" * 400 + "}", "input should be less than or equal to 1000000000"),
    ('{"a\\nb": 1, "a\\nb": 2}', "stands in it twice"),
    ('{"a\\nb": 1}', "is not a key"),
    ('{"d_model": 4, "n_heads": 2, "relative_buckets": 1000000}', "less than or equal to 100000"),
]


@pytest.mark.parametrize(("text", "sentence"), OUT_OF_REACH, ids=range(len(OUT_OF_REACH)))
def test_sizes_out_of_reach_are_one_sentence(
    text: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "layer.json"
    path.write_text(text)
    error = run(capsys, "count", str(path), "--certify", status=2)
    assert sentence in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("seed", ["1e3", "nan", "", "-1", "9" * 30])
def test_a_seed_that_is_none_is_told_with_what_is_allowed(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["count", "gpt2-medium", f"--seed={seed}"])
    assert end.value.code == 2
    assert "is not a seed; allowed: whole numbers from 0 to 2^63 - 1" in capsys.readouterr().err


def test_list_takes_no_layer_and_a_folder_hides_no_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--list takes no layer, found 'extra'" in run(capsys, "count", "--list", "extra", status=2)
    (tmp_path / "gpt2-medium").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "all attention layers" in run(capsys, "count", "gpt2-medium")


ATTNID = str(Path(sys.executable).parent / "attnid")


@pytest.mark.parametrize("redirection", ["> /dev/full", ">&-", "2> /dev/full >&-"])
def test_output_that_cannot_be_written_ends_with_status_2(redirection: str) -> None:
    end = subprocess.run(f"{ATTNID} count gpt2-medium {redirection}", shell=True, capture_output=True, text=True)
    assert end.returncode == 2
    assert "Traceback" not in end.stderr
    assert len(end.stderr.splitlines()) <= 1


def test_an_interrupt_is_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "layer.json"
    path.write_text('{"d_model": 64, "n_heads": 8}')
    process = subprocess.Popen(
        [ATTNID, "count", str(path), "--certify"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests may run in the background
    )
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=4)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 130
