"""SSDLite (Liu et al. 2016, Sandler et al. 2018): boxes and classes from six levels of maps, in one pass.

Boxes are (centre x, centre y, width, height), relative to the image. Every cell of a level has some anchors; the head
predicts for each the offset l to a box, and logits of the classes and, last, of "no object":

    centre = anchor centre + v_c l · anchor size,    size = anchor size · exp(v_s l),    v_c = 0.1, v_s = 0.2
"""

import math
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.image_transforms import center_to_corners_format, corners_to_center_format

from ...layers.constants import constant
from ..base import check_single_labels
from .configuration_mobilevit_v2 import MobileViTv2Config
from .convolution import ConvLayer

MAX_LOG_SCALE = math.log(1000 / 16)  # of a box against its anchor: exp must not overflow


class SeparableConv(nn.Module):
    """Depthwise k×k with BatchNorm, then 1×1."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1, **pointwise):
        super().__init__()
        self.depthwise = ConvLayer(in_channels, in_channels, 3, stride, groups=in_channels)
        self.pointwise = ConvLayer(in_channels, out_channels, **pointwise)

    def forward(self, features: Tensor) -> Tensor:
        return self.pointwise(self.depthwise(features))


class SSDLite(nn.Module):
    """Levels of stride 16 and 32 from the encoder, 64, 128 and 256 by convolutions, and the whole image."""

    def __init__(self, config: MobileViTv2Config):
        super().__init__()
        channels = list(config.ssd_channels)
        inputs = [*config.stage_widths[4:6], *channels[2:]]
        self.extra_layers = nn.ModuleList(
            SeparableConv(inputs[level - 1], inputs[level], stride=2, activation="relu") for level in (2, 3, 4)
        )
        self.global_layer = ConvLayer(inputs[4], inputs[5], normalize=False, activation="relu")
        self.projections = nn.ModuleList(
            ConvLayer(before, after, activation="relu") if before != after else nn.Identity()
            for before, after in zip(inputs[:5], channels[:5], strict=True)
        )
        self.entries = 4 + config.num_labels + 1  # per anchor
        outputs = [count * self.entries for count in anchors_per_cell(config)]
        self.predictors = nn.ModuleList(
            SeparableConv(width, output, bias=True, normalize=False)
            for width, output in zip(channels[:5], outputs[:5], strict=True)
        )
        self.global_predictor = ConvLayer(channels[5], outputs[5], bias=True, normalize=False)

    def forward(self, stage_4: Tensor, stage_5: Tensor) -> tuple[Tensor, Tensor, list[tuple[int, int]]]:
        """Offsets (B, A, 4) and logits (B, A, C + 1) of all anchors, and the maps' rows and columns."""
        levels = [stage_4, stage_5]
        for layer in self.extra_layers:
            levels.append(layer(levels[-1]))
        maps = [
            predict(project(level))
            for level, project, predict in zip(levels, self.projections, self.predictors, strict=True)
        ]
        whole = levels[-1].mean((2, 3), keepdim=True)
        maps.append(self.global_predictor(self.global_layer(whole)))
        predictions = torch.cat([m.permute(0, 2, 3, 1).reshape(m.shape[0], -1, self.entries) for m in maps], 1)
        offsets, logits = predictions.split([4, self.entries - 4], -1)
        return offsets, logits, [tuple(m.shape[2:]) for m in maps]


def anchors_per_cell(config: MobileViTv2Config) -> list[int]:
    return [2 + 2 * len(ratios) for ratios in config.ssd_aspect_ratios]


def make_anchors(config: MobileViTv2Config, sizes: list[tuple[int, int]], device=None) -> Tensor:
    """(A, 4), level by level, row by row, cell by cell, clipped to 1.

    Level i has squares of side s_i and √(s_i s_{i+1}), and rectangles of area s_i² for each aspect ratio and its
    inverse; the s are evenly spaced.
    """
    smallest, largest = config.ssd_scales
    scales = [smallest + (largest - smallest) * level / len(sizes) for level in range(len(sizes) + 1)]
    levels = []
    for level, ((rows, columns), ratios) in enumerate(zip(sizes, config.ssd_aspect_ratios, strict=True)):
        side, larger = scales[level], math.sqrt(scales[level] * scales[level + 1])
        shapes = [(side, side), (larger, larger)]
        for ratio in ratios:
            root = math.sqrt(ratio)
            shapes += [(side * root, side / root), (side / root, side * root)]
        y = (torch.arange(rows, device=device) + 0.5) / rows
        x = (torch.arange(columns, device=device) + 0.5) / columns
        centres = torch.stack([x.expand(rows, -1), y.unsqueeze(1).expand(-1, columns)], -1).view(-1, 1, 2)
        shapes = constant(chain.from_iterable(shapes), x).view(-1, 2)
        level = torch.cat([centres.expand(-1, len(shapes), -1), shapes.expand(len(centres), -1, -1)], -1)
        levels.append(level.flatten(0, 1))
    return torch.cat(levels).clamp(0, 1)


