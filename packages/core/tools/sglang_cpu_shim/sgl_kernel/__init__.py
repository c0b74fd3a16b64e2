"""In place of SGLang's compiled kernels, which need a GPU, or a CPU with AMX.

Serving a text model with torch's own attention on a CPU calls a single one of them. It is here in plain torch; asking
for another gives a function that fails by name when it is called, since SGLang imports many that it never calls.
"""

import torch


def assign_req_to_token_pool_cpu(requests, table, starts, ends, slots, width):
    """Notes where in the cache each request's new tokens stand.

    requests: [B] rows of `table`; table: [rows, width]; starts, ends: [B] columns, end excluded; slots: [N] cache slots
    of all requests one after another, N the sum of `ends - starts`.
    """
    lengths = (ends - starts).long()
    first = lengths.cumsum(0) - lengths
    position = torch.arange(int(lengths.sum()), device=table.device)
    rows = requests.long().repeat_interleave(lengths)
    columns = position + (starts.long() - first).repeat_interleave(lengths)
    table[rows, columns] = slots[: len(position)].to(table.dtype)


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_, **__):
        raise NotImplementedError(f"sgl_kernel.{name}: this environment serves text models on CPU, without this kernel")

    return absent
