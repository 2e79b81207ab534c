"""MobileViTv2 learns."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from hf_efficient import MobileViTv2Config, MobileViTv2ForImageClassification


def test_it_learns_32_digits_by_heart():
    digits = load_digits()
    pixels = torch.tensor(digits.images[:32] / 8 - 1, dtype=torch.float32).unsqueeze(1)
    pixels, labels = F.interpolate(pixels, size=32), torch.tensor(digits.target[:32])
    config = MobileViTv2Config(num_channels=1, width_multiplier=0.25, n_attn_blocks=[1, 1, 1], num_labels=10)
    model = MobileViTv2ForImageClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(40):
        loss = model(pixels, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (model(pixels).logits.argmax(-1) == labels).all()
    for _ in range(60):  # running statistics catch up with the weights
        model(pixels)
    assert (model.eval()(pixels).logits.argmax(-1) == labels).all()