def encode_boxes(boxes: Tensor, anchors: Tensor, variances: tuple[float, float]) -> Tensor:
    """The offsets l that make the boxes of the anchors."""
    centres = (boxes[..., :2] - anchors[..., :2]) / anchors[..., 2:] / variances[0]
    return torch.cat([centres, (boxes[..., 2:] / anchors[..., 2:]).log() / variances[1]], -1)


def decode_boxes(offsets: Tensor, anchors: Tensor, variances: tuple[float, float]) -> Tensor:
    centres = anchors[..., :2] + offsets[..., :2] * variances[0] * anchors[..., 2:]
    scales = (offsets[..., 2:] * variances[1]).clamp(max=MAX_LOG_SCALE).exp()
    return torch.cat([centres, anchors[..., 2:] * scales], -1)


def pairwise_iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of boxes given by corners: (..., n, 4) x (..., m, 4) -> (..., n, m)"""
    overlap = torch.minimum(a[..., :, None, 2:], b[..., None, :, 2:]) - torch.maximum(
        a[..., :, None, :2], b[..., None, :, :2]
    )
    shared = overlap.clamp_min(0).prod(-1)
    area_a, area_b = ((x[..., 2:] - x[..., :2]).prod(-1) for x in (a, b))
    return shared / (area_a.unsqueeze(-1) + area_b.unsqueeze(-2) - shared).clamp_min(1e-12)


def match_anchors(boxes: Tensor, anchors: Tensor, threshold: float) -> Tensor:
    """For each anchor the index of its box, or -1: the box it overlaps most, if by `threshold` or more.

    Each box also gets the anchor that overlaps it most, whatever the overlap. boxes (n, 4), anchors (A, 4) -> (A,)
    """
    if len(boxes) == 0:
        return torch.full((len(anchors),), -1, device=anchors.device)
    iou = pairwise_iou(center_to_corners_format(boxes), center_to_corners_format(anchors))  # (n, A)
    overlap, matched = iou.max(0)
    matched = matched.masked_fill(overlap < threshold, -1)
    indices = torch.arange(len(boxes), device=anchors.device)
    # Of two boxes with one best anchor the later has it.
    best = torch.full_like(matched, -1).scatter_reduce(0, iou.argmax(1), indices, "amax")
    return torch.where(best >= 0, best, matched)


def check_boxes(labels: list[dict], batch: int, num_labels: int) -> None:
    """Raises for labels that can't be learned."""
    if len(labels) != batch:
        raise ValueError(f"labels holds {len(labels)} images, but pixel_values {batch}.")
    for label in labels:
        if not {"class_labels", "boxes"} <= set(label):
            raise ValueError(f"labels need the keys class_labels and boxes for each image, got {sorted(label)}.")
        classes, boxes = label["class_labels"], label["boxes"]
        if boxes.shape != (len(classes), 4):
            raise ValueError(
                f"boxes must be ({len(classes)}, 4) for {len(classes)} class_labels, got {tuple(boxes.shape)}."
            )
        check_single_labels(classes, num_labels)
        if boxes.device.type == "cpu" and not (boxes[:, 2:] > 0).all():  # elsewhere the answer costs a sync
            raise ValueError("boxes must have a width and a height above 0: (centre x, centre y, width, height).")


def ssd_loss(
    offsets: Tensor, logits: Tensor, anchors: Tensor, labels: list[dict], config: MobileViTv2Config, **kwargs
) -> dict[str, Tensor]:
    """(smooth-L1 of the offsets of matched anchors + cross-entropy of these and of the hardest background) / matched.

    Of each image's background anchors, `ssd_negative_ratio` times as many as it has matched ones count: those with the
    largest loss. A Trainer's `num_items_in_batch` takes the place of the number matched.
    """
    background = config.num_labels
    targets, classes = [], []
    for label in labels:
        boxes = label["boxes"].to(anchors)
        matched = match_anchors(boxes, anchors, config.ssd_match_threshold)
        names = F.pad(label["class_labels"].to(anchors.device, torch.long), (0, 1), value=background)
        targets.append(F.pad(boxes, (0, 0, 0, 1))[matched])  # −1, no box, is the last
        classes.append(names[matched])
    targets, classes = torch.stack(targets), torch.stack(classes)  # (B, A, 4), (B, A)
    positive = classes != background
    offsets, logits = offsets.float(), logits.float()
    targets = torch.where(positive.unsqueeze(-1), targets, anchors)  # of the others no logarithm is taken of 0
    box_losses = F.smooth_l1_loss(offsets, encode_boxes(targets, anchors, config.ssd_variances), reduction="none")
    losses = F.cross_entropy(logits.mT, classes, reduction="none")  # (B, A)
    counted = positive | hardest(losses.detach().masked_fill(positive, -1), positive.sum(1), config.ssd_negative_ratio)
    count = kwargs.get("num_items_in_batch")
    count = positive.sum().clamp_min(1) if count is None else count
    # Sums over all anchors: to pick some would wait for the device.
    box_loss = box_losses.sum(-1).where(positive, 0).sum()
    class_loss = losses.where(counted, 0).sum()
    return {"loss_ce": class_loss / count, "loss_bbox": box_loss / count}


