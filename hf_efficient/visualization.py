"""Pictures of what the models look at, each as a PIL image.

draw_kept_patches    the patches that a heuristic keeps (HuggingGreen, Figures 2-4)
draw_context_scores  where MobileViTv2's context comes from, at one output stride (its Figures 5 and 8)
draw_classes         the class of each pixel, as a colour, over the image
draw_boxes           boxes with the names of what is in them
prediction_sheet     pictures, right and wrong, with what a model says of them
draw_rollout         which patches CLS has drawn from, through all layers (Abnar & Zuidema 2020)
"""

import colorsys
from collections.abc import Sequence

import torch
from PIL import Image, ImageColor, ImageDraw, ImageFont, ImageOps
from torch import Tensor, nn

from .charts import COLOURS

# Black is what does not count; the last five are unlike all before.
FIRST = [*(x for x in COLOURS if x != "#000000"), "#f0e442", "#332288", "#ff33cc", "#7a4a1f", "#bdbdbd"]
BACKGROUND, DROPPED = (255, 255, 255), (62, 78, 118)
FEW_BOXES = 3  # are all named
SCALE = {"black": (12, 8, 60), "mid": (214, 60, 90), "white": (255, 244, 170)}  # dark blue, red, light yellow


def draw_kept_patches(image: Image.Image, patch_indices: Tensor, grid: tuple[int, int]) -> Image.Image:
    """The image with all patches but those in `patch_indices` (k,), counted row by row, in dark blue.

    Faded to white, or only darkened, dropped patches of a white or black ground would look like kept ones.
    """
    rows, columns = grid
    kept = torch.zeros(rows * columns, dtype=torch.uint8)
    if patch_indices.numel() and not 0 <= int(patch_indices.min()) <= int(patch_indices.max()) < rows * columns:
        raise ValueError(f"patch_indices must lie in 0 to {rows * columns - 1}, as grid={tuple(grid)}.")
    kept[patch_indices.cpu()] = 255
    mask = Image.fromarray(kept.view(rows, columns).numpy()).resize(image.size, Image.Resampling.NEAREST)
    image = image.convert("RGB")
    dark = Image.blend(image.convert("L").convert("RGB"), Image.new("RGB", image.size, DROPPED), 0.75)
    return Image.composite(image, dark, mask)


def draw_heat(image: Image.Image, heat: Tensor, opacity: float = 0.6) -> Image.Image:
    """`heat` (rows, columns), smallest to largest from blue over red to yellow, over the image."""
    heat = heat.detach().float().cpu()
    heat = (heat - heat.min()) / (heat.max() - heat.min()).clamp_min(1e-12)
    grey = Image.fromarray((255 * heat).byte().numpy()).resize(image.size, Image.Resampling.BICUBIC)
    return Image.blend(image.convert("RGB"), ImageOps.colorize(grey, **SCALE), opacity)


def colour_of(index: int) -> tuple[int, int, int]:
    """Of a class: those of charts first, then hues by the golden ratio, so that neighbours differ."""
    if index < len(FIRST):
        return ImageColor.getrgb(FIRST[index])
    red, green, blue = colorsys.hsv_to_rgb(index * 0.618034 % 1, 0.85 if index % 2 else 0.6, 0.95 - 0.25 * (index % 3))
    return round(255 * red), round(255 * green), round(255 * blue)


def draw_classes(image: Image.Image, classes: Tensor, opacity: float = 0.6) -> Image.Image:
    """`classes` (H, W), each in its colour, over the image; those from 255 on are black."""
    palette = [value for index in range(255) for value in colour_of(index)] + [0, 0, 0]
    mask = Image.fromarray(classes.clamp(0, 255).to(torch.uint8).numpy())
    mask.putpalette(palette)
    return Image.blend(image.convert("RGB"), mask.convert("RGB").resize(image.size, Image.Resampling.NEAREST), opacity)


