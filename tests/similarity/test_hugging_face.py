"""Models of `transformers`, tiny and with random weights, where it is installed."""

from __future__ import annotations

import pytest
import torch

from vicinal.similarity import GradientKernel

transformers = pytest.importorskip("transformers")
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 3}


def bert():
    config = transformers.BertConfig(vocab_size=50, intermediate_size=24, **SMALL)
    return transformers.BertForSequenceClassification(config)


def gpt2():
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "num_labels": 3, "pad_token_id": 0}
    config = transformers.GPT2Config(vocab_size=50, bos_token_id=1, eos_token_id=1, **sizes)
    return transformers.GPT2ForSequenceClassification(config)


def llama():
    config = transformers.LlamaConfig(
        vocab_size=50, intermediate_size=24, pad_token_id=0, bos_token_id=1, eos_token_id=1, **SMALL
    )
    return transformers.LlamaForSequenceClassification(config)


def vit():
    config = transformers.ViTConfig(image_size=8, patch_size=4, intermediate_size=24, **SMALL)
    return transformers.ViTForImageClassification(config)


def words(n=6):
    ids = torch.randint(2, 50, (n, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[::2, 5:] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def pixels(n=6):
    rng = torch.Generator().manual_seed(0)
    return {"pixel_values": torch.randn(n, 3, 8, 8, dtype=torch.float64, generator=rng)}


@pytest.mark.parametrize("build", [bert, gpt2, llama, vit])
def test_the_kernel_is_that_of_per_sample_gradients_by_exact_rules(build):
    torch.manual_seed(0)
    model = build().double().eval()
    data = pixels() if build is vit else words()
    params = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for i in range(6):
        y = model(**{name: t[i : i + 1] for name, t in data.items()}).logits[0]
        options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        grads = [torch.autograd.grad(v, params, **options) for v in y]
        rows.append(torch.stack([torch.cat([g.flatten() for g in each]) for each in grads]))
    plain = torch.stack(rows)
    kernel = GradientKernel(model)
    expected = torch.einsum("nip,mjp->nmij", plain, plain)
    found = kernel.gram(data, kind="inner", summary="matrix")
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)
    assert not any("vjp" in layer.rule for layer in kernel.explain())
