"""A model whose weights are not all there is refused: what is missing would be drawn at random."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from reroll.models.files import ModelError
from reroll.models.load import load_model


def changed(tiny_model, target, change):
    shutil.copytree(tiny_model, target)
    tensors = load_file(target / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_a_missing_tensor_is_named(tiny_model, tmp_path):
    name = "model.layers.1.mlp.up_proj.weight"
    directory = changed(tiny_model, tmp_path / "m", lambda tensors: tensors.pop(name))
    with pytest.raises(ModelError, match=rf"do not fit its config.json.*{name}"):
        load_model(directory)


def test_weights_of_another_depth_are_refused(tiny_model, tmp_path):
    shutil.copytree(tiny_model, tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    config |= {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"model\.layers\.2"):
        load_model(tmp_path / "m")


def test_a_tied_head_is_not_missing(tiny_model):
    model = load_model(tiny_model)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
