"""What holds for every model of every family of images and of texts."""

import copy

import pytest
import torch
from families import CLASSIFIERS, HEADS, VISION, head_id, images, inputs, main_output, tiny_config, tiny_model
from transformers import AutoConfig, AutoModel
from transformers.models.auto import modeling_auto

from hf_efficient.attention import list_attentions
from hf_efficient.models.auto import FAMILIES

heads = pytest.mark.parametrize("head", HEADS, ids=head_id)
families = pytest.mark.parametrize("family", CLASSIFIERS)
vision = pytest.mark.parametrize("family", VISION)


def gradients(model, batch) -> dict[str, torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(5)
    output = model(**batch)
    loss = output.loss if output.get("loss") is not None else main_output(output).square().mean()
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@heads
def test_saved_and_reloaded_is_bit_equal(head, tmp_path):
    model = tiny_model(*head)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.01)  # nothing that a fresh initialisation could hit by chance
    model.save_pretrained(tmp_path)
    again, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    for (name, x), (other, y) in zip(model.state_dict().items(), again.state_dict().items(), strict=True):
        assert name == other and torch.equal(x, y), name
    batch = inputs(model)
    assert torch.equal(main_output(model(**batch)), main_output(again(**batch)))
    assert again.config.to_dict().keys() == model.config.to_dict().keys()


@heads
def test_its_auto_class_finds_it(head, tmp_path):
    family, auto = head
    model = tiny_model(*head)
    model.save_pretrained(tmp_path)
    again = getattr(modeling_auto, auto).from_pretrained(tmp_path)
    assert type(again) is type(model)
    assert type(AutoConfig.from_pretrained(tmp_path)).__name__ == FAMILIES[family].config
    assert type(getattr(modeling_auto, auto).from_config(model.config)) is type(model)
    assert type(AutoModel.from_pretrained(tmp_path)).__name__ == FAMILIES[family].classes()["AutoModel"]


@heads
def test_a_missing_weight_starts_as_in_a_fresh_model(head, tmp_path):
    """What a checkpoint lacks is initialised, and what it has is not touched by that."""
    model = tiny_model(*head)
    base = getattr(model, model.base_model_prefix, model)
    base.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    for name, x in getattr(again, model.base_model_prefix, again).state_dict().items():
        if "mask_token" not in name:
            assert torch.equal(x, base.state_dict()[name]), name
    for name, p in again.named_parameters():
        assert torch.isfinite(p).all(), name
        reference = model.get_parameter(name)
        assert p.float().std(unbiased=False) <= 3 * reference.float().std(unbiased=False) + 1e-6, name


