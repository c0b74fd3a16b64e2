"""What `model.path` may name, and what is said of what it may not."""

import pytest

from reroll.models.files import ModelError, resolve_model


@pytest.mark.parametrize(
    ("holds", "remedy"),
    [
        (["model/config.json", "checkpoints/step_2/manifest.json"], "; the run's model is in {folder}/model"),
        (["checkpoints/step_2/manifest.json"], "; reroll export {folder} --to DIR writes one from a checkpoint"),
        (["manifest.json"], "; reroll export {folder} --to DIR writes one from a checkpoint"),
        (["model/notes.txt"], ""),
    ],
)
def test_a_runs_folder_for_its_model_is_told_where_that_is(holds, remedy, tmp_path):
    for name in holds:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    with pytest.raises(ModelError) as caught:
        resolve_model(str(tmp_path))
    told = f"{tmp_path} holds no config.json: it is no Hugging Face model directory"
    assert str(caught.value) == told + remedy.format(folder=tmp_path)
