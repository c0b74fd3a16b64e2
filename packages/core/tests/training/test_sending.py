"""How a model is cut into buckets for process groups."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from reroll.models.process_groups import dtype_of, specs
from reroll.training.sending import layout
from reroll.training.tensors import named_tensors

shapes = st.lists(st.integers(1, 5), max_size=3).map(tuple)
types = st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.uint8])


@given(st.lists(st.tuples(shapes, types), min_size=1, max_size=8), st.integers(1, 300))
def test_every_tensor_is_in_one_bucket_and_begins_where_it_can_be_read(kinds, bucket_bytes):
    model = torch.nn.Module()
    for number, (shape, dtype) in enumerate(kinds):
        model.register_buffer(f"tensor_{number}", torch.zeros(shape, dtype=dtype))
    found = layout(model, bucket_bytes)
    assert [spec for bucket in found for spec in bucket] == specs(named_tensors(model))
    for bucket in found:
        begins = 0
        for spec in bucket:
            assert begins % dtype_of(spec).itemsize == 0
            begins += spec.num_bytes
        assert bucket and (begins <= bucket_bytes or len(bucket) == 1)