def hardest(losses: Tensor, num_positive: Tensor, ratio: float) -> Tensor:
    """Which anchors (B, A) have the `ratio` · num_positive (B,) largest losses of their image; none where −1."""
    rank = losses.argsort(dim=1, descending=True, stable=True).argsort(1)
    return (rank < (ratio * num_positive).unsqueeze(1)) & (losses >= 0)


def greedy_suppression(boxes: Tensor, valid: Tensor, threshold: float) -> Tensor:
    """Which boxes (G, K, 4), by corners, best first, non-maximum suppression keeps, each group for itself: (G, K)

    A box goes if a better one that stays overlaps it by more than `threshold`. Whether a box stays depends on better
    ones only, so repeating the rule until nothing changes gives what going through them one by one does.
    """
    overlaps = (pairwise_iou(boxes, boxes) > threshold).tril(-1)  # (G, K, K): by which better ones

    def apply_rule(keep: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        return valid & ~(overlaps & keep.unsqueeze(1)).any(-1), keep.clone()

    def changes(keep: Tensor, before: Tensor) -> Tensor:
        return (keep != before).any()

    state = apply_rule(valid, valid)
    if torch.compiler.is_exporting():
        from torch._higher_order_ops import while_loop  # slow to import

        return while_loop(changes, apply_rule, state)[0]
    while changes(*state):
        state = apply_rule(*state)
    return state[0]


def detect(logits: Tensor, boxes: Tensor, config: MobileViTv2Config) -> tuple[Tensor, Tensor]:
    """Predictions of all anchors (B, A, C + 1), (B, A, 4) -> the M that non-maximum suppression leaves, best first.

    A row is one box with one class. Its logits are the logarithms of the class's score s, of 1 − s for "no object",
    and about −∞ for the other classes, so that a softmax gives s back. Rows left over are no object for certain.
    """
    return _detect(logits, boxes, config) if torch.compiler.is_exporting() else _detect_each(logits, boxes, config)


@torch.compiler.disable  # how much there is to do depends on the scores
def _detect_each(logits: Tensor, boxes: Tensor, config: MobileViTv2Config) -> tuple[Tensor, Tensor]:
    """One image after the other: the overlaps of all would take much memory."""
    images = zip(logits.split(1), boxes.split(1), strict=True)
    return tuple(torch.cat(x) for x in zip(*(_detect(*image, config) for image in images), strict=True))


def _detect(logits: Tensor, boxes: Tensor, config: MobileViTv2Config) -> tuple[Tensor, Tensor]:
    probabilities, classes = logits.softmax(-1, dtype=boxes.dtype), config.num_labels
    scores, anchor = probabilities[..., :-1].mT.topk(min(config.ssd_top_k, boxes.shape[1]))  # (B, C, K), best first
    valid = scores > config.ssd_score_threshold
    if not torch.compiler.is_exporting():
        most = int(valid.sum(-1).max())
        scores, anchor, valid = scores[..., :most], anchor[..., :most], valid[..., :most]
    count = scores.shape[-1]
    corners = center_to_corners_format(boxes).clamp(0, 1)
    candidates = corners.gather(1, anchor.flatten(1).unsqueeze(-1).expand(-1, -1, 4))  # (B, C · K, 4)
    groups = candidates.unflatten(1, (classes, count)).flatten(0, 1)
    keep = greedy_suppression(groups.detach(), valid.flatten(0, 1), config.ssd_nms_threshold).view_as(valid)
    kept = scores.masked_fill(~keep, 0).flatten(1)
    rows = min(config.ssd_max_detections, classes * count)
    score, place = kept.topk(rows)  # (B, rows)
    found = candidates.gather(1, place.unsqueeze(-1).expand(-1, -1, 4))
    found = corners_to_center_format(found)
    lowest = torch.finfo(logits.dtype).min
    of_class = torch.where(score > 0, score.clamp_min(1e-30).log(), lowest).unsqueeze(-1)
    output = torch.full((*score.shape, classes), lowest, dtype=score.dtype, device=score.device)
    output = output.scatter(-1, place.div(max(count, 1), rounding_mode="floor").unsqueeze(-1), of_class)
    output = torch.cat([output, torch.log1p(-score.clamp_max(1 - 1e-7)).unsqueeze(-1)], -1)
    missing = config.ssd_max_detections - rows
    if missing:
        empty = output.new_full((output.shape[0], missing, classes + 1), lowest)
        empty[..., -1] = 0
        output, found = torch.cat([output, empty], 1), F.pad(found, (0, 0, 0, missing))
    return output.to(logits.dtype), found