@heads
def test_rows_of_a_batch_do_not_see_each_other(head):
    model = tiny_model(*head)
    batch = inputs(model)
    together = main_output(model(**batch))
    alone = torch.cat([main_output(model(**{key: x[i : i + 1] for key, x in batch.items()})) for i in range(3)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


@heads
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing_gives_the_same_gradients(head, use_reentrant):
    model = tiny_model(*head).train()
    batch = inputs(model, labels=True)
    other = copy.deepcopy(model)
    other.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    assert other.is_gradient_checkpointing
    plain, checkpointed = gradients(model, batch), gradients(other, batch)
    assert plain.keys() == checkpointed.keys()
    for name in plain:
        torch.testing.assert_close(plain[name], checkpointed[name], atol=1e-5, rtol=1e-4, msg=name)


@heads
def test_every_parameter_learns(head):
    model = tiny_model(*head).train()
    batch = inputs(model, labels=True)
    seen = gradients(model, batch)
    idle = {name for name, _ in model.named_parameters()} - seen.keys()
    if head[1] in ("AutoModel", "AutoModelForObjectDetection"):  # without a loss on them poolers and classes may idle
        idle = {name for name in idle if "pooler" not in name and "layernorm" not in name}
    assert not idle, idle


@heads
def test_bfloat16(head):
    model = tiny_model(*head).to(torch.bfloat16)
    batch = {key: x.bfloat16() if x.is_floating_point() else x for key, x in inputs(model).items()}
    output = main_output(model(**batch))
    assert output.dtype == torch.bfloat16 and torch.isfinite(output).all()


@heads
def test_tuple_output_is_the_dict_output(head):
    model = tiny_model(*head)
    batch = inputs(model)
    as_dict, as_tuple = model(**batch), model(**batch, return_dict=False)
    assert isinstance(as_tuple, tuple)
    for x, y in zip(as_dict.to_tuple(), as_tuple, strict=True):
        if isinstance(x, torch.Tensor):
            assert torch.equal(x, y)


@heads
def test_hidden_states_follow_version_5(head):
    model = tiny_model(*head)
    output = model(**inputs(model), output_hidden_states=True)
    assert len(output.hidden_states) > 1
    assert model(**inputs(model)).get("hidden_states") is None
    model.config.output_hidden_states = True
    assert len(model(**inputs(model)).hidden_states) == len(output.hidden_states)


@heads
def test_hidden_states_of_some_layers(head):
    """A list instead of True; the others' are None."""
    model = tiny_model(*head)
    if isinstance(type(model)._can_record_outputs["hidden_states"], list):
        pytest.skip("transformers counts the layers of one class alone")
    every = model(**inputs(model), output_hidden_states=True).hidden_states
    first, asked, *others = model(**inputs(model), output_hidden_states=[1]).hidden_states
    assert first is None and others == [None] * len(others)
    assert any(torch.equal(asked, x) for x in every)


@heads
def test_loss_is_divided_by_the_number_of_items(head):
    """With gradient accumulation the Trainer passes `num_items_in_batch`: ignoring it multiplies the loss."""
    if head[1] != CLASSIFIERS[head[0]]:
        pytest.skip("only classification losses are averages over items that the Trainer counts")
    model = tiny_model(*head)
    batch = inputs(model, labels=True)
    plain = model(**batch).loss
    torch.testing.assert_close(model(**batch, num_items_in_batch=4 * len(batch["labels"])).loss, plain / 4)


@families
def test_labels_out_of_range_are_named(family):
    model = tiny_model(family, CLASSIFIERS[family])
    with pytest.raises(ValueError, match="labels holds 7, but the model has labels 0 to 4"):
        model(**inputs(model), labels=torch.tensor([0, 7, 1]))
    with pytest.raises(ValueError, match="labels holds -1"):
        model(**inputs(model), labels=torch.tensor([0, -1, 1]))


@vision
def test_wrong_channels_are_named(family):
    model = tiny_model(family)
    with pytest.raises(ValueError, match="num_channels=3"):
        model(pixel_values=images(model.config)[:, :1])
    with pytest.raises(ValueError, match="pixel_values"):
        model(pixel_values=images(model.config)[0])
    with pytest.raises(ValueError, match="pixel_values"):
        model()


@families
def test_what_a_config_was_given_beside_its_fields_is_saved_and_read(family, tmp_path):
    config = tiny_config(family)
    config.my_note, config.my_list = "x", [1, 2]
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert (again.my_note, again.my_list) == ("x", [1, 2]) and again.to_dict().keys() == config.to_dict().keys()
    again, unused = AutoConfig.from_pretrained(tmp_path, my_note="y", other=1, return_unused_kwargs=True)
    assert again.my_note == "y" and unused == {"other": 1}
    with pytest.raises(ValueError, match="unknown key 'my_note'"):
        tiny_config(family, my_note="x")


@families
def test_config_errors_name_the_field(family):
    with pytest.raises(ValueError, match="num_labels=3, but id2label names 2 labels"):
        tiny_config(family, num_labels=3, id2label={0: "cat", 1: "dog"})
    with pytest.raises(ValueError, match="id2label must have the keys 0 to 1"):
        tiny_config(family, num_labels=2, id2label={1: "cat", 2: "dog"})
    with pytest.raises(ValueError, match=r"unknown key 'atention'; did you mean 'attention'\?"):
        tiny_config(family, atention="softmax")
    with pytest.raises(ValueError, match=r"attention='fast' is unknown; known: .*performer"):
        tiny_config(family, attention="fast")
    with pytest.raises(ValueError, match="attention_options has no 'speed' for 'softmax' attention; valid"):
        tiny_config(family, attention="softmax", attention_options={"speed": 3})
    size = "num_channels" if family in VISION else "vocab_size"
    with pytest.raises(ValueError, match=f"{size}=0"):
        tiny_config(family, **{size: 0})
    with pytest.raises(ValueError, match=size):
        tiny_config(family, **{size: "three"})
    config = tiny_config(family)
    with pytest.raises(ValueError, match="attention"):
        config.attention = 3


@families
def test_a_config_survives_json(family, tmp_path):
    config = tiny_config(family, id2label=dict(enumerate("abcde")))
    assert config.label2id == {letter: index for index, letter in enumerate("abcde")}
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert {**again.to_dict(), "_name_or_path": ""} == {**config.to_dict(), "_name_or_path": ""}


@families
def test_a_new_number_of_labels_replaces_the_head(family, tmp_path):
    model = tiny_model(family, CLASSIFIERS[family], id2label=dict(enumerate("abcde")))
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, num_labels=7, ignore_mismatched_sizes=True)
    assert again(**inputs(model)).logits.shape == (3, 7)
    assert len(again.config.id2label) == len(again.config.label2id) == 7
    names = AutoConfig.from_pretrained(tmp_path, id2label={0: "x", 1: "y"})
    assert names.num_labels == 2 and names.label2id == {"x": 0, "y": 1}
    assert AutoConfig.from_pretrained(tmp_path).id2label == dict(enumerate("abcde"))
    with pytest.raises(ValueError, match="num_labels=3, but id2label names 2 labels"):
        AutoConfig.from_pretrained(tmp_path, num_labels=3, id2label={0: "x", 1: "y"})


@families
@pytest.mark.parametrize(
    ("problem", "labels"),
    [
        ("single_label_classification", torch.tensor([0, 1, 2])),
        ("multi_label_classification", torch.ones(3, 5)),
        ("regression", torch.ones(3, 5)),
    ],
)
def test_problem_types(family, problem, labels):
    model = tiny_model(family, CLASSIFIERS[family], problem_type=problem)
    assert torch.isfinite(model(**inputs(model), labels=labels).loss)


def garbled(cls, config):
    """A model as `from_pretrained` makes it before anything is loaded: every tensor is there, none has a value."""
    with torch.device("meta"):
        model = cls(config)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for x in (*model.parameters(), *model.buffers()):
            x.fill_(torch.nan if x.is_floating_point() else 77)
    for module in model.modules():
        module.__dict__.pop("_is_hf_initialized", None)
    return model


@heads
def test_initialisation_reaches_every_tensor(head):
    model = tiny_model(*head)
    other = garbled(type(model), model.config)
    other.init_weights()
    for name, p in other.named_parameters():
        assert torch.isfinite(p).all(), name
    buffers = dict(model.named_buffers())
    for name, buffer in other.named_buffers():
        assert torch.equal(buffer, buffers[name]), name


@pytest.mark.parametrize("attention", list_attentions())
def test_initialisation_reaches_every_mechanism(attention):
    fields = {"attention": attention, "use_cls_token": attention not in list_attentions(needs_grid=True)}
    model = tiny_model("kerformer_vit", **fields)
    other = garbled(type(model), model.config)
    torch.manual_seed(0)
    other.init_weights()
    reference = model.state_dict()
    for name, x in other.state_dict().items():
        assert torch.isfinite(x).all(), name
        spread = reference[name].float().std(unbiased=False)
        assert torch.isclose(x.float().std(unbiased=False), spread, rtol=0.5, atol=1e-3), name


@pytest.mark.parametrize("attention", ["softmax", "kerformer", "performer", "probabilistic"])
def test_gradients_flow_through_what_is_returned(attention):
    model = tiny_model("kerformer_vit", "AutoModelForImageClassification", attention=attention)
    output = model(**inputs(model), output_hidden_states=True, output_attentions=True)
    returned = [*output.hidden_states, *output.attentions]
    for x in returned[:-1]:
        x.retain_grad()
    output.logits.sum().backward()
    assert all(x.grad is not None for x in (output.hidden_states[0], output.attentions[0]))