def draw_legend(names: Sequence[str], width: int = 192) -> Image.Image:
    """The classes with their colours, in as many lines as they need."""
    font, line, places, left, top = ImageFont.load_default(15), 24, [], 4, 0
    for name in names:
        room = 34 + round(font.getlength(name))
        if left + room > width and left > 4:
            left, top = 4, top + line
        places.append((left, top))
        left += room
    picture = Image.new("RGB", (width, top + line), BACKGROUND)
    draw = ImageDraw.Draw(picture)
    for index, (name, (left, top)) in enumerate(zip(names, places, strict=True)):
        draw.rectangle((left, top + 4, left + 16, top + 20), fill=colour_of(index))
        draw.text((left + 22, top + line // 2), name, font=font, fill="black", anchor="lm")
    return picture


def draw_boxes(image: Image.Image, boxes: Tensor, classes: Sequence[int], names: Sequence[str]) -> Image.Image:
    """Boxes (n, 4) as cx, cy, w, h, shares of the image, with the names of their classes where there is room."""
    picture, font = image.convert("RGB"), ImageFont.load_default(13)
    draw = ImageDraw.Draw(picture)
    for (cx, cy, w, h), label in zip(boxes.tolist(), classes, strict=True):
        left, right = ((cx + side * w / 2) * image.width for side in (-1, 1))
        top, bottom = ((cy + side * h / 2) * image.height for side in (-1, 1))
        draw.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=colour_of(label), width=2)
        length = font.getlength(names[label]) + 6
        if len(boxes) <= FEW_BOXES or length <= right - left:
            left, top = max(0, min(left, image.width - length)), max(0, top - 16)  # above the box, not over it
            draw.rectangle((left, top, left + length, top + 16), fill=colour_of(label))
            draw.text((left + 3, top + 8), names[label], font=font, fill=ink_on(colour_of(label)), anchor="lm")
    return picture


def ink_on(colour: tuple[int, int, int]) -> str:
    """What is read on a colour: the brighter it is, the darker."""
    red, green, blue = colour
    return "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 150 else "white"


@torch.no_grad()
def attention_rollout(attentions: tuple[Tensor, ...]) -> Tensor:
    """How much of each token every token holds after all layers: Π_l (A_l + I) / 2 with A_l the mean over heads.

    attentions: (B, H, N, N) of each layer -> (B, N, N), rows sum to 1
    """
    if not attentions:
        raise ValueError("attentions is empty: call the model with output_attentions=True.")
    lengths = [attention.shape[-1] for attention in attentions]
    if len(set(lengths)) > 1:
        raise ValueError(f"attentions are of {lengths} tokens: a rollout needs the same in all, so no token_pooling.")
    rollout = None
    for attention in attentions:
        mean = attention.float().mean(1)
        step = (mean + torch.eye(mean.shape[-1], device=mean.device)) / 2
        rollout = step if rollout is None else step @ rollout
    return rollout


@torch.no_grad()
def draw_rollout(model: nn.Module, pixel_values: Tensor, image: Image.Image) -> Image.Image:
    """Attention rollout from CLS (the mean over tokens where there is none) to the patches of one image.

    Args:
        model: a ViT of ours or of transformers (with attn_implementation="eager").
        pixel_values: (1, C, H, W), the image as the model sees it.
        image: what to draw on.
    """
    was_training = model.training
    output = model.eval()(pixel_values=pixel_values, output_attentions=True)
    model.train(was_training)
    grid = tuple(size // model.config.patch_size for size in pixel_values.shape[2:])
    rollout = attention_rollout(output.attentions)[0]  # (N, N)
    prefix = len(rollout) - grid[0] * grid[1]
    if prefix < 0:
        raise ValueError(f"the model saw {len(rollout)} tokens of {grid[0] * grid[1]} patches: switch selection off.")
    source = rollout[0] if prefix else rollout.mean(0)
    return draw_heat(image, source[prefix:].view(grid))


@torch.no_grad()
def draw_context_scores(model: nn.Module, pixel_values: Tensor, image: Image.Image, stride: int) -> Image.Image:
    """MobileViTv2's context scores of one image: how much each pixel of a feature map gives to the context vector.

    Args:
        model: a MobileViTv2 with separable attention.
        pixel_values: (1, C, H, W), the image as the model sees it.
        image: what to draw on.
        stride: pixels of the image per pixel of the map, of 8, 16 and 32; the last layer at that stride is drawn.
    """
    was_training = model.training
    output = model.eval()(pixel_values=pixel_values, output_attentions=True)
    model.train(was_training)
    maps = {round(pixel_values.shape[2] / scores.shape[2]): scores for scores in output.attentions}
    if stride not in maps:
        raise ValueError(f"stride={stride}: the model has context scores at strides {', '.join(map(str, maps))}.")
    return draw_heat(image, maps[stride][0].mean(0))  # over latent tokens


def contact_sheet(
    rows: list[tuple[str, list[Image.Image]]],
    titles: list[str],
    cell: int = 192,
    classes: Sequence[str] = (),
) -> Image.Image:
    """Rows of pictures with their names, under column titles; `classes` are named with their colours below."""
    font = ImageFont.load_default(20)  # still read where a page shows the sheet at half its size
    margin, header = 8 + max(round(font.getlength(name)) for name, _ in rows), 32
    columns = max(len(pictures) for _, pictures in rows)
    rows = [(name, [ImageOps.contain(picture, (cell, cell)) for picture in pictures]) for name, pictures in rows]
    heights = [4 + max(picture.height for picture in pictures) for _, pictures in rows]
    width = margin + columns * (cell + 4)
    legend = draw_legend(classes, width) if classes else Image.new("RGB", (width, 0))
    sheet = Image.new("RGB", (width, header + sum(heights) + legend.height), BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for column, title in enumerate(titles):
        draw.text((margin + column * (cell + 4), 4), title, font=font, fill="black")
    top = header
    for (name, pictures), height in zip(rows, heights, strict=True):
        draw.text((4, top + height // 2), name, font=font, fill="black", anchor="lm")
        for column, picture in enumerate(pictures):
            sheet.paste(picture, (margin + column * (cell + 4), top))
        top += height
    sheet.paste(legend, (0, top))
    return sheet


def prediction_sheet(
    groups: list[tuple[str, list[tuple[Image.Image, str]]]], columns: int = 4, cell: int = 176
) -> Image.Image:
    """Pictures with a caption below each, `columns` in a row, under the title of their group."""
    font, small = ImageFont.load_default(18), ImageFont.load_default(15)
    header, line = 30, 24
    rows = [(len(pictures) + columns - 1) // columns for _, pictures in groups]
    height = sum(header + count * (cell + line) for count in rows)
    sheet = Image.new("RGB", (columns * (cell + 8), height), BACKGROUND)
    draw, top = ImageDraw.Draw(sheet), 0
    for (title, pictures), count in zip(groups, rows, strict=True):
        draw.text((4, top + header // 2), title, font=font, fill="black", anchor="lm")
        top += header
        for index, (picture, caption) in enumerate(pictures):
            left, upper = (index % columns) * (cell + 8) + 4, top + index // columns * (cell + line)
            # Of so few pixels that a smooth enlargement would show none of them.
            way = Image.Resampling.NEAREST if max(picture.size) < 16 else Image.Resampling.BICUBIC
            fitted = ImageOps.contain(picture.convert("RGB"), (cell, cell), way)
            sheet.paste(fitted, (left + (cell - fitted.width) // 2, upper + (cell - fitted.height) // 2))
            draw.text(
                (left, upper + cell + line // 2), fitting(caption, small, cell), font=small, fill="black", anchor="lm"
            )
        top += count * (cell + line)
    return sheet


def fitting(text: str, font: ImageFont.ImageFont, width: int) -> str:
    """As much of it as there is room for."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"
