"""Predefined networks: shapes, and the starts that privacy and heads rely on."""

from __future__ import annotations

import pytest
import torch

from tacitly import neural

torch.set_num_threads(1)


def test_images_are_standardised_by_constants_alone() -> None:
    rows = torch.rand(2, 12)
    image = neural.FlatToImage((3, 2, 2))(rows)
    assert image.shape == (2, 3, 2, 2)
    torch.testing.assert_close(image.flatten(1), (rows - 0.45) / 0.25)


def test_a_linear_layer_with_skip_starts_at_zero_and_passes_the_first_inputs_on() -> None:
    rows = torch.randn(3, 5)
    output = neural.LinearWithSkip(5, 2, 3)(rows)
    assert (output[:, :2] == 0).all()
    assert (output[:, 2:] == rows[:, :3]).all()


def test_the_identity_head_scores_a_class_by_its_feature() -> None:
    features = torch.randn(3, 4)
    torch.testing.assert_close(neural.identity_head(4, 2)(features), features[:, :2])


def test_convolutional_features_have_the_documented_width() -> None:
    assert neural.conv_features(width=8)(torch.zeros(2, 3 * 32 * 32)).shape == (2, 16 * 8)


@pytest.mark.parametrize(
    ("network", "width"), [(neural.lenet(), 3 * 32 * 32), (neural.mlp(), 784), (neural.linear(5, 2, 3), 5)]
)
def test_bodies_and_heads_fit_together(network: tuple[torch.nn.Module, torch.nn.Module], width: int) -> None:
    body, head = network
    assert head(body(torch.zeros(2, width))).shape == (2, head.out_features)


def test_images_without_channels_are_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="shape must be that of an image: channels, height, width"):
        neural.image_network(classes=3, shape=(8, 8))  # type: ignore[arg-type]
